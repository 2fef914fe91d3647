"""What ``inspect`` prints of a slot, a journal entry, a mark, a configuration: each as fields."""

from __future__ import annotations

from typing import Any

from ..wheel.entry import Kind
from ..wheel.mark import Marks
from ..wheel.payloads import decode_config, decode_rows
from ..wheel.scan import Located
from ..wheel.schema import times
from ..wheel.slotfile import path_of
from ..wheel.state import SlotInfo
from .printing import Fields


def slot_fields(second: int, info: SlotInfo) -> Fields:
    return {
        "path": path_of(second),
        "second_ms": second * 1000,
        "length": info.length,
        "rows": info.rows,
        "cancels": info.cancels,
        "highest": info.highest,
        "crc": f"{info.crc:08x}",
    }


def entry_fields(path: str, located: Located) -> Fields:
    entry = located.entry
    fields: Fields = {
        "path": path,
        "position": located.position,
        "index": entry.index,
        "epoch": entry.epoch,
        "kind": entry.kind.name.lower(),
        "durable": located.durable,
        "base_offset": entry.base_offset,
        "bytes": len(entry.payload),
    }
    if entry.kind is Kind.ROWS:
        due = times(decode_rows(entry, path), "due")
        fields |= {"count": entry.count}
        if entry.producer:
            fields |= {"producer": entry.producer, "sequence": entry.sequence}
        if len(due):
            fields |= {"due_from_ms": int(due.min()), "due_to_ms": int(due.max())}
    elif entry.kind is Kind.MARK:
        fields |= marks_fields(Marks.decode(bytes(entry.payload), path))
    else:
        fields |= {"config": public(decode_config(entry, path))}
    return fields


def marks_fields(marks: Marks) -> Fields:
    fields: Fields = {
        "c_ms": marks.main.c,
        "r": marks.main.r,
        "L": marks.main.L,
        "covered": marks.covered,
        "delivered": marks.delivered,
        "dead": marks.dead,
    }
    if marks.copies:
        fields["held_topics"] = {
            topic: {"c_ms": copy.mark.c, "r": copy.mark.r, "L": copy.mark.L, "behind": copy.behind}
            for topic, copy in marks.copies.items()
        }
    return fields


def public(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the key that makes ids hard to guess."""
    return {name: "(hidden)" if name == "key" else value for name, value in config.items()}

"""The fields that are printed of a message, a record of a file, a mark; for text and for JSON.

Bytes that are UTF-8 are text; others are base64, under another name (``value_base64``). Null stays
null, so that it differs from empty. Times are milliseconds since the epoch (``due_ms``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..delivery.embedded.topicfile import IndexRecord
from ..reading.topicreader import ids
from ..wheel.journal.entry import EntryKind
from ..wheel.journal.payloads import decode_config, decode_rows
from ..wheel.journal.scan import LocatedEntry
from ..wheel.mark import Marks
from ..wheel.schema import times
from ..wheel.slots.slotfile import path_of
from ..wheel.state import SlotInfo

Fields = dict[str, Any]


def content(name: str, value: bytes | None) -> Fields:
    """A binary value as fields: ``{name: text}`` or ``{name_base64: text}``."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def message_fields(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Partition, key, value and headers of each row of a slot file, a journal or a topic."""
    names = ("partition", "key", "value", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    for partition, key, value, headers in zip(*columns, strict=True):
        yield {
            **({} if partition is None else {"partition": partition}),
            **content("key", key),
            **content("value", value),
            "headers": [{"key": one["key"], **content("value", one["value"])} for one in headers],
        }


def row_fields(batch: pa.RecordBatch, base_offset: int | None = None) -> Iterator[Fields]:
    """Each row of a slot file; of a journal entry (no offset column) with its ``base_offset``."""
    if base_offset is None:
        offsets: Sequence[int] = times(batch, "offset").tolist()
    else:
        offsets = range(base_offset, base_offset + batch.num_rows)
    columns = (
        times(batch, "due").tolist(),
        times(batch, "created").tolist(),
        batch.column("cancels").to_pylist(),
        batch.column("topic").to_pylist(),
    )
    rows = zip(offsets, *columns, message_fields(batch), strict=True)
    for offset, due, created, cancels, topic, message in rows:
        fields = {"offset": offset, "due_ms": due, "created_ms": created}
        if cancels is not None:
            yield {**fields, "cancels": cancels}
        else:
            yield {**fields, "topic": topic, **message}


def delivered_fields(
    position: int,
    message_id: str | None,
    due_ms: int | None,
    created_ms: int | None,
    delivered_ms: int | None,
    message: Fields,
) -> Fields:
    """A message in a topic. Null: not known, as in a record that is not slotwheel's."""
    lateness_ms = None
    if due_ms is not None and created_ms is not None and delivered_ms is not None:
        lateness_ms = delivered_ms - max(due_ms, created_ms)
    return {
        "position": position,
        "id": message_id,
        "due_ms": due_ms,
        "created_ms": created_ms,
        "delivered_ms": delivered_ms,
        "lateness_ms": lateness_ms,
        **message,
    }


def topic_fields(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Each row of an embedded topic."""
    names = ("due", "created", "delivered")
    columns = (ids(batch), *(times(batch, name).tolist() for name in names))
    for row in zip(times(batch, "position").tolist(), *columns, message_fields(batch), strict=True):
        yield delivered_fields(*row)


def block_fields(path: str, block: IndexRecord) -> Fields:
    return {
        "path": path,
        "block": block.position,
        "rows": block.rows,
        "end": block.end,
        "crc": f"{block.crc:08x}",
        "delivered_ms": block.delivered_ms,
    }


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


def entry_fields(path: str, located: LocatedEntry) -> Fields:
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
    if entry.kind is EntryKind.ROWS:
        due = times(decode_rows(entry, path), "due")
        fields |= {"count": entry.count}
        if entry.producer:
            fields |= {"producer": entry.producer, "sequence": entry.sequence}
        if len(due):
            fields |= {"due_from_ms": int(due.min()), "due_to_ms": int(due.max())}
    elif entry.kind is EntryKind.MARK:
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
        "expired": marks.expired,
    }
    if marks.copies:
        fields["held_topics"] = {
            topic: {"c_ms": copy.mark.c, "r": copy.mark.r, "L": copy.mark.L, "behind": copy.behind}
            for topic, copy in marks.copies.items()
        }
    return fields


def public(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the key with which ids are made."""
    return {name: "(hidden)" if name == "key" else value for name, value in config.items()}

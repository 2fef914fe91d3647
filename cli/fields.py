"""The fields that are printed of a message, a record of a file or a mark, as text and as JSON.

How content is written: ``reading/messagefields.py``. Times are milliseconds since the epoch
(``due_ms``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..policy.headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from ..reading.messagefields import Fields, message_fields
from ..reading.topicreader import ids
from ..wheel.answers import NamedAnswer
from ..wheel.checks import is_time
from ..wheel.journal.entry import ENTRY_VERSION, EntryKind, NoteKind
from ..wheel.journal.payloads import decode_config, decode_rows
from ..wheel.journal.queued import named_in
from ..wheel.journal.scan import LocatedEntry
from ..wheel.mark import Marks
from ..wheel.named.runs import HeldNames, NameRunInfo
from ..wheel.schedules import SchedulePut, decode_changes
from ..wheel.schema import times
from ..wheel.slots.slot import begins_ms, path_of, width_s
from ..wheel.state import SlotInfo
from ..wheel.topics.topicfile import IndexRecord

_OWN_HEADERS = [ID_HEADER, DUE_HEADER, CREATED_HEADER]


def row_fields(batch: pa.RecordBatch, base_offset: int | None = None) -> Iterator[Fields]:
    """Each row of a slot file, or of a journal entry (no offset column), which begins with
    ``base_offset``."""
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
    """A message in a topic. None: not known, as in a record that is not slotwheel's."""
    lateness_ms = None
    if due_ms is not None and created_ms is not None and delivered_ms is not None:
        begin_ms = max(due_ms, created_ms)
        if is_time(delivered_ms) and is_time(begin_ms):
            lateness_ms = delivered_ms - begin_ms
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


def record_fields(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Each record of Kafka, schema ``DUMP``; without our headers, id and times are null."""
    names = ["partition" if name == "record_partition" else name for name in batch.schema.names]
    columns = zip(
        batch.column("position").to_pylist(),
        batch.column("delivered").cast(pa.int64()).to_pylist(),
        message_fields(pa.RecordBatch.from_arrays(batch.columns, names)),
        strict=True,
    )
    for position, delivered_ms, message in columns:
        id_, due_ms, created_ms = _take_own_headers(message["headers"])
        yield delivered_fields(position, id_, due_ms, created_ms, delivered_ms, message)


def _take_own_headers(headers: list[Fields]) -> tuple[str | None, int | None, int | None]:
    """Remove id, due and created from a record's headers, and return them; nulls if it has none."""
    last = headers[-3:]
    if [header["key"] for header in last] != _OWN_HEADERS:
        return None, None, None
    id_, due, created = (header.get("value") for header in last)
    try:
        values = str(id_), int(str(due)), int(str(created))
    except ValueError:
        return None, None, None
    del headers[-3:]
    return values


def block_fields(path: str, block: IndexRecord) -> Fields:
    return {
        "path": path,
        "block": block.position,
        "rows": block.rows,
        "end": block.end,
        "crc": f"{block.crc:08x}",
        "delivered_ms": block.delivered_ms,
    }


def slot_fields(slot: int, info: SlotInfo) -> Fields:
    """A record of the catalog. ``second_ms``: when its first messages may be due; ``seconds``: for
    how long from then on."""
    return {
        "path": path_of(slot),
        "second_ms": begins_ms(slot),
        "seconds": width_s(slot),
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
        if entry.version != ENTRY_VERSION:
            fields |= {"parts": [part._asdict() for part in entry.parts]}
        if NoteKind.NAMES in entry.notes:
            fields |= {"named": [before_fields(answer) for answer in named_in(entry.notes)]}
        if len(due):
            fields |= {"due_from_ms": int(due.min()), "due_to_ms": int(due.max())}
    elif entry.kind is EntryKind.MARK:
        fields |= marks_fields(Marks.decode(bytes(entry.payload), path))
    elif entry.kind is EntryKind.SCHEDULES:
        changes = decode_changes(entry.payload, path)
        fields |= {
            "schedules": [
                {"put" if isinstance(change, SchedulePut) else "delete": change.name}
                for change in changes
            ]
        }
    else:
        fields |= {"config": public(decode_config(entry, path))}
    return fields


def before_fields(answer: NamedAnswer) -> Fields:
    """What became of the message that had the name of a row. ``row``: its position among the rows
    of its entry; ``due_ms``, ``offset``: of that message."""
    return {
        "row": answer.row,
        "before": answer.before.value,
        "due_ms": answer.due,
        "offset": answer.offset,
    }


def run_fields(info: NameRunInfo) -> Fields:
    """A run of names, as the state has it. ``crcs``: of the keys' first and second halves, of due
    times, offsets, and cancelled offsets."""
    return {
        "path": info.path,
        "length": info.length,
        "names": info.names,
        "cancelled": info.cancelled,
        "crcs": [f"{crc:08x}" for crc in info.crcs],
    }


def held_fields(held: HeldNames) -> Iterator[Fields]:
    """Each name of a run: its key as hex, and the due time and offset of the message that has
    it."""
    for first, second, due, offset in zip(*(part.tolist() for part in held.columns()), strict=True):
        yield {"key": f"{first:016x}{second:016x}", "due_ms": due, "offset": offset}


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
    """A configuration without the secret key by which ids are checked."""
    return {name: "(hidden)" if name == "key" else value for name, value in config.items()}

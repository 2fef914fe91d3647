"""Makes trace events of what clients and consumers have, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..client.batch import Columns, Shipment
from ..policy.failure import attempt_of
from ..policy.headers import ATTEMPT, ERROR_CHARACTERS, ID_HEADER, ORIGIN_ID
from ..wheel.checks import REDELIVERED_ID_HEADER
from ..wheel.errors import InvalidMessage, SlotwheelError
from ..wheel.ids import ID_FORM
from ..wheel.protocol import StoredBatch
from ..wheel.rows import Header, from_columns, from_numpy
from ..wheel.schema import TIME, Int64s, Mask
from .events import EVENT, ID, EventKind

TRACEPARENT = "traceparent"
"""W3C Trace Context: passed on as it is."""
TAG = "tag"
"""The header of a message by which its people look for it."""
_FIRST = {kind: 1 for kind in EventKind if kind is not EventKind.COMMITTED}
"""The attempt of what no attempt was before; none of what is not about one message."""
_READ = frozenset(
    {ID_HEADER, ORIGIN_ID, REDELIVERED_ID_HEADER, TRACEPARENT, TAG, ATTEMPT},
)


@dataclass(frozen=True, slots=True)
class ShipmentEvents:
    """``produced`` of each row of a shipment that is done."""

    shipment: Shipment
    rows: pa.RecordBatch | Columns
    """What was sent: schema ``INPUT``, or its columns."""
    kept: Int64s | None
    """The number of each row among those of the caller; None: all of them are there."""
    at_ms: int
    """When it was handed to the client."""
    took_us: int

    @property
    def count(self) -> int:
        """How many events it becomes."""
        rows = self.rows
        return rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows[0])

    def make(self) -> pa.RecordBatch:
        rows = self.rows
        if not isinstance(rows, pa.RecordBatch):
            due, topics, partitions, keys, _, headers = rows
            rows = from_columns(due, topics, partitions, keys, [None] * len(due), headers)
        texts = {
            name: _texts_of(rows.column("headers"), name)
            for name in (ORIGIN_ID, REDELIVERED_ID_HEADER, TRACEPARENT, TAG)
        }
        ids, errors = self._outcomes(rows.num_rows)
        return _events(
            rows.num_rows,
            at=from_numpy(np.full(rows.num_rows, self.at_ms, np.int64), TIME),
            kind=pa.repeat(EventKind.PRODUCED.value, rows.num_rows),
            took_us=pa.repeat(self.took_us, rows.num_rows),
            id=ids,
            origin=_ids_of(_first_of(texts[ORIGIN_ID], texts[REDELIVERED_ID_HEADER])),
            traceparent=_utf8(texts[TRACEPARENT]),
            tag=_utf8(texts[TAG]),
            topic=rows.column("topic"),
            partition=rows.column("partition"),
            key=rows.column("key"),
            error=errors,
        )

    def _outcomes(self, count: int) -> tuple[pa.Array | None, pa.Array | None]:
        """The id of each row that is stored, and the error of each that is not."""
        shipment = self.shipment
        if shipment.failure is not None:
            return None, pa.repeat(_cut(shipment.failure), count)
        numbers, stored = stored_rows(shipment, self.kept, count)
        ids, errors = None, None
        if not stored.all():
            found = [
                None if there else _cut(shipment.error(0 if shipment.copies else number))
                for there, number in zip(stored.tolist(), numbers.tolist(), strict=True)
            ]
            errors = _utf8(found)
        if shipment.stored is not None and stored.any():
            due, at, offset = places(shipment, shipment.stored, numbers, stored)
            checks = shipment.stored.checks[np.maximum(at, 0)]
            ids = _ids(pa.repeat(shipment.group, count), due, offset, checks, ~stored)
        return ids, errors


def stored_rows(shipment: Shipment, kept: Int64s | None, count: int) -> tuple[Int64s, Mask]:
    """Of each of ``count`` rows that were to be sent: its number among those of the caller, and
    whether it is stored; of a shipment that has not failed."""
    numbers = np.arange(count) if kept is None else kept
    stored: Mask = np.ones(count, np.bool_)
    if shipment.copies:
        stored[:] = not shipment.errors
    elif shipment.kept is not None:
        stored = np.isin(numbers, shipment.kept)
    return numbers, stored


def places(
    shipment: Shipment, batch: StoredBatch, numbers: Int64s, stored: Mask
) -> tuple[Int64s, Int64s, Int64s]:
    """Due time, place in the batch, and offset of each row; of one that is not stored, anything."""
    due = np.asarray(shipment.due, np.int64)
    due = np.repeat(due, len(numbers)) if shipment.copies else due[numbers]
    at = np.cumsum(stored) - 1
    return due, at, batch.base_offset + at


class TracedRecord(NamedTuple):
    """A record as a consumer or a producer has it, without its value; None: not known yet."""

    topic: str
    partition: int | None
    offset: int | None
    key: bytes | None
    headers: Sequence[Header]


@dataclass(slots=True, eq=False)
class RecordEvents:
    """One event of each of these records. ``took_us``: of each."""

    kind: EventKind
    at_ms: int
    """When it ended; an event has when it began."""
    group: str | None
    records: Sequence[TracedRecord]
    took_us: Sequence[int] | None = None
    error: str | None = None

    @property
    def count(self) -> int:
        """How many events it becomes."""
        return len(self.records)


def make_records(noted: Sequence[RecordEvents]) -> pa.RecordBatch:
    """Many at once: columns of a few rows cost as much as columns of a thousand."""
    rows = [
        (one.kind, one.at_ms, one.group, one.error, *record)
        for one in noted
        for record in one.records
    ]
    kinds, ended_ms, groups, errors, topics, partitions, offsets, keys, headers = zip(
        *rows, strict=True
    )
    took_us: list[int | None] = []
    for one in noted:
        took_us += one.took_us or [None] * len(one.records)
    began_ms = [at - (took or 0) // 1000 for at, took in zip(ended_ms, took_us, strict=True)]
    found = [_read(each) for each in headers]
    attempts = [
        _attempt(each) if ATTEMPT in read else _FIRST.get(kind)
        for kind, each, read in zip(kinds, headers, found, strict=True)
    ]
    return _events(
        len(rows),
        at=pa.array(began_ms, pa.int64()).cast(TIME),
        kind=pa.array(kinds, pa.utf8()),
        took_us=pa.array(took_us, pa.int64()),
        id=_ids_of([each.get(ID_HEADER) for each in found]),
        origin=_ids_of(
            _first_of(
                *([each.get(name) for each in found] for name in (ORIGIN_ID, REDELIVERED_ID_HEADER))
            )
        ),
        traceparent=_utf8([each.get(TRACEPARENT) for each in found]),
        tag=_utf8([each.get(TAG) for each in found]),
        topic=_utf8(topics),
        partition=pa.array(partitions, pa.int32()),
        offset=pa.array(offsets, pa.int64()),
        key=pa.array(keys, pa.binary()),
        group=_utf8(groups),
        attempt=pa.array(attempts, pa.int32()),
        error=_utf8(errors),
    )


def make_dropped(at_ms: int, count: int) -> pa.RecordBatch:
    """The event that says how many events before it are missing."""
    row = {"number": 0, "at": at_ms, "kind": EventKind.DROPPED, "count": count}
    return pa.RecordBatch.from_pylist([row], schema=EVENT)


def _events(count: int, **columns: pa.Array | None) -> pa.RecordBatch:
    """Events with these columns; all others are empty, and the numbers zero."""
    columns["number"] = from_numpy(np.zeros(count, np.int64), pa.int64())
    arrays = []
    for field in EVENT:
        column = columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if column is None else column)
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT)


def _utf8(values: Iterable[str | None] | None) -> pa.Array | None:
    return None if values is None else pa.array(values, pa.utf8())


def _ids(group: pa.Array, due: Any, offset: Any, check: Any, absent: Mask) -> pa.Array:
    parts = [
        group,
        from_numpy(due, TIME),
        from_numpy(offset, pa.int64()),
        from_numpy(check, pa.uint32()),
    ]
    mask = pa.array(absent) if absent.any() else None
    return pa.StructArray.from_arrays(parts, fields=list(ID), mask=mask)


def _ids_of(texts: Sequence[str | None]) -> pa.Array | None:
    """Ids from their texts; what has not the form of one is none."""
    if not any(texts):  # most have no origin
        return None
    found = pc.extract_regex(pa.array(texts, pa.utf8()), ID_FORM)
    absent = np.asarray(found.is_null())
    group, due, offset, check = (pc.fill_null(part, "0") for part in found.flatten())
    checks = np.array([int(one, 16) for one in check.to_pylist()], np.uint32)
    due, offset = (np.asarray(part.cast(pa.int64())) for part in (due, offset))
    return _ids(group, due, offset, checks, absent)


def _texts_of(headers: pa.Array, name: str) -> list[str | None] | None:
    """The first header of that name in each row, as text; None: no row has one."""
    flat = headers.flatten()
    named = pc.equal(flat.field(0), name)
    if not pc.any(named).as_py():
        return None
    found: list[str | None] = [None] * len(headers)
    rows = pc.list_parent_indices(headers).filter(named).to_pylist()
    values = flat.field(1).filter(named).to_pylist()
    for row, value in zip(reversed(rows), reversed(values), strict=True):
        found[row] = _shown(value)
    return found


def _first_of(
    texts: Sequence[str | None] | None, others: Sequence[str | None] | None
) -> Sequence[str | None]:
    """Of each row the text of ``texts``, or else that of ``others``; None: these have none."""
    if texts is None or others is None:
        return texts or others or ()
    return [one or other for one, other in zip(texts, others, strict=True)]


def _read(headers: Sequence[Header]) -> dict[str, str | None]:
    """The first of each of the headers that an event has, as text."""
    found: dict[str, str | None] = {}
    for name, value in headers:
        if name in _READ and name not in found:
            found[name] = _shown(value)
    return found


def _shown(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value[:ERROR_CHARACTERS].decode("utf-8", "backslashreplace")


def _attempt(headers: Sequence[Header]) -> int | None:
    try:
        return attempt_of(headers)
    except InvalidMessage:
        return None


def _cut(error: SlotwheelError | None) -> str:
    return str(error)[:ERROR_CHARACTERS]

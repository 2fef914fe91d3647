"""Makes trace events of what clients and consumers have, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..client.batch import Shipment
from ..policy.failure import attempt_of
from ..policy.headers import ERROR_CHARACTERS, ID_HEADER, ORIGIN_ID
from ..wheel.errors import InvalidMessage, SlotwheelError
from ..wheel.ids import id_texts
from ..wheel.rows import Header, from_columns, from_numpy
from ..wheel.schema import TIME, Int64s
from .events import EVENT, EventKind

TRACEPARENT = "traceparent"
"""W3C Trace Context: passed on as it is."""
TAG = "tag"
"""The header of a message by which its people look for it."""


class ShipmentEvents(NamedTuple):
    """A shipment that is done. ``rows``: what was sent (schema ``INPUT``), or its columns."""

    shipment: Shipment
    rows: pa.RecordBatch | tuple[list[Any], ...]
    kept: Int64s | None
    """The number of each row among those of the caller; None: all of them are there."""
    at_ms: int
    """When it was handed to the client."""
    took_us: int

    def make(self) -> pa.RecordBatch:
        """``produced`` of each row."""
        rows = self.rows if isinstance(self.rows, pa.RecordBatch) else from_columns(*self.rows)
        headers = rows.column("headers")
        ids, errors = self._outcomes(rows.num_rows)
        return _events(
            EventKind.PRODUCED,
            self.at_ms,
            rows.num_rows,
            took_us=pa.repeat(self.took_us, rows.num_rows),
            id=ids,
            origin=_texts_of(headers, ORIGIN_ID),
            traceparent=_texts_of(headers, TRACEPARENT),
            tag=_texts_of(headers, TAG),
            topic=rows.column("topic"),
            partition=rows.column("partition"),
            key=rows.column("key"),
            error=errors,
        )

    def _outcomes(self, count: int) -> tuple[pa.Array, pa.Array]:
        """The id of each row that is stored, and the error of each that is not."""
        shipment, none = self.shipment, pa.nulls(count, pa.utf8())
        numbers = np.arange(count) if self.kept is None else self.kept
        if shipment.failure is not None:
            return none, pa.repeat(_cut(shipment.failure), count)
        stored = np.ones(count, np.bool_)
        if shipment.copies:
            stored[:] = not shipment.errors
        elif shipment.kept is not None:
            stored = np.isin(numbers, shipment.kept)
        ids, errors = none, none
        if not stored.all():
            found = [
                None if there else _cut(shipment.error(0 if shipment.copies else number))
                for there, number in zip(stored.tolist(), numbers.tolist(), strict=True)
            ]
            errors = pa.array(found, pa.utf8())
        if shipment.stored is not None and stored.any():
            due = np.asarray(shipment.due, np.int64)
            due = np.repeat(due, count) if shipment.copies else due[numbers]
            offsets = shipment.stored.base_offset + np.arange(int(stored.sum()))
            texts = id_texts(shipment.group, due[stored], offsets, shipment.stored.checks)
            ids = pc.replace_with_mask(none, pa.array(stored), texts)
        return ids, errors


class TracedRecord(NamedTuple):
    """A record as a consumer or a producer has it, without its value; None: not known yet."""

    topic: str
    partition: int | None
    offset: int | None
    key: bytes | None
    headers: Sequence[Header]


def make_seen(
    kind: EventKind,
    at_ms: int,
    group: str | None,
    records: Sequence[TracedRecord],
    took_us: Sequence[int | None] | None = None,
    error: str | None = None,
) -> pa.RecordBatch:
    """Events of records of a consumer group. ``took_us``: of each."""
    topics, partitions, offsets, keys, headers = zip(*records, strict=True)
    count = len(records)
    ids, origins, parents, tags = (
        pa.array([_text(each, name) for each in headers], pa.utf8())
        for name in (ID_HEADER, ORIGIN_ID, TRACEPARENT, TAG)
    )
    return _events(
        kind,
        at_ms,
        count,
        took_us=None if took_us is None else pa.array(took_us, pa.int64()),
        id=ids,
        origin=origins,
        traceparent=parents,
        tag=tags,
        topic=pa.array(topics, pa.utf8()),
        partition=pa.array(partitions, pa.int32()),
        offset=pa.array(offsets, pa.int64()),
        key=pa.array(keys, pa.binary()),
        group=None if group is None else pa.repeat(group, count),
        attempt=pa.array([_attempt(each) for each in headers], pa.int32()),
        error=None if error is None else pa.repeat(error[:ERROR_CHARACTERS], count),
    )


def make_committed(
    at_ms: int, group: str, positions: Sequence[tuple[str, int, int]]
) -> pa.RecordBatch:
    """``committed`` of each partition: topic, partition, position."""
    topics, partitions, offsets = zip(*positions, strict=True)
    return _events(
        EventKind.COMMITTED,
        at_ms,
        len(positions),
        topic=pa.array(topics, pa.utf8()),
        partition=pa.array(partitions, pa.int32()),
        offset=pa.array(offsets, pa.int64()),
        group=pa.repeat(group, len(positions)),
    )


def _events(kind: EventKind, at_ms: int, count: int, **columns: pa.Array | None) -> pa.RecordBatch:
    """Events with these columns; all others are empty, and the numbers zero."""
    given: dict[str, pa.Array | None] = {
        **columns,
        "number": from_numpy(np.zeros(count, np.int64), pa.int64()),
        "at": from_numpy(np.full(count, at_ms, np.int64), TIME),
        "kind": pa.repeat(kind.value, count),
    }
    arrays = []
    for field in EVENT:
        column = given.get(field.name)
        arrays.append(pa.nulls(count, field.type) if column is None else column)
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT)


def _texts_of(headers: pa.Array, name: str) -> pa.Array:
    """The first header of that name in each row, as text; shape (rows,)."""
    found: list[str | None] = [None] * len(headers)
    flat = headers.flatten()
    named = pc.equal(flat.field(0), name)
    if not pc.any(named).as_py():
        return pa.nulls(len(headers), pa.utf8())
    rows = pc.list_parent_indices(headers).filter(named).to_pylist()
    values = flat.field(1).filter(named).to_pylist()
    for row, value in zip(reversed(rows), reversed(values), strict=True):
        found[row] = _shown(value)
    return pa.array(found, pa.utf8())


def _text(headers: Sequence[Header], name: str) -> str | None:
    for key, value in headers:
        if key == name:
            return _shown(value)
    return None


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

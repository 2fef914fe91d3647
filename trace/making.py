"""Makes trace events of shipments and records, column by column: a value that all events share,
such as the topic, is kept once."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..client.batch import Columns, Shipment
from ..client.message import clock_ms
from ..policy.deadletters import REASON
from ..policy.failure import attempt_of
from ..policy.headers import ATTEMPT, ERROR_CHARACTERS, ID_HEADER, ORIGIN_ID, cut
from ..wheel.checks import REDELIVERED_ID_HEADER
from ..wheel.errors import SlotwheelError
from ..wheel.ids import id_parts
from ..wheel.protocol import StoredBatch
from ..wheel.rows import Header, from_numpy
from ..wheel.schema import TIME, Int64s, Mask
from .batches import EventColumns, together
from .events import EVENT, EventKind

TRACEPARENT = "traceparent"
"""W3C Trace Context: passed on as it is."""
TAG = "tag"
"""A header whose value events can be searched by."""
_TIMED = [EventKind.PRODUCED.value, EventKind.RECEIVED.value, EventKind.PROCESSED.value]
"""Kinds of events that have ``took_us``."""
_SENT = (ORIGIN_ID, REDELIVERED_ID_HEADER, TRACEPARENT, TAG)
_DELIVERED = (ID_HEADER, ATTEMPT, REASON, *_SENT)
"""The headers that are read: of a message that a client sends, and of a record."""
_OF_ROWS = ("kind", "group", "error", "topic", "partition", "offset")
"""Columns whose values a ``RecordRow`` has as they are."""


@dataclass(frozen=True, slots=True)
class ShipmentEvents:
    """An event ``produced`` for each row of a finished shipment."""

    shipment: Shipment
    rows: pa.RecordBatch | Columns
    """The rows that were sent: schema ``INPUT``, or its columns."""
    kept: Int64s | None
    """The number of each row among the caller's; None: all of these were sent."""
    at_ms: int
    """When the caller handed it to the client."""
    took_us: int

    @property
    def size(self) -> int:
        rows = self.rows
        return rows.num_rows if isinstance(rows, pa.RecordBatch) else len(rows[0])

    def make(self) -> EventColumns:
        rows = self.rows
        columns: dict[str, Any]
        if isinstance(rows, pa.RecordBatch):
            columns = {name: rows.column(name) for name in ("partition", "key")}
            topics = rows.column("topic")
            columns["topic"] = topics[0].as_py() if _is_once(topics) else topics
            values = {name: _values_of(rows.column("headers"), name) for name in _SENT}
        else:
            _, topics, partitions, keys, _, headers = rows
            columns = {
                "topic": _once(topics, pa.utf8()),
                "partition": pa.array(partitions, pa.int32()),
                "key": pa.array(keys, pa.binary()),
            }
            values = _read(headers, _SENT)
        columns |= {"at": self.at_ms, "kind": EventKind.PRODUCED.value, "took_us": self.took_us}
        columns |= _columns_of(values) | self._outcomes(self.size)
        return _events(self.size, columns)

    def _outcomes(self, count: int) -> dict[str, Any]:
        shipment = self.shipment
        if shipment.failure is not None:
            return {"error": _cut(shipment.failure)}
        numbers, stored = stored_rows(shipment, self.kept, count)
        columns: dict[str, Any] = {}
        if not stored.all():
            errors = [
                None if is_stored else _cut(shipment.error(0 if shipment.copies else number))
                for is_stored, number in zip(stored.tolist(), numbers.tolist(), strict=True)
            ]
            columns["error"] = pa.array(errors, pa.utf8())
        if shipment.stored is not None and stored.any():
            due, at, offset = places(shipment, shipment.stored, numbers, stored)
            columns |= {
                "id.group": shipment.group,
                "id.due": from_numpy(due, TIME),
                "id.offset": shipment.stored.base_offset,
                "id.check": from_numpy(shipment.stored.checks[np.maximum(at, 0)], pa.uint64()),
            }
            if not stored.all():
                columns["id.offset"] = from_numpy(offset, pa.int64())
                mask = pa.array(stored.tolist(), pa.bool_())
                parts = EventColumns(count, columns)
                for name in ("id.group", "id.due", "id.offset", "id.check"):
                    part = parts.column(name)
                    columns[name] = pc.if_else(mask, part, pa.scalar(None, part.type))
        return columns


def stored_rows(shipment: Shipment, kept: Int64s | None, count: int) -> tuple[Int64s, Mask]:
    """The number of each row among the caller's, and a mask of those that are stored, of a shipment
    that has not failed. Shape (count,) each."""
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
    """Due time, ms, place in the batch and offset of each row; the latter two have no meaning for a
    row that is not stored."""
    due = np.asarray(shipment.due, np.int64)
    due = np.repeat(due, len(numbers)) if shipment.copies else due[numbers]
    at = np.cumsum(stored) - 1
    return due, at, batch.base_offset + at


class Record(Protocol):
    """A record as a consumer or a producer has it; None: not known. ``received_s``: when it got it,
    by the monotonic clock."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...
    @property
    def received_s(self) -> float: ...


class TracedRecord(NamedTuple):
    """A ``Record`` that was copied from a library's own class."""

    topic: str
    partition: int | None
    offset: int | None
    key: bytes | None
    headers: Sequence[Header]
    received_s: float


RecordRow = tuple[
    EventKind,
    str | None,
    str | None,
    float,
    str,
    int | None,
    int | None,
    bytes | None,
    Sequence[Header],
    float,
]
"""Kind, group, error, when it ended (s, by the monotonic clock), and the fields of the ``Record``,
which itself would keep the message's value in memory."""


class RecordEvents:
    """Events of records, column by column as they come.

    Theory: columns are made while the records are in the processor's cache, and records are not
    kept. Records that lived until events leave would make the garbage collector look through all of
    the program's objects several times a second: that costs more than all the rest of tracing.
    """

    def __init__(self) -> None:
        self.size = 0
        """The number of events."""
        self._parts: list[EventColumns] = []
        self._ids: list[pa.Array] = []
        """The texts of ids, part by part."""
        self._began, self._ended = array("d"), array("d")
        self._found: dict[str, dict[int, bytes]] = {name: {} for name in _DELIVERED}
        """The first header of each name but the id's, by the number of its row."""

    def add(self, rows: Sequence[RecordRow]) -> None:
        """Add an event of each row, at least one. Errors: any, if a record is malformed; then none
        of them is added."""
        stop = self.size + len(rows)
        kinds, groups, errors, ended, *of_record, keys, headers, began = zip(*rows, strict=True)
        values: dict[str, dict[int, bytes]] = {name: {} for name in _DELIVERED}
        for at, pairs in enumerate(headers, self.size):
            for name, value in pairs:
                if name in values and value is not None:
                    values[name].setdefault(at, value[:ERROR_CHARACTERS])
        ids = list(map(values.pop(ID_HEADER).get, range(self.size, stop)))
        columns = {
            name: _once(values, EVENT.field(name).type)
            for name, values in zip(_OF_ROWS, (kinds, groups, errors, *of_record), strict=True)
        }
        columns["key"], texts = pa.array(keys, pa.binary()), pa.array(ids, pa.binary())
        times = array("d", began), array("d", ended)
        self._parts.append(_events(len(rows), columns))
        self._ids.append(texts)
        self._began += times[0]
        self._ended += times[1]
        for name, of_row in values.items():
            self._found[name] |= of_row
        self.size = stop

    def make(self) -> EventColumns:
        count = self.size
        events = together(self._parts, count)
        columns = dict(events.columns)
        kinds = events.column("kind")
        timed = np.asarray(pc.is_in(kinds, pa.array(_TIMED)))
        began, ended = np.asarray(self._began), np.asarray(self._ended)
        began_ms = np.where(timed, began, ended) * 1000 + (clock_ms() - time.monotonic() * 1000)
        took_us = ((ended - began) * 1e6).astype(np.int64)
        columns |= _ids_of("id", pa.concat_arrays(self._ids))
        columns |= {
            "at": from_numpy(began_ms.astype(np.int64), TIME),
            "took_us": pa.array(took_us, pa.int64(), mask=~timed),
            "attempt": self._attempts(kinds),
        }
        values = {
            name: list(map(of_row.get, range(count))) if of_row else []
            for name, of_row in self._found.items()
        }
        return _events(count, columns | _columns_of(values))

    def _attempts(self, kinds: pa.Array) -> Any:
        """The attempt of each event; null for events about a position."""
        single = pc.not_equal(kinds, EventKind.COMMITTED.value)
        said = self._found[ATTEMPT]
        if not said and single.true_count == self.size:
            return 1
        attempts = pc.if_else(single, 1, None).to_pylist()
        for row, value in said.items():
            attempts[row] = attempt_of([(ATTEMPT, value)])
        for row in self._found[REASON]:
            attempts[row] = attempts[row] and 1  # a copied dead letter
        return pa.array(attempts, pa.int32())


def make_dropped(at_ms: int, count: int) -> EventColumns:
    """An event that says how many before it are missing."""
    return EventColumns(1, {"at": at_ms, "kind": EventKind.DROPPED.value, "count": count})


def _events(count: int, columns: dict[str, Any]) -> EventColumns:
    """Events with these columns, without those that are all null."""
    for name, column in list(columns.items()):
        if column is None or (isinstance(column, pa.Array) and column.null_count == count):
            del columns[name]
    return EventColumns(count, columns)


def _once(values: Sequence[Any], kind: pa.DataType) -> Any:
    """The value that all rows have, or a column of values."""
    if values.count(values[0]) == len(values):
        return pa.scalar(values[0], kind).as_py()
    return pa.array(values, kind)


def _is_once(column: pa.Array) -> bool:
    return column.null_count == 0 and bool(pc.all(pc.equal(column, column[0])).as_py())


def _read(
    headers: Sequence[Sequence[Header]], names: Iterable[str]
) -> dict[str, list[bytes | None]]:
    """The first header of each name in each row, or None."""
    values: dict[str, list[bytes | None]] = {name: [None] * len(headers) for name in names}
    for row, pairs in enumerate(headers):
        for name, value in pairs:
            if name in values and values[name][row] is None and value is not None:
                values[name][row] = value[:ERROR_CHARACTERS]
    return values


def _values_of(headers: pa.Array, name: str) -> list[bytes | None]:
    """The first header of that name in each row; empty: no row has one."""
    flat = headers.flatten()
    if not len(flat):
        return []
    named = pc.equal(flat.field(0), name)
    if not pc.any(named).as_py():
        return []
    firsts: list[bytes | None] = [None] * len(headers)
    rows = pc.list_parent_indices(headers).filter(named).to_pylist()
    values = flat.field(1).filter(named).to_pylist()
    for row, value in zip(reversed(rows), reversed(values), strict=True):
        firsts[row] = value and value[:ERROR_CHARACTERS]
    return firsts


def _columns_of(values: Mapping[str, Sequence[bytes | None]]) -> dict[str, Any]:
    """Columns made of headers. ``values``: by name one entry a row, or none at all."""
    origins = values[ORIGIN_ID]
    if again := values[REDELIVERED_ID_HEADER]:
        origins = (
            [origin or other for origin, other in zip(origins, again, strict=True)]
            if origins
            else again
        )
    columns = _ids_of("origin", pa.array(origins, pa.binary())) if any(origins) else {}
    for name in (TRACEPARENT, TAG):
        if any(values[name]):
            texts = [value and value.decode("utf-8", "backslashreplace") for value in values[name]]
            columns[name] = pa.array(texts, pa.utf8())
    return columns


def _ids_of(name: str, texts: pa.Array) -> dict[str, Any]:
    """The parts of ids from their texts; null where a text is no id."""
    ids = id_parts(texts)
    if ids.null_count == len(ids):
        return {}
    group, due, offset, check = ids.flatten()
    columns = {"group": group, "due": due.cast(TIME), "offset": offset, "check": check}
    if _is_once(group):
        columns["group"] = group[0].as_py()
    return {f"{name}.{part}": column for part, column in columns.items()}


def _cut(error: SlotwheelError | None) -> str:
    return cut(str(error)).decode()

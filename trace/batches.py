"""Batches of events on their way, encoded and decoded.

Rules
- A value that all events of a batch share stands once, in the schema's metadata; a column of nulls
  is left out.
- Offsets, which mostly count up, are sent less the number of their row: lz4 does not compress 7, 8,
  9, but 7, 7, 7.
- What a batch claims is checked before memory is allocated: anybody can write to the topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..wheel.arrowclaims import CLAIM_ERRORS, RECORD_BATCH, SCHEMA, claims
from ..wheel.errors import InvalidMessage, UnsupportedVersion
from ..wheel.rows import from_numpy
from .events import EVENT, ID, TRACE_VERSION, VERSION_KEY, EventSender

BATCH_BYTES_MAX = 512 << 10
"""The largest encoded batch: half of Kafka's default limit of a record."""
DECODED_BYTES_MAX, DECODED_ROWS_MAX = 64 << 20, 1 << 17
"""The largest batch in memory."""
_VALUE_BYTES_MAX = 2 * BATCH_BYTES_MAX
_NAME_CHARACTERS, _TAGS_CHARACTERS = 256, 4096
"""The longest name of a sender, and the longest JSON of its tags."""
_SENDER_KEY = b"slotwheel.trace.sender"
_SAME_CHARACTERS_MAX = 1000
"""The longest text that may stand once for all events: each event has a copy of it in memory."""
_COUNT_KEY, _SAME_KEY = b"slotwheel.trace.count", b"slotwheel.trace.same"
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)

_PARTS = {
    f"{field.name}.{part.name}" if part is not field else field.name: part.type
    for field in EVENT
    for part in (ID if field.type == ID else (field,))
}
"""The columns of a batch on its way: those of ``EVENT``, ids by their parts."""
_CHECKS = frozenset({"id.check", "origin.check"})
_PARTS_OF = {
    "1": _PARTS | dict.fromkeys(_CHECKS, pa.uint32()),
    str(TRACE_VERSION): _PARTS,
}
"""The same by the version of the batch."""
_COUNTED = frozenset({"number", "id.offset"})
_COUNTING = frozenset({"id.offset", "origin.offset", "offset"})


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events on their way. ``columns``: those of ``EVENT``, ids by their parts (``id.due``). Each
    is an array, or one value for all rows; ``number`` and ``id.offset`` count up from it. A missing
    column is null."""

    count: int
    columns: dict[str, Any]

    @classmethod
    def of(cls, events: pa.RecordBatch) -> EventColumns:
        """``events``: schema ``EVENT``."""
        columns: dict[str, Any] = {}
        for name, column in zip(events.schema.names, events.columns, strict=True):
            if column.null_count == len(column):
                continue
            if column.type == ID:
                names = [f"{name}.{part.name}" for part in ID]
                columns |= dict(zip(names, column.flatten(), strict=True))
            else:
                columns[name] = column
        return cls(events.num_rows, columns)

    def rows(self) -> pa.RecordBatch:
        """The events with schema ``EVENT``. Errors: ``ValueError``: nulls where none may be."""
        arrays = [
            self._ids(field.name) if field.type == ID else self.column(field.name)
            for field in EVENT
        ]
        for field, column in zip(EVENT, arrays, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(f"column {field.name} has nulls")
        return pa.RecordBatch.from_arrays(arrays, schema=EVENT)

    def column(self, name: str) -> pa.Array:
        """A column as an array; nulls if it is missing."""
        value, kind = self.columns.get(name), _PARTS[name]
        if isinstance(value, pa.Array):
            return value
        if value is not None and name in _COUNTED:
            return from_numpy(np.arange(value, value + self.count, dtype=np.int64), kind)
        return pa.repeat(pa.scalar(value, kind), self.count)

    def _ids(self, name: str) -> pa.Array:
        parts = [self.column(f"{name}.{part.name}") for part in ID]
        absent = reduce(pc.and_, [part.is_null() for part in parts])
        if any(part.null_count != absent.true_count for part in parts):
            raise ValueError(f"an id in column {name} has nulls")
        mask = absent if absent.true_count else None
        if mask is not None:
            zeros = ("", *(pa.scalar(0, part.type) for part in parts[1:]))
            parts = [pc.fill_null(part, zero) for part, zero in zip(parts, zeros, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(ID), mask=mask)

    def slice(self, start: int, count: int) -> EventColumns:
        count = min(count, self.count - start)
        columns = dict(self.columns)
        for name, column in columns.items():
            if isinstance(column, pa.Array):
                columns[name] = column.slice(start, count)
            elif name in _COUNTED:
                columns[name] = column + start
        return EventColumns(count, columns)


def joined(parts: Iterable[EventColumns], count_max: int) -> Iterator[EventColumns]:
    """Join parts whose numbers follow each other, up to ``count_max`` events. Each has a number."""
    group: list[EventColumns] = []
    count = 0
    for part in parts:
        follows = group and part.columns["number"] == group[0].columns["number"] + count
        if group and not (follows and count + part.count <= count_max):
            yield together(group, count)
            group, count = [], 0
        group.append(part)
        count += part.count
    if group:
        yield together(group, count)


def together(parts: Sequence[EventColumns], count: int) -> EventColumns:
    """The parts one behind the other, ``count`` events in all."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        values = [part.columns.get(name) for part in parts]
        if name == "number":
            columns[name] = values[0]
        elif name not in _COUNTED and all(type(value) in (str, int) for value in values):
            same = all(value == values[0] for value in values)
            columns[name] = values[0] if same else None
        if columns.get(name) is None:
            columns[name] = pa.concat_arrays([part.column(name) for part in parts])
    return EventColumns(count, columns)


def decoded_bytes(events: EventColumns) -> int:
    """Bytes of the events in memory, as ``decode`` counts them."""
    columns = events.columns.values()
    nbytes: int = sum(column.nbytes for column in columns if isinstance(column, pa.Array))
    same = (
        4 * len(column) if isinstance(column, str) else 8
        for column in columns
        if not isinstance(column, pa.Array)
    )
    return nbytes + events.count * sum(same)


def encode(sender: EventSender, events: EventColumns | pa.RecordBatch) -> bytes:
    """The value of a message with these events (rows: schema ``EVENT``): an Arrow IPC stream."""
    if isinstance(events, pa.RecordBatch):
        events = EventColumns.of(events)
    sender_fields = {
        "name": sender.name,
        "client": sender.client,
        "address": sender.address,
        "tags": dict(sender.tags),
    }
    arrays = {
        name: events.column(name)
        for name, column in events.columns.items()
        if isinstance(column, pa.Array)
        or (isinstance(column, str) and len(column) > _SAME_CHARACTERS_MAX)
    }
    same = {name: column for name, column in events.columns.items() if name not in arrays}
    rows = from_numpy(np.arange(events.count), pa.int64())
    arrays |= {name: pc.subtract(arrays[name], rows) for name in _COUNTING & arrays.keys()}
    metadata = {
        **(EVENT.metadata or {}),
        _SENDER_KEY: json.dumps(sender_fields).encode(),
        _COUNT_KEY: b"%d" % events.count,
        _SAME_KEY: json.dumps(same).encode(),
    }
    schema = pa.schema([(name, column.type) for name, column in arrays.items()], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        if arrays:
            writer.write_batch(pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema))
    return bytes(sink.getvalue())


def decode(value: bytes) -> tuple[EventSender, pa.RecordBatch]:
    """The sender and the events (schema ``EVENT``) of a value. Errors: ``InvalidMessage``: it is no
    batch of events, or claims too much; ``UnsupportedVersion``."""
    if len(value) > _VALUE_BYTES_MAX:
        raise InvalidMessage(
            "too large for a batch of trace events",
            got=f"{len(value)} bytes",
            limit=_VALUE_BYTES_MAX,
        )
    try:
        with pa.ipc.open_stream(value) as reader:
            metadata = reader.schema.metadata or {}
            version = metadata.get(VERSION_KEY, b"none").decode("ascii", "replace")
            if version not in _PARTS_OF:
                raise UnsupportedVersion(
                    "trace events of an unknown version",
                    got=version,
                    limit=TRACE_VERSION,
                    remedy="Use the slotwheel version that wrote them, or a newer one",
                )
            _check_claims(value)
            rows = _read(reader, metadata, _PARTS_OF[version]).rows()
            fields = json.loads(metadata[_SENDER_KEY])
            sender = EventSender(
                str(fields["name"]),
                str(fields["client"]),
                str(fields["address"]),
                {str(name): str(tag) for name, tag in dict(fields["tags"]).items()},
            )
            _check_sender(sender)
    except (*CLAIM_ERRORS, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidMessage("no batch of trace events", got=str(error)[:200]) from None
    return sender, rows


def _check_claims(value: bytes) -> None:
    rows = nbytes = 0
    for claim in claims(value):
        if claim.kind not in (SCHEMA, RECORD_BATCH):
            raise ValueError(f"a message of kind {claim.kind}")
        rows += claim.rows
        nbytes += claim.nbytes
        if rows > DECODED_ROWS_MAX or nbytes > DECODED_BYTES_MAX:
            raise ValueError(f"it claims to have {rows} rows, {nbytes} bytes")


def _check_sender(sender: EventSender) -> None:
    tags = json.dumps(dict(sender.tags))
    for text, most in (
        (sender.name, _NAME_CHARACTERS),
        (sender.client, _NAME_CHARACTERS),
        (sender.address, _NAME_CHARACTERS),
        (tags, _TAGS_CHARACTERS),
    ):
        text.encode()  # raises for half of a surrogate pair
        if len(text) > most:
            raise ValueError(f"a sender with {len(text)} characters in one of its names or tags")
    if not sender.name:
        raise ValueError("a sender without a name")


def _read(
    reader: Any, metadata: Mapping[bytes, bytes], kinds: Mapping[str, pa.DataType]
) -> EventColumns:
    """``kinds``: the columns of that version. Errors: ``ValueError``, ``KeyError``, and those of
    Arrow: it is no batch of events."""
    count, same = int(metadata[_COUNT_KEY]), dict(json.loads(metadata[_SAME_KEY]))
    nbytes = 0
    for name, value in same.items():
        if type(value) is not (str if kinds[name] == pa.utf8() else int):
            raise ValueError(f"no value of {name}: {value!r}")
        nbytes += count * (4 * len(value) if isinstance(value, str) else 8)
    if not 0 <= count <= DECODED_ROWS_MAX or nbytes > DECODED_BYTES_MAX:
        raise ValueError(f"it claims to have {count} rows, {nbytes} bytes")
    for column in reader.schema:
        if kinds.get(column.name) != column.type:
            raise ValueError(f"no column of trace events: {column}")
    table = reader.read_all()
    table.validate(full=True)
    if table.num_rows != (count if table.num_columns else 0):
        raise ValueError(f"{table.num_rows} of {count} events")
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    rows = from_numpy(np.arange(count), pa.int64())
    arrays |= {name: pc.add(arrays[name], rows) for name in _COUNTING & arrays.keys()}
    arrays |= {name: arrays[name].cast(_PARTS[name]) for name in _CHECKS & arrays.keys()}
    return EventColumns(count, {**same, **arrays})

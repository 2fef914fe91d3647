"""Batches of a few rows: encoded without Arrow, decoded many at a time.

Theory: a payload is what ``RecordBatch.serialize`` writes. To write one and to read it back takes
four calls into Arrow, which release the interpreter lock eight times. With 64 connections that is
most of what a batch of one row costs: two context switches each time, for microseconds of work. So
for a few rows the payload is put together here, as Arrow would write it, with the lock held; and it
is decoded only when its rows are needed, many payloads by one call.

Rules
- What is not plain (headers, slices, large values) is left to Arrow: ``encode`` gives None for it.
- Arrow's writer is the reference. A message of a fixed schema differs from another one only in
  numbers; where these stand is taken from a message that Arrow wrote. Should a version of it write
  other bytes, ``encode`` leaves everything to it. Only the slack of buffers that are longer than
  their rows is not kept as Arrow keeps some of it.

Source: Arrow columnar format, *Serialization and IPC*; Message.fbs of the Arrow project.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ..files import Bytes
from ..rows import from_numpy, no_cancels
from ..schema import FEW_ROWS, INPUT, PAYLOAD, TIME, absent

_BYTES_MAX = 64 << 10
"""Of all columns together. Copying more takes longer than acquiring the interpreter lock again."""
_BATCH_BYTES = 6 << 10
"""Memory of a batch besides its rows."""
_SCHEMA_MESSAGE = bytes(PAYLOAD.serialize())
_EMPTY = b""
EncodedRows: TypeAlias = "Bytes | pa.RecordBatch"
_PADDING = [bytes(length) for length in range(8)]
_NO_HEADERS: tuple[bytes, ...] = (_EMPTY, _EMPTY, bytes(4), _EMPTY, _EMPTY, bytes(4), _EMPTY)
"""Buffers of the headers' items, of which there are none: a struct, its keys, its values."""


class UnreadRows:
    """Rows of consecutive entries that are decoded when they are first asked for. Thread-safe.

    ``parts``: payloads, or rows that were read (PAYLOAD schema). ``cancels``: cancel rows in them.
    """

    __slots__ = ("_parts", "_rows", "cancels", "nbytes")

    def __init__(self, parts: Sequence[EncodedRows], nbytes: int, cancels: int = 0) -> None:
        self._parts = parts
        self._rows: pa.RecordBatch | None = None
        self.nbytes = nbytes
        """What they take in memory."""
        self.cancels = cancels

    @property
    def parts(self) -> Sequence[EncodedRows]:
        return self._parts

    def rows(self) -> pa.RecordBatch:
        """The rows of all of them, PAYLOAD schema."""
        parts = self._parts  # before the look at the rows: it is changed after them
        if self._rows is None:
            self._rows = rows = _read(parts)
            if len(parts) == 1:  # lies in the payload, and joins others as that, not as a batch
                self.nbytes += _BATCH_BYTES
            else:
                self.nbytes = rows.get_total_buffer_size() + _BATCH_BYTES
                self._parts = (rows,)
        return self._rows


def _read(parts: Sequence[EncodedRows]) -> pa.RecordBatch:
    batches: list[pa.RecordBatch] = []
    for is_read, group in itertools.groupby(parts, lambda part: isinstance(part, pa.RecordBatch)):
        run = list(group)
        batches += run if is_read else [decode(run)]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def decode(payloads: Sequence[Bytes]) -> pa.RecordBatch:
    """The rows of at least one payload in one batch; copied, unless there is only one payload."""
    if len(payloads) == 1:
        return pa.ipc.read_record_batch(pa.py_buffer(payloads[0]), PAYLOAD)
    stream = pa.py_buffer(b"".join([_SCHEMA_MESSAGE, *payloads]))
    return pa.ipc.open_stream(stream).read_all().combine_chunks().to_batches()[0]


def encode(rows: pa.RecordBatch, created_ms: int) -> bytes | None:
    """The payload of checked rows (INPUT schema) that came in at ``created_ms``.

    None when they are more than a few, or not plain: then Arrow has to write it.
    """
    return None if _TEMPLATE is None else _encode(_TEMPLATE, rows, created_ms)


@dataclass(frozen=True, slots=True)
class _Template:
    """A message of the PAYLOAD schema as Arrow writes it, and the places of its numbers."""

    head: bytes
    """Continuation marker and length of the metadata."""
    words: Sequence[int]
    """The metadata (a flatbuffer), in 64-bit words."""
    packed: struct.Struct
    body_length: int
    rows: int
    buffers: int
    """Place and size of each, from here on."""
    nodes: int
    """Rows and nulls of each column and of what is nested in it, from here on."""

    @classmethod
    def of(cls, message: bytes) -> _Template:
        """Errors: ``ValueError`` when the numbers are not at the places known here."""
        _, length = _PREFIX.unpack_from(message)
        packed = struct.Struct(f"<{length // 8}q")
        words = packed.unpack_from(message, _PREFIX.size)
        # A flatbuffer's vector of structs: its length in 32 bits, so aligned that they follow.
        buffers, nodes = words.index(_BUFFERS << 32) + 1, words.index(_NODES << 32) + 1
        body_length = words.index(len(message) - _PREFIX.size - length)
        rows = words.index(words[nodes])
        return cls(message[: _PREFIX.size], words, packed, body_length, rows, buffers, nodes)


_PREFIX = struct.Struct("<iI")
_BUFFERS = 26
_NODES = 11


def _encode(template: _Template, rows: pa.RecordBatch, created_ms: int) -> bytes | None:
    count = rows.num_rows
    columns = rows.columns
    if count > FEW_ROWS or any(column.offset for column in columns) or len(columns[5].values):
        return None
    due, topic, partition, key, value, _ = columns
    topics, keys, values = _texts(topic), _texts(key), _texts(value)
    if topics is None or keys is None or values is None:
        return None
    parts = (
        *(_EMPTY, memoryview(due.buffers()[1])[: 8 * count]),
        *(_EMPTY, struct.pack("<q", created_ms) * count),
        *(bytes((count + 7) // 8), bytes(8 * count)),  # cancels: none
        *topics,
        *(_validity(partition), memoryview(partition.buffers()[1])[: 4 * count]),
        *keys,
        *values,
        *(_EMPTY, bytes(4 * (count + 1)), *_NO_HEADERS),
    )
    words = list(template.words)
    body: list[Bytes] = []
    at, place = 0, template.buffers
    for part in parts:
        size = len(part)
        words[place], words[place + 1] = at, size
        place += 2
        body.append(part)
        body.append(_PADDING[-size % 8])
        at += size + -size % 8
    if at > _BYTES_MAX:
        return None
    nulls = (0, 0, count, 0, partition.null_count, key.null_count, value.null_count, 0)
    place = template.nodes
    for empty in nulls:
        words[place], words[place + 1] = count, empty
        place += 2
    words[template.rows], words[template.body_length] = count, at
    return b"".join((template.head, template.packed.pack(*words), *body))


def _validity(array: pa.Array) -> Bytes:
    if not array.null_count:
        return _EMPTY
    return memoryview(array.buffers()[0])[: (len(array) + 7) // 8]


def _texts(array: pa.Array) -> tuple[Bytes, Bytes, Bytes] | None:
    """Validity, ends and bytes of texts or binary values; None when they do not begin at 0."""
    _, ends, data = array.buffers()
    ends = memoryview(ends)[: 4 * (len(array) + 1)]
    if len(ends) != 4 * (len(array) + 1) or any(ends[:4]):
        return None
    last = int.from_bytes(ends[-4:], "little")
    return _validity(array), ends, _EMPTY if data is None else memoryview(data)[:last]


def by_arrow(rows: pa.RecordBatch, created_ms: int) -> pa.Buffer:
    """The payload of checked rows (INPUT schema), however many, by Arrow's own writer."""
    count = rows.num_rows
    created = from_numpy(np.full(count, created_ms, np.int64), TIME)
    columns = [rows.column(0), created, no_cancels(count), *rows.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=PAYLOAD).serialize()


def _sample(count: int) -> pa.RecordBatch:
    columns = [
        pa.array(list(range(count)), INPUT.field("due").type),
        pa.array(["t" * (row + 1) for row in range(count)]),
        pa.array([None if row % 2 else row for row in range(count)], pa.int32()),
        pa.array([b"k" if row % 2 else None for row in range(count)], pa.binary()),
        pa.array([b"value"] * count, pa.binary()),
        absent(INPUT.field("headers"), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def _proven() -> _Template | None:
    """The template; None if a payload made with it differs from Arrow's."""
    sizes = (1, 9, FEW_ROWS)
    try:
        template = _Template.of(bytes(by_arrow(_sample(3), 1)))
        same = all(
            _encode(template, _sample(n), 7) == bytes(by_arrow(_sample(n), 7)) for n in sizes
        )
    except (ValueError, IndexError, struct.error):
        return None
    return template if same else None


_TEMPLATE = _proven()

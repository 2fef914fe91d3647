"""The one Arrow schema of a row, in the three shapes it takes on its way through the wheel.

``INPUT``    what a caller sends: no offset, no creation time, no cancels.
``PAYLOAD``  what a journal entry stores: offsets are dense in an entry, so they are left out.
``ROW``      what slot files, sinks and readers see: everything.

Encode once, at the border: a batch is checked once (``checks.py``), and from then on is never taken
apart into Python objects again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .errors import UnsupportedVersion

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
UInt32s = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

SCHEMA_VERSION = 1
_METADATA = {b"slotwheel.schema": str(SCHEMA_VERSION).encode()}

TIME = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))

_OFFSET = pa.field("offset", pa.int64(), nullable=False)
_DUE = pa.field("due", TIME, nullable=False)
_CREATED = pa.field("created", TIME, nullable=False)
_CANCELS = pa.field("cancels", pa.int64())
_CONTENT = [
    pa.field("topic", pa.utf8(), nullable=False),
    pa.field("partition", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    # Not a map: Kafka allows a header key twice, and a null value.
    pa.field("headers", HEADERS, nullable=False),
]

INPUT = pa.schema([_DUE, *_CONTENT])
PAYLOAD = pa.schema([_DUE, _CREATED, _CANCELS, *_CONTENT])
ROW = pa.schema([_OFFSET, _DUE, _CREATED, _CANCELS, *_CONTENT], metadata=_METADATA)
CHECK = pa.field("check", pa.uint64(), nullable=False)
"""A column behind ``ROW`` in what is prepared for delivery: the check of each row's id."""

FEW_ROWS = 64
"""Up to so many rows, calls into Arrow cost more than the work they do. Most of them release the
interpreter lock and acquire it again: with many busy threads, two context switches for
microseconds of work."""


def check_schema(schema: pa.Schema, path: str) -> None:
    """Check a file's schema against ``ROW``. Errors: ``UnsupportedVersion``."""
    version = (schema.metadata or {}).get(b"slotwheel.schema", b"none").decode("ascii", "replace")
    if version != str(SCHEMA_VERSION) or not schema.equals(ROW, check_metadata=False):
        raise UnsupportedVersion(
            f"{path}: unknown schema version",
            got=version,
            limit=SCHEMA_VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )


def times(batch: pa.RecordBatch, column: str) -> Int64s:
    """A timestamp or int64 column without nulls as int64, zero-copy, shape (rows,)."""
    array = batch.column(column)
    values: Int64s = np.frombuffer(
        array.buffers()[1] or b"", dtype=np.int64, count=len(array), offset=array.offset * 8
    )
    return values


def valid(column: pa.Array) -> Mask:
    """The mask of values that are not null, shape (rows,)."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.bool_)
    return np.asarray(column.is_valid())


def bounds(values: Int64s | Sequence[int]) -> tuple[int, int]:
    """The lowest and the highest of at least one value."""
    if not isinstance(values, np.ndarray):
        return min(values), max(values)
    if len(values) <= FEW_ROWS:
        few = values.tolist()
        return min(few), max(few)
    return int(values.min()), int(values.max())


def distinct(texts: pa.Array) -> list[str]:
    """The different values of a column, in the order in which they come."""
    if len(texts) <= FEW_ROWS:
        return list(dict.fromkeys(texts.to_pylist()))
    values: list[str] = texts.unique().to_pylist()
    return values


def lengths(column: pa.Array) -> Int64s:
    """Bytes of each value of a binary or text column, or items of each list; 0 for a null, shape
    (rows,)."""
    rows = len(column)
    if column.null_count == rows:
        return np.zeros(rows, np.int64)
    ends = np.frombuffer(column.buffers()[1], np.int32, rows + 1, column.offset * 4)
    widths = np.subtract(ends[1:], ends[:-1], dtype=np.int64)
    if column.null_count:
        widths[np.asarray(column.is_null())] = 0
    return widths


ROW_BYTES = 64
"""About the bytes that a row takes in memory besides topic, key, value and headers."""


def sizes(batch: pa.RecordBatch) -> Int64s:
    """Bytes of key, value and headers of each row, shape (rows,)."""
    total = lengths(batch.column("key")) + lengths(batch.column("value"))
    headers = batch.column("headers")
    flat = headers.flatten()
    if len(flat):
        running = np.concatenate([[0], np.cumsum(lengths(flat.field(0)) + lengths(flat.field(1)))])
        ends = np.cumsum(lengths(headers))
        total += running[ends] - running[np.concatenate([[0], ends[:-1]])]
    return total


def absent(field: pa.Field, rows: int) -> pa.Array:
    """A column that was left out: nulls, or no headers."""
    if field.nullable:
        return pa.nulls(rows, field.type)
    ends = pa.py_buffer(np.zeros(rows + 1, np.int32))
    offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, ends])
    return pa.ListArray.from_arrays(offsets, pa.array([], type=HEADER), type=HEADERS)

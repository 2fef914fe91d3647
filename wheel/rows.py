"""Building and selecting rows column by column: no Python object is made for a single row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import compute as pc
from .config import TICK_MS
from .schema import (
    FEW_ROWS,
    HEADER,
    HEADERS,
    INPUT,
    ROW,
    TIME,
    Int64s,
    Mask,
    absent,
    lengths,
    times,
)

Header = tuple[str, bytes | None]
Content = bytes | bytearray | memoryview | str | None
"""A value that may stand for a binary one; text becomes UTF-8."""

_INPUT_STRUCT = pa.struct(list(INPUT))


def from_columns(
    due: Sequence[int] | Int64s,
    topics: Sequence[str],
    partitions: Sequence[int | None],
    keys: Sequence[Content],
    values: Sequence[Content],
    headers: Sequence[Sequence[tuple[str, Content]]],
) -> pa.RecordBatch:
    """A batch of schema ``INPUT``; every column has one entry a row, ``due`` in ms.

    Errors: those of pyarrow (``ArrowException``, ``TypeError``) for a value of a wrong type.
    """
    due = np.asarray(due, dtype=np.int64)
    few = len(due) <= FEW_ROWS
    if few and any(map(len, headers)):
        # Arrow accepts only some of tuples, lists and dicts as pairs: make tuples of all.
        pairs = [[(key, value) for key, value in each] for each in headers]
        rows = zip(due.tolist(), topics, partitions, keys, values, pairs, strict=True)
        return pa.RecordBatch.from_struct_array(pa.array(list(rows), _INPUT_STRUCT))
    columns = [
        from_numpy(due, TIME),
        _column(topics, pa.utf8()),
        _column(partitions, pa.int32()),
        _column(keys, pa.binary()),
        _column(values, pa.binary()),
        _few_without_headers(len(due)) if few else header_column(headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as an Arrow array. Few that are all bytes, or all missing, do without Arrow's
    conversion, which looks at each for its kind."""
    if len(values) <= FEW_ROWS:
        kinds = set(map(type, values))
        if kinds == {bytes} and kind == pa.binary():
            ends = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
            return pa.Array.from_buffers(kind, len(values), buffers)
        if kinds == {type(None)}:
            return _few_nulls(len(values), kind)
    return pa.array(values, kind)


def from_numpy(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A NumPy array as an Arrow array of the same width, without nulls, nothing copied.

    ``pa.array`` would import pandas for it, where that is installed: half a second and 40 MB.
    """
    assert values.dtype.itemsize * 8 == kind.bit_width
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def header_values(headers: pa.Array, name: str) -> tuple[Int64s, pa.Array] | None:
    """The rows of a headers column that have a header of this name, ascending, once for each time,
    and its values; None: none has it."""
    if len(headers.values) == 0:
        return None
    flat = headers.flatten()
    at = headers_at(flat, name)
    if not len(at):
        return None
    return np.repeat(np.arange(len(headers)), lengths(headers))[at], taken(flat.field(1), at)


def taken(values: pa.Array, at: Int64s) -> pa.Array:
    """The values at ascending positions, each once; nothing is copied where these are all."""
    return values if len(at) == len(values) else values.take(from_numpy(at, pa.int64()))


def headers_at(flat: pa.Array, name: str) -> Int64s:
    """Positions of the headers of this name among all headers of a column."""
    named = pc.equal(flat.field(0), name)
    if named.null_count:
        named = pc.fill_null(named, False)
    positions: Int64s = np.flatnonzero(np.asarray(named))
    return positions


def take_rows(rows: pa.RecordBatch, indices: Int64s) -> pa.RecordBatch:
    """Some rows, in the given order. ``indices``: shape (count,).

    Most messages have no partition, no key, no headers, and cancel nothing. Selecting from a column
    of nulls costs as much as from any other, so such columns are made anew instead.
    """
    empty = [
        bool(rows.num_rows) and _holds_nothing(field, column)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    at = from_numpy(indices, pa.int64())
    if not any(empty):
        return rows.take(at)
    kept = [number for number, nothing in enumerate(empty) if not nothing]
    taken = iter(rows.select(kept).take(at).columns)
    columns = [
        absent(field, len(indices)) if nothing else next(taken)
        for field, nothing in zip(rows.schema, empty, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def sort_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows (``ROW`` schema) in ``(due, offset)`` order."""
    return take_rows(rows, np.lexsort((times(rows, "offset"), times(rows, "due"))))


@functools.cache
def no_rows() -> pa.RecordBatch:
    """A batch without rows, ROW schema."""
    return pa.RecordBatch.from_pylist([], schema=ROW)


def due_in(rows: pa.RecordBatch, seconds: range) -> pa.RecordBatch:
    """Those of ``rows``, which are sorted by due time, that are due in these seconds; not
    copied."""
    ends = [seconds.start * TICK_MS, seconds.stop * TICK_MS]
    start, stop = times(rows, "due").searchsorted(ends).tolist()
    return rows.slice(start, stop - start)


def without_slack(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, such that Arrow writes only their own bytes.

    Of a slice whose rows have no headers, Arrow would write the header offsets of the whole batch.
    """
    number = rows.schema.get_field_index("headers")
    headers = rows.column(number)
    if len(headers.values) == 0 or headers.offsets[0] != headers.offsets[-1]:
        return rows
    field = rows.schema.field(number)
    return rows.set_column(number, field, absent(field, rows.num_rows))


def _holds_nothing(field: pa.Field, column: pa.Array) -> bool:
    """True if a column holds only nulls, or only empty lists, as ``absent`` makes it."""
    if field.nullable:
        return bool(column.null_count == len(column))
    return pa.types.is_list(field.type) and column.null_count == 0 and len(column.values) == 0


def header_column(headers: Sequence[Sequence[tuple[str, Content]]]) -> pa.Array:
    """The headers column of rows that each have a sequence of ``(key, value)`` pairs."""
    ends = np.fromiter(accumulate(map(len, headers), initial=0), np.int32, len(headers) + 1)
    pairs = list(chain.from_iterable(headers))
    keys = pa.array([key for key, _ in pairs], pa.utf8())
    values = pa.array([value for _, value in pairs], pa.binary())
    flat = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    return pa.ListArray.from_arrays(from_numpy(ends, pa.int32()), flat, type=HEADERS)


def headers_of(values: Mapping[str, pa.Array]) -> pa.Array:
    """The headers column of rows that have one header of each name, in this order. ``values``: a
    binary column each; a row has no header where its value is null."""
    rows, many = len(next(iter(values.values()))), len(values)
    by_row = np.arange(many * rows).reshape(many, rows).T.ravel()
    content = pa.concat_arrays(list(values.values())).take(from_numpy(by_row, pa.int64()))
    number = from_numpy(np.tile(np.arange(many), rows), pa.int64())
    names = pa.array(list(values), pa.utf8()).take(number)
    present = content.is_valid()
    counts = np.asarray(present).reshape(rows, many).sum(axis=1)
    return header_lists(counts, names.filter(present), content.filter(present))


def with_headers(headers: pa.Array, added: pa.Array) -> pa.Array:
    """A headers column with further headers behind those of each row."""
    columns = (headers, added)
    counts = [np.asarray(pc.list_value_length(column), np.int64) for column in columns]
    total = counts[0] + counts[1]
    starts = np.cumsum(total) - total
    place = np.empty(int(total.sum()), np.int64)
    first = 0
    for count, start in zip(counts, (starts, starts + counts[0]), strict=True):
        number = np.arange(int(count.sum()))
        place[np.repeat(start - (np.cumsum(count) - count), count) + number] = first + number
        first += len(number)
    flat = pa.concat_arrays([column.flatten() for column in columns]).take(
        from_numpy(place, pa.int64())
    )
    return header_lists(total, flat.field(0), flat.field(1))


def without_header(headers: pa.Array, name: str) -> pa.Array:
    """A headers column without the headers of that name."""
    flat = headers.flatten()
    kept = np.asarray(pc.not_equal(flat.field(0), name))
    if kept.all():
        return headers
    counts = np.asarray(pc.list_value_length(headers), np.int64)
    ends, running = np.cumsum(counts), np.concatenate([[0], np.cumsum(kept)])
    mask = pa.array(kept)
    left = running[ends] - running[ends - counts]
    return header_lists(left, flat.field(0).filter(mask), flat.field(1).filter(mask))


def header_lists(counts: Int64s, names: pa.Array, values: pa.Array) -> pa.Array:
    """The headers column of rows that have so many headers each. ``names``, ``values``: of all
    headers, in the order of the rows."""
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    flat = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    return pa.ListArray.from_arrays(from_numpy(ends, pa.int32()), flat, type=HEADERS)


def no_headers(rows: int) -> pa.Array:
    """The headers column of rows that have none."""
    return absent(INPUT.field("headers"), rows)


def no_cancels(rows: int) -> pa.Array:
    """The cancels column of rows that cancel nothing."""
    return _few_nulls(rows, pa.int64()) if rows <= FEW_ROWS else pa.nulls(rows, pa.int64())


@functools.cache
def _few_nulls(rows: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(rows, kind)


@functools.cache
def _few_without_headers(rows: int) -> pa.Array:
    return absent(INPUT.field("headers"), rows)


def members(sorted_values: Int64s, values: Int64s) -> Mask:
    """The mask of those of ``values`` that are in ``sorted_values``; shape of ``values``."""
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    mask: Mask = sorted_values[at] == values
    return mask

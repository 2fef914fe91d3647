"""Sorted runs of rows, and the window of one slot that is prepared for delivery.

Theory: a slot's rows come from three places - its file, the tail, and whatever is committed while
it is being delivered. Each source contributes *sources*: rows with sorted ``(due, offset)`` keys
that are not materialised yet. A *window* is an interval of keys small enough to be held in memory;
its rows are taken out of the sources ahead of time, so that at a row's millisecond only slices are
left to do. Rows committed later join the window as further runs, like levels of a log-structured
tree, and runs are merged when there are too many.

A window can end inside a single millisecond (at an offset), so a million rows due at one
millisecond need no more memory than any other million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..ids import IdMint
from ..mark import RowKey
from ..rows import take_rows
from ..schema import ROW, Int64s, sizes, times
from ..tail.tail import Piece

OFFSET_END = (1 << 63) - 1
_RUNS_MAX = 12


@dataclass(slots=True)
class SortedRows:
    """Rows in key order that are not copied yet.

    ``indices`` maps positions in key order to rows of the batch or piece; None when the batch is in
    key order itself (a block of a slot file).
    """

    due: Int64s
    offset: Int64s
    rows: pa.RecordBatch | Piece
    indices: Int64s | None
    nbytes: int

    def slice(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows ``start`` to ``stop`` in key order, with the ROW schema."""
        if self.indices is None:
            assert isinstance(self.rows, pa.RecordBatch)
            return self.rows.slice(start, stop - start)
        indices = self.indices[start:stop]
        if isinstance(self.rows, Piece):
            return self.rows.take(indices)
        return take_rows(self.rows, indices)


def source_of_block(block: pa.RecordBatch) -> SortedRows:
    """A block of a slot file, which is sorted as it is."""
    return SortedRows(times(block, "due"), times(block, "offset"), block, None, block.nbytes)


def source_of_piece(piece: Piece, low: int, high: int, first_offset: int = 0) -> SortedRows | None:
    """The rows of a tail piece with ``low <= due < high`` and ``offset >= first_offset``."""
    skip = max(0, first_offset - piece.base_offset)
    if skip >= piece.count or piece.latest < low or piece.earliest >= high:
        return None
    due = piece.due[skip:]
    indices = np.flatnonzero((due >= low) & (due < high))
    if not len(indices):
        return None
    indices += skip
    keys = piece.due[indices]
    order = np.argsort(keys, kind="stable")  # ties stay in offset order
    indices = indices[order]
    share = piece.nbytes * len(indices) // piece.count
    return SortedRows(keys[order], indices + piece.base_offset, piece, indices, share)


def position_after(due: Int64s, offset: Int64s, key: RowKey) -> int:
    """How many rows have keys at or before ``key``; ``due``, ``offset`` sorted, shape (rows,)."""
    stop = int(due.searchsorted(key[0], side="right"))
    if key[1] == OFFSET_END:
        return stop
    start = int(due.searchsorted(key[0]))
    return start + int(offset[start:stop].searchsorted(key[1], side="right"))


def choose_end(
    sources: Sequence[SortedRows], starts: Sequence[int], bytes_max: int
) -> RowKey | None:
    """The last key of a window of at most about ``bytes_max``; None if everything fits.

    A window holds at least one row. It is cut between milliseconds where that is possible, and
    inside one, at an offset, where it is not.
    """
    rest = [len(s.due) - at for s, at in zip(sources, starts, strict=True)]
    rows = sum(rest)
    total = sum(s.nbytes * n // max(1, len(s.due)) for s, n in zip(sources, rest, strict=True))
    if total <= bytes_max or rows <= 1:
        return None
    budget = max(1, rows * bytes_max // total)

    def count(last: int) -> int:
        return sum(
            int(np.searchsorted(s.due, last, side="right")) - at
            for s, at in zip(sources, starts, strict=True)
        )

    live = [(s, at) for s, at in zip(sources, starts, strict=True) if at < len(s.due)]
    low = min(int(s.due[at]) for s, at in live)
    high = max(int(s.due[-1]) for s, _ in live)
    if count(low) > budget:
        # One millisecond alone is too much: cut it by offset.
        offsets = np.concatenate(
            [s.offset[at : int(np.searchsorted(s.due, low, side="right"))] for s, at in live]
        )
        kept = np.partition(offsets, budget - 1)
        return low, int(kept[budget - 1])
    while low < high:  # the largest ms up to which the rows fit the budget
        middle = (low + high + 1) // 2
        if count(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low, OFFSET_END


@dataclass(frozen=True, slots=True)
class Run:
    """Materialised rows in key order: schema ``ROW``, and ``CHECK``."""

    rows: pa.RecordBatch
    due: Int64s
    offset: Int64s
    ends: Int64s
    """Bytes of key, value and headers up to each row, with it."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Run:
        return cls(rows, times(rows, "due"), times(rows, "offset"), np.cumsum(sizes(rows)))


def gather(
    sources: Sequence[SortedRows], starts: Sequence[int], stops: Sequence[int], mint: IdMint
) -> Run | None:
    """One run of the rows ``starts[i]`` to ``stops[i]`` of each source, copied out of them, with
    the checks of their ids: what is the same for a chunk and for the window is made once.
    ``sources``: each has higher offsets than the one before."""
    parts = [
        source.slice(start, stop)
        for source, start, stop in zip(sources, starts, stops, strict=True)
        if stop > start
    ]
    if not parts:
        return None
    parts = [part.cast(ROW) if part.schema != ROW else part for part in parts]
    return Run.of(mint.with_checks(_merged(parts)))


def sort_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in ``(due, offset)`` order."""
    due, offset = times(rows, "due"), times(rows, "offset")
    return take_rows(rows, np.lexsort((offset, due)))


def _merged(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch in key order of several that are. Each has higher offsets than the one before, so
    among rows of one due time the order of the parts is that of the offsets."""
    rows = pa.concat_batches(parts)
    if len(parts) == 1:
        return rows
    offsets = [times(part, "offset") for part in parts if part.num_rows]
    assert all(one.max() < other.min() for one, other in pairwise(offsets)), "not in offset order"
    # A stable sort finds the sorted parts and merges them: 3 ns a row; a lexsort takes 113.
    return take_rows(rows, np.argsort(times(rows, "due"), kind="stable"))


class Window:
    """The prepared rows of one slot with keys in ``(start, end]``.

    It has no position of its own: the mark decides how far rows have left, so each call names the
    key behind which to begin.
    """

    def __init__(self, run: Run | None, end: RowKey) -> None:
        self.runs: list[Run] = [run] if run is not None else []
        self.end = end

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, with those that have left."""
        return sum(run.rows.nbytes for run in self.runs)

    def join(self, run: Run | None, after: RowKey) -> None:
        """Add rows committed after those that are there, so with higher offsets; drop what lies
        behind ``after``."""
        if run is None:
            return
        self.runs.append(run)
        if len(self.runs) > _RUNS_MAX:
            self.merge(after)

    def merge(self, after: RowKey) -> None:
        """Make one run of all, without what lies behind ``after``: of one run a chunk is a slice;
        several have to be merged for each chunk."""
        if len(self.runs) > 1:
            starts = [position_after(r.due, r.offset, after) for r in self.runs]
            parts = [r.rows.slice(at) for r, at in zip(self.runs, starts, strict=True)]
            self.runs = [Run.of(_merged(parts))]

    def next_due(self, after: RowKey) -> int | None:
        """The due time of the first row behind ``after``, or None. Also while rows join."""
        found = [
            int(run.due[at])
            for run in [*self.runs]
            if (at := position_after(run.due, run.offset, after)) < len(run.due)
        ]
        return min(found, default=None)

    def peek(self, after: RowKey, until: RowKey, rows_max: int, bytes_max: int) -> pa.RecordBatch:
        """Rows with keys in ``(after, until]`` in key order, cut at about the given limits."""
        spans: list[tuple[Run, int, int]] = []
        bound: RowKey | None = None  # nothing beyond the last row of a cut run may leave with it
        for run in self.runs:
            start = position_after(run.due, run.offset, after)
            due_stop = position_after(run.due, run.offset, until)
            if due_stop <= start:
                continue
            stop = _within(run, start, min(due_stop, start + rows_max), bytes_max)
            if stop < due_stop:
                last = (int(run.due[stop - 1]), int(run.offset[stop - 1]))
                bound = last if bound is None else min(bound, last)
            spans.append((run, start, stop))
        parts = [run.rows.slice(start, stop - start) for run, start, stop in spans]
        if len(parts) <= 1:
            return parts[0] if parts else EMPTY
        due = np.concatenate([run.due[start:stop] for run, start, stop in spans])
        offset = np.concatenate([run.offset[start:stop] for run, start, stop in spans])
        order = np.lexsort((offset, due))
        if bound is not None:
            order = order[: position_after(due[order], offset[order], bound)]
        return take_rows(pa.concat_batches(parts), order[:rows_max])


def _within(run: Run, start: int, stop: int, bytes_max: int) -> int:
    """Cut a slice by bytes, but keep at least one row."""
    before = int(run.ends[start - 1]) if start else 0
    fit = int(run.ends.searchsorted(before + bytes_max, side="right"))
    return max(start + 1, min(stop, fit))


EMPTY = pa.RecordBatch.from_pylist([], schema=ROW)

"""Sorted runs of rows, and the window of one second that is prepared for delivery.

Theory: a second's rows come from three places - its files, the tail, and whatever is committed
while it is being delivered. Each source contributes *sources*: rows with sorted ``(due, offset)``
keys that are not materialised yet. A *window* is an interval of keys small enough to be held in
memory; its rows are taken out of the sources ahead of time, so that at a row's millisecond only
slices are left to do. Rows committed later join the window as further runs, like levels of a
log-structured tree, and runs are merged when there are too many.

A window can end inside a single millisecond (at an offset), so a million rows due at one
millisecond need no more memory than any other million.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from .. import compute as pc
from ..ids import IdMint
from ..mark import RowKey
from ..rows import from_numpy, no_rows, take_rows
from ..schema import ROW, ROW_BYTES, Int64s, sizes, times
from ..tail.tail import Piece

OFFSET_END = (1 << 63) - 1
_RUNS_MAX = 12
_LOOK_ROWS = 512, 65_536
_KEY_BYTES = 16
"""Bytes that a row takes in a window if it is left to another line: due time and offset."""


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
        return self.take(np.arange(start, stop))

    def take(self, at: Int64s) -> pa.RecordBatch:
        """Rows at ascending positions in key order, copied, with the ROW schema."""
        indices = at if self.indices is None else self.indices[at]
        if isinstance(self.rows, Piece):
            return self.rows.take(indices)
        return take_rows(self.rows, indices)

    def head(self, stop: int) -> SortedRows:
        """The first ``stop`` rows in key order."""
        return replace(self, due=self.due[:stop], offset=self.offset[:stop])

    def cancelled(self) -> list[int]:
        """The offsets that its cancel rows name."""
        rows = self.rows.rows if isinstance(self.rows, Piece) else self.rows
        column = rows.column("cancels")
        if self.indices is not None:
            column = column.take(from_numpy(self.indices, pa.int64()))
        targets: list[int] = column.drop_null().to_pylist()
        return targets

    def codes(self, start: int, stop: int, names: Sequence[str]) -> Int64s:
        """Each row's place of its topic in ``names``, shape (rows,); -1: not there, or a cancel."""
        if not names:
            return np.full(stop - start, -1, np.int64)
        places = pc.index_in(self._column("topic", start, stop), pa.array(names, pa.utf8()))
        return np.asarray(places.fill_null(-1), np.int64)

    def bytes_by_topic(self, start: int) -> dict[str, int]:
        """Bytes of key, value and headers by topic, of the rows from position ``start`` on."""
        stop = len(self.due)
        encoded = self._column("topic", start, stop).dictionary_encode()
        sums = np.bincount(
            np.asarray(encoded.indices), self.sizes(start, stop), len(encoded.dictionary)
        )
        return dict(
            zip(encoded.dictionary.to_pylist(), sums.astype(np.int64).tolist(), strict=True)
        )

    def sizes(self, start: int, stop: int) -> Int64s:
        """Bytes of key, value and headers of each row; shape (rows,)."""
        names = ["key", "value", "headers"]
        if self.indices is None:
            return sizes(self._rows.select(names).slice(start, stop - start))
        return sizes(self._rows.select(names))[self.indices[start:stop]]

    @property
    def _rows(self) -> pa.RecordBatch:
        return self.rows.rows if isinstance(self.rows, Piece) else self.rows

    def _column(self, name: str, start: int, stop: int) -> pa.Array:
        column = self._rows.column(name)
        if self.indices is None:
            return column.slice(start, stop - start)
        return column.take(from_numpy(self.indices[start:stop], pa.int64()))


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
    """The number of rows with keys up to ``key``; ``due``, ``offset``: sorted, shape (rows,)."""
    stop = int(due.searchsorted(key[0], side="right"))
    if key[1] == OFFSET_END:
        return stop
    start = int(due.searchsorted(key[0]))
    return start + int(offset[start:stop].searchsorted(key[1], side="right"))


@dataclass(frozen=True, slots=True)
class Share:
    """The rows that a window has: all, those of ``only`` one topic (no cancel rows), or those of
    all topics but some (``without``), which have lines of their own."""

    only: str | None = None
    without: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The topics by which it is decided if a row belongs to the share."""
        return sorted(self.without) if self.only is None else [self.only]


ALL = Share()


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows in key order that a window leaves to their topic's own line; shape (rows,) both."""

    topic: str
    due: Int64s
    offset: Int64s

    def between(self, after: RowKey, until: RowKey) -> Skipped:
        start = position_after(self.due, self.offset, after)
        stop = max(start, position_after(self.due, self.offset, until))
        return Skipped(self.topic, self.due[start:stop], self.offset[start:stop])


@dataclass(frozen=True, slots=True)
class Choice:
    """The rows of one window: their positions in each source, and those that it skips. ``end``: its
    last key; None: nothing lies behind it."""

    at: Sequence[Int64s]
    skipped: Sequence[Skipped]
    end: RowKey | None


def choose(
    sources: Sequence[SortedRows],
    starts: Sequence[int],
    bytes_max: int,
    share: Share = ALL,
    look_rows: int | None = None,
) -> Choice:
    """The rows of a share for a window of at most ``bytes_max``, from ``starts`` on. It has one row
    at least, and may end inside one millisecond, at an offset.

    Only keys, topics and sizes are looked at, and those of ``look_rows`` of each source at most, by
    default some more than a window may have: it may be smaller, or have no row of the share.
    """
    if look_rows is None:
        look_rows = _rows_for(bytes_max, sources)
    bound: RowKey | None = None
    for source, start in zip(sources, starts, strict=True):
        stop = start + look_rows
        if stop < len(source.due):
            key = int(source.due[stop - 1]), int(source.offset[stop - 1])
            bound = key if bound is None else min(bound, key)
    stops = [
        len(source.due)
        if bound is None
        else max(at, position_after(source.due, source.offset, bound))
        for source, at in zip(sources, starts, strict=True)
    ]
    spans = list(zip(sources, starts, stops, strict=True))
    due = _joined([source.due[start:stop] for source, start, stop in spans])
    offset = _joined([source.offset[start:stop] for source, start, stop in spans])
    code = _joined([source.codes(start, stop, share.names) for source, start, stop in spans])
    kept = code < 0 if share.only is None else code == 0
    weight = np.full(len(due), _KEY_BYTES if share.only is None else 0)
    if kept.any():
        size = _joined([source.sizes(start, stop) for source, start, stop in spans])
        weight[kept] = size[kept] + ROW_BYTES
    order = _key_order(due, offset, [stop - start for _, start, stop in spans])
    count = max(1, int(np.cumsum(weight[order]).searchsorted(bytes_max, side="right")))
    end = bound
    if count < len(order):
        order = order[:count]
        end = int(due[order[-1]]), int(offset[order[-1]])
    mask = np.zeros(len(due), np.bool_)
    mask[order] = kept[order]
    skipped = [
        Skipped(name, due[places], offset[places])
        for number, name in enumerate(share.names if share.only is None else ())
        if len(places := order[code[order] == number])
    ]
    borders = np.cumsum([0, *(stop - start for _, start, stop in spans)]).tolist()
    at = [
        np.flatnonzero(mask[first:stop]) + start
        for (first, stop), start in zip(pairwise(borders), starts, strict=True)
    ]
    return Choice(at, skipped, end)


def _rows_for(bytes_max: int, sources: Sequence[SortedRows]) -> int:
    """Twice as many rows of each source as would fill a window if all rows were of equal size."""
    rows = sum(len(source.due) for source in sources)
    nbytes = sum(source.nbytes for source in sources)
    each = 2 * bytes_max * rows // max(1, nbytes * len(sources))
    return max(_LOOK_ROWS[0], min(_LOOK_ROWS[1], each))


def large_topics(sources: Sequence[SortedRows], starts: Sequence[int], bytes_min: int) -> list[str]:
    """The topics with at least ``bytes_min`` bytes from ``starts`` on, the largest first."""
    sums: Counter[str] = Counter()
    for source, start in zip(sources, starts, strict=True):
        sums.update(source.bytes_by_topic(start))
    return [topic for topic, nbytes in sums.most_common() if nbytes >= bytes_min]


def _joined(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Run:
    """Materialised rows in key order: schema ``ROW``, and ``CHECK``. The arrays: shape (rows,)."""

    rows: pa.RecordBatch
    due: Int64s
    offset: Int64s
    ends: Int64s
    """Running sum of the bytes of key, value and headers, up to each row and with it."""

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Run:
        return cls(rows, times(rows, "due"), times(rows, "offset"), np.cumsum(sizes(rows)))


def gather(parts: Sequence[pa.RecordBatch], mint: IdMint) -> Run | None:
    """Merge parts, each in key order, into one run. The checks of their ids are made here, once,
    and not for each chunk."""
    parts = [part for part in parts if part.num_rows]
    if not parts:
        return None
    parts = [part.cast(ROW) if part.schema != ROW else part for part in parts]
    return Run.of(mint.with_checks(_merged(parts)))


def _merged(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch in key order of several that are."""
    rows = pa.concat_batches(parts)
    if len(parts) == 1:
        return rows
    counts = [part.num_rows for part in parts]
    return take_rows(rows, _key_order(times(rows, "due"), times(rows, "offset"), counts))


def _key_order(due: Int64s, offset: Int64s, counts: Sequence[int]) -> Int64s:
    """The ``(due, offset)`` order of rows that stand in parts of ``counts`` rows, each in that
    order already. Mostly each part has higher offsets than the one before, so rows of one due time
    stay in the order of the parts. They do not where a file was made anew from a peer's rows, or a
    strip has rows of several spills, beside a file of another width: rows in a wrong order would
    leave before others of the same millisecond, and the mark would cover those unsent.

    *Example.* A day's file has offsets 1 and 8, an hour's has 5, all due at one millisecond: in the
    order of the parts a window that ends behind two rows would end at 8, and 5 would be lost.
    """
    stops = np.cumsum(counts)
    parts = [
        offset[stop - count : stop] for stop, count in zip(stops, counts, strict=True) if count
    ]
    if any(lower.max() > higher.min() for lower, higher in pairwise(parts)):
        return np.lexsort((offset, due))
    # A stable sort finds the sorted parts and merges them: 3 ns a row; a lexsort takes 113.
    return np.argsort(due, kind="stable")


class Window:
    """The prepared rows of one slot with keys in ``(start, end]``.

    It has no position of its own: the mark decides how far rows have left, so each call names the
    key above which to begin. ``skipped``: rows that it leaves to the lines of their topics.
    """

    def __init__(
        self, run: Run | None, end: RowKey, share: Share = ALL, skipped: Iterable[Skipped] = ()
    ) -> None:
        self.runs: list[Run] = [run] if run is not None else []
        self.end = end
        self.share = share
        self._skipped = list(skipped)

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, with those that have left."""
        return sum(run.rows.nbytes for run in self.runs)

    def join(self, run: Run | None, after: RowKey, skipped: Iterable[Skipped] = ()) -> None:
        """Add rows committed later than the window's, so with higher offsets. Rows of the window up
        to ``after`` may be dropped, as they have left."""
        self._skipped += skipped
        if len(self._skipped) > 2 * len(self.share.without) + _RUNS_MAX:
            self._skipped = self.skipped(after, self.end)
        if run is None:
            return
        self.runs.append(run)
        if len(self.runs) > _RUNS_MAX:
            self.merge(after)

    def merge(self, after: RowKey) -> None:
        """Make one run of all rows with keys above ``after``: of one run a chunk is a slice;
        several have to be merged for each chunk."""
        if len(self.runs) > 1:
            starts = [position_after(r.due, r.offset, after) for r in self.runs]
            parts = [r.rows.slice(at) for r, at in zip(self.runs, starts, strict=True)]
            self.runs = [Run.of(_merged(parts))]

    def skipped(self, after: RowKey, until: RowKey) -> list[Skipped]:
        """The rows that are left to others with keys in ``(after, until]``, one item a topic."""
        by_topic: dict[str, list[Skipped]] = {}
        for part in [*self._skipped]:
            rows = part.between(after, until)
            if len(rows.due):
                by_topic.setdefault(part.topic, []).append(rows)
        return [
            parts[0] if len(parts) == 1 else _join_skipped(parts) for parts in by_topic.values()
        ]

    def next_due(self, after: RowKey) -> int | None:
        """The due time of the first row with a key above ``after``. Also while rows join."""
        parts: list[Run | Skipped] = [*self.runs, *self._skipped]
        due_times = [
            int(run.due[at])
            for run in parts
            if (at := position_after(run.due, run.offset, after)) < len(run.due)
        ]
        return min(due_times, default=None)

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
            return parts[0] if parts else no_rows()
        due = np.concatenate([run.due[start:stop] for run, start, stop in spans])
        offset = np.concatenate([run.offset[start:stop] for run, start, stop in spans])
        order = np.lexsort((offset, due))
        if bound is not None:
            order = order[: position_after(due[order], offset[order], bound)]
        return take_rows(pa.concat_batches(parts), order[:rows_max])


def _join_skipped(parts: Sequence[Skipped]) -> Skipped:
    """One item of all ``parts`` of a topic."""
    due = np.concatenate([part.due for part in parts])
    offset = np.concatenate([part.offset for part in parts])
    order = _key_order(due, offset, [len(part.due) for part in parts])
    return Skipped(parts[0].topic, due[order], offset[order])


def _within(run: Run, start: int, stop: int, bytes_max: int) -> int:
    """Cut a slice by bytes, but keep at least one row."""
    before = int(run.ends[start - 1]) if start else 0
    fit = int(run.ends.searchsorted(before + bytes_max, side="right"))
    return max(start + 1, min(stop, fit))

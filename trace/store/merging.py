"""Makes one segment of several: which ones, and how.

Theory: small segments come every second, and a question asks each of them. So whenever eight
neighbours are of one level (they hold 1, 8, 64, ... flushes), they become one, up to ``ROWS_MAX``
rows; and when their hour is over, what is left of it becomes as few as may be. An event is written
once by its flush, and at most once for each level: five times in an hour of 3600 flushes, and
once more at its end.

All segments are sorted by time, so a merge goes through them block by block: of each one block is
in memory, and for each row 40 bytes. So it has at most ``ROWS_MAX`` rows, of ``SEGMENTS_MAX``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...wheel.rows import from_numpy
from ...wheel.schema import Int64s, UInt32s, times
from ..events import STORED
from .hashing import HASHED, Entries
from .making import BLOCK_ROWS, SegmentAbout, SegmentMaker, hash_columns
from .names import SegmentName
from .numbers import NumberRanges, union
from .segment import StoreSegment

ROWS_MAX = 1 << 21
"""Of a merged segment."""
FAN = 8
"""So many of one level become one of the next."""
SEGMENTS_MAX = 64
"""Become one at once: merges may fall behind flushes, and each segment has a block in memory."""


class KnownSegment(NamedTuple):
    """What is to be known of a segment to merge or to delete it. ``hour``: of arrival."""

    name: SegmentName
    hour: int
    rows: int

    @property
    def level(self) -> int:
        flushes = self.name.last - self.name.first + 1
        level = 0
        while flushes >= FAN ** (level + 1):
            level += 1
        return level


def what_to_merge(
    known: Sequence[KnownSegment], hour: int, rows_max: int = ROWS_MAX
) -> list[KnownSegment]:
    """The next segments to make one of; none: there is nothing to do. ``known``: sorted by name;
    ``hour``: the present one."""
    for own_hour, group in groupby(_runs(known), key=lambda run: run[0].hour):
        for run in group:
            levels = [run] if own_hour < hour else _by_level(run)
            for neighbours in levels:
                for at in range(len(neighbours) - 1):
                    some = _as_many(neighbours[at:], rows_max)
                    if len(some) > 1:
                        return some
    return []


def _runs(known: Sequence[KnownSegment]) -> Iterator[list[KnownSegment]]:
    """Neighbours of one hour with nothing missing between them."""
    run: list[KnownSegment] = []
    for one in known:
        if run and (one.hour != run[-1].hour or one.name.first != run[-1].name.last + 1):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _by_level(run: list[KnownSegment]) -> list[list[KnownSegment]]:
    """Eight neighbours each, of one level."""
    found = []
    for _, group in groupby(run, key=lambda one: one.level):
        same = list(group)
        found += [same[at : at + FAN] for at in range(0, len(same) - FAN + 1, FAN)]
    return found


def _as_many(neighbours: Sequence[KnownSegment], rows_max: int) -> list[KnownSegment]:
    rows = np.cumsum([one.rows for one in neighbours])
    return list(neighbours[: min(int(np.searchsorted(rows, rows_max, "right")), SEGMENTS_MAX)])


def merge(root: Path, names: Sequence[SegmentName]) -> KnownSegment:
    """Make one segment of neighbours; they are still there. Errors: ``Damaged``, ``OSError``."""
    segments = [StoreSegment(root, name) for name in names]
    bases = np.cumsum([0, *(one.rows for one in segments)])
    order = _order(segments)
    name = SegmentName(names[0].first, names[-1].last)
    about = SegmentAbout(
        segments[0].hour,
        segments[-1].topic,
        segments[-1].positions,
        _numbers(segments),
        segments[-1].source,
    )
    with SegmentMaker(root, name) as maker:
        sources = _sources(segments)
        for start in range(0, len(order), BLOCK_ROWS):
            maker.add(_block(order[start : start + BLOCK_ROWS], bases, sources))
        place = np.empty(len(order), np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        del order
        entries = ((one, _entries(segments, one, place, bases)) for one in HASHED)
        maker.finish(about, hash_columns(entries))
    return KnownSegment(name, about.hour, int(bases[-1]))


def _order(segments: Sequence[StoreSegment]) -> Int64s:
    """The rows of all segments in the order of their times, shape (rows,)."""
    at = [times(one.read(block, ("at",)), "at") for one in segments for block in range(one.blocks)]
    order: Int64s = np.argsort(np.concatenate([np.empty(0, np.int64), *at]), kind="stable")
    return order


class _Source:
    """The rows of a segment, in their order, with the dictionaries of the merged one."""

    def __init__(self, segment: StoreSegment, codes: dict[str, pa.Array], names: pa.Schema) -> None:
        self._segment = segment
        self._codes = codes
        self._names = names
        self._number = -1
        self._start = self._end = 0
        self._batch: pa.RecordBatch | None = None

    def rows(self, begin: int, end: int) -> list[pa.RecordBatch]:
        """Rows from one number up to, without, another one; not before those read last."""
        found = []
        while begin < end:
            while begin >= self._end:
                self._next()
            assert self._batch is not None
            count = min(end, self._end) - begin
            found.append(self._batch.slice(begin - self._start, count))
            begin += count
        return found

    def _next(self) -> None:
        self._number += 1
        batch = self._segment.read(self._number)
        self._start, self._end = self._end, self._end + batch.num_rows
        columns = [
            column if name not in self._codes else self._coded(name, column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        self._batch = pa.RecordBatch.from_arrays(columns, schema=STORED)

    def _coded(self, name: str, column: pa.DictionaryArray) -> pa.DictionaryArray:
        codes = self._codes[name].take(column.indices)
        return pa.DictionaryArray.from_arrays(codes, self._names[name])


def _sources(segments: Sequence[StoreSegment]) -> list[_Source]:
    coded = [one.name for one in STORED if pa.types.is_dictionary(one.type)]
    with_rows = [one for one in segments if one.rows]
    firsts = {one.name: one.read(0, tuple(coded)) for one in with_rows}
    names = {
        name: pa.concat_arrays(
            [pa.array([], pa.utf8())] + [one.column(name).dictionary for one in firsts.values()]
        ).unique()
        for name in coded
    }
    return [
        _Source(
            one,
            {
                name: pc.index_in(firsts[one.name].column(name).dictionary, names[name])
                for name in coded
            }
            if one.rows
            else {},
            names,
        )
        for one in segments
    ]


def _block(rows: Int64s, bases: Int64s, sources: Sequence[_Source]) -> pa.RecordBatch:
    """Rows of the merged segment, by their numbers among those of all."""
    source = np.searchsorted(bases, rows, "right") - 1
    place = np.empty(len(rows), np.int64)
    parts: list[pa.RecordBatch] = []
    count = 0
    for number in np.unique(source).tolist():
        own = source == number
        # The rows of one segment come in their order, without a gap.
        local = rows[own] - bases[number]
        parts += sources[number].rows(int(local[0]), int(local[-1]) + 1)
        place[own] = count + np.arange(len(local))
        count += len(local)
    return pa.concat_batches(parts).take(from_numpy(place, pa.int64()))


def _entries(segments: Sequence[StoreSegment], name: str, place: UInt32s, bases: Int64s) -> Entries:
    hashes, rows = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
    for segment, base in zip(segments, bases.tolist(), strict=False):
        column = segment.whole_column(name)
        hashes.append(column.hashes)
        rows.append(place[base + column.rows.astype(np.int64)])
    return np.concatenate(hashes), np.concatenate(rows)


def _numbers(segments: Sequence[StoreSegment]) -> dict[str, NumberRanges]:
    found: dict[str, NumberRanges] = {}
    for one in segments:
        for sender, ranges in one.numbers.items():
            found[sender] = union([*found.get(sender, []), *ranges])
    return found

"""Makes one segment of several.

Theory: small segments come every second, and a question looks into each of them. So whenever eight
neighbours are of one level (they hold 1, 8, 64, ... flushes), they become one, up to ``ROWS_MAX``
rows; when their hour is over, its segments become as few as may be. An event is written once by its
flush, and at most once for each level: five times in an hour of 3600 flushes, and once more at its
end.

All segments are sorted by time, so a merge goes through them block by block. It holds one block of
each in memory, and 40 bytes for each row, which is why rows and segments are limited.
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
"""Rows of a merged segment at most."""
FAN = 8
"""So many of one level become one of the next."""
SEGMENTS_MAX = 64
"""Segments that become one at once at most: merges may fall behind flushes."""


class KnownSegment(NamedTuple):
    """A segment that may be merged or deleted. ``hour``: of arrival, hours since the epoch."""

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
    """The next segments to be made one; empty: there is nothing to do. ``known``: sorted by name;
    ``hour``: the present one."""
    for own_hour, group in groupby(_runs(known), key=lambda run: run[0].hour):
        for run in group:
            levels = [run] if own_hour < hour else _by_level(run)
            for neighbours in levels:
                for at in range(len(neighbours) - 1):
                    chosen = _as_many(neighbours[at:], rows_max)
                    if len(chosen) > 1:
                        return chosen
    return []


def _runs(known: Sequence[KnownSegment]) -> Iterator[list[KnownSegment]]:
    """Neighbours of one hour with nothing missing between them."""
    run: list[KnownSegment] = []
    for segment in known:
        if run and (segment.hour != run[-1].hour or segment.name.first != run[-1].name.last + 1):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _by_level(run: list[KnownSegment]) -> list[list[KnownSegment]]:
    """Groups of eight neighbours of one level."""
    eights = []
    for _, group in groupby(run, key=lambda segment: segment.level):
        same = list(group)
        eights += [same[at : at + FAN] for at in range(0, len(same) - FAN + 1, FAN)]
    return eights


def _as_many(neighbours: Sequence[KnownSegment], rows_max: int) -> list[KnownSegment]:
    rows = np.cumsum([segment.rows for segment in neighbours])
    return list(neighbours[: min(int(np.searchsorted(rows, rows_max, "right")), SEGMENTS_MAX)])


def merge(root: Path, names: Sequence[SegmentName]) -> KnownSegment:
    """Make one segment of neighbours, and leave them there. Errors: ``Damaged``, ``OSError``."""
    segments = [StoreSegment(root, name) for name in names]
    bases = np.cumsum([0, *(segment.rows for segment in segments)])
    order = _order(segments)
    name = SegmentName(names[0].first, names[-1].last)
    header = SegmentAbout(
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
        entries = ((column, _entries(segments, column, place, bases)) for column in HASHED)
        maker.finish(header, hash_columns(entries))
    return KnownSegment(name, header.hour, int(bases[-1]))


def _order(segments: Sequence[StoreSegment]) -> Int64s:
    """The rows of all segments in the order of their times, shape (rows,)."""
    at = [
        times(segment.read(block, ("at",)), "at")
        for segment in segments
        for block in range(segment.blocks)
    ]
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
        """Rows ``begin`` to before ``end``; none before those of the last call."""
        batches = []
        while begin < end:
            while begin >= self._end:
                self._next()
            assert self._batch is not None
            count = min(end, self._end) - begin
            batches.append(self._batch.slice(begin - self._start, count))
            begin += count
        return batches

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
    coded = [field.name for field in STORED if pa.types.is_dictionary(field.type)]
    with_rows = [segment for segment in segments if segment.rows]
    firsts = {segment.name: segment.read(0, tuple(coded)) for segment in with_rows}
    names = {
        name: pa.concat_arrays(
            [pa.array([], pa.utf8())] + [batch.column(name).dictionary for batch in firsts.values()]
        ).unique()
        for name in coded
    }
    return [
        _Source(
            segment,
            {
                name: pc.index_in(firsts[segment.name].column(name).dictionary, names[name])
                for name in coded
            }
            if segment.rows
            else {},
            names,
        )
        for segment in segments
    ]


def _block(rows: Int64s, bases: Int64s, sources: Sequence[_Source]) -> pa.RecordBatch:
    """A block of the merged segment. ``rows``: numbers of its rows, counted through the parts."""
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
    numbers: dict[str, NumberRanges] = {}
    for segment in segments:
        for sender, ranges in segment.numbers.items():
            numbers[sender] = union([*numbers.get(sender, []), *ranges])
    return numbers

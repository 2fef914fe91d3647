"""The rows of a slot's time in many files, in the order of offsets, a share at a time.

Theory: peers spill at different times, so what one has in the file of a day may lie with another in
files of hours and seconds besides, and in its tail. What they have in common are offsets. The index
of a file of an hour or a day (``wheel/slots/blockindex.py``) says which offsets each of its blocks
has; those of seconds are read for it. Then a share of offsets after the other is read and sorted.
Each spill writes the next range of offsets, so a share touches few blocks of each file. Otherwise
whoever heals the file of a day, of some gigabytes, would need them all in memory.

*Example.* The day's file has blocks of offsets 0-9 and 20-29, and the file of one of its seconds a
block of 22-31. Shares may be 0-9, 10-21, 22-31: the last one has rows of both.

Rules
- A share has about ``SHARE_BYTES`` of rows: blocks count as evenly filled. Besides it one file of a
  second is in memory at a time, but for those that are mapped.
- A file is as it was at the read point. One that was deleted since has no rows: every mark covers
  them.
- Damage is noted by the storage, as by every other reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ..due.runs import source_of_piece
from ..errors import Damaged
from ..rows import due_in, no_rows, sort_rows, take_rows
from ..schema import Int64s, Mask, times
from ..slots.blockindex import BlockIndex
from ..slots.mend import SHARE_BYTES
from ..slots.slot import begins_ms, ends_ms, is_wide, seconds_of
from ..slots.slotfile import missing
from ..slots.storage import ReadPoint, Storage
from ..state import SlotInfo


@dataclass(frozen=True, slots=True)
class _Spans:
    """The blocks of a slot file that have rows of the time: of each the lowest and the highest
    offset, and about the bytes of these rows; shape (blocks,)."""

    lowest: Int64s
    highest: Int64s
    nbytes: Int64s

    def overlap(self, first: int, last: int) -> bool:
        return bool(((self.lowest <= last) & (self.highest >= first)).any())


class RowShares:
    """The rows that are due in the time of ``slot`` and have offsets below ``upto``, of files and
    pieces of a read point. Iterating gives batches (ROW schema, each sorted, none empty) with
    ascending offsets from batch to batch.

    Errors, also while iterating: ``Damaged``, ``OSError``.
    """

    def __init__(self, storage: Storage, slot: int, upto: int, point: ReadPoint) -> None:
        self._storage = storage
        self._seconds = seconds_of(slot)
        self._upto = upto
        self._files = point.files
        self._mapped: dict[int, Sequence[pa.RecordBatch]] = {}
        self._pieces = [
            (piece, np.sort(source.offset[source.offset < upto]), source.nbytes)
            for piece in point.pieces
            if (source := source_of_piece(piece, begins_ms(slot), ends_ms(slot), point.spilled))
        ]
        spans = self._spans_by_index, self._spans_by_rows
        self._spans = {at: spans[0 if is_wide(at) else 1](at) for at in point.files}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        first = 0
        for last in [*self._borders(), self._upto - 1]:
            rows = self.between(first, last)
            if rows.num_rows:
                yield rows
            first = last + 1

    def between(self, first: int, last: int) -> pa.RecordBatch:
        """The rows with offsets from ``first`` to ``last``, sorted; ROW schema."""
        rows = [
            take_rows(block, np.flatnonzero((offset >= first) & (offset <= last)))
            for block, offset in self._blocks(first, last)
        ]
        for piece, offsets, _ in self._pieces:
            at = offsets[(offsets >= first) & (offsets <= last)] - piece.base_offset
            if len(at):
                rows.append(piece.take(at))
        return sort_rows(pa.concat_batches(rows)) if rows else no_rows()

    def offsets(self, first: int, last: int) -> Int64s:
        """The offsets from ``first`` to ``last`` of rows in files, in no order, shape (rows,)."""
        offsets = [
            offset[(offset >= first) & (offset <= last)] for _, offset in self._blocks(first, last)
        ]
        return np.concatenate(offsets) if offsets else np.empty(0, np.int64)

    def _blocks(self, first: int, last: int) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """The rows of the time in each block that may have such offsets, and their offsets."""
        for slot, spans in self._spans.items():
            if not spans.overlap(first, last):
                continue
            blocks: Iterable[pa.RecordBatch]
            if is_wide(slot):
                wanted = partial(self._wanted, first=first, last=last)
                blocks = self._storage.select(slot, self._files[slot], wanted)
            else:
                blocks = self._read(slot)
            for block in blocks:
                rows = due_in(block, self._seconds)
                yield rows, times(rows, "offset")

    def _wanted(self, index: BlockIndex, first: int, last: int) -> Mask:
        return index.within(first, last) & index.due_in(self._seconds)

    def _spans_by_index(self, slot: int) -> _Spans:
        info = self._files[slot]
        index = self._storage.block_index(slot, info)
        if index is None:
            return _NO_SPANS
        at = self._wanted(index, 0, self._upto - 1) & index.had_by(info)
        portion = index.nbytes.within(self._seconds).total / max(1, index.nbytes.total)
        nbytes = ((index.stops - index.starts)[at] * portion).astype(np.int64)
        return _Spans(index.lowest[at], np.minimum(index.highest[at], self._upto - 1), nbytes)

    def _spans_by_rows(self, slot: int) -> _Spans:
        spans = []
        for block in self._read(slot):
            offset = times(due_in(block, self._seconds), "offset")
            offset = offset[offset < self._upto]
            if len(offset):
                nbytes = block.nbytes * len(offset) // block.num_rows
                spans.append((int(offset.min()), int(offset.max()), nbytes))
        return _Spans(*np.array(spans, np.int64).reshape(-1, 3).T)

    def _read(self, slot: int) -> Sequence[pa.RecordBatch]:
        """The blocks of the file of a second; it is not kept for others, or it would close those
        from which rows are about to leave."""
        if slot in self._mapped:
            return self._mapped[slot]
        info = self._files[slot]
        try:
            blocks = list(self._storage.read_aside(slot, info, seconds_of(slot)))
        except (Damaged, FileNotFoundError) as error:
            damage = error if isinstance(error, Damaged) else missing(slot, info)
            self._storage.note_damage(slot, info, damage)
            raise damage from None
        if info.length >= self._storage.slot_files.map_from_bytes:
            self._mapped[slot] = blocks
        return blocks

    def _borders(self) -> list[int]:
        """The last offset of each share but the last one, as if each block were evenly filled."""
        pieces = [(at, nbytes) for _, at, nbytes in self._pieces if len(at)]
        tail = np.array([(at[0], at[-1], nbytes) for at, nbytes in pieces], np.int64)
        every = [*self._spans.values(), _Spans(*tail.reshape(-1, 3).T)]
        begin = np.concatenate([spans.lowest for spans in every])
        end = np.concatenate([spans.highest for spans in every]) + 1
        nbytes = np.concatenate([spans.nbytes for spans in every])
        if nbytes.sum() <= SHARE_BYTES:
            return []
        offset = np.concatenate([begin, end])
        order = np.argsort(offset)
        density = nbytes / (end - begin)
        bytes_an_offset = np.cumsum(np.concatenate([density, -density])[order])
        before = np.cumsum(bytes_an_offset[:-1] * np.diff(offset[order]))
        borders = np.arange(SHARE_BYTES, before[-1], SHARE_BYTES)
        last = np.interp(borders, np.append(0, before), offset[order]).astype(np.int64)
        return [int(at) for at in np.unique(last)]


_NO_SPANS = _Spans(*np.empty((3, 0), np.int64))


def rows_within(storage: Storage, slot: int, upto: int) -> RowShares:
    """The rows that are due in the time of a slot and have offsets below ``upto``, from all files
    of that time and the tail. Errors: ``Damaged``, ``OSError``."""
    return RowShares(storage, slot, upto, storage.range_point(slot))


def rows_beside(
    storage: Storage, slot: int, upto: int, without: Mapping[int, SlotInfo]
) -> RowShares:
    """The same, from files only, and not from those of ``without``."""
    files = storage.range_point(slot).files
    beside = {at: info for at, info in files.items() if at not in without}
    return RowShares(storage, slot, upto, ReadPoint(beside, 0, ()))

"""The rows of a slot's time in many files, in the order of offsets, a share at a time.

Theory: peers spill at different times, so what one has in the file of a day may lie with another in
files of hours and seconds besides, and in its tail. What they have in common are offsets. The files
are read once to find out which offsets each of their blocks has; then they are read again, a share
of offsets after the other, and the rows of a share sorted. Each spill writes the next range of
offsets, so a share touches few blocks of each file. Otherwise whoever heals the file of a day, of
some gigabytes, would need them all in memory.

*Example.* The day's file has blocks of offsets 0-9 and 20-29, and the file of one of its seconds a
block of 22-31. Shares may be 0-9, 10-21, 22-31: the last one has rows of both.

Rules
- A share has about ``SHARE_BYTES`` of rows: blocks count as evenly filled. Besides it one file is
  in memory at a time, but for those that are mapped.
- A file is as it was at the read point. One that was deleted since has no rows: every mark covers
  them.
- Damage is noted by the storage, as by every other reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..due.runs import no_rows, source_of_piece
from ..errors import Damaged
from ..rows import sort_rows, take_rows
from ..schema import Int64s, times
from ..slots.mend import SHARE_BYTES
from ..slots.slot import begins_ms, ends_ms
from ..slots.slotfile import missing
from ..slots.storage import ReadPoint, Storage
from ..state import SlotInfo


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of the time in one block of a slot file: its lowest and highest offset, and their
    bytes."""

    lowest: int
    highest: int
    nbytes: int
    slot: int
    block: int


class RowShares:
    """The rows that are due in the time of ``slot`` and have offsets below ``upto``, of files and
    pieces of a read point. Iterating gives batches (ROW schema, each sorted, none empty) with
    ascending offsets from batch to batch.

    Errors, also while iterating: ``Damaged``, ``OSError``.
    """

    def __init__(self, storage: Storage, slot: int, upto: int, point: ReadPoint) -> None:
        self._storage = storage
        self._begin_ms, self._end_ms = begins_ms(slot), ends_ms(slot)
        self._upto = upto
        self._files = point.files
        self._mapped: dict[int, Sequence[pa.RecordBatch]] = {}
        self._pieces = [
            (piece, np.sort(source.offset[source.offset < upto]), source.nbytes)
            for piece in point.pieces
            if (source := source_of_piece(piece, self._begin_ms, self._end_ms, point.spilled))
        ]
        self._parts = sorted(
            (part for at in point.files for part in self._parts_of(at)),
            key=lambda part: part.lowest,
        )

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
        wanted: dict[int, list[int]] = {}
        for part in self._parts:
            if part.lowest > last:
                break
            if part.highest >= first:
                wanted.setdefault(part.slot, []).append(part.block)
        for slot, numbers in wanted.items():
            blocks = self._read(slot)
            for number in numbers if blocks else ():  # the file may have been deleted since
                rows = self._in_time(blocks[number])
                yield rows, times(rows, "offset")

    def _parts_of(self, slot: int) -> Iterator[_Part]:
        for number, block in enumerate(self._read(slot)):
            rows = self._in_time(block)
            offset = times(rows, "offset")
            offset = offset[offset < self._upto]
            if len(offset):
                nbytes = block.nbytes * len(offset) // block.num_rows
                yield _Part(int(offset.min()), int(offset.max()), nbytes, slot, number)

    def _in_time(self, block: pa.RecordBatch) -> pa.RecordBatch:
        start, stop = np.searchsorted(times(block, "due"), [self._begin_ms, self._end_ms])
        return block.slice(start, stop - start)

    def _read(self, slot: int) -> Sequence[pa.RecordBatch]:
        if slot in self._mapped:
            return self._mapped[slot]
        info = self._files[slot]
        try:
            blocks = self._storage.read_aside(slot, info)
        except (Damaged, FileNotFoundError) as error:
            damage = error if isinstance(error, Damaged) else missing(slot, info)
            self._storage.note_damage(slot, info, damage)
            raise damage from None
        if info.length >= self._storage.slot_files.map_from_bytes:
            self._mapped[slot] = blocks
        return blocks

    def _borders(self) -> list[int]:
        """The last offset of each share but the last one, as if each block were evenly filled."""
        spans = [(part.lowest, part.highest + 1, part.nbytes) for part in self._parts]
        spans += [
            (int(at[0]), int(at[-1]) + 1, nbytes) for _, at, nbytes in self._pieces if len(at)
        ]
        begin, end, nbytes = np.array(spans, np.int64).reshape(-1, 3).T
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

"""The index of a wide slot file: where its blocks are, and in which seconds it has rows.

Theory: a file of a day has the rows of 86,400 seconds, and mostly each of its blocks has some of
any hour. Who wants one row, the rows of a second or the cancels has to know which blocks can have
them. So the file is read once, a few megabytes at a time, and what is kept is 56 bytes a block and
16 for each second that has rows: a megabyte and a half at most for the seconds of a day. The index
is never written: it belongs to bytes whose checksum was verified when it was made, and goes on from
there when the file has grown.

*Example.* Blocks of offsets 0-9 and 10-19, both with rows due between 08:00 and 20:00; the second
has a cancel. The row of offset 12 is looked for in the second block alone; so are the cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..config import TICK_MS
from ..schema import ROW_BYTES, Int64s, Mask, lengths, sizes, times, valid
from ..state import SlotInfo
from .opened import Opened
from .secondsums import NO_SUMS, SecondSums
from .slot import seconds_of
from .slotfile import NOTHING, SlotFiles

MAP_FROM_BYTES = 1 << 20
"""Blocks from this size on are mapped: of a large one only a few rows may be wanted, and the rest
of it would be read for nothing."""


@dataclass(frozen=True, slots=True)
class BlockIndex(Opened):
    """Arrays by block, shape (blocks,): positions in the file, due times in ms, offsets, the number
    of cancel rows. ``nbytes``: about the bytes that the rows of each second take in memory."""

    info: SlotInfo
    """The file as of which the index was made."""
    starts: Int64s
    stops: Int64s
    earliest: Int64s
    latest: Int64s
    lowest: Int64s
    highest: Int64s
    cancels: Int64s
    nbytes: SecondSums

    @property
    def weight(self) -> int:
        """Bytes that the index takes in memory."""
        return 7 * self.starts.nbytes + self.nbytes.size

    def due_in(self, seconds: range) -> Mask:
        """The blocks that can have rows due in these seconds; as of all questions here a mask,
        shape (blocks,)."""
        return overlapping(self.earliest, self.latest, seconds)

    def with_rows_of(self, second: int) -> Mask:
        """The blocks that can have rows of a second."""
        return self.due_in(range(second, second + 1))

    def within(self, first: int, last: int) -> Mask:
        """The blocks that can have rows with offsets from ``first`` to ``last``."""
        return (self.lowest <= last) & (self.highest >= first)

    def had_by(self, info: SlotInfo) -> Mask:
        """The blocks that the file had as of a record of it. They are told by their offsets:
        positions are others once a repair has made the file anew."""
        return self.within(0, info.highest)

    def with_any_of(self, offsets: Int64s) -> Mask:
        """The blocks that can have the row of one of these ascending ``offsets``."""
        before = offsets.searchsorted(self.lowest)
        return before < offsets.searchsorted(self.highest, side="right")


def overlapping(earliest: Int64s, latest: Int64s, seconds: range) -> Mask:
    """The mask of the blocks that can have rows due in these seconds, by the first and the last due
    time of each, ms; shape (blocks,) all."""
    return (earliest < seconds.stop * TICK_MS) & (latest >= seconds.start * TICK_MS)


_NONE = np.empty(0, np.int64)
_EMPTY = BlockIndex(NOTHING, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, NO_SUMS)


def index_of(
    files: SlotFiles, slot: int, info: SlotInfo, before: BlockIndex | None = None
) -> BlockIndex:
    """The index of a slot's file up to ``info``, made by going on from ``before``.

    Errors: ``Damaged``, ``UnsupportedVersion``, ``FileNotFoundError``.
    """
    known = before or _EMPTY
    starts, stops = files.block_spans(slot, info, known.info)
    by_block = [[known.earliest, known.latest, known.lowest, known.highest, known.cancels]]

    def parts() -> Iterator[tuple[Int64s, Int64s]]:
        yield known.nbytes.seconds, known.nbytes.sums
        for blocks in files.read_at(slot, starts, stops, MAP_FROM_BYTES):
            rows = joined(blocks)
            by_block.append(_by_block(rows, [block.num_rows for block in blocks]))
            each = sizes(rows) + lengths(rows.column("topic")) + ROW_BYTES
            yield times(rows, "due") // TICK_MS, each

    nbytes = SecondSums.of_slot(seconds_of(slot), parts())
    earliest, latest, lowest, highest, cancels = map(np.concatenate, zip(*by_block, strict=True))
    return BlockIndex(
        info,
        np.concatenate([known.starts, starts]),
        np.concatenate([known.stops, stops]),
        earliest,
        latest,
        lowest,
        highest,
        cancels,
        nbytes,
    )


def joined(blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of some blocks, one behind the other; those of one are not copied."""
    return blocks[0] if len(blocks) == 1 else pa.concat_batches(blocks)


def _by_block(rows: pa.RecordBatch, counts: Sequence[int]) -> list[Int64s]:
    """Earliest and latest due time, lowest and highest offset, cancels of each block."""
    borders = np.cumsum([0, *counts])
    first, stops = borders[:-1], borders[1:]
    due, offset = times(rows, "due"), times(rows, "offset")
    return [
        due[first],  # each block is in the order of due times
        due[stops - 1],
        np.minimum.reduceat(offset, first),
        np.maximum.reduceat(offset, first),
        np.add.reduceat(valid(rows.column("cancels")).astype(np.int64), first),
    ]

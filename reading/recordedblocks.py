"""Blocks of slot files that the state has recorded: those of the catalog, and those in the archive.

Apart from ``slots.py``, which Spark's workers load: these need the state store's own library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..wheel.config import TICK_MS
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, mapped
from ..wheel.rows import due_in, sort_rows
from ..wheel.schema import Int64s, times
from ..wheel.slots.archive import parse_archived_slot
from ..wheel.slots.blockindex import overlapping
from ..wheel.slots.secondsums import SecondSums
from ..wheel.slots.slot import path_of, seconds_of, slots_with, stem_of, width_s
from ..wheel.slots.slotfile import checked_bytes, decode_blocks
from ..wheel.state import SlotInfo
from .listing import opened

_SMALL_ROWS = 128
"""Blocks of fewer rows are joined before rows are looked for in them."""
_JOINED_ROWS = 16_384


class BlocksByDue:
    """The blocks of a slot file, of which some seconds are wanted.

    Theory: each spill adds a block to the file of a day, so it may have thousands of them with a
    few rows each, and all of them span the day. Looking into each of 8,000 blocks for each second
    that is asked for would take 40 ms a second. So small blocks are joined, when a part of the file
    is asked for first: of 160,000 rows in 8,000 blocks 10 runs are left.
    """

    def __init__(self, slot: int, info: SlotInfo, blocks: Sequence[pa.RecordBatch]) -> None:
        self.info = info
        self._seconds = seconds_of(slot)
        self._blocks = blocks

    def within(self, seconds: range) -> list[pa.RecordBatch]:
        """The rows that are due in these seconds, in batches that are sorted by due time and
        offset."""
        if seconds.start <= self._seconds.start and self._seconds.stop <= seconds.stop:
            return list(self._blocks)
        wanted = np.flatnonzero(overlapping(*self._bounds, seconds)).tolist()
        batches = (due_in(self._runs[number], seconds) for number in wanted)
        return [batch for batch in batches if batch.num_rows]

    @cached_property
    def rows(self) -> SecondSums:
        """The number of rows of each second."""
        parts = ((times(run, "due") // TICK_MS, 1) for run in self._runs)
        return SecondSums.of_slot(self._seconds, parts)

    @cached_property
    def _runs(self) -> list[pa.RecordBatch]:
        runs: list[pa.RecordBatch] = []
        small: list[pa.RecordBatch] = []
        for block in self._blocks:
            if block.num_rows >= _SMALL_ROWS:
                runs.append(block)
                continue
            small.append(block)
            if len(small) * _SMALL_ROWS >= _JOINED_ROWS:
                runs.append(sort_rows(pa.concat_batches(small)))
                small = []
        if small:
            runs.append(sort_rows(pa.concat_batches(small)))
        return runs

    @cached_property
    def _bounds(self) -> tuple[Int64s, Int64s]:
        """The first and the last due time of each run, ms."""
        due = [times(run, "due") for run in self._runs]
        return np.array([run[0] for run in due]), np.array([run[-1] for run in due])


class WideFiles:
    """Files of hours and days that are open, one of each width: strips of a day are read one after
    the other, and to read and check its file for each would take as long as that each time.
    ``read``: gives the blocks of a slot's file."""

    def __init__(self, read: Callable[[int, SlotInfo], Sequence[pa.RecordBatch]]) -> None:
        self._read = read
        self._open: dict[int, tuple[int, BlocksByDue]] = {}
        """By width: the slot, and its blocks."""

    def __len__(self) -> int:
        return len(self._open)

    def blocks(self, slot: int, info: SlotInfo) -> BlocksByDue:
        """The blocks of a file up to the length in its record. Errors: those of ``read``."""
        open_slot, blocks = self._open.pop(width_s(slot), (None, None))
        if blocks is None or open_slot != slot or blocks.info != info:
            blocks = None  # before the next file is read: there is memory for one
            blocks = BlocksByDue(slot, info, self._read(slot, info))
        self._open[width_s(slot)] = slot, blocks
        return blocks

    def close(self, but: Mapping[int, SlotInfo] | None = None) -> None:
        """Close the files, but those with these records."""
        kept = {} if but is None else but
        self._open = {
            width: (slot, blocks)
            for width, (slot, blocks) in self._open.items()
            if kept.get(slot) == blocks.info
        }


def committed_blocks(root: Path, slot: int, info: SlotInfo) -> list[pa.RecordBatch]:
    """The blocks of a slot file up to the committed length, zero-copy, when their bytes are those
    that the catalog recorded: such as the node wrote them, which is not checked again.

    Errors: ``Damaged``, ``UnsupportedVersion``; ``FileNotFoundError``; another ``OSError``.
    """
    return _recorded_blocks(f"{root}/{path_of(slot)}", info.length, info.crc)


def read_ahead(root: Path, slot: int, info: SlotInfo) -> None:
    """Let the kernel read a slot file that is needed soon; nothing happens if it is not there."""
    with suppress(OSError), opened(f"{root}/{path_of(slot)}") as handle:
        handle.advise(info.length)


def archived_rows(root: Path, second: int) -> list[pa.RecordBatch]:
    """The rows of a second in all archived slot files that are such as they were archived."""
    rows: list[pa.RecordBatch] = []
    for stem in map(stem_of, slots_with(second)):
        for path in sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{SLOT_DIRECTORY}/{stem}.*")):
            with suppress(ValueError, OSError, Damaged, UnsupportedVersion):
                slot, length, crc = parse_archived_slot(path.name)
                info = SlotInfo(length, 0, 0, 0, crc)
                blocks = _recorded_blocks(str(path), length, crc)
                rows += BlocksByDue(slot, info, blocks).within(range(second, second + 1))
    return rows


def _recorded_blocks(path: str, length: int, recorded: int) -> list[pa.RecordBatch]:
    shown = "/".join(path.rsplit("/", 2)[1:])
    with opened(path) as handle:
        data, crc = checked_bytes(handle, length, lambda size: mapped(path).slice(0, size))
    if data.size < length:
        raise Damaged(shown, data.size, expected=f"{length} bytes", found="the end")
    if crc != recorded:
        raise Damaged(shown, 0, expected=f"CRC-32C {recorded:08x}", found=f"{crc:08x}")
    return decode_blocks(data, shown, with_schema=True) if length else []

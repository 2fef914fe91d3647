"""Slot files that are open: their bytes are read and checked once, for all who want their rows.

Theory: the main line, each held-back topic and every question about a cancel read rows of the same
slot, a window at a time. If each of them read the file, a second of a gigabyte would be read and
checked once for each 32 MiB of each topic, and all topics would wait for that. So a file stays
open, as Arrow batches over its bytes, until others were used since: a large one is mapped, and a
reader of it touches only the rows that it takes.

Rules
- What was read stays as it was checked. A mapped file is checked when it is opened; damage that
  comes later is the scrubber's to find, which takes it from here (``forget``).
- Read files take at most ``bytes_max`` together, but for the last one.
- A file is read by one thread at a time (``opened.py``).
- Files of an hour or a day are not opened here: most of their rows are due later (``strips.py``).
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass

import pyarrow as pa

from ..errors import Damaged
from ..schema import times
from ..state import SlotInfo
from .opened import Kept, Opened
from .slotfile import SlotFiles

_MAPPED_MAX = 64
"""Mapped files that stay open, more than are opened ahead. They take no descriptor."""


@dataclass(frozen=True, slots=True)
class _OpenSlot(Opened):
    """``highest``: of each block, ascending. ``nbytes``: read into memory, so without mapped
    ones."""

    info: SlotInfo
    blocks: tuple[pa.RecordBatch, ...]
    highest: tuple[int, ...]
    nbytes: int

    @property
    def weight(self) -> int:
        return self.nbytes

    @property
    def mapped(self) -> bool:
        return self.nbytes < self.info.length

    def between(self, known: SlotInfo | None, info: SlotInfo) -> list[pa.RecordBatch]:
        """The blocks that the file has had since ``known``, up to ``info``. Blocks hold ascending
        ranges of offsets, so the highest offset of a file says which blocks it had."""
        above = -1 if known is None else known.highest
        return [
            block
            for block, highest in zip(self.blocks, self.highest, strict=True)
            if above < highest <= info.highest
        ]


class OpenSlots:
    """The open slot files of one storage. Thread-safe."""

    def __init__(self, files: SlotFiles, bytes_max: int) -> None:
        self._files = files
        self._bytes_max = bytes_max
        self._kept = Kept(self._read, self._close_oldest)

    def blocks(
        self, slot: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The blocks of a slot up to ``info``, or only those behind ``known``.

        Errors: ``Damaged``, ``UnsupportedVersion``, ``FileNotFoundError``.
        """
        return self._kept.upto(slot, info).between(known, info)

    def has(self, slot: int, info: SlotInfo) -> bool:
        """True if the file is open up to ``info``."""
        return self._kept.get(slot, info) is not None

    def forget(self, slot: int) -> None:
        """Close a file that is deleted, replaced or damaged."""
        self._kept.forget(slot)

    def _read(self, slot: int, info: SlotInfo, before: _OpenSlot | None) -> _OpenSlot:
        """``before`` and the blocks after it; the whole file if those are ``Damaged``."""
        if before is not None:
            with contextlib.suppress(Damaged):
                return self._joined(before, info, self._files.read(slot, info, before.info))
        return self._joined(None, info, self._files.read(slot, info))

    def _joined(
        self, before: _OpenSlot | None, info: SlotInfo, blocks: list[pa.RecordBatch]
    ) -> _OpenSlot:
        added = info.length - (before.info.length if before is not None else 0)
        nbytes = added if info.length < self._files.map_from_bytes else 0
        highest = tuple(int(times(block, "offset").max()) for block in blocks)
        if before is None:
            return _OpenSlot(info, tuple(blocks), highest, nbytes)
        return _OpenSlot(
            info, (*before.blocks, *blocks), (*before.highest, *highest), before.nbytes + nbytes
        )

    def _close_oldest(self, opened: OrderedDict[int, _OpenSlot]) -> None:
        mapped = sum(slot.mapped for slot in opened.values())
        for number, slot in list(opened.items())[:-1]:
            if self._kept.weight > self._bytes_max or (slot.mapped and mapped > _MAPPED_MAX):
                self._kept.drop(number)
                mapped -= slot.mapped

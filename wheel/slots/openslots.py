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
- A file is read by one thread at a time; who wants it meanwhile waits and finds it open. Nobody
  waits for another file: a large one is read for seconds ahead of its time, and meanwhile others
  are due.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakValueDictionary

import pyarrow as pa

from ..errors import Damaged
from ..schema import times
from ..state import SlotInfo
from .slotfile import SlotFiles

_MAPPED_MAX = 64
"""Mapped files that stay open, more than are opened ahead. They take no descriptor."""


@dataclass(frozen=True, slots=True)
class _OpenSlot:
    """``highest``: of each block, ascending. ``nbytes``: read into memory, so without mapped
    ones."""

    info: SlotInfo
    blocks: tuple[pa.RecordBatch, ...]
    highest: tuple[int, ...]
    nbytes: int

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
        self._open: OrderedDict[int, _OpenSlot] = OrderedDict()
        self._lock = threading.Lock()  # guards what is open, and is never held while reading
        self._forgotten = 0
        self._alone = WeakValueDictionary[int, threading.Lock]()
        """By slot: held by who reads the file, and awaited by others who want it."""

    def blocks(
        self, slot: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The blocks of a slot up to ``info``, or only those behind ``known``.

        Errors: ``Damaged``, ``UnsupportedVersion``, ``FileNotFoundError``.
        """
        with self._lock:
            alone = self._alone.setdefault(slot, threading.Lock())
        with alone:
            with self._lock:
                opened, forgotten = self._open.get(slot), self._forgotten
            if opened is None or opened.info.length < info.length:
                opened = self._read(slot, info, opened)
            with self._lock:
                if forgotten == self._forgotten:  # else it may be another file by now
                    self._open[slot] = opened
                    self._open.move_to_end(slot)
                    self._close_oldest()
        return opened.between(known, info)

    def has(self, slot: int, info: SlotInfo) -> bool:
        """True if the file is open up to ``info``."""
        with self._lock:
            opened = self._open.get(slot)
        return opened is not None and opened.info.length >= info.length

    def forget(self, slot: int) -> None:
        """Close a file that is deleted, replaced or damaged."""
        with self._lock:
            self._forgotten += 1
            self._open.pop(slot, None)

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

    def _close_oldest(self) -> None:
        read = sum(opened.nbytes for opened in self._open.values())
        mapped = sum(opened.mapped for opened in self._open.values())
        for slot, opened in list(self._open.items())[:-1]:
            if read > self._bytes_max or (opened.mapped and mapped > _MAPPED_MAX):
                del self._open[slot]
                read, mapped = read - opened.nbytes, mapped - opened.mapped

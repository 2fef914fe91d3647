"""The cancels in slot files, each file read once for all who ask about messages of it.

Theory: an id names a due time and an offset, so at most three files may have a cancel of its
message, and the file of a day may have one of any message of 86,400 seconds. If each question read
that file again, the cancel of a single message of a year would read and check 50 MB, and half a
million of them all files of that year some hundred times. So the cancel rows of a file are kept
when they were read, 24 bytes each, and of a file that has grown only the new blocks are read.

Rules
- What is kept is no second truth: it was committed and checked, cancels are never taken back, and a
  file that is deleted or replaced is forgotten (``forget``). Otherwise a slot that is made anew
  after a clock was set back would have the cancels of its former file.
- A file without further cancels is not read, however much it has grown: the catalog counts them.
- The files that were asked about last are kept, up to a number of cancels and of files.

*Example.* Offsets 5 and 9 are cancelled in a file of 1000 bytes, which a spill makes 1800 bytes
long. If the catalog still has two cancels of it, nothing is read; if it has three, the last 800
bytes are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..journal.payloads import CancelRows
from ..state import SlotInfo
from .opened import Kept, Opened

ReadBlocks = Callable[[int, SlotInfo, SlotInfo | None], Sequence[pa.RecordBatch]]
"""Reads the blocks of a slot's file up to the first record, behind the second one; none if it was
deleted since. Errors: ``Damaged``."""
FILES_MAX = 8_192
"""The cancels of so many files are kept at most: those of two hours in files of a second, or of ten
years in files of a day."""


@dataclass(frozen=True, slots=True)
class _ReadCancels(Opened):
    """The cancel rows of a file, in the order of the offsets that they name."""

    info: SlotInfo
    rows: CancelRows

    @property
    def weight(self) -> int:
        return len(self.rows)

    def has(self, info: SlotInfo) -> bool:
        return self.info.cancels >= info.cancels


class FileCancels:
    """The cancel rows of slot files, by slot. Thread-safe. ``cancels_max``: so many are kept."""

    def __init__(self, read: ReadBlocks, cancels_max: int) -> None:
        self._read_blocks = read
        self._cancels_max = cancels_max
        self._kept = Kept(self._read, self._close_oldest)
        self._reading = threading.Lock()
        """Held while a file is read, so that one at most is in memory for its cancels."""

    def of(self, slot: int, info: SlotInfo) -> CancelRows:
        """The cancel rows in a slot's file up to ``info``, or further, in the order of the offsets
        that they name. Not under the owner's lock.

        Errors: ``Damaged``.
        """
        return self._kept.upto(slot, info).rows if info.cancels else CancelRows()

    def forget(self, slot: int) -> None:
        """A slot's file is deleted or replaced."""
        self._kept.forget(slot)

    def _read(self, slot: int, info: SlotInfo, before: _ReadCancels | None) -> _ReadCancels:
        known, rows = (None, []) if before is None else (before.info, [before.rows])
        with self._reading:
            rows += [CancelRows.of(block, None) for block in self._read_blocks(slot, info, known)]
        return _ReadCancels(info, CancelRows.joined(rows).by_target())

    def _close_oldest(self, opened: OrderedDict[int, _ReadCancels]) -> None:
        slot, newest = next(reversed(opened.items()))
        # A file with fewer cancels than the catalog counts was deleted before it was read. One with
        # more than may be kept would push out all others, and still not fit.
        if newest.weight != newest.info.cancels or newest.weight > self._cancels_max:
            self._kept.drop(slot)
        while self._kept.weight > self._cancels_max or len(opened) > FILES_MAX:
            self._kept.drop(next(iter(opened)))

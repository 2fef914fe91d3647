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

import pyarrow as pa

from ..journal.payloads import CancelRows
from ..state import SlotInfo

ReadBlocks = Callable[[int, SlotInfo, SlotInfo | None], Sequence[pa.RecordBatch]]
"""Reads the blocks of a slot's file up to the first record, behind the second one; none if it was
deleted since. Errors: ``Damaged``."""
FILES_MAX = 8_192
"""The cancels of so many files are kept at most: those of two hours in files of a second, or of ten
years in files of a day."""


class FileCancels:
    """The cancel rows of slot files, by slot. Thread-safe. ``cancels_max``: so many are kept."""

    def __init__(self, read: ReadBlocks, cancels_max: int) -> None:
        self._read = read
        self._cancels_max = cancels_max
        self._kept: OrderedDict[int, tuple[SlotInfo, CancelRows]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()  # guards what is kept, and is never held while reading
        self._forgotten = 0
        self._reading = threading.Lock()
        """Held while a file is read: questions about one day would else read its file at once."""

    def of(self, slot: int, info: SlotInfo) -> CancelRows:
        """The cancel rows in a slot's file up to ``info``, or further, in the order of the offsets
        that they name. Not under the owner's lock.

        Errors: ``Damaged``.
        """
        if not info.cancels:
            return CancelRows()
        with self._reading:
            with self._lock:
                known, rows = self._kept.get(slot, (None, CancelRows()))
                forgotten = self._forgotten
                if known is not None:
                    self._kept.move_to_end(slot)
            if known is not None and known.cancels >= info.cancels:
                return rows
            blocks = self._read(slot, info, known)
            read = [CancelRows.of(block, None) for block in blocks]
            rows = CancelRows.joined([rows, *read]).by_target()
            with self._lock:
                # Else the file was deleted or replaced meanwhile.
                if forgotten == self._forgotten and len(rows) == info.cancels:
                    self._keep(slot, info, rows)
        return rows

    def forget(self, slot: int) -> None:
        """A slot's file is deleted or replaced."""
        with self._lock:
            self._forgotten += 1
            self._drop(slot)

    def _keep(self, slot: int, info: SlotInfo, rows: CancelRows) -> None:
        self._drop(slot)
        if len(rows) > self._cancels_max:
            return
        self._kept[slot] = info, rows
        self._count += len(rows)
        while self._count > self._cancels_max or len(self._kept) > FILES_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, slot: int) -> None:
        if slot in self._kept:
            self._count -= len(self._kept.pop(slot)[1])

"""Remembers the frames of files of departures, for one question after the other.

Theory: where each message leaves by itself, a file has hundreds of thousands of frames, and to read
their headers takes much longer than to compare them. Files only grow at their end, so what was read
stays true. Bodies are not remembered: a frame is checked each time that it is read.

Rules
- At most ``KEPT_MAX`` frames of 48 bytes are kept, of the files that were asked for last. Of one
  file no more than ``FILE_MAX`` are read.
- A file that has become shorter is another one.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ..wheel.departurefile import FRAME_TABLE, HEADER_BYTES, check_file_header, frame_tables
from .listing import opened

KEPT_MAX = 2_000_000
FILE_MAX = 1_000_000
FrameTable: TypeAlias = np.ndarray[tuple[int], np.dtype[np.void]]
"""Of ``FRAME_TABLE``, shape (frames,)."""
_NONE: FrameTable = np.empty(0, FRAME_TABLE)


class KnownFrames:
    """Not thread-safe. Files are known by their paths."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._tables: dict[Path, FrameTable] = {}
        """Those asked for last come last."""

    @property
    def count(self) -> int:
        return sum(map(len, self._tables.values()))

    def forget_all_but(self, paths: Collection[Path]) -> None:
        for path in self._tables.keys() - set(paths):
            del self._tables[path]

    def known(self, path: Path) -> FrameTable:
        """The frames of a file as of ``grow``, in their order."""
        return self._tables.get(path, _NONE)

    def grow(self, path: Path, size: int, shown: str) -> None:
        """Read what a file of that size has more. Errors: ``OSError``, ``Damaged``,
        ``UnsupportedVersion``; what is before the damage is known then."""
        table = self._tables.pop(path, _NONE)
        if _end(table) > size:
            table = _NONE
        added: list[FrameTable] = []
        try:
            if _end(table) < size and len(table) < FILE_MAX:
                with opened(path) as handle:
                    if not len(table):
                        if handle.size() < HEADER_BYTES:
                            return  # it has just been made
                        check_file_header(handle.pread(HEADER_BYTES, 0), shown)
                    count = len(table)
                    for some in frame_tables(handle, shown, _end(table)):
                        added.append(some)
                        count += len(some)
                        if count >= FILE_MAX:
                            break
        except FileNotFoundError:
            table, added = _NONE, []
            raise
        finally:
            if added:
                table = np.concatenate([table, *added])
            if len(table):
                self._tables[path] = table
            self._bound()

    def _bound(self) -> None:
        while len(self._tables) > 1 and self.count > self._kept_max:
            del self._tables[next(iter(self._tables))]


def _end(table: FrameTable) -> int:
    """Where the frame behind these begins."""
    if not len(table):
        return HEADER_BYTES
    return int(table["position"][-1]) + int(table["nbytes"][-1])

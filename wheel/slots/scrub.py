"""Reading slot files ahead of their time, to find damage before it is due: the scrubber.

Theory: a disk may damage a file at rest, and only reading shows it. So all slot files are read
again and again, and compared with their checksums in the catalog: those that begin sooner first,
whatever their width, or the next hour would be read behind all seconds, and its damage found when
it is due. The caller decides how much is read at a time, and so how fast.

Rules
- One thread. A file is read as it was when its reading began; what is appended meanwhile comes with
  the next pass, and a file that was deleted or replaced is left at once.
- Damage is recorded by the storage, as for every other reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from crc32c import crc32c

from ..errors import Damaged
from .slot import path_of
from .slotfile import NOTHING, damaged
from .storage import Storage

_FILE_BYTES = 16 << 10
"""A file counts for so many bytes at least, as it takes time to open thousands of small ones."""


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """The result of a turn: bytes read, and if a pass over all files has ended."""

    nbytes: int
    passed: bool


class Scrubber:
    """Reads the slot files of one storage, round after round."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._slot: int | None = None
        self._info = NOTHING
        self._known: Damaged | None = None
        """The record of the file as damaged when its reading began."""
        self._replacements = 0
        self._at = 0
        self._crc = 0

    def turn(self, bytes_max: int) -> Scrubbed:
        """Read about ``bytes_max`` more bytes at most, of one file at least.

        Errors: ``OSError``; the next turn goes on with the next file.
        """
        left, nbytes = bytes_max, 0
        while left > 0:
            if not self._is_open() and not self._open_next():
                return Scrubbed(nbytes, passed=True)
            count = self._read(left)
            nbytes += count
            left -= max(count, _FILE_BYTES)
        return Scrubbed(nbytes, passed=False)

    def _is_open(self) -> bool:
        """True if a file is half read, and was neither deleted nor replaced since."""
        if self._slot is None or self._at >= self._info.length:
            return False
        same = self._replacements == self._storage.replacements
        return same and self._storage.catalog.get(self._slot) is not None

    def _open_next(self) -> bool:
        catalog = self._storage.catalog
        slot = catalog.following(self._slot)
        self._slot, self._at, self._crc = slot, 0, 0
        if slot is None:
            return False
        self._replacements = self._storage.replacements
        self._known = self._storage.damaged.get(slot)
        self._info = catalog[slot]
        return True

    def _read(self, bytes_max: int) -> int:
        slot, info, path = self._slot, self._info, path_of(self._slot or 0)
        assert slot is not None
        want = min(bytes_max, info.length - self._at)
        try:
            data = self._storage.slot_files.pread(slot, want, self._at)
        except FileNotFoundError:
            data = b""
        except Damaged as error:
            self._damaged(error)
            return 0
        except OSError:
            self._at = info.length
            raise
        self._crc = crc32c(data, self._crc)
        self._at += len(data)
        if len(data) < want:
            self._damaged(damaged(path, self._at, f"{info.length} bytes", "the end"))
        elif self._at == info.length and self._crc != info.crc:
            expected, found = f"CRC-32C {info.crc:08x}", f"{self._crc:08x}"
            self._damaged(damaged(path, 0, expected, found))
        elif self._at == info.length and self._known is not None:
            self._storage.note_sound(slot, info, self._known)
        return len(data)

    def _damaged(self, error: Damaged) -> None:
        assert self._slot is not None
        # What was read is the beginning of what is there now, unless it was replaced.
        now = self._storage.catalog.get(self._slot)
        if now is not None and self._replacements == self._storage.replacements:
            self._storage.note_damage(self._slot, now, error)
        self._at = self._info.length

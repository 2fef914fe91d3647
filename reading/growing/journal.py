"""How far a journal reaches now, beside a node that writes it.

Rules
- Only complete entries count. A torn end is ignored; it is damage only when a frame calls it
  durable, and then it is passed, so that the reader reports it.
- A segment that was dropped is looked for in the archive. If it is not there, reading goes on
  at the oldest entry that is left; the part's reader reports which entries are missing.
- A position that does not fit the bytes before it is of a journal that was cut back or replaced:
  that is reported, too, and the present journal is read from the segment's begin.
- Nothing is kept open between two looks: a file may have been replaced by the next.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Handle, OsHandle
from ...wheel.journal.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from ...wheel.journal.scan import ENTRY_BYTES_MAX, SegmentReader
from ...wheel.journal.segment import FRAME_BYTES, SEGMENT_BYTES, segment_path
from ..journal import Broken, entries
from ..listing import journal_segments, opened, segment_file
from .positions import JournalAt

UNLIMITED = 1 << 62


def first_entry(root: Path, *, archive: bool) -> JournalAt | None:
    """The position of the oldest entry of a journal; None when it has no segment yet."""
    found = journal_segments(root, archive=archive)
    if not found:
        return None
    oldest = next(iter(found))
    return JournalAt(oldest, index=oldest, begun=oldest)


def entry_at(root: Path, index: int) -> JournalAt | None:
    """The position of the entry with an index, or where it will be; None: the live journal begins
    behind it. Entries before it are skipped frame by frame; where one is damaged, it is the begin
    of the segment instead. Errors: ``Damaged``, ``UnsupportedVersion``: of the segment's header;
    ``OSError``."""
    firsts = [first for first in journal_segments(root, archive=False) if first <= index]
    if not firsts:
        return None
    first = max(firsts)
    with opened(root / segment_path(first)) as handle:
        reader = SegmentReader(handle, segment_path(first), ENTRY_BYTES_MAX)
        position, store = SEGMENT_BYTES, reader.header.store_id.hex()
        for number in range(first, index):
            try:
                position = reader.skip(position)
            except Damaged:
                if not reader.ends_at(position):
                    return JournalAt(first, index=first, store=store, begun=first)
                index = number
                break
    return JournalAt(first, position, index, store=store, begun=first)


def look_at_journal(
    root: Path, at: JournalAt | None, *, archive: bool, nbytes: int = UNLIMITED
) -> tuple[JournalAt | None, bool]:
    """How far the journal reaches from ``at`` on (None: from its begin), and whether that is its
    end.

    ``nbytes``: about how much is passed at most; at least one entry is.
    """
    look = _JournalLook(root, archive, nbytes)
    at = at or first_entry(root, archive=archive)
    while at is not None and not look.ended:
        at = look.step(at)
    return at, look.at_end


class _JournalLook:
    def __init__(self, root: Path, archive: bool, nbytes: int) -> None:
        self._root = root
        self._archive = archive
        self._left = nbytes
        self.ended = self.at_end = False

    def step(self, at: JournalAt) -> JournalAt:
        """The position behind this segment's entries; or the next segment's begin, if it exists."""
        path = segment_file(self._root, at.segment, archive=self._archive)
        if path is None:
            return self._gone(at)
        try:
            with opened(path) as handle:
                return self._segment(at, path, handle)
        except FileNotFoundError:  # It was moved or dropped in between: look again.
            return at
        except OSError as error:
            return self._unreadable(at, path, error)

    def _segment(self, at: JournalAt, path: Path, handle: OsHandle) -> JournalAt:
        try:
            reader = SegmentReader(handle, str(path), ENTRY_BYTES_MAX)
        except (Damaged, UnsupportedVersion) as error:
            return self._unreadable(at, path, error)
        store = reader.header.store_id.hex()
        if at.store not in ("", store):
            note = f"the journal is another one by now: store {store}, it was {at.store}"
            return self._anew(at, note)
        if at.last and check_of(handle, at.last) != at.crc:
            return self._anew(at, f"entries before index {at.index} were cut off and replaced")
        return self._entries(replace(at, store=store), path, reader)

    def _entries(self, at: JournalAt, path: Path, reader: SegmentReader) -> JournalAt:
        position, last, epoch, index = at.position, at.last, at.epoch, at.index

        def here() -> JournalAt:
            crc = check_of(reader.handle, last) if last != at.last else at.crc
            return replace(at, position=position, index=index, epoch=epoch, last=last, crc=crc)

        for found in entries(reader, position):
            if self._left <= 0:
                self.ended = True
                return here()
            if isinstance(found, Broken):
                if not path.exists() or _is_readable(path, position):
                    return here()  # it was moved, or is complete by now: look again
                called = index <= found.witness or self._next(at.segment) is not None
                if isinstance(found.error, Damaged) and not called:
                    break  # not written yet
                position = found.following or reader.size
                continue
            last = position
            self._left -= found.end - position
            position, index, epoch = found.end, found.entry.index + 1, found.entry.epoch
        return self._behind(here())

    def _behind(self, at: JournalAt) -> JournalAt:
        """The position from which to read on when all entries of a segment were passed: the next
        segment's begin. Without one this look ends here."""
        following = self._next(at.segment)
        if following is None:
            self.ended = self.at_end = True
            return at
        # Entries that were written between the two looks are still before the next segment.
        path = segment_file(self._root, at.segment, archive=self._archive)
        if path is not None and following != at.index and _is_readable(path, at.position):
            return at
        return self._begin(at, following)

    def _begin(self, at: JournalAt, first: int) -> JournalAt:
        """The begin of a later segment."""
        return replace(at, segment=first, position=SEGMENT_BYTES, index=first, last=0, crc=0)

    def _anew(self, at: JournalAt, note: str) -> JournalAt:
        """Start again at the oldest live segment, as nobody knows how far it was cut. Note it."""
        oldest = first_entry(self._root, archive=False) or JournalAt(at.segment, index=at.segment)
        restarts = at.restarts + 1
        return replace(oldest, restarts=restarts, note=f"{note} (restart {restarts})")

    def _gone(self, at: JournalAt) -> JournalAt:
        live = journal_segments(self._root, archive=False)
        # Segments are dropped from the oldest on, and cut off from the newest on.
        if live and min(live) < at.segment and at.segment not in live:
            return self._anew(at, f"entries before index {at.index} were cut off and replaced")
        return self._behind(at)

    def _unreadable(self, at: JournalAt, path: Path, error: Exception) -> JournalAt:
        following = self._next(at.segment)
        if following is None:  # most likely it is being created
            self.ended = self.at_end = True
            return at
        if not path.exists() or _is_readable(path):
            return at  # it was moved, or was being created: look again
        return replace(self._begin(at, following), note=f"segment {at.segment}: {error}")

    def _next(self, segment: int) -> int | None:
        firsts = journal_segments(self._root, archive=self._archive)
        return next((first for first in firsts if first > segment), None)


def _is_readable(path: Path, position: int = -1) -> bool:
    """Whether a segment can be read, and an entry in it at ``position``, if that is given."""
    try:
        with opened(path) as handle:
            reader = SegmentReader(handle, str(path), ENTRY_BYTES_MAX)
            return position < 0 or (not reader.ends_at(position) and reader.is_sound(position))
    except (OSError, Damaged, UnsupportedVersion):
        return False


def check_of(handle: Handle, position: int) -> int:
    """Checksum of the frame and the header of an entry; the header has the entry's checksum."""
    return crc32c(handle.pread(FRAME_BYTES + ENTRY_HEADER_BYTES, position))

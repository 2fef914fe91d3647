"""Writing the open segment of the journal.

Theory: an append is one gathered write at a position that is known, never "at the end", since after
a crash or on a full disk the end may hold junk.

Rules
- Where there is anything behind the known end, an end mark follows every write, and the next write
  takes its place. Once the file is cut at its end nothing is behind it, and no mark is needed.
- A small write is followed by zeros for those to come, so that most of them do not make the file
  grow: 1 KB that is synced with a new size takes half as long again. They are written twice, which
  costs large writes more than it saves; and never beyond the segment's size.
- A write that failed moves nothing: the known end stays, and what lies behind it is cut, durably,
  before anything else is written there. Durably, because a crash might otherwise bring back entries
  that were reported as failed, behind others that have taken their place since.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence

from ..errors import InvalidBatch
from ..files import Bytes, Files, Handle
from .entry import Entry
from .scan import SegmentReader
from .segment import (
    ALIGNMENT,
    DIRECTORY,
    FRAME_BYTES,
    PADDING,
    SEGMENT_BYTES,
    SegmentHeader,
    encode_frame,
    end_mark,
    padded,
    segment_path,
)

_AHEAD_BYTES = 256 << 10
_SMALL_BYTES = 32 << 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ZEROS = bytes(_AHEAD_BYTES)


class SegmentWriter:
    """The segment that takes entries. ``size`` is its known end, in bytes."""

    def __init__(
        self, handle: Handle, header: SegmentHeader, size: int, *, filled: int | None = None
    ) -> None:
        """``filled``: the file's length in bytes, if an end mark stands behind its known end."""
        self._handle = handle
        self._seed = header.seed
        self._junk_behind_end = False
        self._may_mark = header.marked
        self._marked = filled is not None
        self._filled = size if filled is None else filled
        self.path = segment_path(header.first_index)
        self.first_index = header.first_index
        self.size = size

    @classmethod
    def create(cls, files: Files, header: SegmentHeader) -> SegmentWriter:
        """A new segment, durable with its name. All before it must be durable.

        Errors: ``OSError`` (nothing was created), ``SyncFailed``.
        """
        path = segment_path(header.first_index)
        handle = files.open(path, create=True)
        try:
            handle.truncate(0)  # an earlier try may have left something
            handle.pwrite([header.encode()], 0)
            handle.sync()
            files.sync_dir(DIRECTORY)
        except OSError:
            handle.close()
            with contextlib.suppress(OSError):
                files.unlink(path)
                files.sync_dir(DIRECTORY)  # its name would be a witness to what may be cut later
            raise
        return cls(handle, header, SEGMENT_BYTES)

    @classmethod
    def reuse(cls, files: Files, header: SegmentHeader, spare: str) -> SegmentWriter:
        """As ``create``, in a file that was a segment before. Its name ``spare`` must be durable.

        Errors: ``OSError``: nothing was created, and the spare is given up. ``SyncFailed``.
        """
        assert header.marked
        path = segment_path(header.first_index)
        handle = files.open(spare)
        try:
            filled = handle.size()
            handle.pwrite([header.encode(), end_mark(header.seed, SEGMENT_BYTES)], 0)
            handle.sync()
            files.rename(spare, path)
            files.sync_dir(DIRECTORY)
        except OSError:
            handle.close()
            with contextlib.suppress(OSError):
                files.unlink(spare)
            raise
        return cls(handle, header, SEGMENT_BYTES, filled=filled)

    def append(
        self, entries: Sequence[Entry], durable: int, entry_bytes_max: int, segment_bytes: int
    ) -> None:
        """Write ``entries`` behind the known end, their frames naming ``durable``.

        ``segment_bytes``: zeros for later writes reach no further than this.

        Errors: ``InvalidBatch`` for an entry of more than ``entry_bytes_max`` bytes, ``OSError``:
        the segment is as before. ``SyncFailed``.
        """
        if self._junk_behind_end:
            self._cut_junk()
        parts: list[Bytes] = []
        end = self.size
        for entry in entries:
            header, payload = entry.encode()
            length = len(header) + len(payload)
            if length > entry_bytes_max:
                raise InvalidBatch(
                    "journal entry too large",
                    got=f"{length} bytes",
                    limit=f"{entry_bytes_max} bytes",
                    remedy="Send smaller batches",
                )
            parts += (encode_frame(self._seed, end, length, durable), header, payload)
            if length % ALIGNMENT:
                parts.append(PADDING[length % ALIGNMENT])
            end += FRAME_BYTES + padded(length)
        behind = end + FRAME_BYTES
        ahead = 0
        if self._may_mark and behind > self._filled and end - self.size <= _SMALL_BYTES:
            ahead = max(0, min(_AHEAD_BYTES, segment_bytes - behind))
        if self._marked or ahead:
            self._marked = True
            parts += (end_mark(self._seed, end), memoryview(_ZEROS)[:ahead])
            self._filled = max(self._filled, behind + ahead)
        try:
            self._handle.pwrite(parts, self.size)
        except BaseException as error:
            self._junk_behind_end = True
            if isinstance(error, OSError):
                with contextlib.suppress(OSError):  # else the next append tries again
                    self._cut_junk()
                # Without the zeros there may be room.
                if ahead and error.errno in _NO_ROOM and not self._junk_behind_end:
                    self._may_mark = False  # not tried again with each write
                    self.append(entries, durable, entry_bytes_max, 0)
                    return
            raise
        self.size = end

    @classmethod
    def reopen(cls, files: Files, path: str, size: int) -> SegmentWriter:
        """Open a closed segment again, to go on at ``size``. Errors: ``Damaged``, ``OSError``."""
        handle = files.open(path)
        try:
            header = SegmentHeader.decode(handle.pread(SEGMENT_BYTES, 0), path)
        except BaseException:
            handle.close()
            raise
        return cls(handle, header, size)

    def end_of(self, index: int, entry_bytes_max: int) -> int:
        """The position behind entry ``index``; behind the header for the one before the first.

        Errors: ``Damaged``, ``OSError``.
        """
        reader = SegmentReader(self._handle, self.path, entry_bytes_max)
        position = SEGMENT_BYTES
        for _ in range(self.first_index, index + 1):
            position = reader.skip(position)
        return position

    def cut(self, position: int) -> None:
        """Make ``position`` the end, durably.

        Errors: ``SyncFailed``; ``OSError``: it is the end, and the next append cuts first.
        """
        self.size = position
        self._junk_behind_end = True
        self._cut_junk()

    def finish(self) -> None:
        """No entry follows: cut what an earlier life of the file left behind the end, durably.

        Errors: as ``cut``.
        """
        if self._marked:
            self.cut(self.size)

    def sync(self) -> None:
        """Make all that was written durable. Errors: ``SyncFailed``."""
        self._handle.sync()

    def close(self) -> None:
        self._handle.close()

    def close_cut(self) -> None:
        """Close, and cut what is behind the end. Not durable: the end mark marks the same end."""
        if self._marked:
            with contextlib.suppress(OSError):
                self._handle.truncate(self.size)
        self._handle.close()

    def _cut_junk(self) -> None:
        self._handle.truncate(self.size)
        self._handle.sync()
        self._filled = self.size
        self._junk_behind_end = self._marked = False

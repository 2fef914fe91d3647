"""The journal: an append-only log of entries, in segments.

Theory: writing and durability are two steps, so that many appends share one ``fdatasync``. What was
durable is named in the frames that follow, which is how a later recovery tells a torn end from
damage (``journal_recovery.py``).

Rules
- One thread appends, one may ``sync`` and one may drop meanwhile; any may read. The lock below is
  held for a sync or for the change from one segment to the next, never for an append.
- After an ``OSError`` the journal is as it was before the call, and usable: a disk that has room
  again needs no restart.
- After ``SyncFailed`` the process must end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from .entry import Entry
from .files import Files
from .journal_recovery import RecoveryReport, recover
from .scan import Segment, read_entries
from .segment import DIRECTORY, SegmentHeader
from .segment_writer import SegmentWriter

__all__ = ["Journal", "RecoveryReport"]


class Journal:
    """Use ``Journal.open``."""

    def __init__(
        self,
        files: Files,
        *,
        store_id: bytes,
        segment_bytes: int,
        entry_bytes_max: int,
        closed: list[Segment],
        writer: SegmentWriter | None,
        last_index: int,
        last_epoch: int,
    ) -> None:
        self._files = files
        self._store_id = store_id
        self._segment_bytes = segment_bytes
        self._entry_bytes_max = entry_bytes_max
        self._closed = closed
        self._last_index = last_index
        self._last_epoch = last_epoch
        self._durable_index = last_index
        self._lock = threading.Lock()
        self._writer = writer or self._new_segment()

    @classmethod
    def open(
        cls,
        files: Files,
        *,
        first_index: int,
        durable_floor: int,
        store_id: bytes,
        segment_bytes: int,
        entry_bytes_max: int,
        on_entry: Callable[[Entry], None],
    ) -> tuple[Journal, RecoveryReport]:
        """Verify all segments, cut a torn end, and go on behind it.

        ``first_index``: entries from here on are passed to ``on_entry``, in order; for a new
        journal, the index of its first entry (indexes start at 1). ``durable_floor``: an index
        known from elsewhere to have been durable. ``store_id``: 16 bytes; a segment of another
        store is refused. ``segment_bytes``: a segment that has grown past this is closed.
        ``entry_bytes_max``: header and payload of the largest entry. All that was recovered is
        durable when this returns.

        Errors: ``Damaged`` (and nothing was changed), ``UnsupportedVersion``, ``SyncFailed``,
        ``OSError``.
        """
        files.make_directory(DIRECTORY)
        files.sync_dir(".")
        closed, writer, report = recover(
            files,
            first_index=first_index,
            durable_floor=durable_floor,
            store_id=store_id,
            entry_bytes_max=entry_bytes_max,
            on_entry=on_entry,
        )
        journal = cls(
            files,
            store_id=store_id,
            segment_bytes=segment_bytes,
            entry_bytes_max=entry_bytes_max,
            closed=closed,
            writer=writer,
            last_index=report.last_index,
            last_epoch=report.last_epoch,
        )
        return journal, report

    @property
    def first_index(self) -> int:
        """Index of the oldest entry still here; ``last_index + 1`` when there is none."""
        return self._segments()[0].first_index

    @property
    def last_index(self) -> int:
        return self._last_index

    @property
    def last_epoch(self) -> int:
        return self._last_epoch

    @property
    def durable_index(self) -> int:
        """Up to where the journal is known to be on disk."""
        return self._durable_index

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size for segment in self._segments())

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries behind the last one, in one gathered write. Durable only after ``sync``.

        Their indexes must follow on from ``last_index``, their epochs must not fall.

        Errors: ``InvalidBatch`` for an entry beyond ``entry_bytes_max``, ``OSError`` (a full disk):
        nothing was appended, and the journal goes on. ``SyncFailed``.
        """
        index, epoch = self._last_index, self._last_epoch
        for entry in entries:
            index += 1
            assert entry.index == index, f"entry {entry.index} where {index} must follow"
            assert entry.epoch >= epoch, f"epoch {entry.epoch} after {epoch}"
            epoch = entry.epoch
        if self._writer.size >= self._segment_bytes:
            self._roll()
        self._writer.append(entries, self._durable_index, self._entry_bytes_max)
        self._last_epoch = epoch
        self._last_index = index  # last: a reader or the syncer may take it at any moment

    def sync(self) -> None:
        """Make all entries appended before the call durable. Errors: ``SyncFailed``."""
        with self._lock:
            index = self._last_index
            if index > self._durable_index:
                self._writer.sync()
                self._durable_index = index

    def read(self, from_index: int) -> Iterator[Entry]:
        """The entries from ``from_index`` up to the one that is the last at the time of the call.

        May run in any thread while appends go on. Errors: ``LookupError`` when an entry asked for
        was dropped, before or meanwhile; ``Damaged``; ``OSError``.
        """
        last = self._last_index
        return read_entries(self._files, self._segments(), from_index, last, self._entry_bytes_max)

    def drop_below(self, index: int) -> int:
        """Delete closed segments all of whose entries have an index below ``index``; how many.

        Oldest first, each made durable before the next: a crash never leaves a gap.
        """
        dropped = 0
        while self._closed and self._closed[0].end_index <= index:
            self._files.unlink(self._closed[0].path)
            del self._closed[0]
            dropped += 1
            self._files.sync_dir(DIRECTORY)
        return dropped

    def close(self) -> None:
        """Let go of the open segment. Does not sync."""
        self._writer.close()

    def _segments(self) -> list[Segment]:
        """All segments, the open one last."""
        with self._lock:
            writer = self._writer
            last = Segment(writer.path, writer.first_index, self._last_index + 1, writer.size)
            return [*self._closed, last]

    def _new_segment(self) -> SegmentWriter:
        header = SegmentHeader(self._last_index + 1, self._last_epoch, self._store_id)
        return SegmentWriter.create(self._files, header)

    def _roll(self) -> None:
        """Close the open segment and begin the next. What is before that is durable first."""
        self.sync()
        old = self._writer
        new = self._new_segment()
        with self._lock:
            self._closed.append(Segment(old.path, old.first_index, new.first_index, old.size))
            self._writer = new
            old.close()

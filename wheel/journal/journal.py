"""The journal: an append-only log of entries, in segments.

Theory: writing and durability are two steps, so that many appends share one ``fdatasync``. What was
durable is named in the frames that follow, which is how a later recovery tells a torn end from
damage (``recovery.py``).

Rules
- One thread appends and cuts, one may ``sync`` and one may drop meanwhile; any may read. The lock
  below is held for a sync, a cut, or the change from one segment to the next, never for an append.
- The files of a few dropped segments are used again (``segment.py``). Readers are stopped, and the
  file gets a spare's name, durably, before any of it is overwritten: otherwise a reader would take
  new entries for old ones.
- After an ``OSError`` the journal is as it was before the call, and usable: a disk that has room
  again needs no restart. Only a cut may have been done in part.
- A cut goes from the end backwards, each step durable before the next, and appends wait for it. So
  a crash leaves a prefix of what was there before, and never an old entry behind a new one.
- After ``SyncFailed`` the process must end: the next sync would succeed without what was lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..files import Files
from .entry import Entry
from .epochs import Epochs
from .readers import JournalReaders
from .recovery import RecoveryReport, recover
from .scan import Segment
from .segment import DIRECTORY, SegmentHeader, index_of, is_spare_name, spare_path
from .writer import SegmentWriter

__all__ = ["Journal", "RecoveryReport"]

_SPARES_MAX = 3
"""Dropped segments that wait for reuse. Under load one spill lets go of about so many."""


class Journal:
    """The segments of one data directory, of which the last is open. Made by ``Journal.open``."""

    def __init__(
        self,
        files: Files,
        *,
        store_id: bytes,
        segment_bytes: int,
        entry_bytes_max: int,
        closed: list[Segment],
        writer: SegmentWriter | None,
        epochs: Epochs,
        spares: Sequence[str],
    ) -> None:
        self._files = files
        self._store_id = store_id
        self._segment_bytes = segment_bytes
        self._entry_bytes_max = entry_bytes_max
        self._closed = closed
        self._spares = deque((path, 0) for path in spares)  # path, one past its last entry
        self._epochs = epochs
        self._epochs_lock = threading.Lock()
        self._last_index = self._durable_index = epochs.last_index
        self._readers = JournalReaders(files, entry_bytes_max)
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
        closed, writer, epochs, report = recover(
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
            epochs=epochs,
            spares=_find_spares(files),
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
        return self._epochs.last_epoch

    @property
    def epochs(self) -> Epochs:
        """The epochs of all entries that are still here (a copy)."""
        with self._epochs_lock:
            return self._epochs.copy()

    @property
    def durable_index(self) -> int:
        """Index of the last entry that is known to be on disk."""
        return self._durable_index

    @property
    def bytes(self) -> int:
        """Size of all segments, in bytes."""
        return sum(segment.size for segment in self._segments())

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries behind the last one, in one gathered write. Durable only after ``sync``.

        Their indexes must follow on from ``last_index``, their epochs must not fall.

        Errors: ``InvalidBatch`` for an entry beyond ``entry_bytes_max``, ``OSError`` (a full disk):
        nothing was appended, and the journal goes on. ``SyncFailed``.
        """
        index, epoch = self._last_index, self._epochs.last_epoch
        for entry in entries:
            index += 1
            assert entry.index == index, f"entry {entry.index} where {index} must follow"
            assert entry.epoch >= epoch, f"epoch {entry.epoch} after {epoch}"
            epoch = entry.epoch
        if self._writer.size >= self._segment_bytes:
            self._roll()
        self._writer.append(
            entries, self._durable_index, self._entry_bytes_max, self._segment_bytes
        )
        with self._epochs_lock:
            for entry in entries:
                self._epochs.append(entry.index, entry.epoch)
        self._last_index = index  # last: a reader or the syncer may take it at any moment

    def sync(self) -> None:
        """Make all entries appended before the call durable. Errors: ``SyncFailed``."""
        with self._lock:
            index = self._last_index
            if index > self._durable_index:
                self._writer.sync()
                self._durable_index = index

    def truncate_after(self, index: int) -> None:
        """Remove all entries behind ``index``, durably; ``first_index - 1`` removes every entry.

        For the thread that appends. Readers of what goes away get a ``LookupError``.

        Errors: ``SyncFailed``. ``OSError`` or ``Damaged``: the journal ends at ``last_index``,
        wherever that is by then, and is usable. Until something is appended there, a restart may
        bring back entries behind it.
        """
        assert index >= self.first_index - 1, f"cut after {index}, before {self.first_index}"
        if index >= self._last_index:
            return
        with self._lock:
            self._readers.cut()  # before anything is changed
            while self._writer.first_index > index + 1:
                before = self._closed[-1]
                writer = SegmentWriter.reopen(self._files, before.path, before.size)
                self._remove_newest(writer)
                self._closed.pop()
                self._end_at(before.end_index - 1)
            position = self._writer.end_of(index, self._entry_bytes_max)
            self._end_at(index)
            self._writer.cut(position)

    def read(self, from_index: int) -> Iterator[Entry]:
        """The entries from ``from_index`` up to the one that is the last at the time of the call.

        May run in any thread while appends go on. Errors: ``LookupError`` when an entry asked for
        was dropped or cut off, before or meanwhile; ``Damaged``; ``OSError``.
        """
        with self._lock:
            segments, last, cuts = self._segments(), self._last_index, self._readers.cuts
        return self._readers.read(segments, from_index, last, cuts)

    def drop_below(
        self,
        index: int,
        *,
        keep_bytes: int = 0,
        keep: Callable[[str, int], bool] | None = None,
    ) -> int:
        """Drop closed segments all of whose entries are below ``index``; returns how many.
        Who spills decides the index: ``Wheel.spill``, or ``PeerWheel``, which holds back more.

        They are deleted, but for a few whose files will be used again. ``keep_bytes``: the journal
        does not shrink below this. ``keep(path, bytes)`` may move a segment elsewhere, and returns
        True if it did. Oldest first, each made durable before the next: a crash leaves no gap.
        """
        dropped = 0
        size = self.bytes if keep_bytes else 0
        while self._closed and self._closed[0].end_index <= index:
            size -= self._closed[0].size
            if keep_bytes and size < keep_bytes:
                break
            segment = self._closed[0]
            taken = keep is not None and keep(segment.path, segment.size)
            spare = None if taken else self._to_spare(segment)
            del self._closed[0]
            dropped += 1
            self._files.sync_dir(DIRECTORY)
            if spare is not None:
                self._spares.append((spare, segment.end_index))
        if dropped:
            first = self.first_index
            with self._epochs_lock:
                self._epochs.drop_below(first)
        return dropped

    def close(self) -> None:
        """Close the open segment. Does not sync."""
        self._writer.close_cut()

    def _segments(self) -> list[Segment]:
        """All segments, the open one last. Also called without the lock, which a sync may hold for
        long: a change of segments may then have put the open one among the closed ones already."""
        writer = self._writer
        closed = [*self._closed]
        while closed and closed[-1].first_index >= writer.first_index:
            closed.pop()
        last = Segment(writer.path, writer.first_index, self._last_index + 1, writer.size)
        return [*closed, last]

    def _remove_newest(self, before: SegmentWriter) -> None:
        """Remove the open segment, durably, and open the one ``before`` it again."""
        try:
            self._files.unlink(self._writer.path)
        except OSError:
            before.close()
            raise
        self._writer.close()
        self._writer = before
        self._files.sync_dir(DIRECTORY)

    def _end_at(self, index: int) -> None:
        with self._epochs_lock:
            self._epochs.truncate_after(index)
        self._last_index = index
        self._durable_index = min(self._durable_index, index)

    def _to_spare(self, segment: Segment) -> str | None:
        """Delete a segment, or give it the name of a spare, which is returned. Not durable."""
        usual = self._segment_bytes <= segment.size <= 2 * self._segment_bytes
        if not usual or len(self._spares) >= _SPARES_MAX:
            self._files.unlink(segment.path)
            return None
        spare = spare_path(index_of(segment.path))
        self._files.rename(segment.path, spare)
        return spare

    def _new_segment(self) -> SegmentWriter:
        first, epoch = self._last_index + 1, self._epochs.last_epoch
        header = SegmentHeader(first, epoch, self._store_id, marked=True)
        if not self._spares:
            return SegmentWriter.create(self._files, header)
        path, end_index = self._spares.popleft()
        self._readers.reuse(end_index)
        return SegmentWriter.reuse(self._files, header, path)

    def _roll(self) -> None:
        """Close the open segment and begin the next. What is before that is durable first."""
        self.sync()
        old = self._writer
        old.finish()
        new = self._new_segment()
        with self._lock:
            self._closed.append(Segment(old.path, old.first_index, new.first_index, old.size))
            self._writer = new
            old.close()


def _find_spares(files: Files) -> list[str]:
    """Spares of an earlier process, a few at most, whose names are made durable here."""
    spares = [f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if is_spare_name(name)]
    for path in spares[_SPARES_MAX:]:
        files.unlink(path)
    if spares:
        files.sync_dir(DIRECTORY)
    return spares[:_SPARES_MAX]

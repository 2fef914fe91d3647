"""Recovery of a journal after a crash: it finds the last entry that counts, and damage before it.

Theory: a power cut may leave any part of what was not yet synced: nothing, a prefix, some sectors,
zeros. All of it lies behind the last durable entry, so cutting it loses nothing that anyone was
promised. What *was* durable and cannot be read is damage, and cutting there would lose promises.
The two are told apart by witnesses: a later frame or segment that calls the bad entry durable, or
the checkpoint's floor.

*Example.* Entries up to 9 were synced, 10 and 11 only written, and after a power cut 10 cannot be
read. The frame of 11 calls 9 durable: nothing vouches for 10, and the journal is cut behind 9. If a
frame behind it calls 10 durable, 10 is damaged, and nothing is cut.

Rules
- Only consecutive indexes and non-decreasing epochs are taken.
- An end mark in the last segment is its end, and nothing is torn: what stands behind it was written
  ahead, or is from an earlier life of the file, or of a write of which nothing else is left. It is
  cut all the same.
- A segment is created when all before it is durable. So only the last one can have a torn end, and
  its mere name is a witness to all before it.
- A last segment of at most a header's length that is short or all zeros was never used: a crash hit
  its creation. It is removed.
- What is found in the page cache need not be on disk: after a kill it was perhaps never synced, and
  after a failed sync the kernel calls it clean. So whatever no witness calls durable is written
  once more, and synced, before ``recover`` returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from ..errors import Damaged
from ..files import Files, Handle
from .entry import Entry
from .epochs import Epochs
from .scan import Segment, SegmentReader, check_order
from .segment import DIRECTORY, SEGMENT_BYTES, SegmentHeader, index_of, is_segment_name
from .writer import SegmentWriter

_COPY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The outcome of opening a journal. ``torn_path`` is None when nothing torn was cut."""

    entries: int
    """Entries handed on: those from the first index asked for."""
    last_index: int
    last_epoch: int
    torn_path: str | None = None
    """The segment whose end was cut; it is gone if it was cut at position 0."""
    torn_position: int = 0
    torn_bytes: int = 0
    """Bytes that were cut: a torn end, zeros written ahead, the remains of an earlier use."""


def recover(
    files: Files,
    *,
    first_index: int,
    durable_floor: int,
    store_id: bytes,
    entry_bytes_max: int,
    on_entry: Callable[[Entry], None],
) -> tuple[list[Segment], SegmentWriter | None, Epochs, RecoveryReport]:
    """Read and verify every segment, cut a torn end, make the rest durable.

    ``on_entry`` gets the entries with index >= ``first_index``, in order. The result is the closed
    segments, the one to go on in, the epochs of all entries (also of those before ``first_index``),
    and the report. Without any segments there is none to go on in, and ``last_index`` is
    ``first_index - 1``.

    Errors: ``Damaged`` (nothing was changed), ``UnsupportedVersion``, ``OSError``, ``SyncFailed``.
    """
    floor = max(durable_floor, first_index - 1)
    scan = _Scan(files, first_index, floor, store_id, entry_bytes_max, on_entry)
    try:
        writer = scan.run()
    except BaseException:
        if scan.handle is not None:
            scan.handle.close()
        raise
    return scan.segments[:-1], writer, scan.epochs, scan.report()


class _Scan:
    """One pass over all segments."""

    def __init__(
        self,
        files: Files,
        first_index: int,
        floor: int,
        store_id: bytes,
        entry_bytes_max: int,
        on_entry: Callable[[Entry], None],
    ) -> None:
        self._files = files
        self._first_index = first_index
        self._store_id = store_id
        self._max = entry_bytes_max
        self._on_entry = on_entry
        self._durable = floor  # the highest index that a witness so far calls durable
        self._unproven: deque[tuple[int, int]] = deque()  # (index, position) beyond that
        self._entries = 0
        self._last_index = first_index - 1
        self._last_epoch = 0
        self._torn: tuple[str, int, int] | None = None
        self.epochs = Epochs(first_index - 1)
        self.segments: list[Segment] = []
        self.handle: Handle | None = None

    def report(self) -> RecoveryReport:
        path, position, length = self._torn or (None, 0, 0)
        return RecoveryReport(
            self._entries, self._last_index, self._last_epoch, path, position, length
        )

    def run(self) -> SegmentWriter | None:
        names = [name for name in self._files.list(DIRECTORY) if is_segment_name(name)]
        paths = [f"{DIRECTORY}/{name}" for name in names]
        unused = paths.pop() if paths and self._never_used(paths[-1]) else None
        header = None
        for number, path in enumerate(paths):
            is_last = number == len(paths) - 1 and unused is None
            header = self._segment(path, is_last=is_last)
        self._check_end(unused)
        if unused is not None:
            self._files.unlink(unused)
        if paths or unused is not None:
            self._files.sync_dir(DIRECTORY)
        if header is None or self.handle is None:
            return None
        self._make_durable(self.handle)
        return SegmentWriter(self.handle, header, self.segments[-1].size)

    def _never_used(self, path: str) -> bool:
        with closing(self._files.open(path)) as handle:
            size = handle.size()
            if size > SEGMENT_BYTES:
                return False
            data = handle.pread(SEGMENT_BYTES, 0)
        if size == SEGMENT_BYTES and data != bytes(SEGMENT_BYTES):
            return False
        self._torn = (path, 0, size)
        return True

    def _segment(self, path: str, *, is_last: bool) -> SegmentHeader:
        if self.handle is not None:
            self.handle.close()
        self.handle = self._files.open(path)
        reader = SegmentReader(self.handle, path, self._max)
        self._check_header(reader.header, path)
        self._unproven.clear()
        position = SEGMENT_BYTES
        while position < reader.size:
            try:
                located = reader.entry(position)
                check_order(path, located, self._last_index + 1, self._last_epoch)
            except Damaged:
                if not is_last or self._was_durable(self._last_index + 1, reader, position):
                    raise
                if not reader.ends_at(position):
                    self._torn = (path, position, reader.size - position)
                break
            entry = located.entry
            self._last_index = entry.index
            self._last_epoch = entry.epoch
            self.epochs.append(entry.index, entry.epoch)
            self._unproven.append((entry.index, position))
            self._durable = max(self._durable, located.durable)
            while self._unproven and self._unproven[0][0] <= self._durable:
                self._unproven.popleft()
            position = located.end
            if entry.index >= self._first_index:
                self._entries += 1
                self._on_entry(entry)
        first = reader.header.first_index
        self.segments.append(Segment(path, first, self._last_index + 1, position))
        return reader.header

    def _check_header(self, header: SegmentHeader, path: str) -> None:
        if header.store_id != self._store_id:
            raise Damaged(
                path,
                40,
                expected=f"store id {self._store_id.hex()}",
                found=header.store_id.hex(),
                remedy="The file belongs to another data directory: put back this one's own",
            )
        if not self.segments:
            if header.first_index > self._first_index:
                raise Damaged(
                    path,
                    16,
                    expected=f"a first segment that starts at index {self._first_index} or before",
                    found=f"first index {header.first_index}",
                )
            self._last_index = header.durable_index
            self._last_epoch = header.last_epoch
            self.epochs = Epochs(header.durable_index, header.last_epoch)
        elif header.first_index != self._last_index + 1:
            raise Damaged(
                path,
                16,
                expected=f"a segment that starts at index {self._last_index + 1}",
                found=f"first index {header.first_index}",
            )
        elif header.last_epoch != self._last_epoch:
            raise Damaged(
                path, 32, expected=f"last epoch {self._last_epoch}", found=header.last_epoch
            )

    def _was_durable(self, index: int, reader: SegmentReader, position: int) -> bool:
        return index <= self._durable or index <= reader.witness(position)

    def _check_end(self, unused: str | None) -> None:
        """Raise ``Damaged`` if the journal ends too early: at an entry's edge nothing looks bad."""
        where = self.segments[-1] if self.segments else Segment(DIRECTORY, 0, 0, 0)
        if self._last_index < self._durable:
            raise Damaged(
                where.path,
                where.size,
                expected=f"entries up to index {self._durable}",
                found=f"the end after index {self._last_index}",
            )
        if unused is not None and index_of(unused) != self._last_index + 1:
            raise Damaged(
                where.path,
                where.size,
                expected=f"entries up to index {index_of(unused) - 1}, as {unused} follows",
                found=f"the end after index {self._last_index}",
            )

    def _make_durable(self, handle: Handle) -> None:
        end = self.segments[-1].size
        if handle.size() != end:
            handle.truncate(end)
        begin = self._unproven[0][1] if self._unproven else end
        for at in range(begin, end, _COPY_BYTES):
            handle.pwrite([handle.pread(min(_COPY_BYTES, end - at), at)], at)
        handle.sync()

"""Reading one journal segment, entry by entry, and looking for witnesses behind a bad one.

Rules
- Memory is bounded by one entry: a segment is never held as a whole, and an entry handed on keeps
  nothing alive but its own bytes.
- A length is checked against the limit and the file's size before anything is allocated: a flipped
  bit could ask for 4 GiB.
- A running node may be writing the file: it ends where it ends by now, or where an end mark stands
  by now, not where it did when it was opened.
- Whatever is wrong with the bytes is ``Damaged`` here. Whether it is a torn end cannot be decided
  from one segment: see ``recovery.py``. An ``OSError`` passes through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from ..errors import Damaged, UnsupportedVersion
from ..files import Files, Handle
from .entry import HEADER_BYTES, Entry, EntryHead, decode_entry
from .segment import (
    ALIGNMENT,
    FRAME_BYTES,
    FRAME_MAGIC,
    PADDING,
    SEGMENT_BYTES,
    SegmentHeader,
    decode_frame,
    end_mark,
    index_of,
    padded,
)

ENTRY_BYTES_MAX = 256 * 1024 * 1024
"""The largest entry that ``walk`` accepts when the node's own limit is not known."""

_WINDOW_BYTES = 1024 * 1024
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the journal. ``size`` in bytes; ``end_index`` is one past its last entry."""

    path: str
    first_index: int
    end_index: int
    size: int


@dataclass(frozen=True, slots=True)
class LocatedEntry:
    """An entry and where it lies: its frame begins at ``position``, the next one at ``end``."""

    position: int
    end: int
    durable: int
    entry: Entry


class SegmentReader:
    """One segment, open for reading. Its header has been checked."""

    def __init__(self, handle: Handle, path: str, entry_bytes_max: int) -> None:
        """Read and check the header. Errors: ``Damaged``, ``UnsupportedVersion``."""
        self.handle = handle
        self.path = path
        self.size = handle.size()
        self.header = SegmentHeader.decode(handle.pread(SEGMENT_BYTES, 0), path)
        if self.header.first_index != index_of(path):
            raise Damaged(
                path, 16, expected=f"first index {index_of(path)}", found=self.header.first_index
            )
        self._seed = self.header.seed
        self._max = entry_bytes_max

    def skip(self, position: int) -> int:
        """Where the entry that is framed at ``position`` ends. The entry itself is not read."""
        frame = self.handle.pread(FRAME_BYTES, position)
        length, _ = decode_frame(frame, self._seed, self.path, position, self._max)
        return position + FRAME_BYTES + padded(length)

    def head(self, position: int) -> tuple[EntryHead, int]:
        """The header of the entry that is framed at ``position``, and where the entry ends. Its
        rows are not read. Errors: ``Damaged``, also at the end of the file."""
        data = self.handle.pread(FRAME_BYTES + HEADER_BYTES, position)
        length, _ = decode_frame(data[:FRAME_BYTES], self._seed, self.path, position, self._max)
        if len(data) < FRAME_BYTES + HEADER_BYTES:
            expected = f"an entry header of {HEADER_BYTES} bytes"
            raise Damaged(self.path, position, expected=expected, found="the end of the file")
        return EntryHead.of(data[FRAME_BYTES:]), position + FRAME_BYTES + padded(length)

    def entry(self, position: int) -> LocatedEntry:
        """The entry framed at ``position``. Errors: ``Damaged``, ``UnsupportedVersion``."""
        frame = self.handle.pread(FRAME_BYTES, position)
        length, durable = decode_frame(frame, self._seed, self.path, position, self._max)
        start = position + FRAME_BYTES
        end = start + padded(length)
        if end > self.size:
            self.size = self.handle.size()  # a running node has gone on
        if end > self.size:
            raise Damaged(
                self.path,
                position,
                expected=f"an entry of {end - position} bytes",
                found=f"the end of the file after {self.size - position} bytes",
            )
        data = self.handle.pread(end - start, start)
        entry = decode_entry(memoryview(data)[:length], self.path, start)
        padding = PADDING[length % ALIGNMENT]
        if padding and data[length:] != padding:
            raise Damaged(
                self.path, start + length, expected="zeros as padding", found=data[length:].hex()
            )
        return LocatedEntry(position, end, durable, entry)

    def entry_or_end(self, position: int) -> LocatedEntry | None:
        """As ``entry``; None when nothing follows. For a file that a node may be writing meanwhile:
        what looks damaged at first is looked at again, as it may have been written only in part.
        """
        looks = _LOOKS
        while True:
            looks -= 1
            try:
                return self.entry(position)
            except Damaged:
                if self.ends_at(position):
                    return None
                if not looks:
                    raise

    def is_sound(self, position: int) -> bool:
        """True if an entry can be read at ``position``, or nothing follows there."""
        try:
            self.entry(position)
        except (Damaged, UnsupportedVersion):
            return self.ends_at(position)
        return True

    def ends_at(self, position: int) -> bool:
        """True if nothing follows: the file ends there by now, or an end mark stands there."""
        frame = self.handle.pread(FRAME_BYTES, position)
        if self.header.marked and frame == end_mark(self._seed, position):
            return True
        # Last, for a running node may have cut it since, as it closed the segment.
        return position >= self.handle.size()

    def witness(self, position: int) -> int:
        """The highest durable index that any valid frame behind ``position`` names; -1 if none."""
        best = -1
        for at in range(position + ALIGNMENT, self.size, _WINDOW_BYTES):
            data = self.handle.pread(_WINDOW_BYTES + FRAME_BYTES - ALIGNMENT, at)
            at_magic = data.find(FRAME_MAGIC)
            while at_magic >= 0:
                if at_magic % ALIGNMENT == 0:
                    best = max(
                        best,
                        self._durable_of(data[at_magic : at_magic + FRAME_BYTES], at + at_magic),
                    )
                at_magic = data.find(FRAME_MAGIC, at_magic + 1)
        return best

    def next_frame(self, position: int) -> int | None:
        """Where the next valid frame behind ``position`` begins; None if there is none."""
        for at in range(position + ALIGNMENT, self.size, _WINDOW_BYTES):
            data = self.handle.pread(_WINDOW_BYTES + FRAME_BYTES - ALIGNMENT, at)
            at_magic = data.find(FRAME_MAGIC)
            while at_magic >= 0:
                frame = data[at_magic : at_magic + FRAME_BYTES]
                if at_magic % ALIGNMENT == 0 and self._durable_of(frame, at + at_magic) >= 0:
                    return at + at_magic
                at_magic = data.find(FRAME_MAGIC, at_magic + 1)
        return None

    def _durable_of(self, frame: bytes, position: int) -> int:
        try:
            return decode_frame(frame, self._seed, self.path, position, self._max)[1]
        except Damaged:
            return -1


def walk(files: Files, path: str) -> Iterator[LocatedEntry]:
    """Every entry of one segment in order, for inspection.

    Errors: ``Damaged`` at the first entry that is not right: a torn end or real damage, which one
    segment cannot tell (``recovery.py`` can); ``UnsupportedVersion``; ``OSError``, among them
    ``FileNotFoundError`` when a running node has dropped it, before or meanwhile.
    """
    with closing(files.open(path)) as handle:
        reader = SegmentReader(handle, path, ENTRY_BYTES_MAX)
        position = SEGMENT_BYTES
        index = reader.header.first_index
        epoch = reader.header.last_epoch
        while position < reader.size:
            try:
                located = reader.entry_or_end(position)
                if located is None:
                    return
                check_order(path, located, index, epoch)
            except Damaged:
                files.open(path).close()  # FileNotFoundError: dropped, and used as another segment
                raise
            yield located
            position = located.end
            index += 1
            epoch = located.entry.epoch


def check_order(path: str, located: LocatedEntry, index: int, epoch: int) -> None:
    """Raise ``Damaged`` unless the entry has that index, and that epoch or a later one."""
    if located.entry.index != index:
        raise Damaged(path, located.position, expected=f"index {index}", found=located.entry.index)
    if located.entry.epoch < epoch:
        raise Damaged(
            path, located.position, expected=f"epoch {epoch} or later", found=located.entry.epoch
        )


def read_entries(
    files: Files,
    segments: Sequence[Segment],
    from_index: int,
    last_index: int,
    entry_bytes_max: int,
    *,
    known: tuple[str, int] | None = None,
) -> Iterator[tuple[str, LocatedEntry]]:
    """The entries ``from_index`` to ``last_index`` of consecutive segments, each with its path.

    ``known``: path and position of the frame of ``from_index``; without it the entries before that
    one are skipped frame by frame.

    Errors: ``LookupError`` when a segment that is needed is not there; ``Damaged``; ``OSError``.
    """
    if from_index < segments[0].first_index:
        raise LookupError(f"entry {from_index}: the journal starts at {segments[0].first_index}")
    for segment in segments:
        end_index = min(segment.end_index, last_index + 1)
        if from_index >= end_index:
            continue
        try:
            handle = files.open(segment.path)
        except FileNotFoundError:
            raise LookupError(f"{segment.path} was dropped meanwhile") from None
        with closing(handle):
            reader = SegmentReader(handle, segment.path, entry_bytes_max)
            position = SEGMENT_BYTES
            first = segment.first_index
            if known is not None and known[0] == segment.path:
                first, position = from_index, known[1]
            for index in range(first, end_index):
                if index < from_index:
                    position = reader.skip(position)
                    continue
                located = reader.entry(position)
                check_order(segment.path, located, index, 0)
                yield segment.path, located
                position = located.end

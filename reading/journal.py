"""Reading a journal segment for a proof: every valid entry, and what is damaged.

Theory: recovery stops at the first bad entry; a proof reads on behind it, at the next frame that is
valid in this place of this file, so that one flipped byte costs one entry and not a segment. The
offsets of that entry are then missing between two others, which is not reported again.

Rules
- Many small entries are one event: the cost of a batch is paid once for thousands of rows.
- The end of the newest live segment may be torn, or be in writing: that is no problem unless a
  frame calls it durable. Everywhere else a bad end is damage.
- A running node may drop a live segment while it is read, and use its file for another one. So
  before damage is reported, it is checked that the file is still that segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from ..wheel.files import OsHandle
from ..wheel.journal.entry import Entry, EntryKind, NoteKind
from ..wheel.journal.payloads import decode_config, decode_rows
from ..wheel.journal.scan import ENTRY_BYTES_MAX, LocatedEntry, SegmentReader
from ..wheel.journal.segment import SEGMENT_BYTES
from ..wheel.mark import Marks
from ..wheel.schedules import FiredRun, decode_changes, decode_runs
from ..wheel.schema import ROW, times
from .events import (
    BYTES_MAX,
    GONE,
    ROWS_MAX,
    ConfigSeen,
    Ended,
    Event,
    MarkSeen,
    RowsSeen,
    SchedulesSeen,
    damage,
    problem_of,
)
from .files import File
from .listing import kept_segment, opened

_GONE = f"{GONE}: its file serves as another segment"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a segment, in bytes from an entry's first one. ``stop``: -1: to the end; ``index``:
    of the first entry, -1: any; ``store``: hex, empty: any."""

    start: int = SEGMENT_BYTES
    stop: int = -1
    index: int = -1
    epoch: int = 0
    store: str = ""


def read_journal(file: File, span: Span | None = None) -> Iterator[Event]:
    """Read a segment, or a part of it. Errors: ``OSError``, among them ``FileNotFoundError``."""
    with opened(file.path) as handle:
        yield from _Segment(file, handle, span).events()


def runs_of(entry: Entry, rows: pa.RecordBatch, where: str) -> list[FiredRun]:
    """The runs of schedules that an entry's rows are, as it notes it; mostly none. ``rows``: its
    own (PAYLOAD schema). Errors: ``Damaged``: there are not so many rows."""
    note = entry.notes.get(NoteKind.RUNS)
    if note is None:
        return []
    try:
        return decode_runs(note, times(rows, "due").tolist(), entry.base_offset)
    except ValueError as error:
        expected = "the runs that its rows are"
        raise Damaged(where, 0, expected=expected, found=str(error)) from None


@dataclass(frozen=True, slots=True)
class Broken:
    """Bytes of a segment that are not a valid entry."""

    position: int
    error: SlotwheelError
    following: int | None
    """Byte at which the next valid frame begins; None: there is none."""
    witness: int
    """The highest durable index that a later frame names; -1: there is none."""


def entries(
    reader: SegmentReader, position: int = SEGMENT_BYTES, stop: int = -1
) -> Iterator[LocatedEntry | Broken]:
    """Every entry up to the byte ``stop`` (-1: to the end), and the broken bytes between them. The
    caller decides whether an end is torn or damaged, and may stop there. Errors: ``OSError``."""
    while position < (reader.size if stop < 0 else stop):
        try:
            located = reader.entry_or_end(position)
        except (Damaged, UnsupportedVersion) as error:
            following, witness = reader.next_frame(position), reader.witness(position)
            # A running node may have been writing it: everything before a frame that was found is
            # complete by now.
            if reader.is_sound(position):
                continue
            yield Broken(position, error, following, witness)
            if following is None:
                return
            position = following
            continue
        if located is None:
            return
        yield located
        position = located.end


class _EntryRows(NamedTuple):
    """The rows of an entry (PAYLOAD schema), and those of them that are runs of schedules."""

    rows: pa.RecordBatch
    runs: list[FiredRun]


class _Segment:
    def __init__(self, file: File, handle: OsHandle, span: Span | None) -> None:
        self._file = file
        self._handle = handle
        self._span = span
        self._waiting: list[tuple[Entry, pa.RecordBatch, list[FiredRun]]] = []
        self._rows = self._nbytes = 0
        self._entries = 0
        self._first_index = self._last_index = self._last_epoch = -1
        self._first_offset = self._next_offset = -1
        self._indexes: list[tuple[int, int]] = []
        self._epochs: list[tuple[int, int]] = []
        self._damaged = False
        self._note = ""

    def events(self) -> Iterator[Event]:
        size = self._handle.size()
        if self._file.is_last and size <= SEGMENT_BYTES and self._is_unused():
            lacks = 0 <= self._file.first < self._file.end
            if lacks:
                yield self._truncated(size, self._file.first)
            yield Ended(self._file, "" if lacks else "never used", lacks)
            return
        try:
            reader = SegmentReader(self._handle, self._file.path, ENTRY_BYTES_MAX)
            self._check_store(reader)
        except (Damaged, UnsupportedVersion) as error:
            if self._is_gone():
                yield Ended(self._file, _GONE)
                return
            yield problem_of(self._file, error)
            yield Ended(self._file, damaged=True)
            return
        store = reader.header.store_id.hex()
        if self._file.store not in ("", store):
            yield self._foreign(store)
            yield Ended(self._file, damaged=True)
            return
        yield from self._entries_of(reader)
        yield from self._flush()
        end = self._last_index + 1 if self._entries else reader.header.first_index
        # Whether a segment with a proper end is the newest is known from its peer's other files.
        may_end = self._damaged or (self._file.is_last and not self._note)
        if not may_end and end < self._file.end and not self._is_gone(reader):
            self._damaged = True
            yield self._truncated(size, end)
        yield Ended(
            self._file,
            self._note,
            self._damaged,
            self._entries,
            self._first_index,
            self._last_index,
            self._last_epoch,
            self._first_offset,
            self._next_offset,
            indexes=self._indexes,
            epochs=self._epochs,
        )

    def _is_unused(self) -> bool:
        data = self._handle.pread(SEGMENT_BYTES, 0)
        return len(data) < SEGMENT_BYTES or data == bytes(SEGMENT_BYTES)

    def _is_gone(self, reader: SegmentReader | None = None) -> bool:
        """Whether a running node dropped the segment while it was read, and used its file for
        another. Marks cover what it drops."""
        if self._file.archived:
            return False
        if reader is not None:
            header = self._handle.pread(SEGMENT_BYTES, 0)
            if header != reader.header.encode():
                return True
        try:
            return Path(self._file.path).stat().st_ino != self._handle.inode
        except FileNotFoundError:
            # In the archive its content is the same.
            path = Path(self._file.path)
            return kept_segment(path.parents[1], path.name) is None

    def _entries_of(self, reader: SegmentReader) -> Iterator[Event]:
        span = self._span or Span(index=reader.header.first_index)
        expected, epoch, durable = span.index, span.epoch, reader.header.durable_index
        for found in entries(reader, span.start, reader.size if span.stop < 0 else span.stop):
            content = self._content(reader, found) if isinstance(found, LocatedEntry) else found
            if isinstance(content, Broken):
                if self._is_gone(reader):
                    self._note = _GONE
                    return
                may_be_torn = self._file.is_last and isinstance(content.error, Damaged)
                is_witnessed = expected <= max(durable, content.witness)
                if may_be_torn and content.following is None and not is_witnessed:
                    self._note = f"a torn end of {reader.size - content.position} bytes"
                    return
                yield from self._flush()
                self._damaged = True
                yield problem_of(self._file, content.error, content.position)
                expected = -1
                continue
            assert isinstance(found, LocatedEntry)
            entry = found.entry
            if expected >= 0 and entry.index != expected:
                yield from self._break(found.position, f"index {expected}", entry.index)
            elif entry.epoch < epoch:
                yield from self._break(found.position, f"epoch {epoch} or later", entry.epoch)
            elif expected >= 0 and 0 <= self._next_offset < entry.base_offset:
                # Which of its rows are missing cannot be seen: offsets behind them belong to
                # others.
                if self._waiting:
                    dropped, rows, _ = self._waiting.pop()
                    self._rows -= rows.num_rows
                    self._indexes[-1] = self._indexes[-1][0], dropped.index
                yield from self._flush()
                yield self._gap(entry, found.position)
            if isinstance(content, _EntryRows):
                yield from self._rows_seen(entry, content)
            else:
                yield from self._flush()
                yield content
            self._entries += 1
            self._held(entry)
            self._first_index = entry.index if self._first_index < 0 else self._first_index
            self._last_index, self._last_epoch = entry.index, entry.epoch
            if self._first_offset < 0:
                self._first_offset = entry.base_offset
            self._next_offset = max(self._next_offset, entry.base_offset + entry.count)
            durable = max(durable, found.durable)
            expected, epoch = entry.index + 1, entry.epoch

    def _held(self, entry: Entry) -> None:
        """Note that an entry was read."""
        begin, end = self._indexes[-1] if self._indexes else (entry.index, entry.index)
        if entry.index == end:
            self._indexes[-1:] = [(begin, end + 1)]
        else:
            self._indexes.append((entry.index, entry.index + 1))
        if not self._epochs or self._epochs[-1][1] != entry.epoch:
            self._epochs.append((entry.index, entry.epoch))

    def _content(
        self, reader: SegmentReader, located: LocatedEntry
    ) -> _EntryRows | MarkSeen | ConfigSeen | SchedulesSeen | Broken:
        """The content of an entry."""
        entry, path = located.entry, self._file.path
        try:
            if entry.kind is EntryKind.ROWS:
                rows = decode_rows(entry, path)
                return _EntryRows(rows, runs_of(entry, rows, path))
            if entry.kind is EntryKind.MARK:
                marks = Marks.decode(bytes(entry.payload), path)
                return MarkSeen(self._file, entry.index, entry.epoch, marks)
            if entry.kind is EntryKind.SCHEDULES:
                changes = decode_changes(entry.payload, path)
                return SchedulesSeen(self._file, entry.index, entry.epoch, changes)
            config = decode_config(entry, path)
        except (Damaged, UnsupportedVersion) as error:
            following = None if reader.ends_at(located.end) else located.end
            witness = reader.witness(located.position)
            return Broken(located.position, error, following, witness)
        return ConfigSeen(self._file, entry.index, entry.epoch, config)

    def _check_store(self, reader: SegmentReader) -> None:
        """Check the segment's store id. Errors: ``Damaged``: the file is now of another journal."""
        found = reader.header.store_id.hex()
        if self._span is not None and self._span.store not in ("", found):
            expected = f"store id {self._span.store}"
            raise Damaged(self._file.path, 40, expected=expected, found=found)

    def _break(self, position: int, expected: str, found: int) -> Iterator[Event]:
        yield from self._flush()
        self._damaged = True
        yield damage(self._file, "damaged", position, expected, found)

    def _truncated(self, size: int, end: int) -> Event:
        expected = f"entries up to index {self._file.end - 1}"
        return damage(self._file, "truncated", size, expected, f"the end after {end - 1}")

    def _foreign(self, store: str) -> Event:
        expected = f"a segment of store {self._file.store}, that of its directory"
        return damage(self._file, "foreign", 40, expected, f"one of store {store}")

    def _gap(self, entry: Entry, position: int) -> Event:
        """Report a gap in the offsets, which are dense: rows of the entry before are missing,
        although its checksum is right."""
        expected = f"offset {self._next_offset}, where entry {entry.index - 1} ends"
        return damage(self._file, "gap", position, expected, entry.base_offset)

    def _rows_seen(self, entry: Entry, content: _EntryRows) -> Iterator[Event]:
        """Gather rows. The last entry is held back: the next one shows whether it is complete."""
        if self._rows >= ROWS_MAX or self._nbytes >= BYTES_MAX:
            yield from self._flush()
        self._waiting.append((entry, *content))
        self._rows += content.rows.num_rows
        self._nbytes += len(entry.payload)

    def _flush(self) -> Iterator[Event]:
        """Yield the gathered rows."""
        if not self._waiting:
            return
        entries = [entry for entry, _, _ in self._waiting]
        counts = [entry.count for entry in entries]
        payload = pa.concat_batches([rows for _, rows, _ in self._waiting])
        base = np.repeat([entry.base_offset for entry in entries], counts)
        starts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        offset = base + (np.arange(len(base)) - starts)
        columns = {
            name: payload.column(name) if name != "offset" else pa.array(offset, pa.int64())
            for name in ROW.names
        }
        rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=ROW)
        index = np.repeat(np.array([entry.index for entry in entries], np.int64), counts)
        epoch = np.repeat(np.array([entry.epoch for entry in entries], np.int64), counts)
        runs = [run for _, _, noted in self._waiting for run in noted]
        self._waiting, self._rows, self._nbytes = [], 0, 0
        yield RowsSeen(self._file, rows, index, epoch, runs=runs)

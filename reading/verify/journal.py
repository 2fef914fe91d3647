"""Verifies the journal: every entry's checksums, order and content, and that it continues from the
checkpoint.

Theory: recovery stops at the first bad entry, as nothing behind it can be trusted. A verifier goes
on at the next frame that is valid in this place of this file, so one flipped byte costs one entry
in the report, not the rest of the segment. Whether a bad end is torn (a note) or damage (a fault)
is decided as recovery does, by witnesses.

Rules: as in ``slots.py``; memory is bounded by one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Files
from ...wheel.findings import CheckedFile, noted
from ...wheel.journal.entry import EntryKind
from ...wheel.journal.payloads import decode_config, decode_rows
from ...wheel.journal.scan import ENTRY_BYTES_MAX, LocatedEntry, SegmentReader
from ...wheel.journal.segment import (
    DIRECTORY,
    SEGMENT_BYTES,
    index_of,
    is_segment_name,
    is_spare_name,
)
from ...wheel.mark import Marks
from ...wheel.schedules import ScheduleChange, decode_changes
from ...wheel.state import StoredState
from ..journal import entries
from .notes import check_notes
from .schedules import ScheduleCheck


@dataclass(slots=True)
class _Log:
    """The journal so far, over all segments."""

    stored: StoredState | None
    next_index: int = -1
    """The index the next entry must have; -1: not known."""
    epoch: int = 0
    next_offset: int = -1
    durable: int = 0
    mark: Marks | None = None
    broken: bool = False
    schedules: ScheduleCheck | None = None

    def change(self, changes: Sequence[ScheduleChange], index: int) -> None:
        """Note the changes of schedules in an entry."""
        if changes and self.schedules is not None:
            self.schedules.add(changes, index)


def verify_journal(files: Files, load: Callable[[], StoredState | None]) -> Iterator[CheckedFile]:
    """Check every segment in order. ``load``: reads the state; None if that is not possible."""
    # A running node drops segments that its state does not need any more. So what is there is
    # looked at before the state is read: a later state needs no more than that.
    before = _segments_among(files.list(DIRECTORY))
    stored = load()
    names = files.list(DIRECTORY)
    segments = _segments_among(names)
    if stored is not None and stored.incoming:
        # An uncompleted switch to a snapshot replaces them.
        found = "the old one, or a new one not in use yet: it is replaced"
        yield from (noted("journal", path, "a new journal", found) for path in segments)
        return
    log = _Log(stored)
    if stored is not None:
        log.durable = stored.checkpoint.index
        if segments:
            log.schedules = ScheduleCheck(stored, index_of(segments[0]))
    yield from _gaps(log, before)
    for name in names:
        if not is_segment_name(name) and not is_spare_name(name):
            yield noted("journal", f"{DIRECTORY}/{name}", "<first index>.journal")
    for path in segments:
        is_last = path == segments[-1]
        so_far = replace(log)
        try:
            item = _segment(files, path, log, is_last=is_last)
            if item.faults:
                files.open(path).close()
        except FileNotFoundError:  # dropped by a running node, which may use the file again
            log = replace(so_far, next_index=-1, next_offset=-1, schedules=None)
            continue
        except OSError as error:
            log = replace(so_far, next_index=-1, next_offset=-1, broken=True)
            item = CheckedFile("journal", path)
            item.error(error)
        if is_last:
            _check_end(item, log)
        yield item
    if log.schedules is not None and (compared := log.schedules.compare(broken=log.broken)):
        yield compared


def _segments_among(names: list[str]) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in names if is_segment_name(name)]


def _gaps(log: _Log, segments: list[str]) -> Iterator[CheckedFile]:
    if log.stored is None:
        return
    checkpoint = log.stored.checkpoint
    if not segments:
        # A node creates the next segment before it deletes the last but one.
        if checkpoint.index:
            item = CheckedFile("journal", DIRECTORY)
            item.fault(0, f"entries behind the checkpoint {checkpoint.index}", "no segment at all")
            yield item
        return
    first = index_of(segments[0])
    if first > checkpoint.index + 1:
        item = CheckedFile("journal", segments[0])
        item.fault(
            16, f"a first segment that starts at index {checkpoint.index + 1} or before", first
        )
        yield item


def _segment(files: Files, path: str, log: _Log, *, is_last: bool) -> CheckedFile:
    item = CheckedFile("journal", path)
    with closing(files.open(path)) as handle:
        item.nbytes = handle.size()
        if is_last and item.nbytes <= SEGMENT_BYTES:
            data = handle.pread(SEGMENT_BYTES, 0)
            if len(data) < SEGMENT_BYTES or data == bytes(SEGMENT_BYTES):
                item.note(0, "a segment header", "none: never used, removed at the next start")
                return item
        try:
            reader = SegmentReader(handle, path, ENTRY_BYTES_MAX)
        except (Damaged, UnsupportedVersion) as error:
            item.error(error)
            log.next_index, log.next_offset, log.broken = -1, -1, True
            return item
        _check_header(item, reader, log)
        _entries(item, reader, log, is_last=is_last)
    return item


def _check_header(item: CheckedFile, reader: SegmentReader, log: _Log) -> None:
    header = reader.header
    if log.stored is not None and header.store_id != log.stored.store_id:
        item.fault(40, f"store id {log.stored.store_id.hex()}", header.store_id.hex())
    if log.next_index >= 0:
        item.expect(16, "first index", log.next_index, header.first_index)
        item.expect(32, "last epoch", log.epoch, header.last_epoch)
    log.next_index, log.epoch = header.first_index, header.last_epoch
    log.durable = max(log.durable, header.durable_index)


def _entries(item: CheckedFile, reader: SegmentReader, log: _Log, *, is_last: bool) -> None:
    end = SEGMENT_BYTES
    for part in entries(reader):
        if isinstance(part, LocatedEntry):
            item.rows += 1
            _check_order(item, part, log)
            _check_content(item, part, log)
            end = part.end
            continue
        durable = max(log.durable, part.witness)
        if is_last and isinstance(part.error, Damaged) and log.next_index > durable:
            item.note(
                part.position,
                part.error.expected,
                f"{part.error.found}: a torn end of {reader.size - part.position} bytes, never"
                " acknowledged; cut when a node opens the directory",
            )
            return
        item.error(part.error, part.position)
        log.next_index, log.next_offset, log.broken = -1, -1, True
    witness = reader.witness(end) if is_last else -1
    if 0 <= log.next_index <= witness and reader.ends_at(end):  # or a running node has gone on
        item.fault(end, f"entries up to index {witness}, as a later frame says", "an end mark")


def _check_order(item: CheckedFile, located: LocatedEntry, log: _Log) -> None:
    entry, at = located.entry, located.position
    if log.next_index >= 0:
        item.expect(at, "index", log.next_index, entry.index)
    if entry.epoch < log.epoch:
        item.fault(at, f"epoch {log.epoch} or later", entry.epoch)
    if log.next_offset >= 0:
        # A new epoch may skip offsets, and never uses one again.
        exact = entry.epoch == log.epoch
        if entry.base_offset < log.next_offset or (exact and entry.base_offset != log.next_offset):
            item.fault(at, f"base offset {log.next_offset}", entry.base_offset)
    if log.stored is not None:
        checkpoint = log.stored.checkpoint
        end = entry.base_offset + entry.count
        if entry.index <= checkpoint.index and end > checkpoint.next_offset:
            item.fault(at, f"offsets below the checkpoint's {checkpoint.next_offset}", end - 1)
        if entry.index > checkpoint.index and entry.base_offset < checkpoint.next_offset:
            item.fault(
                at, f"offsets from the checkpoint's {checkpoint.next_offset} on", entry.base_offset
            )
    log.next_index = entry.index + 1
    log.epoch = max(log.epoch, entry.epoch)
    log.next_offset = entry.base_offset + entry.count
    log.durable = max(log.durable, located.durable)


def _check_content(item: CheckedFile, located: LocatedEntry, log: _Log) -> None:
    entry = located.entry
    try:
        if entry.kind is EntryKind.ROWS:
            rows = decode_rows(entry, item.path)
            log.change(check_notes(item, located.position, entry, rows), entry.index)
        elif entry.kind is EntryKind.CONFIG:
            decode_config(entry, item.path)
        elif entry.kind is EntryKind.SCHEDULES:
            log.change(decode_changes(entry.payload, item.path), entry.index)
        else:
            marks = Marks.decode(bytes(entry.payload), item.path)
            if log.mark is not None:
                _check_mark(item, located.position, log.mark, marks)
            log.mark = marks
    except (Damaged, UnsupportedVersion) as error:
        item.error(error, located.position)


def _check_mark(item: CheckedFile, position: int, before: Marks, marks: Marks) -> None:
    if not marks.follows(before):
        item.fault(position, f"a mark at or beyond {before.main}", marks.main)


def _check_end(item: CheckedFile, log: _Log) -> None:
    """Check the end of the journal. A running node goes on writing: more entries are no fault."""
    if log.next_index >= 0 and log.next_index - 1 < log.durable:
        item.fault(
            item.nbytes,
            f"entries up to index {log.durable}",
            f"the end after index {log.next_index - 1}",
        )
    if log.stored is not None and not log.broken:
        if log.epoch > log.stored.epoch:
            item.fault(item.nbytes, f"epochs up to {log.stored.epoch}", log.epoch)
        checkpoint = log.stored.checkpoint
        if log.mark is not None and checkpoint.index:
            end = CheckedFile(item.kind, item.path)
            _check_mark(end, item.nbytes, checkpoint.marks, log.mark)
            # A snapshot comes with the newest marks; the journal has yet to reach them.
            (item.notes if "stores" in checkpoint.config else item.faults).extend(end.faults)

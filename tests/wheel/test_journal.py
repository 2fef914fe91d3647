"""The journal in normal running: append, sync, roll, read, drop, a full disk, two threads."""

from __future__ import annotations

import errno
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import SupportsIndex

import pytest

from slotwheel.wheel.errors import Damaged, InvalidBatch, SyncFailed
from slotwheel.wheel.files import Files, OsFiles
from slotwheel.wheel.journal.entry import NOTES_VERSION, EntryKind
from slotwheel.wheel.journal.scan import Segment, walk
from slotwheel.wheel.journal.segment import FRAME_BYTES, SEGMENT_BYTES
from support.crashfs import CrashFiles
from support.journals import (
    SEGMENT_BYTES_MAX,
    entry,
    load,
    open_journal,
    payloads,
    store,
    write_journal,
)

FIRST = "journal/00000000000000000001.journal"
ENTRY_SPACE = 192  # of an entry of the default size, with frame and padding


def names(files: Files) -> list[int]:
    found = [name for name in files.list("journal") if name.endswith(".journal")]
    return [int(name.removesuffix(".journal")) for name in found]


def test_a_new_journal_is_empty_and_starts_where_it_is_told(files: Files) -> None:
    journal, got, report = open_journal(files, first_index=42)
    assert (got, report.entries, report.torn_path) == ([], 0, None)
    assert (journal.first_index, journal.last_index, journal.durable_index) == (42, 41, 41)
    assert (journal.last_epoch, journal.bytes) == (0, SEGMENT_BYTES)
    journal.append([entry(42)])
    assert (journal.last_index, journal.durable_index) == (42, 41)
    journal.sync()
    assert journal.durable_index == 42


def test_what_was_appended_is_found_again(files: Files) -> None:
    journal, _, _ = open_journal(files)
    sent = [entry(index, size, epoch=1 + index // 3) for index, size in enumerate(range(9), 1)]
    journal.append(sent[:1])
    journal.append(sent[1:])
    journal.append([])
    journal.sync()
    journal.close()
    journal, got, report = open_journal(files)
    assert got == sent
    assert (report.entries, report.last_index, report.last_epoch) == (9, 9, 4)
    assert (journal.last_index, journal.last_epoch, journal.durable_index) == (9, 4, 9)
    assert report.torn_path is None


def test_entries_before_the_first_index_are_verified_and_not_handed_on(files: Files) -> None:
    write_journal(files, 8)
    _, got, report = open_journal(files, first_index=6)
    assert [one.index for one in got] == [6, 7, 8]
    assert (report.entries, report.last_index) == (3, 8)


def test_segments_roll_and_go_on_after_reopening(files: Files) -> None:
    write_journal(files, 8)
    assert names(files) == [1, 4, 7]
    journal, got, _ = open_journal(files)
    assert journal.bytes == 3 * SEGMENT_BYTES + 8 * ENTRY_SPACE
    for index in (9, 10):
        journal.append([entry(index)])
    journal.sync()
    assert names(files) == [1, 4, 7, 10]
    assert payloads(open_journal(files)[1]) == payloads([*got, entry(9), entry(10)])


def test_a_group_stays_in_one_segment(files: Files) -> None:
    journal, _, _ = open_journal(files)
    journal.append([entry(index) for index in range(1, 8)])
    journal.append([entry(8)])
    assert names(files) == [1, 8]
    assert journal.durable_index == 7  # what comes before a segment is durable


def test_the_last_epoch_outlives_the_segments_that_held_it(files: Files) -> None:
    journal, _, _ = open_journal(files)
    journal.append([entry(index, epoch=9) for index in range(1, 5)])
    journal.append([entry(5, epoch=9)])
    journal.drop_below(5)
    journal.close()
    store(files, "journal/00000000000000000005.journal", header_only(files, 5))
    journal, got, report = open_journal(files, first_index=5, durable_floor=4)
    assert (got, report.last_index, report.last_epoch, journal.last_epoch) == ([], 4, 9, 9)


def header_only(files: Files, first_index: int) -> bytes:
    return load(files, f"journal/{first_index:020d}.journal")[:SEGMENT_BYTES]


def test_frames_name_what_was_durable_when_they_were_written(files: Files) -> None:
    journal, _, _ = open_journal(files, segment_bytes=10_000)
    journal.append([entry(1), entry(2)])
    journal.append([entry(3)])
    journal.sync()
    journal.append([entry(4)])
    found = walk(files, "journal/00000000000000000001.journal")
    assert [(one.entry.index, one.durable) for one in found] == [(1, 0), (2, 0), (3, 0), (4, 3)]


def test_dropping_takes_whole_closed_segments_only(files: Files) -> None:
    write_journal(files, 8)  # segments 1-3, 4-6, 7-8
    journal, _, _ = open_journal(files)
    assert [journal.drop_below(index) for index in (0, 1, 3)] == [0, 0, 0]
    assert names(files) == [1, 4, 7]
    assert journal.drop_below(4) == 1
    assert (names(files), journal.first_index) == ([4, 7], 4)
    assert journal.drop_below(100) == 1  # never the open one
    assert (names(files), journal.bytes) == ([7], SEGMENT_BYTES + 2 * ENTRY_SPACE)
    _, got, _ = open_journal(files, first_index=7)
    assert [one.index for one in got] == [7, 8]


@pytest.mark.parametrize("from_index", [1, 2, 3, 4, 6, 7, 8, 9])
def test_reading_from_any_index(files: Files, from_index: int) -> None:
    write_journal(files, 8)
    journal, got, _ = open_journal(files)
    assert list(journal.read(from_index)) == got[from_index - 1 :]


def test_a_read_ends_where_the_journal_ended_when_it_was_asked(files: Files) -> None:
    write_journal(files, 2)
    journal, _, _ = open_journal(files)
    reading = journal.read(1)
    for index in range(3, 9):
        journal.append([entry(index)])
    assert [one.index for one in reading] == [1, 2]
    assert [one.index for one in journal.read(1)] == list(range(1, 9))


def test_reading_what_was_dropped_is_a_lookup_error(files: Files) -> None:
    write_journal(files, 8)
    journal, _, _ = open_journal(files)
    reading = journal.read(3)
    assert next(reading).index == 3
    begun = journal.read(1)
    journal.drop_below(7)
    with pytest.raises(LookupError, match="dropped"):
        list(reading)
    with pytest.raises(LookupError, match="dropped"):
        next(begun)
    with pytest.raises(LookupError, match="starts at 7"):
        next(journal.read(6))


def test_walk_shows_what_it_decoded_before_it_says_what_is_wrong(files: Files) -> None:
    write_journal(files, 3)
    path = "journal/00000000000000000001.journal"
    content = load(files, path)
    store(files, path, content[:-1])
    walking = walk(files, path)
    assert [next(walking).entry.index for _ in range(2)] == [1, 2]
    with pytest.raises(Damaged) as damage:
        next(walking)
    assert damage.value.position == SEGMENT_BYTES + 2 * ENTRY_SPACE


def test_an_entry_beyond_the_limit_is_refused_before_anything_is_written(files: Files) -> None:
    journal, _, _ = open_journal(files)
    with pytest.raises(InvalidBatch, match="10065 bytes"):
        journal.append([entry(1), entry(2, 10_001)])
    assert (journal.last_index, journal.bytes) == (0, SEGMENT_BYTES)
    journal.append([entry(1), entry(2, 10_000 - 64)])
    assert open_journal(files)[2].last_index == 2


def test_our_own_mistakes_are_assertions(files: Files) -> None:
    journal, _, _ = open_journal(files)
    journal.append([entry(1, epoch=5)])
    for wrong in ([entry(1, epoch=5)], [entry(3, epoch=5)], [entry(2, epoch=4)]):
        with pytest.raises(AssertionError):
            journal.append(wrong)
    assert journal.last_index == 1


def test_files_that_are_no_segments_are_left_alone(files: Files) -> None:
    write_journal(files, 2)
    store(files, "journal/notes.txt", b"mine")
    assert open_journal(files)[2].last_index == 2
    assert load(files, "journal/notes.txt") == b"mine"


def test_a_full_disk_at_any_byte_leaves_the_journal_usable() -> None:
    for room in range(0, 4 * ENTRY_SPACE + SEGMENT_BYTES + FRAME_BYTES - SEGMENT_BYTES_MAX, 7):
        files = CrashFiles()
        journal, _, _ = open_journal(files)
        journal.append([entry(1)])
        size = journal.bytes
        ahead = len(files.content(FIRST)) - size
        files.free = room
        with pytest.raises(OSError, match="No space") as full:
            journal.append([entry(2), entry(3), entry(4)])
        assert full.value.errno == errno.ENOSPC
        assert (journal.last_index, journal.bytes, files.free) == (1, size, room + ahead)
        files.free = 10_000
        journal.append([entry(2, 50, salt=1)])
        journal.sync()
        sent = payloads([entry(1), entry(2, 50, salt=1)])
        for mode in ("durable", "live"):
            _, got, report = open_journal(files.survivors(mode))
            assert payloads(got) == sent
            assert report.torn_path is None


def test_a_failed_append_never_comes_back_after_a_power_cut() -> None:
    """The junk could otherwise hold entries behind the ones that took their indexes since."""
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    journal.append([entry(1)])
    files.free = ENTRY_SPACE
    with pytest.raises(OSError, match="No space"):
        journal.append([entry(2), entry(3), entry(4)])
    for mode in ("durable", "live"):
        assert payloads(open_journal(files.survivors(mode))[1]) == payloads([entry(1)])


def test_junk_that_could_not_be_cut_is_cut_before_the_next_append() -> None:
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    journal.append([entry(1)])
    files.free = ENTRY_SPACE
    files.fail_next("truncate", OSError(errno.EIO, "truncate"))
    files.fail_next("truncate", OSError(errno.EIO, "truncate again"))
    with pytest.raises(OSError, match="No space"):
        journal.append([entry(2), entry(3), entry(4)])
    files.free = 10_000
    with pytest.raises(OSError, match="again"):
        journal.append([entry(2, 20)])
    journal.append([entry(2, 20)])
    assert payloads(open_journal(files)[1]) == payloads([entry(1), entry(2, 20)])
    assert not any(files.content(FIRST)[journal.bytes + FRAME_BYTES :])


@pytest.mark.parametrize("operation", ["open", "create", "truncate", "pwrite"])
def test_a_roll_that_fails_is_tried_again(operation: str) -> None:
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    journal.append([entry(index) for index in range(1, 4)])
    files.fail_next(operation, OSError(errno.ENOSPC, "No space"))
    with pytest.raises(OSError, match="No space"):
        journal.append([entry(4)])
    assert (names(files), journal.last_index) == ([1], 3)
    journal.append([entry(4)])
    assert names(files) == [1, 4]
    assert payloads(open_journal(files)[1]) == payloads([entry(index) for index in range(1, 5)])


def test_a_real_file_system_that_runs_into_a_limit(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    journal, _, _ = open_journal(files, segment_bytes=1 << 20)
    journal.append([entry(1)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.bytes + ENTRY_SPACE + 50, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append([entry(2), entry(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append([entry(2, 30)])
    journal.sync()
    assert payloads(open_journal(files)[1]) == payloads([entry(1), entry(2, 30)])


def test_a_failed_sync_passes_and_promises_nothing() -> None:
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    journal.append([entry(1)])
    files.fail_next("sync", OSError(errno.EIO, "I/O error"))
    with pytest.raises(SyncFailed):
        journal.sync()
    assert journal.durable_index == 0


def test_a_failed_sync_while_rolling_passes() -> None:
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    journal.append([entry(index) for index in range(1, 4)])
    files.fail_next("sync", OSError(errno.EIO, "I/O error"))
    with pytest.raises(SyncFailed):
        journal.append([entry(4)])
    assert (journal.last_index, journal.durable_index) == (3, 0)


def test_an_error_from_the_one_who_takes_the_entries_passes(files: Files) -> None:
    write_journal(files, 3)

    def refuse(_: object) -> None:
        raise Damaged("payload", 0, expected="a mark", found="nothing")

    with pytest.raises(Damaged, match="a mark"):
        open_journal(files, on_entry=refuse)
    assert open_journal(files)[2].last_index == 3


def test_one_thread_appends_another_syncs_a_third_reads(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    journal, _, _ = open_journal(files, segment_bytes=2000)
    failures: list[BaseException] = []
    done = threading.Event()

    def sync() -> None:
        while not done.is_set():
            journal.sync()
            assert journal.durable_index <= journal.last_index

    def read() -> None:
        while not done.is_set():
            last = journal.last_index
            seen = [one.index for one in journal.read(1)]
            assert seen[:last] == list(range(1, last + 1))

    def guarded(work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (sync, read)]
    for thread in threads:
        thread.start()
    for index in range(1, 301):
        journal.append([entry(index)])
    done.set()
    for thread in threads:
        thread.join(60)
    assert failures == []
    journal.sync()
    assert [one.index for one in open_journal(files)[1]] == list(range(1, 301))


def test_who_asks_during_a_change_of_segments_counts_none_twice(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status asks without the lock; and by its bytes it is decided what peers still need."""
    journal, _, _ = open_journal(files)
    seen: list[tuple[int, int]] = []

    class Watched(list[Segment]):
        def append(self, segment: Segment) -> None:
            super().append(segment)
            seen.append((journal.bytes, journal.first_index))

        def pop(self, at: SupportsIndex = -1) -> Segment:
            seen.append((journal.bytes, journal.first_index))
            return super().pop(at)

    monkeypatch.setattr(journal, "_closed", Watched())
    for index in range(1, 12):
        before = journal.bytes
        journal.append([entry(index)])
        assert all(found == (before, 1) for found in seen)
        if seen:
            break
    assert len(seen) == 1
    before = journal.bytes
    journal.truncate_after(1)
    assert len(seen) == 2
    assert seen[1][0] < before
    assert seen[1][1] == 1


def test_every_kind_passes_through(files: Files) -> None:
    journal, _, _ = open_journal(files)
    sent = [replace(entry(index), kind=kind) for index, kind in enumerate(EntryKind, 1)]
    changes = replace(sent[-1], count=0, producer=0, sequence=-1, version=NOTES_VERSION)
    journal.append([*sent[:-1], changes])
    assert [one.kind for one in open_journal(files)[1]] == list(EntryKind)

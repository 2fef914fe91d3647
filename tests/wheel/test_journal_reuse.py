"""Files of dropped segments that become segments again: what is kept, what lies behind the end, and
that nobody ever takes the old content for the new.

The crash sweeps over reuse are in ``test_journal_crash.py``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from slotwheel.reading.verify.journal import verify_journal
from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.files import Files
from slotwheel.wheel.findings import Finding
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.journal.scan import SegmentReader, walk
from slotwheel.wheel.journal.segment import FRAME_BYTES, SEGMENT_BYTES, end_mark
from support.crashfs import CrashFiles
from support.damage import flipped
from support.journals import entry, load, open_journal, store

SPACE = 192  # of an entry of the default size; three fill a segment
OPEN = f"journal/{10:020d}.journal"


def names(files: Files) -> list[str]:
    return [name.lstrip("0") for name in files.list("journal")]


def reusing(files: Files) -> Journal:
    """Entries 7 to 10; the last segment holds 10 alone, in the file where 1 to 3 were."""
    journal, _, _ = open_journal(files)
    append(journal, range(1, 10))
    assert journal.drop_below(7) == 2
    append(journal, [10])
    assert names(files) == ["4.spare", "7.journal", "10.journal"]
    return journal


def append(journal: Journal, indexes: Any, *, salt: int = 0) -> None:
    for index in indexes:
        journal.append([entry(index, salt=salt)])
        journal.sync()


def indexes(entries: Any) -> list[int]:
    return [one.index for one in entries]


def notes_and_faults(files: Files) -> tuple[list[Finding], list[Finding]]:
    """But for the payloads, which here are none of a wheel."""
    items = list(verify_journal(files, lambda: None))
    faults = [one for item in items for one in item.faults]
    return (
        [one for item in items for one in item.notes],
        [one for one in faults if not one.expected.startswith("a record batch")],
    )


# -- what is kept


def test_a_dropped_file_is_used_again_with_all_its_length(files: Files) -> None:
    journal = reusing(files)
    assert len(load(files, OPEN)) == SEGMENT_BYTES + 3 * SPACE
    assert journal.bytes == 2 * SEGMENT_BYTES + 4 * SPACE
    assert indexes(journal.read(7)) == [7, 8, 9, 10]
    assert indexes(one.entry for one in walk(files, OPEN)) == [10]
    assert notes_and_faults(files) == ([], [])


def test_a_few_files_are_kept_and_only_of_the_usual_size(files: Files) -> None:
    journal, _, _ = open_journal(files)
    append(journal, range(1, 20))
    assert journal.drop_below(100) == 6
    assert names(files) == ["1.spare", "4.spare", "7.spare", "19.journal"]
    journal.append([entry(20, 2000)])
    journal.append([entry(21, 2000)])
    journal.append([entry(22)])
    assert names(files) == ["7.spare", "19.journal", "21.journal", "22.journal"]
    journal.drop_below(100)
    assert names(files) == ["7.spare", "22.journal"]


def test_spares_are_found_again_and_too_many_deleted(files: Files) -> None:
    reusing(files).close()
    for number in (1, 2, 3, 5):
        store(files, f"journal/{number:020d}.spare", b"anything" * number)
    journal, got, report = open_journal(files, first_index=7)
    assert (indexes(got), report.torn_path) == ([7, 8, 9, 10], None)
    assert names(files) == ["1.spare", "2.spare", "3.spare", "7.journal", "10.journal"]
    append(journal, range(11, 20))
    assert names(files) == ["7.journal", "10.journal", "13.journal", "16.journal", "19.journal"]
    journal.close()
    assert indexes(open_journal(files, first_index=7)[1]) == list(range(7, 20))


def test_a_new_journal_has_no_spares_and_needs_none(files: Files) -> None:
    journal, _, _ = open_journal(files)
    append(journal, range(1, 8))
    assert names(files) == ["1.journal", "4.journal", "7.journal"]
    assert not any(behind(files, 7, entries=1))


def behind(files: Files, first_index: int, *, entries: int) -> bytes:
    """What stands behind so many entries of a segment, and behind their end mark."""
    content = load(files, f"journal/{first_index:020d}.journal")
    return content[SEGMENT_BYTES + entries * SPACE + FRAME_BYTES :]


@pytest.mark.parametrize("operation", ["open", "pwrite", "rename"])
def test_a_spare_that_cannot_be_used_is_given_up(operation: str) -> None:
    files = CrashFiles()
    journal = reusing(files)
    append(journal, [11, 12])
    files.fail_next(operation, OSError(errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O error"):
        journal.append([entry(13)])
    assert (journal.last_index, names(files)[-1]) == (12, "10.journal")
    append(journal, [13])
    assert names(files)[-1] == "13.journal"
    assert not any(behind(files, 13, entries=1))  # a new file
    assert indexes(open_journal(files.survivors("durable"), first_index=7)[1]) == [*range(7, 14)]


def test_a_rename_that_fails_drops_nothing() -> None:
    files = CrashFiles()
    journal, _, _ = open_journal(files)
    append(journal, range(1, 8))
    files.fail_next("rename", OSError(errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O error"):
        journal.drop_below(7)
    assert indexes(journal.read(1)) == list(range(1, 8))
    assert journal.drop_below(7) == 2


# -- the end


def test_a_closed_segment_and_a_closed_journal_have_nothing_behind_their_end(files: Files) -> None:
    journal = reusing(files)
    journal.close()
    assert len(load(files, OPEN)) == SEGMENT_BYTES + SPACE
    journal, _, _ = open_journal(files, first_index=7)
    append(journal, [11, 12, 13, 14])
    assert names(files) == ["7.journal", "10.journal", "13.journal"]
    journal.append([entry(15), entry(16, 20)])
    append(journal, [17])
    assert len(load(files, f"journal/{13:020d}.journal")) == SEGMENT_BYTES + 3 * SPACE + 112
    assert len(load(files, OPEN)) == SEGMENT_BYTES + 3 * SPACE


def test_a_killed_process_leaves_an_end_that_is_not_torn() -> None:
    files = CrashFiles()
    reusing(files)
    for mode in ("live", "durable"):
        after = files.survivors(mode)
        assert notes_and_faults(after) == ([], [])
        journal, got, report = open_journal(after, first_index=7)
        assert (indexes(got), report.torn_path) == ([7, 8, 9, 10], None)
        assert len(after.content(OPEN)) == SEGMENT_BYTES + SPACE
        append(journal, [11])
        assert indexes(open_journal(after, first_index=7)[1]) == [7, 8, 9, 10, 11]


def changed(files: Files, position: int, data: bytes) -> None:
    content = load(files, OPEN)
    store(files, OPEN, content[:position] + data + content[position + len(data) :])


END = SEGMENT_BYTES + SPACE


@pytest.mark.parametrize("junk", [bytes(FRAME_BYTES), b"SWFR" + bytes(20), b"\xff" * 24])
def test_what_is_no_end_mark_is_a_torn_end_and_told(files: Files, junk: bytes) -> None:
    reusing(files)
    changed(files, END, junk)
    notes, faults = notes_and_faults(files)
    assert ([one.position for one in notes], faults) == ([END], [])
    _, got, report = open_journal(files, first_index=7)
    assert indexes(got) == [7, 8, 9, 10]
    assert (report.torn_path, report.torn_position, report.torn_bytes) == (OPEN, END, 2 * SPACE)


def test_a_mark_of_another_place_or_segment_is_none(files: Files) -> None:
    reusing(files)
    handle = files.open(OPEN)
    header = SegmentReader(handle, OPEN, 1000).header
    handle.close()
    for mark in (end_mark(header.seed, END + 8), end_mark(header.seed ^ 1, END)):
        changed(files, END, mark)
        assert len(notes_and_faults(files)[0]) == 1


def test_a_mark_cannot_take_back_what_was_durable(files: Files) -> None:
    """An end mark where an entry was that a later frame calls durable: damage, not the end."""
    journal = reusing(files)
    mark = load(files, OPEN)[END : END + FRAME_BYTES]
    append(journal, [11])
    changed(files, END, mark)  # entry 11 is the last: nobody knows more
    assert notes_and_faults(files) == ([], [])
    append(journal, [12])
    changed(files, END, mark)
    assert next(one.position for one in notes_and_faults(files)[1]) == END
    with pytest.raises(Damaged) as damage:
        open_journal(files, first_index=7)
    assert damage.value.position == END
    assert open_error(files, durable_floor=12) is Damaged


def test_a_mark_before_the_checkpoint_is_damage(files: Files) -> None:
    reusing(files)
    assert open_error(files, durable_floor=11) is Damaged
    assert open_error(files, durable_floor=10) is None


def open_error(files: Files, **options: Any) -> type[Exception] | None:
    try:
        open_journal(files, first_index=7, **options)
    except Damaged as error:
        return type(error)
    return None


def test_every_flipped_bit_and_old_content_everywhere() -> None:
    """Never an entry that was not written there, and none lost but the last."""
    files = CrashFiles()
    reusing(files)
    good = {name: files.content(f"journal/{name}") for name in files.list("journal")}
    content = good[OPEN.removeprefix("journal/")]
    refused = set()
    for bit in range(len(content) * 8):
        for name, unchanged in good.items():
            files.replace(f"journal/{name}", unchanged)
        files.replace(OPEN, flipped(content, bit))
        got: list[Entry] = []
        try:
            report = open_journal(files, first_index=7, on_entry=got.append)[2]
        except (Damaged, UnsupportedVersion):
            refused.add(bit // 8)
            continue
        if bit // 8 < END:
            assert (got, report.torn_position) == ([entry(7), entry(8), entry(9)], SEGMENT_BYTES)
        else:
            assert got == [entry(7), entry(8), entry(9), entry(10)]
            assert (report.torn_path is None) == (bit // 8 >= END + FRAME_BYTES)
    version = SEGMENT_BYTES + FRAME_BYTES + 4
    assert refused == {*range(SEGMENT_BYTES), version, version + 1}


def test_a_full_disk_behind_the_end_of_a_reused_file() -> None:
    files = CrashFiles()
    journal = reusing(files)
    files.free = 50
    with pytest.raises(OSError, match="No space"):
        journal.append([entry(11), entry(12), entry(13)])
    for mode in ("live", "durable"):
        _, got, report = open_journal(files.survivors(mode), first_index=7)
        assert (indexes(got), report.torn_path) == ([7, 8, 9, 10], None)
    files.free = 10_000
    append(journal, [11], salt=1)
    assert list(journal.read(11)) == [entry(11, salt=1)]


def test_a_cut_in_a_reused_file(files: Files) -> None:
    journal = reusing(files)
    append(journal, [11, 12])
    journal.truncate_after(10)
    journal.append([entry(11, epoch=2)])
    journal.sync()
    assert not any(behind(files, 10, entries=2))
    journal.truncate_after(8)
    append(journal, [9], salt=2)
    _, got, report = open_journal(files, first_index=7)
    assert got == [entry(7), entry(8), entry(9, salt=2)]
    assert report.torn_path is None


# -- those who read meanwhile


def grown_over(journal: Journal) -> None:
    """Drop all that may go, and write until every spare is in use."""
    journal.drop_below(journal.last_index)
    first = journal.last_index + 1
    append(journal, range(first, first + 10), salt=5)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
def test_a_reader_sees_what_was_there_or_a_lookup_error(
    files: Files, at: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are dropped and used again just before or just after it has read entry ``at``."""
    journal, _, _ = open_journal(files)
    append(journal, range(1, 10))
    read = SegmentReader.entry
    calls = 0

    def meanwhile(self: SegmentReader, position: int) -> Any:
        nonlocal calls
        calls += 1
        found = read(self, position) if after else None
        if calls == at:
            grown_over(journal)
        return found or read(self, position)

    monkeypatch.setattr(SegmentReader, "entry", meanwhile)
    got: list[Entry] = []
    outcome: object = None
    try:
        got.extend(journal.read(1))
    except LookupError as error:
        outcome = error
    monkeypatch.undo()
    assert got == [entry(index) for index in range(1, len(got) + 1)]
    assert (outcome is None) == (at >= 7)  # the segment that stayed
    assert len(got) == (9 if at >= 7 else at - 1)


def test_a_reader_that_pauses_between_two_entries(files: Files) -> None:
    journal, _, _ = open_journal(files)
    append(journal, range(1, 10))
    readers = [journal.read(first) for first in (1, 2, 3, 4, 7)]
    assert indexes(map(next, readers)) == [1, 2, 3, 4, 7]
    begun = journal.read(2)
    grown_over(journal)
    for reader in (*readers[:4], begun):
        with pytest.raises(LookupError):
            next(reader)
    assert indexes(readers[4]) == [8, 9]


def test_walking_through_a_file_that_is_used_again(files: Files) -> None:
    journal, _, _ = open_journal(files)
    append(journal, range(1, 10))
    walking = walk(files, f"journal/{1:020d}.journal")
    next(walking)
    grown_over(journal)
    with pytest.raises(FileNotFoundError):
        list(walking)


def grown(journal: Journal) -> None:
    append(journal, [11, 12])


@pytest.mark.parametrize("meanwhile", [grown, grown_over])
def test_verifying_beside_a_running_node(
    files: Files, meanwhile: Callable[[Journal], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at a segment while that grows, or is dropped and used again."""
    calls = 0
    while True:
        journal = reusing(files)
        calls += 1
        seen = done = 0
        read, search = SegmentReader.entry, SegmentReader.next_frame

        def stop(journal: Journal = journal, at: int = calls) -> None:
            nonlocal seen, done
            seen += 1
            if seen == at:
                done = 1
                meanwhile(journal)

        def entry_then(self: SegmentReader, position: int, read: Any = read) -> Any:
            stop()
            try:
                return read(self, position)
            finally:
                stop()

        def search_then(reader: SegmentReader, position: int, search: Any = search) -> int | None:
            stop()
            return search(reader, position)  # type: ignore[no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(SegmentReader, "entry", entry_then)
            patch.setattr(SegmentReader, "next_frame", search_then)
            found = notes_and_faults(files)
        journal.close()
        assert found == ([], []), f"stopped at {calls}"
        for name in files.list("journal"):
            files.unlink(f"journal/{name}")
        if not done:
            break
    assert calls > 10

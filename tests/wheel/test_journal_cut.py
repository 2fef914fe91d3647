"""Cutting the journal's end: what goes, what stays, what readers see, and that no trace is left.

The crash sweeps over cuts are in ``test_journal_crash.py``.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.journal.epochs import Epochs
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.journal.scan import SegmentReader
from slotwheel.wheel.journal.segment import SEGMENT_BYTES
from support.crashfs import CrashFiles
from support.journals import entry, load, open_journal, write_journal

ENTRIES = 10  # three fill a segment: 1-3, 4-6, 7-9, 10


def opened(files: Any, **options: Any) -> Journal:
    return open_journal(files, **options)[0]


def content(files: Any) -> dict[str, bytes]:
    return {name: load(files, f"journal/{name}") for name in files.list("journal")}


@pytest.fixture
def files() -> CrashFiles:
    files = CrashFiles()
    write_journal(files, ENTRIES)
    return files


@pytest.mark.parametrize("index", range(ENTRIES + 1))
def test_what_is_behind_the_index_goes_and_the_rest_stays(files: CrashFiles, index: int) -> None:
    journal = opened(files)
    journal.truncate_after(index)
    assert (journal.first_index, journal.last_index, journal.durable_index) == (1, index, index)
    assert [one.index for one in journal.read(1)] == list(range(1, index + 1))
    assert journal.bytes == sum(map(len, content(files).values()))
    after = files.survivors("durable")  # nothing more is needed for it to be durable
    _, got, report = open_journal(after)
    assert got == [entry(at) for at in range(1, index + 1)]
    assert report.torn_path is None


@pytest.mark.parametrize("index", range(ENTRIES + 1))
def test_a_cut_leaves_no_trace(index: int) -> None:
    """Byte for byte the journal of someone who never had the old end, so every test about damage
    speaks for this one too."""
    never = CrashFiles()
    write_journal(never, index)
    cut = CrashFiles()
    write_journal(cut, index)
    journal = opened(cut)
    journal.append([entry(index + 1, 700, salt=1), entry(index + 2, 700, salt=1)])
    journal.append([entry(index + 3, 700, salt=1)])
    journal.append([entry(index + 4, salt=1)])
    journal.truncate_after(index)
    for one in (journal, opened(never)):
        for at in range(index + 1, index + 6):
            one.append([entry(at, epoch=2)])
            one.sync()
        one.close()
    assert content(cut) == content(never)


def test_a_journal_may_be_cut_down_to_nothing_and_goes_on(files: CrashFiles) -> None:
    journal = opened(files)
    journal.drop_below(5)
    assert journal.first_index == 4
    journal.truncate_after(3)
    assert (journal.last_index, journal.last_epoch, journal.bytes) == (3, 1, SEGMENT_BYTES)
    journal.append([entry(4, epoch=9)])
    journal.sync()
    _, got, _ = open_journal(files.survivors("durable"), first_index=4)
    assert got == [entry(4, epoch=9)]
    with pytest.raises(AssertionError, match="cut after 2"):
        journal.truncate_after(2)


def test_a_cut_at_or_behind_the_end_does_nothing(files: CrashFiles) -> None:
    journal = opened(files)
    reader = journal.read(1)
    next(reader)
    steps = files.steps.count
    journal.truncate_after(ENTRIES)
    journal.truncate_after(ENTRIES + 7)
    assert (journal.last_index, files.steps.count) == (ENTRIES, steps)
    assert len(list(reader)) == ENTRIES - 1


def test_what_was_not_synced_is_not_called_durable_by_a_cut(files: CrashFiles) -> None:
    journal = opened(files)
    journal.append([entry(11), entry(12)])
    journal.truncate_after(11)
    assert (journal.durable_index, journal.last_index) == (10, 11)
    journal.sync()
    assert journal.durable_index == 11


def test_lower_epochs_may_follow_a_cut(files: CrashFiles) -> None:
    journal = opened(files)
    journal.append([entry(11, epoch=5)])
    journal.truncate_after(9)
    assert journal.last_epoch == 1
    journal.append([entry(10, epoch=3)])
    assert journal.last_epoch == 3


# -- epochs


def test_epochs_are_those_of_all_entries_also_of_those_below_the_first_asked_for() -> None:
    files = CrashFiles()
    journal = opened(files)
    made = [1, 1, 1, 1, 3, 3, 3, 7]
    for index, epoch in enumerate(made, 1):
        journal.append([entry(index, epoch=epoch)])
    expected = Epochs()
    for index, epoch in enumerate(made, 1):
        expected.append(index, epoch)
    assert journal.epochs == expected
    journal.epochs.truncate_after(1)  # a copy
    assert journal.epochs == expected
    journal.close()

    journal = opened(files, first_index=7)
    assert journal.epochs == expected
    journal.drop_below(7)
    assert journal.epochs.runs() == [(6, 3), (8, 7)]
    journal.close()
    journal = opened(files, first_index=7)  # the base comes from the segment's header
    assert journal.epochs.runs() == [(6, 3), (8, 7)]
    journal.truncate_after(6)
    assert journal.epochs == Epochs(6, 3)
    journal.close()
    assert opened(files, first_index=7).epochs == Epochs(6, 3)


def test_a_new_journal_knows_the_entry_before_its_first() -> None:
    journal = opened(CrashFiles(), first_index=100)
    assert journal.epochs == Epochs(99, 0)


# -- readers


def replaced(journal: Journal, index: int) -> None:
    """Other entries of the same sizes from ``index`` on, so their frames lie in the same places."""
    journal.truncate_after(index - 1)
    journal.append([entry(at, epoch=2, salt=9) for at in range(index, ENTRIES + 1)])
    journal.sync()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, ENTRIES + 1))
@pytest.mark.parametrize("index", [1, 5, 7, 10])
def test_a_reader_sees_what_was_there_or_an_error(
    files: CrashFiles, index: int, at: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut comes just before or just after the reader has read its entry number ``at``."""
    journal = opened(files)
    read = SegmentReader.entry
    calls = 0

    def meanwhile(self: SegmentReader, position: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            replaced(journal, index)
        found = read(self, position)
        if calls == at and after:
            replaced(journal, index)
        return found

    monkeypatch.setattr(SegmentReader, "entry", meanwhile)
    got: list[Entry] = []
    with pytest.raises(LookupError, match="cut"):
        got.extend(journal.read(1))  # it keeps what came before the error
    monkeypatch.undo()
    assert got == [entry(one) for one in range(1, at)]
    assert [one.epoch for one in journal.read(1)] == [1] * (index - 1) + [2] * (11 - index)


def test_a_reader_that_finds_the_file_gone_or_short_is_told_of_the_cut(files: CrashFiles) -> None:
    journal = opened(files)
    reader, other = journal.read(1), journal.read(1)
    for one in range(1, 8):
        assert next(reader) == entry(one)
    next(other)
    journal.truncate_after(2)
    for gone in (reader, other):
        with pytest.raises(LookupError):
            next(gone)
    assert list(journal.read(3)) == []


def test_a_reader_goes_on_where_one_stopped(
    files: CrashFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(files)
    for first in range(1, ENTRIES + 1):
        reader = journal.read(first)
        assert next(reader) == entry(first)
        reader.close()  # type: ignore[attr-defined]
        if first == 1:  # from here on nothing has to be skipped
            monkeypatch.setattr(SegmentReader, "skip", None)
    monkeypatch.undo()
    replaced(journal, 5)
    assert next(journal.read(6)) == entry(6, epoch=2, salt=9)


# -- errors


def test_a_file_that_cannot_be_removed_leaves_a_usable_journal(files: CrashFiles) -> None:
    journal = opened(files)
    files.fail_next("unlink", OSError(errno.EIO, "I/O error"), after=1)
    with pytest.raises(OSError, match="I/O"):
        journal.truncate_after(2)
    assert journal.last_index == 9  # one segment is gone, the next one stayed
    assert [one.index for one in journal.read(1)] == list(range(1, 10))
    journal.append([entry(10, epoch=2)])
    journal.truncate_after(2)
    assert journal.last_index == 2


def test_a_cut_that_fails_is_made_before_anything_else_is_written(files: CrashFiles) -> None:
    journal = opened(files)
    files.fail_next("truncate", OSError(errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O"):
        journal.truncate_after(8)
    assert journal.last_index == 8
    journal.append([entry(9, epoch=2)])
    journal.sync()
    _, got, _ = open_journal(files.survivors("durable"))
    assert got == [*(entry(one) for one in range(1, 9)), entry(9, epoch=2)]


def test_on_a_real_disk(tmp_path: Any) -> None:
    files = OsFiles(tmp_path)
    write_journal(files, ENTRIES)
    journal = opened(files)
    journal.truncate_after(5)
    journal.append([entry(6, epoch=2)])
    journal.sync()
    journal.close()
    _, got, report = open_journal(files)
    assert (report.last_index, report.last_epoch, report.torn_path) == (6, 2, None)
    assert [one.epoch for one in got] == [1, 1, 1, 1, 1, 2]
    files.close()

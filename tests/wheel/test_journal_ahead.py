"""Small writes are followed by zeros, so that the next ones do not make the file grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel.wheel.files import Files, OsFiles
from slotwheel.wheel.journal import Journal
from slotwheel.wheel.scan import walk
from slotwheel.wheel.segment import FRAME_BYTES, SEGMENT_BYTES, SegmentHeader
from support.crashfs import CrashFiles
from support.journals import entry, flipped, load, open_journal, payloads, store

AHEAD = 256 << 10
FIRST = "journal/00000000000000000001.journal"
SPACE = 192
LARGE = 40_000
OPTIONS = {"segment_bytes": 1 << 20, "entry_bytes_max": 1 << 20}


@pytest.fixture(params=["double", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return CrashFiles() if request.param == "double" else OsFiles(tmp_path)


def new(files: Files) -> Journal:
    return open_journal(files, **OPTIONS)[0]


def add(journal: Journal, size: int = 100) -> None:
    journal.append([entry(journal.last_index + 1, size)])
    journal.sync()


def length(files: Files, path: str = FIRST) -> int:
    return len(load(files, path))


def test_the_file_grows_once_for_many_small_writes(files: Files) -> None:
    journal = new(files)
    add(journal)
    first = length(files)
    assert first == SEGMENT_BYTES + SPACE + FRAME_BYTES + AHEAD
    lengths = set()
    while journal.bytes + FRAME_BYTES <= first:
        lengths.add(length(files))
        add(journal)
    assert lengths == {first}
    assert first < length(files) <= first + SPACE + AHEAD
    found = [one.entry.index for one in walk(files, FIRST)]
    assert found == list(range(1, journal.last_index + 1))


def test_what_is_behind_a_large_write_is_its_end_mark(files: Files) -> None:
    journal = new(files)
    add(journal, LARGE)
    assert length(files) == journal.bytes  # nothing behind it, so no mark either
    add(journal)
    ahead = length(files)
    for _ in range(10):
        add(journal, LARGE)
    assert length(files) == journal.bytes + FRAME_BYTES > ahead
    _, got, report = open_journal(files, **OPTIONS)
    assert (len(got), report.torn_path) == (12, None)


def test_nothing_is_written_ahead_beyond_the_segments_size(files: Files) -> None:
    journal, got, _ = open_journal(files, segment_bytes=10_000)
    for _ in range(60):
        add(journal)
        assert length(files) <= 10_000 + SPACE + FRAME_BYTES
    second = journal.last_index - (journal.bytes - length(files) - SEGMENT_BYTES) // SPACE + 1
    assert length(files) == SEGMENT_BYTES + (second - 1) * SPACE  # closed: nothing behind it
    assert got == []


def test_a_restart_cuts_it_and_goes_on_so(files: Files) -> None:
    journal = new(files)
    for _ in range(3):
        add(journal)
    journal.close()
    assert length(files) == journal.bytes
    again = new(files)
    assert again.last_index == 3
    add(again)
    assert length(files) == again.bytes + FRAME_BYTES + AHEAD
    killed, got, report = open_journal(files, **OPTIONS)  # it was not closed
    assert (len(got), report.torn_path, killed.bytes) == (4, None, length(files))


def test_a_segment_of_an_earlier_version_grows_as_it_did(files: Files) -> None:
    """Its header does not say that anything may stand behind its entries."""
    journal = new(files)
    header = SegmentHeader(1, 0, load(files, FIRST)[40:56])
    journal.close()
    store(files, FIRST, header.encode() + b"\0" * 8)
    journal = new(files)
    for _ in range(3):
        add(journal)
        assert length(files) == journal.bytes
    journal.close()
    assert len(open_journal(files, **OPTIONS)[1]) == 3


def test_a_write_that_stopped_anywhere_leaves_what_was_there() -> None:
    """Into zeros: each part of an entry may be missing behind any of its bytes."""
    files = CrashFiles()
    journal = new(files)
    add(journal)
    whole = load(files, FIRST)
    add(journal, 60)
    both = load(files, FIRST)
    assert len(both) == len(whole)
    end = SEGMENT_BYTES + SPACE
    for stop in range(end, journal.bytes + FRAME_BYTES):
        torn = CrashFiles()
        torn.make_directory("journal")
        mixed = both[:stop] + whole[stop:]
        torn.replace(FIRST, mixed)
        _, got, report = open_journal(torn, **OPTIONS)
        there = stop >= journal.bytes - (-(24 + 64 + 60) % 8)
        assert payloads(got) == payloads([entry(1), entry(2, 60)][: 1 + there])
        assert (report.torn_path is None) == (mixed in (whole, both))


def test_a_flipped_bit_in_what_was_written_ahead_is_nothing(files: Files) -> None:
    journal = new(files)
    add(journal)
    journal.sync()
    content = load(files, FIRST)
    for place in (SEGMENT_BYTES + SPACE + FRAME_BYTES, len(content) - 1):
        store(files, FIRST, flipped(content, place * 8))
        _, got, report = open_journal(files, **OPTIONS)
        assert (len(got), report.torn_path) == (1, None)

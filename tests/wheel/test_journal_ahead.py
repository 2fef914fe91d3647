"""Small writes are followed by zeros, so that the next ones do not make the file grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.events import RowsSeen
from slotwheel.reading.files import JOURNAL, File
from slotwheel.reading.growing.journal import look_at_journal
from slotwheel.reading.journal import read_journal
from slotwheel.reading.problems import Problem
from slotwheel.reading.verify.journal import verify_journal
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.files import Files, OsFiles
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.journal.payloads import encode_input
from slotwheel.wheel.journal.scan import LocatedEntry, SegmentReader, walk
from slotwheel.wheel.journal.segment import FRAME_BYTES, SEGMENT_BYTES, SegmentHeader
from slotwheel.wheel.rows import from_columns
from support.crashfs import CrashFiles
from support.damage import flipped
from support.journals import entry, load, open_journal, payloads, store

AHEAD = 256 << 10
FIRST = "journal/00000000000000000001.journal"
SPACE = 192
NOW = 1_700_000_000_000
LARGE = 40_000
TEN_ROWS: Any = [NOW] * 10, ["t"] * 10, [None] * 10, [None] * 10, [b"v" * 20] * 10, [[]] * 10
PAYLOAD_OF_TEN = bytes(encode_input(from_columns(*TEN_ROWS), NOW).payload)
OPTIONS = {"segment_bytes": 1 << 20, "entry_bytes_max": 1 << 20}


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


def test_without_room_for_the_zeros_the_entry_is_written_all_the_same() -> None:
    files = CrashFiles()
    journal = new(files)
    files.free = 100_000
    for index in range(1, 4):
        add(journal)
        assert length(files) == journal.bytes
        assert journal.last_index == index
    files.free = SPACE - 1
    with pytest.raises(OSError, match="No space"):
        add(journal)
    assert (journal.last_index, files.free) == (3, SPACE - 1)
    files.free = 1 << 20
    add(journal)
    assert length(files) == journal.bytes  # not tried again before the next segment
    assert len(open_journal(files, **OPTIONS)[1]) == 4


def test_a_reader_follows_a_node_beyond_what_was_written_ahead(files: Files) -> None:
    """No entry is damaged because the file ended within it when it was opened."""
    journal = new(files)
    add(journal)
    walking = walk(files, FIRST)
    first = next(walking)
    end = length(files)
    while journal.bytes <= end + 10_000:
        add(journal, 1000)
    assert [first.entry.index, *(one.entry.index for one in walking)] == [
        *range(1, journal.last_index + 1)
    ]


def test_an_entry_written_between_two_looks(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end mark was read where the entry is when it is asked for again."""
    journal = new(files)
    add(journal)
    ends_at = SegmentReader.ends_at
    late = iter(range(2))

    def written_meanwhile(reader: SegmentReader, position: int) -> bool:
        if next(late, None) is not None:
            journal.append([entry(journal.last_index + n) for n in (1, 2)])
        return ends_at(reader, position)

    monkeypatch.setattr(SegmentReader, "ends_at", written_meanwhile)
    assert [one.entry.index for one in walk(files, FIRST)] == [1, 2, 3, 4, 5]


class CutAfter:
    """A handle; after the first look at it the node closes the segment, and cuts its end mark."""

    def __init__(self, handle: Any, end: int) -> None:
        self.handle, self.end = handle, end

    def pread(self, length: int, position: int) -> bytes:
        found: bytes = self.handle.pread(length, position)
        self.handle.truncate(self.end)
        return found

    def size(self) -> int:
        found: int = self.handle.size()
        self.handle.truncate(self.end)
        return found


def test_an_end_whose_mark_is_cut_off_between_two_looks(files: Files) -> None:
    journal = new(files)
    add(journal)
    end = journal.bytes
    handle = files.open(FIRST)
    reader = SegmentReader(handle, FIRST, 10_000)
    reader.handle = CutAfter(handle, end)  # type: ignore[assignment]
    assert reader.ends_at(end)
    assert reader.is_sound(end)
    assert not reader.ends_at(end - SPACE)
    handle.close()


def half_written(
    monkeypatch: pytest.MonkeyPatch, position: int, looks: int, then: Callable[[], None]
) -> None:
    """The entry there cannot be read so often; then something is done, and it is whole."""
    entry_at = SegmentReader.entry
    left = iter(range(looks))

    def entry(reader: SegmentReader, at: int) -> LocatedEntry:
        if at == position and (number := next(left, None)) is not None:
            if number == looks - 1:
                then()
            raise Damaged(reader.path, at, expected="an entry", found="a part of it")
        return entry_at(reader, at)

    monkeypatch.setattr(SegmentReader, "entry", entry)


def with_rows(files: Files, count: int) -> Journal:
    journal = new(files)
    for index in range(1, count + 1):
        journal.append([replace(entry(index), payload=PAYLOAD_OF_TEN)])
        journal.sync()
    return journal


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_the_proof_looks_again_at_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Also when the node has gone on by then, and its next entry calls that one durable."""
    journal = with_rows(OsFiles(tmp_path), 3)
    last = journal.bytes
    with_next = partial(add_rows, journal, 2)
    add_rows(journal, 1)
    half_written(monkeypatch, last, looks, with_next)
    file = File(0, JOURNAL, str(tmp_path / FIRST), "first", 0, is_last=True)
    found = list(read_journal(file))
    assert [event for event in found if isinstance(event, Problem)] == []
    assert sum(event.rows.num_rows for event in found if isinstance(event, RowsSeen)) >= 40


def add_rows(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.append([replace(entry(journal.last_index + 1), payload=PAYLOAD_OF_TEN)])
        journal.sync()


def test_verify_looks_again_at_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = with_rows(OsFiles(tmp_path), 3)
    last = journal.bytes
    add_rows(journal, 1)
    half_written(monkeypatch, last, 1, partial(add_rows, journal, 2))
    items = list(verify_journal(OsFiles(tmp_path), lambda: None))
    assert [[*item.faults, *item.notes] for item in items] == [[]]
    assert items[0].rows >= 4


@pytest.mark.parametrize("looks", [1, 2])
def test_who_follows_looks_again_at_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    journal = with_rows(OsFiles(tmp_path), 3)
    last = journal.bytes
    add_rows(journal, 1)
    half_written(monkeypatch, last, looks, partial(add_rows, journal, 2))
    at, at_end = look_at_journal(tmp_path, None, archive=False)
    assert at is not None
    assert (at.note, at_end) == ("", True)
    assert at.index == journal.last_index + 1


def test_those_who_look_at_a_running_nodes_journal_find_no_fault(tmp_path: Path) -> None:
    """`verify`, `inspect` and the proof, over and over, beside a node that writes."""
    files = OsFiles(tmp_path)
    journal = open_journal(files, segment_bytes=1 << 22, entry_bytes_max=1 << 20)[0]
    over = threading.Event()

    def write(groups: int) -> None:
        for _ in range(groups):
            first = journal.last_index + 1
            journal.append([replace(entry(first + n), payload=PAYLOAD_OF_TEN) for n in range(3)])
            journal.sync()
            if over.is_set():
                return

    write(1)
    writing = threading.Thread(target=write, args=(20_000,))
    writing.start()
    try:
        last = 0
        deadline = time.monotonic() + 60
        while last <= 500 and time.monotonic() < deadline:
            items = list(verify_journal(files, lambda: None))
            assert [fault for item in items for fault in item.faults] == []
            names = files.list("journal")
            for name in names:
                path = f"journal/{name}"
                last = max([last, *(one.entry.index for one in walk(files, path))])
                file = File(0, JOURNAL, str(tmp_path / path), name, 0, is_last=name == names[-1])
                found = list(read_journal(file))
                assert [event for event in found if isinstance(event, Problem)] == []
    finally:
        over.set()
        writing.join()
    assert 500 < last <= journal.last_index

"""What journals hold together, and which of what they lack somebody is to blame for."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotwheel.reading.files import JOURNAL, File, PeerFiles
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.judging.context import within
from slotwheel.replay.judging.journals import JournalSeen, as_ranges, journal_seen, unread

END = np.iinfo(np.int64).max


def seen(*segments: FileSummary | None) -> JournalSeen:
    files = [File(n, JOURNAL, "", f"segment {n}", 0, 0) for n in range(len(segments))]
    return journal_seen(PeerFiles("one", "/one"), zip(files, segments, strict=True))


def segment(first: int, last: int, *offsets: tuple[int, int], **fields: Any) -> FileSummary:
    """Entries ``first`` to ``last``, which hold these rows."""
    places = {"first_offset": offsets[0][0], "next_offset": offsets[-1][1]} if offsets else {}
    pairs = [list(pair) for pair in offsets]
    indexes = {"first_index": first, "last_index": last, "entries": last - first + 1}
    return FileSummary(0, **(places | indexes | fields), offsets=pairs)


def test_segments_that_follow_each_other() -> None:
    found = seen(segment(3, 4, (10, 20)), segment(5, 5, (20, 30)), segment(6, 6))
    assert (found.held, found.missing, found.problems) == ([[10, 30]], [], [])
    assert (found.is_whole, found.next_offset) == (True, 30)
    # What was before the first one was deleted, by right.
    assert unread([found], 30) == [[0, 10]]


def test_a_segment_that_is_not_there() -> None:
    found = seen(segment(1, 4, (0, 20)), segment(9, 9, (50, 60)))
    assert (found.held, found.missing) == ([[0, 20], [50, 60]], [[20, 50]])
    assert (found.blamed, found.problems) == ([], [])
    assert unread([found], 60) == [[20, 50]]
    other = seen(segment(3, 5, (30, 60)))
    assert unread([found, other], 70) == [[20, 30], [60, 70]]
    assert unread([found, other, seen(segment(2, 9, (15, 70)))], 70) == []


def test_rows_that_are_missing_between_two_segments() -> None:
    found = seen(segment(1, 4, (0, 20)), segment(5, 9, (21, 60)))
    assert found.missing == found.blamed == [[20, 21]]
    (problem,) = found.problems
    assert (problem.kind, problem.file) == ("gap", "segment 1")
    assert problem.text == "expected offset 20, where the segment before ends, found 21"
    assert unread([found], 60) == []


def test_what_a_damaged_file_takes_with_it() -> None:
    inside = seen(segment(1, 4, (0, 20), (25, 30), damaged=True), segment(5, 5, (30, 40)))
    assert inside.missing == inside.blamed == [[20, 25]]
    assert inside.is_whole
    before = seen(segment(1, 4, (0, 20)), None, segment(9, 9, (50, 60)))
    assert before.blamed == [[20, 50]]
    first = seen(FileSummary(0, damaged=True), segment(5, 5, (30, 40)))
    assert first.blamed == [[0, 30]]
    last = seen(segment(1, 4, (0, 20)), FileSummary(0, damaged=True))
    assert last.blamed == [[20, END]]
    assert not last.is_whole
    assert unread([inside, before, first, last], 70) == []
    unused = seen(segment(1, 4, (0, 20)), FileSummary(0))
    assert unused.is_whole
    assert not seen().is_whole


def test_ranges() -> None:
    held = as_ranges([[10, 30], [35, 40]])
    offsets = np.array([9, 10, 29, 30, 35, 39, 40], np.int64)
    assert within(held, offsets).tolist() == [False, True, True, False, True, True, False]
    assert within(as_ranges([]), offsets).tolist() == [False] * 7

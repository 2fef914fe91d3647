"""The mark: what it covers, and its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.mark import Mark, Marks, TopicMark

GOLDEN = Path(__file__).parent / "golden"

small = st.integers(-1, 6)
bare_marks = st.builds(Mark, small, small, small)
some_marks = st.builds(Mark, small, small, small, st.lists(bare_marks, max_size=2).map(tuple))
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
uint64s = st.integers(0, (1 << 64) - 1)
wide_marks = st.builds(Mark, int64s, int64s, int64s)


def of_marks(marks: st.SearchStrategy[Mark], resets: st.SearchStrategy[int]) -> Any:
    names = st.text(min_size=1, max_size=30)
    copies = st.dictionaries(names, st.builds(TopicMark, marks, uint64s), max_size=4)
    counts = dict.fromkeys(("epoch", "covered", "cancels", "delivered", "dead"), uint64s)
    return st.builds(Marks, main=marks, copies=copies, reach=int64s, resets=resets, **counts)


was_set_back = st.builds(Mark, int64s, int64s, int64s, st.lists(wide_marks, max_size=3).map(tuple))
all_marks = of_marks(wide_marks, st.just(0)) | of_marks(was_set_back, st.integers(1, 1 << 63))
keys = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    due = np.array([row[0] for row in rows], np.int64)
    return due, np.array([row[1] for row in rows], np.int64)


@given(some_marks, keys)
def test_covered_is_the_definition(mark: Mark, rows: list[tuple[int, int]]) -> None:
    due, offset = columns(rows)
    every = (mark, *mark.former)
    expected = [any(o <= m.L and (d, o) <= (m.c, m.r) for m in every) for d, o in rows]
    assert mark.covered(due, offset).tolist() == expected
    assert [mark.covers(d, o) for d, o in rows] == expected
    assert mark.behind(due, offset).tolist() == [(d, o) <= (mark.c, mark.r) for d, o in rows]


@given(some_marks, st.lists(some_marks, max_size=3), keys)
def test_every_copy_has_a_say(main: Mark, copies: list[Mark], rows: list[tuple[int, int]]) -> None:
    marks = Marks(main, copies={str(n): TopicMark(copy) for n, copy in enumerate(copies)})
    due, offset = columns(rows)
    expected = [all(mark.covers(d, o) for mark in (main, *copies)) for d, o in rows]
    assert marks.all_covered(due, offset).tolist() == expected


@given(some_marks, st.lists(some_marks, max_size=2), keys, st.integers(0, 6))
def test_a_slot_said_to_be_covered_has_no_uncovered_row(
    main: Mark, copies: list[Mark], rows: list[tuple[int, int]], end: int
) -> None:
    """What is deleted because of ``all_cover`` may be nobody's only copy (I5 of docs/design.md)."""
    marks = Marks(main, copies={str(n): TopicMark(copy) for n, copy in enumerate(copies)})
    slot = [row for row in rows if row[0] < end]
    highest = max((offset for _, offset in slot), default=-1)
    if marks.all_cover(end, highest):
        due, offset = columns(slot)
        assert marks.all_covered(due, offset).all()


@given(all_marks)
def test_round_trip(marks: Marks) -> None:
    assert Marks.decode(marks.encode()) == marks


@given(st.lists(st.tuples(small, small, small, st.booleans()), max_size=6), keys)
def test_what_was_covered_stays_so(
    steps: list[tuple[int, int, int, bool]], rows: list[tuple[int, int]]
) -> None:
    """However a mark moves on, and is set back."""
    mark, done = Mark(), set[tuple[int, int]]()
    for c, r, last, back in steps:
        if back:
            mark = mark.set_back(c, r)
            assert (mark.c, mark.r) <= (c, r)
        else:
            mark = mark.upto(max(last, mark.L)).at(*max((c, r), (mark.c, mark.r)))
        done |= {row for row in rows if mark.covers(row[0], row[1])}
        assert all(mark.covers(*row) for row in done)


@given(all_marks, st.data())
def test_cut_anywhere_or_longer_is_damage(marks: Marks, data: st.DataObject) -> None:
    encoded = marks.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Damaged, match="somewhere"):
        Marks.decode(encoded[:cut], "somewhere")
    with pytest.raises(Damaged, match="end of the mark"):
        Marks.decode(encoded + b"\0")


def test_bad_fields_are_named() -> None:
    encoded = bytearray(Marks(copies={"topic": TopicMark(Mark())}).encode())
    with pytest.raises(UnsupportedVersion, match="got 5"):
        Marks.decode(b"\5" + bytes(encoded[1:]))
    with pytest.raises(Damaged, match="what is exact"):
        Marks.decode(bytes(encoded[:4]) + b"\3" + bytes(encoded[5:]))
    with pytest.raises(Damaged, match="UTF-8"):
        Marks.decode(bytes(encoded[:-1]) + b"\xff")


def test_golden() -> None:
    """Marks of all versions are read; the files are never rewritten."""
    marks = Marks(
        main=Mark(1_900_000_000_123, 77, 99),
        epoch=5,
        copies={
            "orders": TopicMark(Mark(1_900_000_000_100, 60, 99), 3),
            "zahlungen-ü": TopicMark(Mark(1_899_999_999_000, (1 << 63) - 1, 42), 1),
        },
        covered=90,
        cancels=4,
        delivered=80,
        dead=2,
        expired=3,
        reach=1_900_000_001_123,
    )
    assert marks.encode() == (GOLDEN / "mark-v3.bin").read_bytes()
    former = (Mark(1_900_086_400_000, (1 << 63) - 1, 97), Mark(1_900_003_600_000, 7, 98))
    set_back = replace(marks, main=replace(marks.main, former=former), resets=2)
    assert set_back.encode() == (GOLDEN / "mark-v4.bin").read_bytes()
    assert Marks.decode((GOLDEN / "mark-v4.bin").read_bytes()) == set_back
    assert Marks.decode(marks.encode()) == marks
    before = replace(marks, expired=0)
    assert Marks.decode((GOLDEN / "mark-v2.bin").read_bytes()) == before
    assert Marks.decode((GOLDEN / "mark-v1.bin").read_bytes()) == replace(before, reach=-1)

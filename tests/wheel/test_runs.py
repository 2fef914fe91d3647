"""Sorted runs and windows, held against sorted lists of keys."""

from __future__ import annotations

import bisect
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from slotwheel.wheel.due.runs import (
    OFFSET_END,
    Run,
    Share,
    SortedRows,
    Window,
    choose,
    gather,
    large_topics,
    position_after,
    source_of_block,
    source_of_piece,
)
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.mark import RowKey
from slotwheel.wheel.rows import sort_rows
from support.wheels import keys_of, piece_at, rows_at

MINT = IdMint("test", bytes(range(16)))
NONE: RowKey = (-1, -1)
keys = st.tuples(st.integers(0, 8), st.integers(0, 40))
many = st.lists(keys, unique_by=lambda key: key[1], max_size=40)
limits = st.sampled_from([1, 100, 400, 1 << 30])


def split(
    rows: list[RowKey], parts: int, topics: int = 0, *, interleaved: bool = False
) -> list[SortedRows]:
    """Blocks of a slot file, each sorted, with higher offsets than the one before; or files of
    several widths whose offsets are ``interleaved``. ``topics``: so many have the rows in turn, by
    their offsets."""
    rows = sorted(rows, key=lambda key: key[1])
    borders = [len(rows) * at // parts for at in range(parts + 1)]
    groups = [sorted(rows[start:stop]) for start, stop in pairwise(borders)]
    if interleaved:
        groups = [sorted(rows[at::parts]) for at in range(parts)]
    return [source_of_block(rows_at(group, topics=topics)) for group in groups if group]


@given(many, keys)
def test_position_after_is_bisection_over_keys(rows: list[RowKey], key: RowKey) -> None:
    rows.sort()
    due = np.array([row[0] for row in rows], np.int64)
    offset = np.array([row[1] for row in rows], np.int64)
    assert position_after(due, offset, key) == bisect.bisect_right(rows, key)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=30), st.integers(0, 40))
def test_a_piece_gives_its_rows_of_the_slot(due: list[int], first: int) -> None:
    piece = piece_at(5, due)
    source = source_of_piece(piece, 2, 6, first)
    expected = sorted(
        (at, offset) for offset, at in enumerate(due, 5) if 2 <= at < 6 and offset >= first
    )
    if source is None:
        assert not expected
    else:
        assert list(zip(source.due.tolist(), source.offset.tolist(), strict=True)) == expected
        assert keys_of(source.slice(0, len(expected))) == expected


@given(
    many,
    st.integers(1, 4),
    limits,
    st.integers(1, 50),
    st.sampled_from([Share(), Share(without=frozenset({"0", "2"})), Share(only="1")]),
    st.booleans(),
)
@example([(5, n) for n in range(40)], 3, 100, 50, Share(), False)
@example([(5, n) for n in range(40)], 3, 100, 50, Share(), True)
def test_windows_cut_anywhere_give_every_row_once_in_order(
    rows: list[RowKey], parts: int, limit: int, look_rows: int, share: Share, interleaved: bool
) -> None:
    """Also when they are all due at one millisecond (I9), and when the files of a second have
    interleaved offsets, as after a repair. Rows of a topic with a line of its own are named, and
    not read."""
    sources = split(rows, parts, topics=3, interleaved=interleaved)
    found: list[RowKey] = []
    skipped: dict[str, list[RowKey]] = {"0": [], "2": []}
    after: RowKey | None = NONE
    while after is not None:
        starts = [position_after(s.due, s.offset, after) for s in sources]
        choice = choose(sources, starts, limit, share, look_rows)
        run = gather([s.take(at) for s, at in zip(sources, choice.at, strict=True)], MINT)
        for part in choice.skipped:
            keys = list(zip(part.due.tolist(), part.offset.tolist(), strict=True))
            assert keys
            assert all(after < key for key in keys)
            skipped[part.topic] += keys
        if run is not None:
            found += keys_of(run.rows)
            own = MINT.checks(run.due, run.offset).tolist()
            assert run.rows.column("check").to_pylist() == MINT.checks_of(run.rows).tolist() == own
        assert choice.end is None or choice.end > after, "no progress"
        after = choice.end
    topics = {key: str(key[1] % 3) for key in rows}
    mine = [key for key in sorted(rows) if share.only in (None, topics[key])]
    assert found == [key for key in mine if topics[key] not in share.without]
    assert skipped == {
        name: [key for key in mine if topics[key] == name] if name in share.without else []
        for name in skipped
    }


def test_a_window_keeps_to_its_bytes() -> None:
    """Also where small rows stand beside large ones: the average says nothing of either."""
    sizes = [100] * 900 + [100_000] * 100
    for order in (sizes, sizes[::-1]):
        rows = rows_at([(n // 10, n) for n in range(1000)], pad=order)
        source = source_of_block(rows)
        at, windows = 0, 0
        while at < 1000:
            choice = choose([source], [at], 1_000_000, look_rows=1000)
            (taken,) = choice.at
            nbytes = sum(order[row] for row in taken.tolist())
            assert 0 < nbytes <= 1_000_000
            full = nbytes + 70 * len(taken) + 100_000 > 1_000_000
            assert full or choice.end is None, "as much as there is room for"
            at, windows = int(taken[-1]) + 1, windows + 1
        assert windows <= 13
    one_ms = split([(5, n) for n in range(1000)], 1)
    inside = choose(one_ms, [0], one_ms[0].nbytes // 10).end
    assert inside is not None
    assert inside[0] == 5


def test_topics_are_large_by_their_bytes() -> None:
    sources = split([(1, n) for n in range(30)], 2, topics=3)
    each = sum(int(source.sizes(0, len(source.due)).sum()) for source in sources) / 30
    starts = [0 for _ in sources]
    assert set(large_topics(sources, starts, int(each * 8))) == {"0", "1", "2"}
    assert large_topics(sources, starts, int(each * 20)) == []
    assert large_topics(sources, [len(s.due) for s in sources], 1) == []


@given(
    st.lists(many, min_size=1, max_size=20),
    st.integers(1, 50),
    st.sampled_from([1, 300, 1 << 30]),
    st.lists(keys, max_size=4),
)
def test_peek_is_the_head_of_the_sorted_rest(
    groups: list[list[RowKey]], rows_max: int, bytes_max: int, untils: list[RowKey]
) -> None:
    """More runs than are kept apart, cut by rows, bytes and ``until``."""
    window, every = Window(None, (100, OFFSET_END)), []
    offset = 0
    for group in groups:
        fresh = sorted((due, offset + at) for at, (due, _) in enumerate(group))
        offset += len(group)
        if fresh:
            window.join(Run.of(rows_at(fresh)), NONE)
            every += fresh
    assert len(window.runs) <= 12
    every.sort()
    after = NONE
    for until in [*sorted(untils), (100, OFFSET_END)]:
        while True:
            rest = [key for key in every if after < key <= until]
            following = [key for key in every if key > after]
            assert window.next_due(after) == (following[0][0] if following else None)
            got = keys_of(window.peek(after, until, rows_max, bytes_max))
            assert got == rest[: len(got)]
            assert len(got) <= rows_max
            assert bool(got) == bool(rest), "rows are due, and none was given"
            if not got:
                break
            after = got[-1]
    assert after == (every[-1] if every else NONE)


def test_merging_drops_what_has_left() -> None:
    window = Window(Run.of(rows_at([(1, 0)])), (100, OFFSET_END))
    for offset in range(1, 40):
        window.join(Run.of(rows_at([(1, offset)])), (1, offset - 1))
    assert len(window.runs) <= 12
    assert sum(run.rows.num_rows for run in window.runs) <= 13


def test_merging_keeps_contents_with_their_keys() -> None:
    run = gather([rows_at(keys) for keys in ([(4, 1), (5, 0)], [(4, 9), (5, 3)])], MINT)
    assert run is not None
    assert keys_of(run.rows) == [(4, 1), (4, 9), (5, 0), (5, 3)]
    assert run.rows.column("value").to_pylist() == [b"1", b"9", b"0", b"3"]


def test_sources_whose_offsets_interleave_are_merged_in_key_order() -> None:
    """A file was made anew beside one of another width. Rows of one due time in the wrong order
    would have some that never leave."""
    run = gather([rows_at(keys) for keys in ([(4, 3), (4, 9)], [(3, 5), (4, 1), (4, 7)])], MINT)
    assert run is not None
    assert keys_of(run.rows) == [(3, 5), (4, 1), (4, 3), (4, 7), (4, 9)]


def test_sorting_keeps_contents_with_their_keys() -> None:
    rows = sort_rows(rows_at([(5, 2), (4, 9), (5, 1)]))
    assert keys_of(rows) == [(4, 9), (5, 1), (5, 2)]
    assert rows.column("value").to_pylist() == [b"9", b"1", b"2"]

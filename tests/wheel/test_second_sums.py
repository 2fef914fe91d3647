"""Sums by second, and the strips that are cut by them, held against plain dictionaries."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.schema import Int64s
from slotwheel.wheel.slots.secondsums import NO_SUMS, SecondSums

entries = st.lists(st.tuples(st.integers(-20, 20), st.integers(-5, 50)), max_size=30)
some_seconds = st.tuples(st.integers(-25, 25), st.integers(0, 30)).map(
    lambda at: range(at[0], at[0] + at[1])
)


def as_array(rows: list[tuple[int, int]]) -> Int64s:
    return np.array(rows, np.int64).reshape(-1, 2)


def sums_of(rows: list[tuple[int, int]]) -> SecondSums:
    return SecondSums.of(*as_array(rows).T)


def as_dict(sums: SecondSums) -> dict[int, int]:
    return dict(zip(sums.seconds.tolist(), sums.sums.tolist(), strict=True))


def added(rows: list[tuple[int, int]]) -> dict[int, int]:
    by_second: Counter[int] = Counter()
    for second, value in rows:
        by_second[second] += value
    return dict(sorted(by_second.items()))


@given(st.lists(entries, max_size=5), some_seconds)
def test_sums_are_those_of_the_rows(parts: list[list[tuple[int, int]]], seconds: range) -> None:
    sums = SecondSums.joined(list(map(sums_of, parts)))
    expected = added([row for part in parts for row in part])
    assert list(as_dict(sums).items()) == list(expected.items())
    within = {second: value for second, value in expected.items() if second in seconds}
    assert as_dict(sums.within(seconds)) == within
    assert sums.within(seconds).total == sum(within.values())
    later = [second for second in expected if second >= seconds.start]
    assert sums.next_second(seconds.start) == min(later, default=None)


@given(st.lists(entries, max_size=5), some_seconds)
def test_the_sums_of_a_slot_are_those_of_its_seconds(
    parts: list[list[tuple[int, int]]], seconds: range
) -> None:
    arrays = [(array[:, 0], array[:, 1]) for array in map(as_array, parts)]
    rows = [row for part in parts for row in part if row[0] in seconds]
    sums = SecondSums.of_slot(seconds, arrays)
    expected = [(second, value) for second, value in added(rows).items() if value]
    assert list(as_dict(sums).items()) == expected
    counts = SecondSums.of_slot(seconds, [(at, 1) for at, _ in arrays])
    assert as_dict(counts) == added([(second, 1) for second, _ in rows])


@given(entries, some_seconds, st.integers(0, 60))
def test_a_strip_is_as_long_as_the_limit_allows(
    rows: list[tuple[int, int]], seconds: range, limit: int
) -> None:
    """No strip has too much, but for a single second; none could have one second more."""
    sums = sums_of([(second, abs(value)) for second, value in rows])
    strips = list(sums.strips(seconds, limit))
    assert [second for strip in strips for second in strip] == list(seconds)
    for strip in strips:
        total = sums.within(strip).total
        assert total <= limit or len(strip) == 1
        if strip.stop < seconds.stop:
            assert total + sums.within(range(strip.stop, strip.stop + 1)).total > limit


@pytest.mark.parametrize(
    ("limit", "stops"), [(25, [9, 10, 20]), (30, [9, 20]), (5, [5, 6, 7, 9, 10, 20]), (50, [20])]
)
def test_the_example_of_strips(limit: int, stops: list[int]) -> None:
    sums = SecondSums(np.array([5, 6, 9]), np.array([10, 10, 30]))
    assert [strip.stop for strip in sums.strips(range(20), limit)] == stops
    assert list(NO_SUMS.strips(range(20), limit)) == [range(20)]

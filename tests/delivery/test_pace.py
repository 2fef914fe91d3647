"""The distance between two chunks: chunks share their cost, and no row waits long for others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.delivery.pace import LONGEST_S, Pace


@pytest.mark.parametrize(
    ("rate", "cost_ms", "distance_ms"),
    [
        (100, 0.1, 1),  # a cheap chunk is not waited for
        (10_000, 0.8, 8),  # a tenth of a core
        (10_000, 5, 9),  # not longer, whatever a chunk costs
        (50_000, 5, 5),  # 250 rows
        (2_500_000, 5, 0.1),  # a backlog leaves as fast as it can
    ],
)
def test_chunks_at_a_steady_rate(rate: int, cost_ms: float, distance_ms: float) -> None:
    pace, began_s = Pace(), 0.0
    next_s = pace.next_s(began_s, 1, 0.001)
    for _ in range(20):
        rows = max(1, round(rate * (next_s - began_s)))
        began_s = next_s
        next_s = pace.next_s(began_s, rows, cost_ms / 1000)
    assert (next_s - began_s) * 1000 == pytest.approx(distance_ms, rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 100_000), st.floats(0, 5)), min_size=1, max_size=9
    )
)
def test_no_distance_is_longer_than_it_may_be(chunks: list[tuple[float, int, float]]) -> None:
    pace, now_s = Pace(), 0.0
    for pause_s, rows, cost_s in chunks:
        began_s, now_s = now_s, pace.next_s(now_s, rows, cost_s)
        assert began_s <= now_s <= began_s + LONGEST_S
        now_s += pause_s

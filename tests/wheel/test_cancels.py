"""The register of cancels: what it knows, and what it may forget."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.cancels import Cancels, members
from slotwheel.wheel.receipt import Receipt

ids = st.integers(0, 30)


@given(st.sets(ids), st.lists(ids))
def test_members(known: set[int], asked: list[int]) -> None:
    found = members(np.array(sorted(known), np.int64), np.array(asked, np.int64))
    assert found.tolist() == [one in known for one in asked]


def test_pending_then_committed() -> None:
    cancels = Cancels(10)
    future: Future[Receipt] = Future()
    cancels.add(1500, 7, 20, future)
    assert cancels.get(1500, 7) == (True, future)
    assert list(cancels.pending(1)) == [7]
    assert cancels.targets(1).tolist() == []
    cancels.committed(1500, 7, 20)
    assert cancels.get(1999, 7) == (True, None)  # by second: an offset is unique anyhow
    assert cancels.targets(1).tolist() == [7]
    assert list(cancels.pending(1)) == []
    assert len(cancels) == 1
    assert cancels.get(2000, 7) == (False, None)


def test_reverted_was_never_there() -> None:
    cancels = Cancels(10)
    cancels.add(1500, 7, 20, Future())
    cancels.revert(1500, 7)
    assert cancels.get(1500, 7) == (False, None)
    assert len(cancels) == 0


def test_reverting_the_unknown_changes_nothing() -> None:
    cancels = Cancels(10)
    cancels.revert(1500, 7)
    assert cancels.get(1500, 7) == (False, None)


def test_another_masters_cancel_is_committed_without_having_been_registered() -> None:
    cancels = Cancels(10)
    cancels.committed(1500, 7, 20)
    assert cancels.get(1500, 7) == (True, None)
    assert cancels.targets(1).tolist() == [7]
    assert len(cancels) == 1


def test_targets_are_sorted_and_follow_every_change() -> None:
    cancels = Cancels(100)
    cancels.add(1000, 9, 20, None)
    assert cancels.targets(1).tolist() == [9]
    cancels.add(1999, 3, 21, None)
    assert cancels.targets(1).tolist() == [3, 9]
    assert not cancels.file_read(1)
    cancels.add_from_file(1, [5, 9])
    assert cancels.file_read(1)
    assert cancels.targets(1).tolist() == [3, 5, 9]
    assert len(cancels) == 3
    assert cancels.targets(2).tolist() == []


def test_evicting_what_has_left_raises_the_floor() -> None:
    cancels = Cancels(1)
    for second in (1, 2, 3):
        cancels.add(second * 1000, second, 10 + second, None)
    cancels.evict(covered_before_second=3, covered_offset=99, now_second=3, spilled=100)
    assert cancels.get(1000, 1) == cancels.get(2000, 2) == (False, None)
    assert cancels.get(3000, 3) == (True, None)
    assert cancels.floor_ms == 2999
    assert len(cancels) == 1


def test_what_is_pending_unspilled_or_near_is_never_evicted() -> None:
    """The cleaner forgets only what can be read again or need not be known (Pulsar #26251)."""
    cancels = Cancels(0)
    cancels.add(1_000, 1, 50, Future())  # pending, in a second that has left
    cancels.add(10_000, 2, 51, None)  # near: its slot may be open
    cancels.add(900_000, 3, 99, None)  # far ahead, not in its file yet
    cancels.add(901_000, 4, 52, None)  # far ahead, in its file
    cancels.evict(covered_before_second=2, covered_offset=40, now_second=5, spilled=99)
    assert cancels.get(1_000, 1)[0]
    assert cancels.get(10_000, 2)[0]
    assert cancels.get(900_000, 3)[0]
    assert not cancels.get(901_000, 4)[0]
    assert not cancels.file_read(901)
    assert cancels.floor_ms == -1


def test_below_the_bound_nothing_is_evicted() -> None:
    cancels = Cancels(2)
    cancels.add(1000, 1, 10, None)
    cancels.add(2000, 2, 11, None)
    cancels.evict(covered_before_second=100, covered_offset=99, now_second=100, spilled=100)
    assert len(cancels) == 2
    assert cancels.floor_ms == -1


def test_a_late_rows_cancel_is_kept_until_the_row_was_passed() -> None:
    """Found by the state machine: its second had left, the late row in it had not."""
    cancels = Cancels(0)
    cancels.add(1_000, 30, 31, None)
    cancels.evict(covered_before_second=50, covered_offset=30, now_second=50, spilled=10)
    assert cancels.get(1_000, 30)[0]
    cancels.evict(covered_before_second=50, covered_offset=31, now_second=50, spilled=10)
    assert not cancels.get(1_000, 30)[0]

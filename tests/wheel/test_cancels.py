"""The register of cancels: what it knows, and what it may forget."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.due.cancels import Cancels
from slotwheel.wheel.journal.payloads import CancelRows
from slotwheel.wheel.rows import members

ids = st.integers(0, 30)


def one(due: int, target: int, own: int) -> CancelRows:
    return CancelRows(*(np.array([value], np.int64) for value in (due, target, own)))


def known(cancels: Cancels, due: int, target: int) -> bool | Future[AppendReceipt]:
    """Whether a committed cancel is known, or the future of one that is pending."""
    found, pending = cancels.find(np.array([due]), np.array([target]))
    return pending.get(0) or bool(found[0])


def evict(cancels: Cancels, share: int = 1_000_000, **reached: int) -> None:
    """Evict as the cleaner does: the oldest first, in shares."""
    seconds = sorted(cancels.over_bound())
    for start in range(0, len(seconds), share):
        cancels.evict(seconds[start : start + share], **reached)


@given(st.sets(ids), st.lists(ids))
def test_members(known: set[int], asked: list[int]) -> None:
    found = members(np.array(sorted(known), np.int64), np.array(asked, np.int64))
    assert found.tolist() == [one in known for one in asked]


def test_pending_then_committed() -> None:
    cancels = Cancels(10)
    future: Future[AppendReceipt] = Future()
    cancels.add(one(1500, 7, 20), future)
    assert known(cancels, 1500, 7) is future
    assert list(cancels.pending(1)) == [7]
    assert cancels.targets(1).tolist() == []
    cancels.committed(one(1500, 7, 20))
    assert known(cancels, 1999, 7) is True  # by second: an offset is unique anyhow
    assert cancels.targets(1).tolist() == [7]
    assert list(cancels.pending(1)) == []
    assert len(cancels) == 1
    assert known(cancels, 2000, 7) is False


def test_what_is_committed_does_not_wait_for_a_second_cancel_of_the_row() -> None:
    """Appended while the first one was forgotten, and its slot's file was not read again yet."""
    cancels = Cancels(10)
    cancels.add(one(1500, 7, 20), Future())
    cancels.add_from_file(1, [7])
    assert known(cancels, 1500, 7) is True


def test_reverted_was_never_there() -> None:
    cancels = Cancels(10)
    cancels.add(one(1500, 7, 20), Future())
    cancels.revert(one(1500, 7, 0))
    assert known(cancels, 1500, 7) is False
    assert len(cancels) == 0


def test_reverting_the_unknown_changes_nothing() -> None:
    cancels = Cancels(10)
    cancels.revert(one(1500, 7, 0))
    assert known(cancels, 1500, 7) is False


def test_another_masters_cancel_is_committed_without_having_been_registered() -> None:
    cancels = Cancels(10)
    cancels.committed(one(1500, 7, 20))
    assert known(cancels, 1500, 7) is True
    assert cancels.targets(1).tolist() == [7]
    assert len(cancels) == 1


def test_targets_are_sorted_and_follow_every_change() -> None:
    cancels = Cancels(100)
    cancels.committed(one(1000, 9, 20))
    assert cancels.targets(1).tolist() == [9]
    cancels.committed(one(1999, 3, 21))
    assert cancels.targets(1).tolist() == [3, 9]
    assert not cancels.file_read(1)
    cancels.add_from_file(1, [5, 9])
    assert cancels.file_read(1)
    assert cancels.targets(1).tolist() == [3, 5, 9]
    assert len(cancels) == 3
    assert cancels.targets(2).tolist() == []


def test_what_has_left_and_is_spilled_goes_first() -> None:
    cancels = Cancels(1)
    for second in (1, 2, 3):
        cancels.committed(one(second * 1000, second, 10 + second))
    evict(cancels, covered_before_second=3, covered_offset=99, now_second=3, spilled=100)
    assert known(cancels, 1000, 1) is known(cancels, 2000, 2) is False
    assert known(cancels, 3000, 3) is True
    assert len(cancels) == 1


def test_what_is_pending_unspilled_near_or_pinned_is_never_evicted() -> None:
    """The cleaner forgets only what can be read again, and nothing that is being decided by."""
    cancels = Cancels(0)
    cancels.add(one(1_000, 1, 50), Future())  # pending, in a second that has left
    cancels.committed(one(2_000, 5, 99))  # has left, and is in no file and no record yet
    cancels.committed(one(10_000, 2, 51))  # near: its slot may be open
    cancels.committed(one(900_000, 3, 99))  # far ahead, not in its file yet
    cancels.committed(one(901_000, 4, 52))  # far ahead, in its file
    pins = frozenset([901]), frozenset([901, 900])
    for pin in pins:
        cancels.pin(pin)
    for pin in reversed(pins):
        evict(cancels, covered_before_second=3, covered_offset=99, now_second=5, spilled=99)
        for due, target in ((1_000, 1), (2_000, 5), (10_000, 2), (901_000, 4)):
            assert known(cancels, due, target)
        assert bool(known(cancels, 900_000, 3)) is (pin is pins[1])
        assert cancels.misses_unspilled(99) is (pin is pins[0])
        cancels.unpin(pin)
    evict(cancels, covered_before_second=3, covered_offset=99, now_second=5, spilled=100)
    assert not cancels.misses_unspilled(100)
    assert not known(cancels, 2_000, 5)
    assert not known(cancels, 901_000, 4)
    assert not cancels.file_read(901)
    assert known(cancels, 1_000, 1)
    assert known(cancels, 10_000, 2)


def test_seconds_without_a_cancel_are_bounded_too() -> None:
    """A master opens a slot a second, and most have none."""
    cancels = Cancels(1_000)
    for second in range(5_000):
        cancels.add_from_file(second, ())
        if second % 100 == 0:
            evict(
                cancels,
                covered_before_second=second,
                covered_offset=99,
                now_second=second,
                spilled=100,
            )
    assert sum(map(cancels.file_read, range(5_000))) <= 225
    assert cancels.file_read(4_999)


@pytest.mark.parametrize("share", [1_000, 1_000_000])
@pytest.mark.parametrize("spilled", [86_400, 2 * 86_400])
def test_of_a_day_of_seconds_two_hours_are_kept(share: int, spilled: int) -> None:
    """Every second was cancelled at once: the latest are forgotten last. Before their spill whoever
    asks has to look into the tail."""
    cancels = Cancels(500_000)
    due = np.arange(86_400) * 1_000
    target, own = np.arange(86_400), np.arange(86_400, 2 * 86_400)
    cancels.committed(CancelRows(due, target, own))
    assert not cancels.misses_unspilled(86_400)
    reached = {"covered_before_second": 0, "covered_offset": -1, "now_second": 0}
    evict(cancels, share, spilled=spilled, **reached)
    kept = np.flatnonzero(cancels.find(due, target)[0])
    assert len(kept) == len(cancels) == 7_168
    near = 121
    assert kept.tolist() == [*range(near), *range(86_400 - 7_168 + near, 86_400)]
    assert not cancels.over_bound()
    assert cancels.misses_unspilled(spilled) is (spilled == 86_400)


def test_below_the_bound_nothing_is_evicted() -> None:
    cancels = Cancels(18)
    cancels.committed(one(1000, 1, 10))
    cancels.committed(one(2000, 2, 11))
    evict(cancels, covered_before_second=100, covered_offset=99, now_second=100, spilled=100)
    assert len(cancels) == 2


def test_a_late_rows_cancel_is_kept_until_the_row_was_passed() -> None:
    """Its second has left, the late row in it has not."""
    cancels = Cancels(0)
    cancels.committed(one(1_000, 30, 31))
    evict(cancels, covered_before_second=50, covered_offset=30, now_second=50, spilled=40)
    assert known(cancels, 1_000, 30)
    evict(cancels, covered_before_second=50, covered_offset=31, now_second=50, spilled=40)
    assert not known(cancels, 1_000, 30)


def test_many_rows_at_once_are_what_they_are_one_by_one() -> None:
    due = np.array([1_500, 2_100, 1_700, 2_900], np.int64)
    target = np.array([7, 3, 9, 5], np.int64)
    rows = CancelRows(due, target, np.arange(20, 24))
    cancels, future = Cancels(10), Future[AppendReceipt]()
    cancels.add(rows, future)
    found, pending = cancels.find(due, target)
    assert not found.any()
    assert pending == dict.fromkeys(range(4), future)
    assert (sorted(cancels.pending(1)), sorted(cancels.pending(2))) == ([7, 9], [3, 5])
    cancels.committed(rows)
    found, pending = cancels.find(np.append(due, 1_500), np.append(target, 8))
    assert found.tolist() == [True, True, True, True, False]
    assert not pending
    assert (cancels.targets(1).tolist(), cancels.targets(2).tolist()) == ([7, 9], [3, 5])
    assert len(cancels) == 4

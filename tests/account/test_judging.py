"""What both sides of a boundary say, by ids and by sums, and that the two do not contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.account.judging import ANY_NUMBER, Crossings, judge
from slotwheel.account.limits import GRACE_MS, LATE_MS, AccountLimits, bucket_of, ready_ms
from slotwheel.account.vocabulary import FAULTS, AuditVerdict, worst
from slotwheel.audit.watch.watching import AuditSettings
from slotwheel.cli.audit import command as audit_command
from slotwheel.replay.judging.context import Options
from slotwheel.trace.chains.anomalies import AnomalyLimits

LIMITS = AccountLimits(interval_ms=10_000, grace_ms=5_000, late_ms=2_000)
LOST, REPEATED, DIFFERS, UNKNOWN, LATE, OPEN, EQUAL = AuditVerdict
IDS, SUM = None, False
"""``other`` of a message, and of a sum whose hashes are the same."""


def row(before: int, after: int, other: bool | None = IDS, **fields: Any) -> set[AuditVerdict]:
    """All verdicts of one row."""
    values = {"spare": 0, "settled": True, "unseen_before": False, "unseen_after": False}
    values |= {"late_ms": 0, "before": before, "after": after} | fields
    columns = {name: np.array([value]) for name, value in values.items()}
    rows = Crossings(**columns, other=None if other is None else np.array([other]))
    return {verdict for verdict, given in judge(rows, LIMITS).items() if given[0]}


@pytest.mark.parametrize(
    ("said", "of_id", "of_sum"),
    [
        ({"before": 1, "after": 0}, {LOST}, {LOST}),
        ({"before": 1, "after": 0, "settled": False}, {OPEN}, {OPEN}),
        ({"before": 1, "after": 1, "settled": False}, {EQUAL}, {OPEN}),
        ({"before": 1, "after": 2, "settled": False}, {REPEATED}, {OPEN}),
        ({"before": 1, "after": 2}, {REPEATED}, {REPEATED}),
        ({"before": 1, "after": 2, "spare": 1}, {EQUAL}, {UNKNOWN}),
        ({"before": 1, "after": 3, "spare": 1}, {REPEATED}, {REPEATED}),
        ({"before": 1, "after": 9, "spare": ANY_NUMBER}, {EQUAL}, {EQUAL}),
        ({"before": 1, "after": 1}, {EQUAL}, {EQUAL}),
        ({"before": 1, "after": 0, "unseen_after": True}, {UNKNOWN}, {UNKNOWN}),
        ({"before": 1, "after": 0, "unseen_before": True}, {LOST}, {LOST}),
        ({"before": 1, "after": 2, "unseen_after": True}, {REPEATED}, {REPEATED}),
        ({"before": 1, "after": 2, "unseen_before": True}, {UNKNOWN}, {UNKNOWN}),
        ({"before": 1, "after": 0, "unseen_after": True, "settled": False}, {OPEN}, {OPEN}),
        ({"before": 1, "after": 1, "late_ms": 2_000}, {EQUAL}, {EQUAL}),
        ({"before": 1, "after": 1, "late_ms": 2_001}, {EQUAL, LATE}, {LATE}),
        ({"before": 1, "after": 2, "late_ms": 2_001}, {REPEATED, LATE}, {REPEATED}),
        ({"before": 1, "after": 0, "late_ms": 2_001}, {LOST}, {LOST}),
    ],
)
def test_each_row_has_its_verdict(
    said: dict[str, Any], of_id: set[AuditVerdict], of_sum: set[AuditVerdict]
) -> None:
    assert row(**said) == of_id
    assert row(**said, other=SUM) == of_sum


def test_sums_of_as_many_that_are_others_differ() -> None:
    assert row(3, 3, other=True) == {DIFFERS}
    assert row(3, 3, other=True, unseen_before=True) == {UNKNOWN}
    assert row(3, 3, other=True, settled=False) == {OPEN}


@given(st.lists(st.tuples(st.sampled_from([1, 1, 1, 0]), st.integers(0, 3)), min_size=1))
def test_a_sum_finds_no_fault_where_ids_find_none_and_no_more_than_they(
    messages: list[tuple[int, int]],
) -> None:
    before, after = (np.array(side, np.int64) for side in zip(*messages, strict=True))
    none = np.zeros(len(messages), np.bool_)
    zeros = np.zeros(len(messages), np.int64)
    by_id = judge(Crossings(before, after, zeros, ~none, none, none, zeros), LIMITS)
    other = bool((before != after).any())
    (of_sum,) = row(int(before.sum()), int(after.sum()), other=other)
    lost = int(by_id[LOST].sum())
    repeated = int((after - before)[by_id[REPEATED]].sum())
    assert not by_id[DIFFERS].any()
    assert (of_sum in FAULTS) == bool(lost or repeated)
    if of_sum is LOST:
        assert lost >= before.sum() - after.sum()
    elif of_sum is REPEATED:
        assert repeated >= after.sum() - before.sum()
    elif of_sum is DIFFERS:
        assert lost == repeated > 0


def test_the_worst_of_no_verdicts_is_equal() -> None:
    assert worst([]) is EQUAL
    assert worst([EQUAL, OPEN, LATE]) is LATE
    assert worst([UNKNOWN, REPEATED, LOST]) is LOST


def test_a_bucket_begins_with_its_first_millisecond_and_ends_before_the_next_one() -> None:
    due = np.array([0, 9_999, 10_000, -1], np.int64)
    assert bucket_of(due, 10_000).tolist() == [bucket_of(one, 10_000) for one in due.tolist()]
    assert bucket_of(due, 10_000).tolist() == [0, 0, 10_000, -10_000]


def test_what_could_come_is_waited_for_until_the_grace_is_over() -> None:
    assert not LIMITS.settled(10_000, 14_999)
    assert LIMITS.settled(10_000, 15_000)
    assert LIMITS.settled(np.array([10_000, 10_001]), 15_000).tolist() == [True, False]


def test_late_and_grace_are_the_same_wherever_no_limit_is_given() -> None:
    audited, asked = AuditSettings(Path()), audit_command.make_context("audit", ["."]).params
    assert audited.late_ms == AnomalyLimits().late_ms == Options().limits.late_ms == LATE_MS
    assert asked["late_ms"] == LATE_MS
    assert audited.grace_ms == Options().limits.grace_ms == asked["grace_ms"] == GRACE_MS


def test_a_message_that_was_accepted_behind_its_due_time_could_not_leave_before() -> None:
    due, created = np.array([5, 5]), np.array([3, 9])
    assert ready_ms(due, created).tolist() == [5, 9] == [ready_ms(5, 3), ready_ms(5, 9)]

"""From one run to the next: a function of the schedule and of the run before."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.schedules.spec import Schedule, Template
from slotwheel.policy.schedules.successor import check_fires, due_ms, next_run, next_runs
from slotwheel.wheel.errors import InvalidMessage
from support.anyschedule import HOUR_MS, NOW_MS, schedules

TEMPLATE = Template("orders")


@given(schedules(), st.integers(NOW_MS - HOUR_MS, NOW_MS + HOUR_MS))
def test_runs_follow_each_other_within_start_end_and_count(
    schedule: Schedule, after_ms: int
) -> None:
    runs = list(islice(next_runs(schedule, after_ms), 60))
    assert all(before < behind for before, behind in pairwise([after_ms, *runs]))
    assert len(runs) <= (schedule.count or 60)
    if schedule.start_ms is not None:
        assert all(nominal >= schedule.start_ms for nominal in runs)
    if schedule.end_ms is not None:
        assert all(nominal < schedule.end_ms for nominal in runs)
    ends = schedule.count is not None or schedule.end_ms is not None
    assert len(runs) == 60 or ends


@given(schedules(), st.data())
def test_who_asks_from_in_between_gets_the_same_run(
    schedule: Schedule, data: st.DataObject
) -> None:
    schedule = replace(schedule, count=None)
    runs = list(islice(next_runs(schedule, NOW_MS), 10))
    for before, behind in pairwise([NOW_MS, *runs]):
        between = data.draw(st.integers(before, behind - 1))
        assert next_run(schedule, between) == behind


@given(schedules(every=True))
def test_every_is_counted_from_the_anchor(schedule: Schedule) -> None:
    assert schedule.every_ms is not None
    anchor_ms = schedule.anchor_ms
    if anchor_ms is None:
        anchor_ms = schedule.start_ms or 0
    for nominal in islice(next_runs(schedule, NOW_MS), 20):
        assert (nominal - anchor_ms) % schedule.every_ms == 0


def test_every_hour_is_on_the_hour_and_from_a_start_on_it_is_as_that() -> None:
    hourly = Schedule("h", TEMPLATE, every_ms=HOUR_MS)
    assert next_run(hourly, NOW_MS) == -(-NOW_MS // HOUR_MS) * HOUR_MS
    from_start = replace(hourly, start_ms=NOW_MS + 5)
    assert list(islice(next_runs(from_start, 0), 2)) == [NOW_MS + 5, NOW_MS + 5 + HOUR_MS]
    anchored = replace(from_start, anchor_ms=NOW_MS + 7)
    assert next_run(anchored, 0) == NOW_MS + 7


def test_a_start_is_a_run_and_an_end_is_none() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=1000, start_ms=NOW_MS, end_ms=NOW_MS + 2000)
    assert list(next_runs(schedule, NOW_MS - 5)) == [NOW_MS, NOW_MS + 1000]
    assert next_run(schedule, NOW_MS + 1000) is None


def test_count_says_how_many_messages_there_are() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=1000, count=3)
    assert len(list(next_runs(schedule, NOW_MS))) == 3
    assert len(list(next_runs(schedule, NOW_MS, runs=2))) == 1
    assert next_run(schedule, NOW_MS, runs=3) is None


def test_the_year_9999_is_the_last() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=HOUR_MS)
    assert next_run(schedule, 253_402_300_800_000 - HOUR_MS) is None
    assert next_run(schedule, 253_402_300_800_000 - HOUR_MS - 1) is not None


@given(schedules())
def test_a_run_is_never_early_and_before_the_next_one(schedule: Schedule) -> None:
    runs = list(islice(next_runs(schedule, NOW_MS), 10))
    dues = [due_ms(schedule, *run) for run in pairwise(runs)]
    for (nominal, following), due in zip(pairwise(runs), dues, strict=True):
        assert nominal <= due < following
        assert due <= nominal + schedule.jitter_ms
        assert due == due_ms(schedule, nominal, following)


def test_jitter_spreads_runs_and_schedules() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=HOUR_MS, jitter_ms=HOUR_MS - 1)
    runs = list(islice(next_runs(schedule, NOW_MS), 1001))
    of_runs = [due_ms(schedule, *run) - run[0] for run in pairwise(runs)]
    of_names = [
        due_ms(replace(schedule, name=f"s{number}"), runs[0], runs[1]) - runs[0]
        for number in range(1000)
    ]
    for spread in (of_runs, of_names):
        quarters = [sum(ms * 4 // HOUR_MS == quarter for ms in spread) for quarter in range(4)]
        assert min(quarters) > 180
    # A format: another digest would move the runs of schedules that are there.
    assert due_ms(schedule, runs[0], runs[1]) == runs[0] + 2_860_106


def test_jitter_ends_before_the_next_run() -> None:
    names = [f"s{number}" for number in range(100)]
    many = [Schedule(name, TEMPLATE, cron="@hourly", jitter_ms=HOUR_MS) for name in names]
    assert {due_ms(schedule, NOW_MS, NOW_MS + 2) for schedule in many} == {NOW_MS, NOW_MS + 1}
    assert {due_ms(schedule, NOW_MS, NOW_MS + 1) for schedule in many} == {NOW_MS}
    assert max(due_ms(schedule, NOW_MS, None) for schedule in many) > NOW_MS + HOUR_MS // 2


def test_without_jitter_a_run_is_due_at_its_nominal_time() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=1000)
    assert due_ms(schedule, NOW_MS, NOW_MS + 1000) == NOW_MS


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("s", TEMPLATE, every_ms=HOUR_MS, end_ms=NOW_MS),
        Schedule("s", TEMPLATE, every_ms=HOUR_MS, start_ms=NOW_MS - 9, end_ms=NOW_MS - 1),
        Schedule("s", TEMPLATE, cron="0 0 1 1 *", end_ms=NOW_MS + HOUR_MS),
    ],
)
def test_a_schedule_that_ends_before_its_first_run_is_refused(schedule: Schedule) -> None:
    with pytest.raises(InvalidMessage, match="schedule 's', end_ms") as caught:
        check_fires(schedule, NOW_MS)
    assert caught.value.got
    assert caught.value.limit
    assert caught.value.remedy


def test_a_schedule_whose_only_run_is_now_fires() -> None:
    once = Schedule("s", TEMPLATE, every_ms=HOUR_MS, start_ms=NOW_MS, end_ms=NOW_MS + 1)
    check_fires(once, NOW_MS)
    check_fires(replace(once, paused=True), NOW_MS)

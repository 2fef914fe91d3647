"""Which runs become messages now, which are passed over, and what a clock that steps does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.schedules import missed as missed_runs
from slotwheel.policy.schedules.missed import (
    AHEAD_MS,
    DECIDED_MAX,
    LATE_MS,
    RunPlan,
    ScheduledRun,
    ScheduleProgress,
    plan_runs,
    run_now,
)
from slotwheel.policy.schedules.runheaders import run_headers
from slotwheel.policy.schedules.spec import Missed, Schedule, Template
from slotwheel.policy.schedules.successor import next_run, next_runs
from support.anyschedule import HOUR_MS, NOW_MS, schedules

TEMPLATE = Template("orders")
MINUTE_MS = 60_000


def at(hour: int, minute: int = 0) -> int:
    """A time of one day, ms since the epoch."""
    return int(datetime(2026, 11, 20, hour, minute, tzinfo=UTC).timestamp() * 1000)


def planned(
    schedule: Schedule, progress: ScheduleProgress, now_ms: int, runs_max: int = 1000
) -> tuple[list[ScheduledRun], ScheduleProgress]:
    """All that is to be decided now, in as many calls as it takes."""
    runs: list[ScheduledRun] = []
    plan = RunPlan((), progress, True, None)
    while plan.more:
        plan = plan_runs(schedule, plan.progress, now_ms, runs_max=runs_max)
        assert len(plan.runs) <= runs_max
        runs += plan.runs
    assert plan.next_ms is None or plan.next_ms > now_ms + AHEAD_MS
    return runs, plan.progress


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (Missed.LAST, [(at(14), 2), (at(15), 0)]),
        (Missed.SKIP, [(at(15), 3)]),
        (Missed.ALL, [(at(13), 1), (at(14), 0), (at(15), 0)]),
    ],
)
def test_nodes_that_were_away_for_three_hours(
    missed: Missed, expected: list[tuple[int, int]]
) -> None:
    hourly = Schedule("h", TEMPLATE, cron="@hourly", missed=missed, catch_up_ms=2 * HOUR_MS)
    before, progress = planned(hourly, ScheduleProgress.beginning(at(10, 30)), at(11))
    assert [run.nominal_ms for run in before] == [at(11)]
    runs, progress = planned(hourly, progress, at(14, 20))
    later, progress = planned(hourly, progress, at(15))
    assert [(run.nominal_ms, run.passed_over) for run in runs + later] == expected
    assert [run.number for run in before + runs + later] == list(range(1, len(expected) + 2))
    assert progress == ScheduleProgress(at(15), len(expected) + 1, 0)


def test_under_last_a_run_that_is_due_in_a_moment_does_not_stand_for_the_missed_one() -> None:
    hourly = Schedule("h", TEMPLATE, cron="@hourly")
    runs, _ = planned(hourly, ScheduleProgress(at(11)), at(14) - 20_000)
    assert [(run.nominal_ms, run.passed_over) for run in runs] == [(at(13), 1), (at(14), 0)]
    runs, _ = planned(hourly, ScheduleProgress(at(11)), at(14))
    assert [(run.nominal_ms, run.passed_over) for run in runs] == [(at(14), 2)]


@pytest.mark.parametrize("missed", Missed)
def test_what_lies_before_the_catch_up_becomes_no_message(missed: Missed) -> None:
    daily = Schedule("d", TEMPLATE, cron="0 8 * * *", missed=missed, catch_up_ms=HOUR_MS)
    runs, progress = planned(daily, ScheduleProgress(at(8) - 72 * HOUR_MS), at(10))
    assert (runs, progress.passed_over) == ([], 3)


@given(
    schedule=schedules(),
    away_ms=st.integers(0, 6 * HOUR_MS),
    runs_max=st.integers(1, 7),
)
def test_what_was_missed_against_a_list_of_all_runs(
    schedule: Schedule, away_ms: int, runs_max: int
) -> None:
    schedule = replace(schedule, jitter_ms=0, count=None)
    if schedule.every_ms is not None:
        schedule = replace(schedule, every_ms=max(schedule.every_ms, 20_000))
    now_ms = NOW_MS + away_ms
    every_run = list(takewhile(lambda ms: ms <= now_ms + AHEAD_MS, next_runs(schedule, NOW_MS)))
    due = [ms for ms in every_run if ms < now_ms - LATE_MS]
    upto_now = [ms for ms in every_run if ms <= now_ms]
    within = [ms for ms in due if ms >= now_ms - schedule.catch_up_ms]
    made_up = {
        Missed.SKIP: [],
        Missed.ALL: within,
        Missed.LAST: [ms for ms in within if ms == upto_now[-1]],
    }[schedule.missed]
    expected = made_up + [ms for ms in every_run if ms >= now_ms - LATE_MS]

    runs, progress = planned(schedule, ScheduleProgress(NOW_MS), now_ms, runs_max)
    assert [run.nominal_ms for run in runs] == expected
    assert [run.number for run in runs] == list(range(1, len(expected) + 1))
    skipped = sum(run.passed_over for run in runs) + progress.passed_over
    assert skipped + len(runs) == len(every_run)
    assert progress.decided_ms == (every_run[-1] if every_run else NOW_MS)


@given(schedule=schedules(), steps=st.lists(st.integers(0, LATE_MS), max_size=12))
def test_a_node_that_is_there_misses_nothing(schedule: Schedule, steps: list[int]) -> None:
    progress, now_ms = ScheduleProgress.beginning(NOW_MS), NOW_MS
    runs: list[ScheduledRun] = []
    for step in steps:
        now_ms += step
        more, progress = planned(schedule, progress, now_ms)
        assert all(run.due_ms >= now_ms - LATE_MS for run in more)
        runs += more
    nominal = list(
        takewhile(
            lambda ms: bool(steps) and ms <= now_ms + AHEAD_MS, next_runs(schedule, NOW_MS - 1)
        )
    )
    assert [run.nominal_ms for run in runs] == nominal
    assert not any(run.passed_over for run in runs)
    assert all(before.due_ms < behind.due_ms for before, behind in pairwise(runs))


@given(
    schedule=schedules(),
    clock=st.lists(st.integers(-5 * HOUR_MS, 5 * HOUR_MS), max_size=8),
)
def test_a_clock_that_steps_fires_nothing_twice(schedule: Schedule, clock: list[int]) -> None:
    if schedule.every_ms is not None:
        schedule = replace(schedule, every_ms=max(schedule.every_ms, 60_000))
    progress = ScheduleProgress.beginning(NOW_MS)
    runs: list[ScheduledRun] = []
    for away in clock:
        more, progress = planned(schedule, progress, NOW_MS + away)
        runs += more
    assert all(before.nominal_ms < behind.nominal_ms for before, behind in pairwise(runs))
    assert [run.number for run in runs] == list(range(1, len(runs) + 1))
    decided = takewhile(lambda ms: ms <= progress.decided_ms, next_runs(schedule, NOW_MS - 1))
    skipped = sum(run.passed_over for run in runs) + progress.passed_over
    if schedule.count is None:
        assert skipped + len(runs) == len(list(decided))


def test_a_clock_that_goes_back_waits_and_one_that_goes_ahead_misses() -> None:
    schedule = Schedule("m", TEMPLATE, every_ms=MINUTE_MS, missed=Missed.SKIP)
    _, progress = planned(schedule, ScheduleProgress.beginning(at(12)), at(12))
    assert planned(schedule, progress, at(11)) == ([], progress)
    assert planned(schedule, progress, at(12)) == ([], progress)
    runs, _ = planned(schedule, progress, at(13))
    assert [(run.nominal_ms, run.passed_over) for run in runs] == [(at(13), 59)]


def test_a_run_becomes_a_message_half_a_minute_before_it_is_due() -> None:
    schedule = Schedule("h", TEMPLATE, cron="@hourly")
    early = plan_runs(schedule, ScheduleProgress(at(11)), at(12) - AHEAD_MS - 1)
    assert (early.runs, early.next_ms) == ((), at(12))
    plan = plan_runs(schedule, early.progress, at(12) - AHEAD_MS)
    assert ([run.nominal_ms for run in plan.runs], plan.next_ms) == ([at(12)], at(13))


def test_one_call_decides_a_bounded_number() -> None:
    each_minute = Schedule("s", TEMPLATE, cron="* * * * *", missed=Missed.SKIP)
    plan = plan_runs(each_minute, ScheduleProgress(NOW_MS - 48 * HOUR_MS), NOW_MS)
    assert plan.more
    assert plan.progress.passed_over == DECIDED_MAX
    every = Schedule("s", TEMPLATE, every_ms=1000, missed=Missed.ALL)
    plan = plan_runs(every, ScheduleProgress(NOW_MS - HOUR_MS), NOW_MS, runs_max=10)
    assert (len(plan.runs), plan.more) == (10, True)
    assert plan.next_ms == next_run(every, plan.progress.decided_ms)


@pytest.mark.parametrize("missed", Missed)
def test_a_year_of_seconds_is_passed_over_by_arithmetic(missed: Missed) -> None:
    """In one call, and to the same run as if each was looked at."""
    schedule = Schedule("s", TEMPLATE, every_ms=1000, missed=missed, catch_up_ms=60_000)
    far, near = (
        plan_runs(schedule, ScheduleProgress(NOW_MS - away_ms - 1), NOW_MS)
        for away_ms in (365 * 24 * HOUR_MS, 100_000)
    )
    assert not far.more
    assert [run.nominal_ms for run in far.runs] == [run.nominal_ms for run in near.runs]
    ahead = 365 * 24 * 3600 - 100
    assert far.runs[0].passed_over == near.runs[0].passed_over + ahead


@given(
    schedule=schedules(every=True),
    every_ms=st.integers(1000, 9000),
    away_ms=st.integers(0, 300_000),
    end_ms=st.none() | st.integers(NOW_MS, NOW_MS + 200_000),
)
def test_runs_that_are_passed_over_together_are_those_that_are_so_one_by_one(
    schedule: Schedule, every_ms: int, away_ms: int, end_ms: int | None
) -> None:
    schedule = replace(
        schedule,
        every_ms=every_ms,
        jitter_ms=schedule.jitter_ms % every_ms,
        catch_up_ms=schedule.catch_up_ms % 200_000,
        start_ms=None,
        end_ms=end_ms,
    )
    together = planned(schedule, ScheduleProgress(NOW_MS), NOW_MS + away_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(missed_runs, "passed_together", lambda *_: 0)
        assert planned(schedule, ScheduleProgress(NOW_MS), NOW_MS + away_ms) == together


def test_a_count_of_messages_and_not_of_what_was_missed() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=MINUTE_MS, missed=Missed.SKIP, count=2)
    progress = ScheduleProgress.beginning(at(12))
    runs, progress = planned(schedule, progress, at(12))
    assert len(runs) == 1
    plan = plan_runs(schedule, progress, at(13))
    assert [(run.number, run.passed_over) for run in plan.runs] == [(2, 59)]
    assert plan.next_ms is None


def test_a_pause_is_neither_missed_nor_made_up() -> None:
    schedule = Schedule("s", TEMPLATE, every_ms=MINUTE_MS, missed=Missed.ALL)
    _, progress = planned(schedule, ScheduleProgress.beginning(at(12)), at(12))
    paused = plan_runs(schedule.pausing(True), progress, at(13))
    assert (paused.runs, paused.progress, paused.more) == ((), progress, False)
    runs, _ = planned(schedule, progress.from_now(at(13)), at(13))
    assert [(run.nominal_ms, run.passed_over) for run in runs] == [(at(13), 0)]
    # What was decided ahead of a pause stays decided.
    assert progress.from_now(at(11)) == progress


def test_a_run_that_somebody_asks_for_takes_the_next_number_and_moves_no_other() -> None:
    schedule = Schedule("s", TEMPLATE, cron="@hourly", missed=Missed.SKIP)
    _, progress = planned(schedule, ScheduleProgress(at(9)), at(11, 30))
    run, progress = run_now(progress, at(11, 40))
    assert run == ScheduledRun(1, at(11, 40), at(11, 40), 2)
    runs, _ = planned(schedule, progress, at(12))
    assert runs == [ScheduledRun(2, at(12), at(12), 0)]


def test_the_headers_of_a_run() -> None:
    template = Template("orders", headers=(("kind", b"report"),), ttl_ms=1000, name="latest")
    schedule = Schedule("täglich", template, every_ms=HOUR_MS)
    assert run_headers(schedule, ScheduledRun(7, at(12), at(12) + 5, 2)) == [
        ("kind", b"report"),
        ("slotwheel-schedule", "täglich".encode()),
        ("slotwheel-schedule-run", b"7"),
        ("slotwheel-schedule-due-ms", b"%d" % at(12)),
        ("slotwheel-schedule-missed", b"2"),
        ("slotwheel-expires-ms", b"%d" % (at(12) + 1005)),
        ("slotwheel-name", b"latest"),
    ]
    plain = run_headers(replace(schedule, template=TEMPLATE), ScheduledRun(1, at(12), at(12), 0))
    assert len(plain) == 4

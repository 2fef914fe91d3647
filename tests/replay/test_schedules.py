"""Runs of schedules: what is blamed, and what cannot be known, over logs that failing masters made,
whole or with holes; and how the log of several journals is put together.

What each fault is called is in ``support/schedulefaults.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from slotwheel.cli.verdict import print_verdict
from slotwheel.policy.schedules.spec import Missed, Schedule
from slotwheel.reading.layout import find
from slotwheel.reading.problems import Problem
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.judging.context import Context, Options
from slotwheel.replay.judging.entries import LogSeen
from slotwheel.replay.judging.judged import Judged
from slotwheel.replay.judging.schedules import (
    ALIVE_MS,
    RUN_MISSING,
    SCHEDULED,
    SCHEDULED_UNJUDGED,
    WRONG_RUN,
    ChangeSeen,
    RunSeen,
    ScheduleEvidence,
    judge_schedule,
)
from slotwheel.replay.proof import prove
from slotwheel.replay.report.verdict import Verdict
from slotwheel.wheel.schedules import FiredRun, ScheduleDelete, SchedulePut
from support.factrows import TERMS
from support.scheduledrun import made_schedules
from support.schedulelog import (
    NAMES,
    START_MS,
    TOPIC,
    LoggedEntry,
    ScheduleHistory,
)

SEEDS = 150


def judged(
    log: Iterable[LoggedEntry], seen: LogSeen, stored: dict[str, dict[int, bytes]] | None = None
) -> Judged:
    """What is said of the schedules of a log. ``stored``: what state stores have of them."""
    result, context = Judged(), context_of(seen)
    log = list(log)
    for name in NAMES:
        evidence = ScheduleEvidence(
            name,
            [run for entry in log for run in runs_in(entry) if entry_name(entry, run) == name],
            [change for entry in log for change in changes_in(entry, name)],
            (stored or {}).get(name, {}),
        )
        judge_schedule(evidence, context, result)
    return result


def context_of(seen: LogSeen) -> Context:
    return Context(TERMS, Options(), [], None, START_MS, {}, log=seen)


def entry_name(entry: LoggedEntry, run: RunSeen) -> str:
    return entry.rows[run.offset - entry.index * 1000].name


def runs_in(entry: LoggedEntry) -> list[RunSeen]:
    noted = [change for change in entry.changes if isinstance(change, FiredRun)]
    return [
        RunSeen(
            *(entry.index, 1, entry.index * 1000 + at, row.due_ms, entry.created_ms, 0),
            *(row.number, row.nominal_ms, row.missed, crc32c(TOPIC.topic.encode())),
            *((row.version, row.decided_ms) if row in noted else (-1, -1)),
        )
        for at, row in enumerate(entry.rows)
    ]


def changes_in(entry: LoggedEntry, name: str) -> list[ChangeSeen]:
    return [
        ChangeSeen(entry.index, 1, number, change.spec, change.from_ms)
        if isinstance(change, SchedulePut)
        else ChangeSeen(entry.index, 1, number)
        for number, change in enumerate(entry.changes)
        if isinstance(change, SchedulePut | ScheduleDelete) and change.name == name
    ]


def whole(log: Sequence[LoggedEntry]) -> LogSeen:
    return LogSeen((1,), (len(log) + 1,), ((1, 1),))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_logs_of_failing_masters_are_blamed_for_nothing(seed: int) -> None:
    history = ScheduleHistory(seed)
    assert history.play(30) == []
    found = judged(history.log, whole(history.log))
    assert found.problems == []
    assert found.counts.get(SCHEDULED, 0) == sum(len(entry.rows) for entry in history.log)
    assert SCHEDULED_UNJUDGED not in found.counts


def test_a_wheel_that_forgets_that_rows_were_runs_is_blamed() -> None:
    """Wherever the referee, who knows the whole history, finds something wrong."""
    wrong = 0
    for seed in range(SEEDS):
        history = ScheduleHistory(seed, unnoted=0.2)
        if history.play(30):
            wrong += 1
            assert judged(history.log, whole(history.log)).problems, seed
    assert wrong > SEEDS // 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_entries_that_are_missing_are_held_against_no_run(seed: int) -> None:
    """The log begins later, or has a hole, and the state store has what is in force at its end."""
    history = ScheduleHistory(seed)
    history.play(30)
    log, chance = history.log, random.Random(seed)
    stored = {
        name: {state.version: state.spec}
        for name in NAMES
        if (state := history.table.get(name)) is not None
    }
    first = chance.randint(1, len(log) + 1)
    last = chance.randint(first, len(log) + 1)
    late = LogSeen((first,), (len(log) + 1,), ((1, 1),))
    assert judged(log[first - 1 :], late, stored).problems == []
    holed = LogSeen((1, last), (first, len(log) + 1), ((1, 1),))
    found = judged(log[: first - 1] + log[last - 1 :], holed, stored)
    assert found.problems == []


EVERY = Schedule("a", TOPIC, every_ms=10_000)
PUT = LoggedEntry(1, [SchedulePut("a", EVERY.encoded(), START_MS)])


def fired(index: int, number: int, *, version: int = 1, ahead: int = 0) -> LoggedEntry:
    """An entry with that run of ``EVERY``; ``ahead``: so many runs later than its number says."""
    nominal_ms = START_MS + (number - 1 + ahead) * 10_000
    run = FiredRun("a", version, number, nominal_ms, nominal_ms, 0, nominal_ms)
    return LoggedEntry(index, [run], [run], created_ms=nominal_ms - 1_000)


def kinds(problems: Sequence[Problem]) -> list[tuple[str, int]]:
    return [(problem.kind, problem.offset // 1000) for problem in problems]


def test_a_version_that_only_the_state_store_has_is_judged_by_it() -> None:
    """Its journal is gone since long ago."""
    log = [fired(50, 7, version=3), fired(51, 8, version=3), fired(52, 9, version=3, ahead=1)]
    seen = LogSeen((40,), (60,), ((1, 1),))
    unknown = judged(log, seen)
    assert unknown.problems == []
    assert (unknown.counts[SCHEDULED], unknown.counts[SCHEDULED_UNJUDGED]) == (3, 3)
    known = judged(log, seen, {"a": {3: EVERY.encoded()}})
    assert kinds(known.problems) == [(RUN_MISSING, 52)]
    assert SCHEDULED_UNJUDGED not in known.counts
    text = known.problems[0].text
    assert text.startswith("schedule 'a', run 9, of 2026-09-21")
    assert "in entry 52: expected that of 2026-09-21" in text


def test_numbers_are_judged_also_where_the_schedule_is_not_known() -> None:
    log = [fired(50, 7, version=3), fired(51, 9, version=3)]
    found = judged(log, LogSeen((40,), (60,), ((1, 1),)))
    assert kinds(found.problems) == [(RUN_MISSING, 51)]


def test_a_specification_that_nobody_can_read_is_not_judged() -> None:
    """A newer program's, or one with a time zone that this machine does not have."""
    put = LoggedEntry(1, [SchedulePut("a", b'{"name": "a", "each": "full moon"}', START_MS)])
    found = judged([put, fired(2, 1)], LogSeen((1,), (3,), ((1, 1),)))
    assert (found.problems, found.counts[SCHEDULED_UNJUDGED]) == ([], 1)


def test_the_run_of_a_schedule_that_nobody_has_put_is_blamed() -> None:
    found = judged([fired(2, 1)], LogSeen((1,), (3,), ((1, 1),)))
    assert kinds(found.problems) == [(WRONG_RUN, 2)]
    found = judged([fired(2, 1)], LogSeen((2,), (3,), ((1, 1),)))
    assert found.problems == []


def test_what_a_deposed_master_wrote_is_not_judged() -> None:
    """The peer that wrote it has not cut it off yet: run 2 and 3 stand in two journals."""
    log = [PUT, fired(2, 1), fired(3, 2), fired(4, 3)]
    seen = LogSeen((1,), (6,), ((1, 1), (2, 3)))
    evidence = ScheduleEvidence(
        "a",
        [run for entry in log for run in runs_in(entry)]
        + [replace(run, epoch=2, index=4, offset=9) for run in runs_in(fired(5, 2))],
        changes_in(PUT, "a"),
        {},
    )
    result = Judged()
    judge_schedule(evidence, context_of(seen), result)
    assert result.problems == []
    assert result.counts[SCHEDULED] == 2


@pytest.mark.parametrize(
    ("alive_ms", "blamed"),
    [(ALIVE_MS + 11_000, [(RUN_MISSING, 3)]), (ALIVE_MS + 9_000, []), (0, [])],
)
def test_the_newest_run_is_missing_if_the_log_goes_on_without_it(
    alive_ms: int, blamed: list[tuple[str, int]]
) -> None:
    last_ms = START_MS + 10_000
    seen = LogSeen((1,), (9,), ((1, 1),), (START_MS - 1_000, last_ms + alive_ms))
    found = judged([PUT, fired(2, 1), fired(3, 2)], seen)
    assert kinds(found.problems) == blamed
    ended = LoggedEntry(4, [ScheduleDelete("a")])
    assert judged([PUT, fired(2, 1), fired(3, 2), ended], seen).problems == []


@pytest.mark.parametrize(
    ("more", "blamed"), [(0, []), (1, [(WRONG_RUN, 3)]), (-1, [(WRONG_RUN, 3)])]
)
def test_the_missed_runs_of_months_are_counted(more: int, blamed: list[tuple[str, int]]) -> None:
    """By a schedule of each second."""
    away, schedule = 10_000_000, replace(EVERY, every_ms=1_000, missed=Missed.SKIP)
    put = LoggedEntry(1, [SchedulePut("a", schedule.encoded(), START_MS)])
    nominal_ms = START_MS + (away + 1) * 1_000
    run = FiredRun("a", 1, 2, nominal_ms, nominal_ms, away + more, nominal_ms)
    first = FiredRun("a", 1, 1, START_MS, START_MS, 0, START_MS)
    log = [
        put,
        LoggedEntry(2, [first], [first], created_ms=START_MS),
        LoggedEntry(3, [run], [run], created_ms=nominal_ms + 4_500),
    ]
    found = judged(log, whole(log))
    assert kinds(found.problems) == blamed
    if blamed:
        assert f"expected {away}" in found.problems[0].text


def test_a_schedule_that_never_fired_is_blamed_without_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = LogSeen((1,), (9,), ((1, 1),), (START_MS - 1_000, START_MS + ALIVE_MS))
    (problem,) = judged([PUT], seen).problems
    assert (problem.kind, problem.id, problem.offset) == (RUN_MISSING, "", -1)
    print_verdict(
        Verdict(["run missing: 1"], [], {}, {RUN_MISSING: 1}, [problem], False, [], [], [], 1)
    )
    assert "\nrun missing: schedule 'a', expected run 1, of 2026" in capsys.readouterr().out


def test_what_is_due_outside_of_the_asked_time_is_not_blamed() -> None:
    log = [PUT, fired(2, 1), fired(3, 3)]
    context = context_of(whole(log))
    evidence = ScheduleEvidence(
        *("a", [run for entry in log for run in runs_in(entry)], changes_in(PUT, "a"), {})
    )
    for start_ms, wrong in ((START_MS + 20_000, 1), (START_MS + 20_001, 0)):
        result = Judged()
        options = Options(start_ms=start_ms)
        judge_schedule(evidence, replace(context, options=options), result)
        assert len(result.problems) == wrong


def test_the_log_of_all_journals() -> None:
    def segment(*ranges: list[int], epochs: list[list[int]], newest: list[int]) -> FileSummary:
        return FileSummary(0, indexes=list(ranges), epochs=epochs, newest=newest)

    log = LogSeen.of(
        [
            segment([1, 8], epochs=[[1, 1], [4, 2]], newest=[2, 50, 60]),
            segment([12, 20], epochs=[[12, 4]], newest=[4, 90, 95]),
            segment([6, 10], [18, 25], epochs=[[6, 2], [8, 3], [18, 4]], newest=[4, 80, 99]),
            FileSummary(3),
        ]
    )
    assert (log.begins, log.ends) == ((1, 12), (10, 25))
    assert log.is_from_the_begin
    assert log.newest == (80, 99)
    assert [log.range_of(index) for index in (1, 9, 12, 24)] == [0, 0, 1, 1]
    assert log.last_range == 1
    assert log.epochs == ((1, 1), (2, 4), (3, 8), (4, 12))
    overruled = [(3, 1), (4, 1), (7, 2), (8, 2), (11, 3), (12, 3), (99, 4)]
    assert [log.is_overruled(*place) for place in overruled] == [False, True] * 3 + [False]
    assert not LogSeen.of([]).is_from_the_begin


def test_spark_brings_runs_changes_and_state_stores_together(spark: Any, tmp_path: Path) -> None:
    run = made_schedules()
    beat = run.runs("beat")[0]
    found = find(run.write(tmp_path))
    lost = replace(found, schedules={("beat", beat.put.index): beat.schedule.encoded()})
    verdict = prove(spark, lost, Options())
    assert verdict.proven, (verdict.reasons, verdict.problems)
    total = sum(len(entry.runs) for entry in run.log)
    assert f"runs of schedules: {total}; that none is missing" in "\n".join(verdict.notes)

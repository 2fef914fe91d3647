"""Which runs of a schedule become messages now.

Theory: a run is *planned* up to half a minute before it is due: it becomes a row of the wheel like
any message, and the wheel delivers it to the millisecond. What a schedule needs to remember is
therefore one small value, how far it has come (``ScheduleProgress``), and it moves in the same
entry of the journal as the rows: neither a crash nor a failover in between can skip or double a
run.

A run is *missed* when five seconds had passed since its due time before it was planned: no node was
there for half a minute or more, or the clock went ahead. A run that is planned sooner is only late;
without that, a schedule that is put with a first run *now* would lose it to a pause of a
millisecond. What becomes of a missed run says ``Missed``. Example: a schedule is
due on the hour, the nodes are away from 11:40 to 14:20, and ``catch_up_ms`` is two hours. Missed
are 12:00, 13:00 and 14:00. At 14:20

- ``last`` sends 14:00, and says that two runs were passed over before it;
- ``skip`` sends none of them; 15:00 says that three were passed over;
- ``all`` sends 13:00 and 14:00; 12:00 is older than two hours, so 13:00 says that one was passed
  over.

Rules
- Only a run behind the last one that was decided is ever planned, so a clock that goes back fires
  nothing twice.
- One call decides a bounded number of runs, and says if there are more: a schedule of each second
  whose nodes were away for a week must not hold up all others.
- What was due during a pause, or before a schedule was there, is not missed: nobody wanted it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from .spec import Missed, Schedule
from .successor import due_ms, next_run

AHEAD_MS = 30_000
"""How long before its nominal time a run becomes a row, ms."""
LATE_MS = 5000
"""A run that is planned so long after it was due, or sooner, is late, and not missed, ms."""
RUNS_MAX = 1000
"""The most rows of one call."""
DECIDED_MAX = 2000
"""The most runs that one call decides, made or passed over."""


@dataclass(frozen=True, slots=True)
class ScheduleProgress:
    """How far a schedule has come. ``decided_ms``: all runs with a nominal time up to here have
    been made, or passed over. ``runs``: how many messages it has made; the number of the last one.
    ``passed_over``: how many missed runs there were since that one."""

    decided_ms: int
    runs: int = 0
    passed_over: int = 0

    @classmethod
    def beginning(cls, now_ms: int) -> Self:
        """The progress of a schedule that is put now: a run that is due now is its first."""
        return cls(now_ms - 1)

    def from_now(self, now_ms: int) -> Self:
        """The progress of a schedule that is resumed, or replaced by another, now: what would have
        been due meanwhile is not made up, and not counted as missed."""
        return replace(self, decided_ms=max(self.decided_ms, now_ms - 1))


class ScheduledRun(NamedTuple):
    """A run that becomes a message. ``number``: from 1 on, without a gap. Times are ms since the
    epoch: ``nominal_ms`` what the schedule says, ``due_ms`` with the jitter. ``passed_over``: how
    many missed runs before it became no message."""

    number: int
    nominal_ms: int
    due_ms: int
    passed_over: int


class RunPlan(NamedTuple):
    """``runs``: what becomes messages now, in order. ``progress``: how far the schedule has come
    with them. ``more``: there is more to decide at once. ``next_ms``: the nominal time of the next
    run, so nothing is to be planned before ``AHEAD_MS`` ahead of it; None: the schedule has
    ended."""

    runs: tuple[ScheduledRun, ...]
    progress: ScheduleProgress
    more: bool
    next_ms: int | None


def plan_runs(
    schedule: Schedule,
    progress: ScheduleProgress,
    now_ms: int,
    *,
    ahead_ms: int = AHEAD_MS,
    runs_max: int = RUNS_MAX,
) -> RunPlan:
    """Decide all runs with a nominal time up to ``now_ms + ahead_ms``, but no more than
    ``runs_max`` messages. Of a paused schedule nothing is decided."""
    decided_ms, number, passed_over = progress.decided_ms, progress.runs, progress.passed_over
    runs: list[ScheduledRun] = []
    nominal_ms = next_run(schedule, decided_ms, number)
    if schedule.paused:
        return RunPlan((), progress, False, nominal_ms)
    decided = 0
    while nominal_ms is not None and nominal_ms <= now_ms + ahead_ms:
        if len(runs) == runs_max or decided == DECIDED_MAX:
            return RunPlan(
                tuple(runs), ScheduleProgress(decided_ms, number, passed_over), True, nominal_ms
            )
        together = passed_together(schedule, nominal_ms, now_ms)
        if together:
            passed_over += together
            decided_ms = nominal_ms + (together - 1) * (schedule.every_ms or 0)
            decided, nominal_ms = decided + 1, next_run(schedule, decided_ms)
            continue
        following_ms = next_run(schedule, nominal_ms)
        at_ms = due_ms(schedule, nominal_ms, following_ms)
        if is_passed_over(schedule, nominal_ms, following_ms, now_ms):
            passed_over += 1
        else:
            number += 1
            runs.append(ScheduledRun(number, nominal_ms, at_ms, passed_over))
            passed_over = 0
        decided, decided_ms = decided + 1, nominal_ms
        nominal_ms = None if number == schedule.count else following_ms
    return RunPlan(
        tuple(runs), ScheduleProgress(decided_ms, number, passed_over), False, nominal_ms
    )


def run_now(progress: ScheduleProgress, now_ms: int) -> tuple[ScheduledRun, ScheduleProgress]:
    """A run that somebody asks for besides those of the schedule, due at once, and the progress
    with it. It has the next number, and moves no other run."""
    run = ScheduledRun(progress.runs + 1, now_ms, now_ms, progress.passed_over)
    return run, replace(progress, runs=run.number, passed_over=0)


def passed_together(schedule: Schedule, nominal_ms: int, now_ms: int) -> int:
    """How many runs from the one at ``nominal_ms`` on are passed over whatever their jitter, by
    arithmetic. It is 0 with a cron expression, whose runs have no one distance.

    Otherwise the nodes would go through each of them after a night, in which no other schedule
    fires. *Example.* 100,000 schedules of each minute, and two days without a node: 288 million
    runs, of 10 us each, are 48 minutes."""
    every_ms = schedule.every_ms
    if every_ms is None:
        return 0
    # A run is due before the one that follows it, so one whose follower was due is missed, too.
    last_ms = now_ms - LATE_MS - every_ms
    if schedule.end_ms is not None:  # the last run has no follower
        last_ms = min(last_ms, schedule.end_ms - 1 - every_ms)
    if schedule.missed == Missed.ALL:
        last_ms = min(last_ms, now_ms - schedule.catch_up_ms - 1)
    return max(0, (last_ms - nominal_ms) // every_ms + 1)


def open_from(schedule: Schedule, progress: ScheduleProgress, now_ms: int) -> int:
    """The time, ms, behind which the next run is one that may still become a message. What was
    missed is decided only with that run. *Example.* A schedule of each midnight with ``skip``,
    whose nodes were away at midnight: until it fires again, its next run by ``progress`` alone
    would be one of the past."""
    passed_ms = now_ms - LATE_MS - schedule.jitter_ms - 1  # so far all are missed
    if schedule.missed != Missed.SKIP:
        passed_ms = min(passed_ms, now_ms - schedule.catch_up_ms - 1)
    decided_ms = max(progress.decided_ms, passed_ms)
    nominal_ms = next_run(schedule, decided_ms, progress.runs)
    while nominal_ms is not None and nominal_ms <= now_ms:
        following_ms = next_run(schedule, nominal_ms)
        if not is_passed_over(schedule, nominal_ms, following_ms, now_ms):
            break
        decided_ms, nominal_ms = nominal_ms, following_ms
    return decided_ms


def is_passed_over(
    schedule: Schedule, nominal_ms: int, following_ms: int | None, now_ms: int
) -> bool:
    """True if a run that nobody has planned by ``now_ms`` was missed and becomes no message. What
    is true at some time is true at each later one. ``following_ms``: the nominal time of the run
    behind it; None: there is none."""
    if due_ms(schedule, nominal_ms, following_ms) >= now_ms - LATE_MS:
        return False
    return not _is_made_up(schedule, nominal_ms, following_ms, now_ms)


def _is_made_up(schedule: Schedule, nominal_ms: int, following_ms: int | None, now_ms: int) -> bool:
    """True if a missed run becomes a message all the same."""
    if schedule.missed == Missed.SKIP or nominal_ms < now_ms - schedule.catch_up_ms:
        return False
    return schedule.missed == Missed.ALL or following_ms is None or following_ms > now_ms

"""The thread that fires schedules: each run becomes a row half a minute before it is due.

Theory: the wheel delivers to the millisecond whatever is a row in time, so this thread may be late
by seconds. It looks up which schedule has to be looked at next in a heap, asks the rules which runs
become messages now (``policy/schedules/missed.py``), and has the engine store them, many at a time.
It keeps nothing that must survive: how far each schedule has come stands in the engine's table. A
new master begins with all schedules in its heap and goes on exactly there.

Rules
- A turn works a twentieth of a second at most, and then rests: 100,000 schedules that are due at
  one instant take some seconds, in which messages leave punctually.
- A write that fails (a full disk) takes its runs back: their schedules are looked at again. Else a
  schedule of once a day would lose a day.
- A schedule that this node cannot read is an alarm: its machine has another table of time zones.
- Missed runs that become no messages are an alarm, once a turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from ..policy.schedules.missed import AHEAD_MS, RUNS_MAX, ScheduleProgress, plan_runs
from ..policy.schedules.spec import Schedule
from ..wheel.arrowbytes import PlainRow
from ..wheel.errors import InvalidMessage, NotMaster, Overloaded, SlotwheelError
from ..wheel.schedules import FiredRun, StoredSchedule
from .events import NodeEvents
from .intake.ports import Clock
from .intake.scheduling import ScheduleEngine, row_of, schedule_of

LOOK_EVERY_S = 1.0
_TURN_S, _REST_S = 0.05, 0.02
_GATHER_MS = 2_000
"""A schedule is looked at so long after its next run could be a row, so that several runs of a
schedule of each second are planned at once, ms."""
_AGAIN_MS = 1_000
_ROWS, _BYTES = 256, 1 << 20
"""An entry has about so many rows and bytes at most, for which the owner's lock is held 2 ms."""
_ROW_BYTES = 200
"""Bytes of a row besides its template, about."""


class ScheduleRunner:
    """Fires the schedules of one epoch's master. One thread turns it. ``changed``: names of
    schedules to look at, which other threads add to."""

    def __init__(
        self, engine: ScheduleEngine, clock: Clock, events: NodeEvents, changed: deque[str]
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._events = events
        self._changed = changed
        names = engine.schedule_names()
        self._look_ms = dict.fromkeys(names, 0)
        """When each schedule is to be looked at, ms."""
        self._heap = [(0, name) for name in names]
        heapify(self._heap)
        self._passed: dict[str, tuple[int, ScheduleProgress]] = {}
        """Schedules whose last decided runs became no messages: version, and how far that is."""
        self._runs: list[FiredRun] = []
        self._rows: list[PlainRow] = []
        self._nbytes = 0
        self._missed: dict[str, int] = {}

    def turn(self) -> float:
        """Fire what is to become a row by now; for a loop."""
        now_ms, end_s = self._clock(), time.monotonic() + _TURN_S
        while self._changed:
            self._look_at(self._changed.popleft(), 0)
        while self._heap and self._heap[0][0] <= now_ms and time.monotonic() < end_s:
            look_ms, name = heappop(self._heap)
            if self._look_ms.get(name) != look_ms:
                continue  # it was put off, or is to be looked at sooner
            del self._look_ms[name]
            is_more = self._plan(name, now_ms)
            if is_more or len(self._runs) >= _ROWS or self._nbytes >= _BYTES:
                self._fire(now_ms)  # the rest is planned from what the table has then
        self._fire(now_ms)
        self._report()
        is_more = bool(self._heap) and self._heap[0][0] <= now_ms
        return _REST_S if is_more or self._changed else LOOK_EVERY_S

    def _look_at(self, name: str, look_ms: int) -> None:
        if self._look_ms.get(name) != look_ms:
            self._look_ms[name] = look_ms
            heappush(self._heap, (look_ms, name))

    def _plan(self, name: str, now_ms: int) -> bool:
        """Gather the runs of a schedule that become rows now. Returns True if there are more of
        them than one call decides: they have to be stored before the schedule is looked at again.
        Otherwise the same runs would be planned once more from the same state, and all of them
        left out by the engine."""
        state = self._engine.schedule(name)
        if state is None:
            self._passed.pop(name, None)
            return False
        try:
            schedule = schedule_of(state.spec)
        except InvalidMessage as fault:  # all others go on
            self._events.alarm("schedule-unreadable", reason=str(fault))
            return False
        before = self._progress(name, state)
        runs_max = max(1, min(RUNS_MAX, _BYTES // (_ROW_BYTES + schedule.template.nbytes)))
        plan = plan_runs(schedule, before, now_ms, runs_max=runs_max)
        for run in plan.runs:
            self._gather(schedule, *row_of(schedule, state, run, run.nominal_ms))
        decided_ms = plan.runs[-1].nominal_ms if plan.runs else state.decided_ms
        if plan.progress.decided_ms > decided_ms:
            self._passed[name] = state.version, plan.progress
        else:
            self._passed.pop(name, None)
        missed = sum(run.passed_over for run in plan.runs)
        missed += plan.progress.passed_over - before.passed_over
        if missed:
            self._missed[name] = self._missed.get(name, 0) + missed
        if plan.more:
            self._look_at(name, now_ms)
        elif plan.next_ms is not None and not schedule.paused:
            self._look_at(name, max(now_ms + 1, plan.next_ms - AHEAD_MS + _GATHER_MS))
        return plan.more

    def _progress(self, name: str, state: StoredSchedule) -> ScheduleProgress:
        version, passed = self._passed.get(name, (0, ScheduleProgress(0)))
        is_of_now = version == state.version and passed.runs == state.runs
        if is_of_now and passed.decided_ms >= state.decided_ms:
            return passed
        return ScheduleProgress(state.decided_ms, state.runs)

    def _gather(self, schedule: Schedule, fired: FiredRun, row: PlainRow) -> None:
        self._runs.append(fired)
        self._rows.append(row)
        self._nbytes += _ROW_BYTES + schedule.template.nbytes

    def _fire(self, now_ms: int) -> None:
        """Have the gathered runs stored."""
        runs, rows = self._runs, self._rows
        self._runs, self._rows, self._nbytes = [], [], 0
        if not runs:
            return
        names = list(dict.fromkeys(run.name for run in runs))

        def done(error: SlotwheelError | None) -> None:
            if error is not None:
                self._changed.extend(names)

        try:
            taken = self._engine.fire(runs, rows, now_ms, done)
        except (NotMaster, Overloaded):
            self._again(names, now_ms)
            return
        if len(taken) < len(runs):
            left = {(run.name, run.number) for run in runs}
            left -= {(run.name, run.number) for run in taken}
            self._again(list(dict.fromkeys(name for name, _ in left)), now_ms)

    def _again(self, names: Sequence[str], now_ms: int) -> None:
        for name in names:
            self._passed.pop(name, None)
            self._look_at(name, now_ms + _AGAIN_MS)

    def _report(self) -> None:
        if not self._missed:
            return
        missed, self._missed = self._missed, {}
        name, count = next(iter(missed.items()))
        self._events.alarm(
            "schedule-missed",
            reason=f"{sum(missed.values())} runs of {len(missed)} schedules were due while nobody"
            f" fired them, and become no messages; {count} of {name!r}",
        )

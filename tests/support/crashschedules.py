"""The crash sweep with schedules: a life in which these are put, fired, paused, replaced, deleted.

The world knows a schedule by the rows of its runs, and by what its callers were told. At every
start, runs 1 to the last one that the table knows are rows, each once; what was acknowledged is
known; and the verifier finds in the journal what the state store has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from slotwheel.policy.schedules.missed import ScheduledRun as PlannedRun
from slotwheel.policy.schedules.missed import ScheduleProgress, plan_runs, run_now
from slotwheel.policy.schedules.runheaders import run_headers
from slotwheel.policy.schedules.spec import Missed, Schedule, Template
from slotwheel.reading.verify.journal import verify_journal
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.schedules import FiredRun, ScheduleDelete, SchedulePut, StoredSchedule
from support.crashbook import Order
from support.crashlife import START_MS, Steps, World
from support.crashscript import Scene

AHEAD_MS = 3_000
SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("a", Template("x", b"x"), every_ms=1_000),
        Schedule("b", Template("y", b"y"), every_ms=2_000, missed=Missed.SKIP),
        Schedule("c", Template("x", b"z"), every_ms=1_500, count=4, missed=Missed.ALL),
        Schedule("gone", Template("y", b"g"), every_ms=1_000),
    )
}


class ScheduledWorld(World):
    """A world with schedules."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps, embedded=False)
        self.scenes = SCENES
        self.run_of: dict[Order, FiredRun] = {}
        self.asked: set[Order] = set()
        """Runs that somebody asked for."""
        self.acked: dict[str, int] = defaultdict(int)
        """By schedule, the last run that was acknowledged."""
        self.put_at: dict[str, int] = {}
        """By schedule, the version that its last acknowledged put has made."""
        self.deleted: set[str] = set()
        """The schedules whose deletion was acknowledged."""
        self.counts: dict[str, int] = defaultdict(int)
        self._changes: list[tuple[Callable[[], None], Any]] = []

    # -- what callers do -------------------------------------------------------------------------

    def put(self, schedule: Schedule) -> None:
        change = SchedulePut(schedule.name, schedule.encoded(), self.now_ms)
        version = self.wheel._log.next_index

        def known() -> None:
            self.put_at[schedule.name] = max(version, self.put_at.get(schedule.name, 0))

        self._change(change, known)

    def delete(self, name: str) -> None:
        if self.wheel.schedule(name) is not None:
            self._change(ScheduleDelete(name), lambda: self.deleted.add(name))

    def _change(self, change: SchedulePut | ScheduleDelete, known: Callable[[], None]) -> None:
        future = self.wheel.change_schedules([(change, None)], self.now_ms)
        self._changes.append((known, future))

    def _collect(self) -> None:
        for known, future in self._changes:
            if future.done():
                future.result()
                known()
        self._changes = [pair for pair in self._changes if not pair[1].done()]
        super()._collect()

    def fire(self) -> None:
        """Make rows of all runs of the next seconds."""
        planned = []
        for name in self.wheel.schedule_names():
            state: StoredSchedule = self.wheel.schedule(name)
            schedule = Schedule.decoded(state.spec)
            progress = ScheduleProgress(state.decided_ms, state.runs)
            plan = plan_runs(schedule, progress, self.now_ms, ahead_ms=AHEAD_MS, runs_max=3)
            planned += [(schedule, state, run, run.nominal_ms) for run in plan.runs]
        for first in range(0, len(planned), 4):
            self._store(planned[first : first + 4])

    def ask(self, name: str) -> None:
        state = self.wheel.schedule(name)
        if state is None:
            return
        schedule = Schedule.decoded(state.spec)
        progress = ScheduleProgress(state.decided_ms, state.runs)
        run, _ = run_now(progress, self.now_ms)
        self._store([(schedule, state, run, state.decided_ms)], is_asked=True)

    def _store(
        self,
        planned: Sequence[tuple[Schedule, StoredSchedule, PlannedRun, int]],
        *,
        is_asked: bool = False,
    ) -> None:
        runs, rows, orders = [], [], []
        for schedule, state, run, decided_ms in planned:
            topic, name = schedule.template.topic, schedule.name
            # Who plans it again after a crash, of another version or later, makes another message.
            text = f"{name} {run.number} {run.nominal_ms} {state.version} {self.now_ms}"
            order = Order(topic, text.encode(), run.due_ms)
            fired = FiredRun(
                *(name, state.version, run.number, run.nominal_ms, decided_ms, run.passed_over),
                run.due_ms,
            )
            headers = [(key.encode(), value) for key, value in run_headers(schedule, run)]
            runs.append(fired)
            orders.append(order)
            rows.append((run.due_ms, topic.encode(), None, None, order.value, headers))
        self.book.sent.update(orders)
        self.run_of.update(zip(orders, runs, strict=True))
        if is_asked:
            self.asked.update(orders)
        order_of = {(run.name, run.number): order for run, order in zip(runs, orders, strict=True)}
        taken: list[FiredRun] = []

        def done(error: SlotwheelError | None) -> None:
            assert error is None, error
            for run in taken:
                key = run.due_ms, run.offset
                order = order_of[run.name, run.number]
                self.book.own(key, order)
                self.book.receipts.add(key)
                self.acked[run.name] = max(run.number, self.acked[run.name])

        taken += self.wheel.fire(runs, rows, self.now_ms, done)
        self.counts["fired"] += len(taken)

    # -- what must hold --------------------------------------------------------------------------

    def open(self) -> None:
        self._changes = []
        super().open()
        self.check_schedules()

    def check_schedules(self) -> None:
        """The table is what callers were told, what the rows say, and what the journal says."""
        for name in SCHEDULES:
            state = self.wheel.schedule(name)
            if name in self.deleted:
                assert state is None, f"{name} was deleted, and is there"
                continue
            assert state is not None or name not in self.put_at or name == "gone", f"{name} is lost"
            if state is not None:
                assert state.version >= self.put_at.get(name, 0), f"{name} is of a version before"
                assert state.runs >= self.acked[name], f"{name} has forgotten runs"
                self._check_runs(name, state.runs)
        items = verify_journal(self.files, lambda: self.state.durable)
        faults = [fault for item in items if item.kind == "schedules" for fault in item.faults]
        assert not faults, faults

    def _check_runs(self, name: str, runs: int) -> None:
        found = sorted(run.number for _, run in self._rows(name))
        assert found == list(range(1, runs + 1)), f"{name} has runs {found}, and knows {runs}"

    def _rows(self, name: str) -> list[tuple[Order, FiredRun]]:
        owned = [order for _, order in self.book.owner.values()]
        return [
            (order, self.run_of[order])
            for order in owned
            if order in self.run_of and self.run_of[order].name == name
        ]

    def finish(self) -> None:
        super().finish()
        for name in SCHEDULES:
            rows = sorted(self._rows(name), key=lambda row: row[1].number)
            nominal = [run.nominal_ms for order, run in rows if order not in self.asked]
            assert nominal == sorted(set(nominal)), f"{name}: {nominal}"
            self.counts["runs"] += len(rows)
            self.counts["missed"] += sum(run.missed for _, run in rows)


def _turn(ms: int) -> Callable[[Any], None]:
    def act(w: Any) -> None:
        w.wait(ms)
        w.fire()
        w.commit()
        w.deliver()
        w.commit()

    return act


def _put_all(w: Any) -> None:
    for schedule in SCHEDULES.values():
        if schedule.name not in w.deleted:
            w.put(schedule)
    w.commit()


def _fire_and_replace(w: Any) -> None:
    """In one group of writes, of which a power cut may leave some."""
    w.fire()
    w.put(replace(SCHEDULES["a"], every_ms=1_300))
    w.ask("a")
    w.put(SCHEDULES["b"].pausing(True))
    w.commit()


def _delete(w: Any) -> None:
    w.ask("gone")
    w.delete("gone")
    w.commit()


def _resume(w: Any) -> None:
    w.ask("b")
    w.put(SCHEDULES["b"])
    w.fire()
    w.commit()


def _spill_and_fire(w: Any) -> None:
    """Runs are committed while the slot files are written, so records get newer than the
    checkpoint."""
    storage: Any = w.wheel._storage
    make_durable = storage._make_durable

    def then_fire(*arguments: Any) -> None:
        make_durable(*arguments)
        w.wait(400)
        w.fire()
        w.commit()

    storage._make_durable = then_fire
    try:
        w.spill(everything=True)
    finally:
        storage._make_durable = make_durable


SCENES = [
    Scene("schedules are put", _put_all),
    Scene("the first runs", _turn(100)),
    Scene("spill", lambda w: w.spill(everything=True)),
    Scene("further runs", _turn(900)),
    Scene("one is replaced, one paused, between runs", _fire_and_replace),
    Scene("time passes", _turn(1_200)),
    Scene("spill, and runs meanwhile", _spill_and_fire),
    Scene("one is deleted", _delete),
    Scene("stop and start", lambda w: w.restart()),
    Scene("more runs", _turn(1_500)),
    Scene("one goes on", _resume),
    Scene("nobody fires for a while", lambda w: w.wait(9_000)),
    Scene("what was missed", _turn(0)),
    Scene("clean", lambda w: w.clean()),
    Scene("spill drops segments", lambda w: w.spill(everything=True)),
    Scene("stop and start again", lambda w: w.restart()),
    Scene("last runs", _turn(700)),
]
assert START_MS % 1_000 == 0

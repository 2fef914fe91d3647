"""A log of changes of schedules under masters that fail, in memory: the real table and the real
rules, and a referee who knows only the committed log.

A master queues entries, of which any suffix may be lost when it fails; the next one begins with the
table that the committed entries make, or with the records of a checkpoint and the entries behind
it, some of which the records know already.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slotwheel.policy.schedules.missed import ScheduleProgress, plan_runs
from slotwheel.policy.schedules.spec import Missed, Schedule, Template
from slotwheel.policy.schedules.successor import next_run
from slotwheel.wheel.schedules import (
    FiredRun,
    ScheduleChange,
    ScheduleDelete,
    SchedulePut,
    encode_schedule,
)
from slotwheel.wheel.scheduletable import ScheduleTable

START_MS = 1_790_000_000_000
NAMES = ("a", "b", "c")
TOPIC = Template("t")


@dataclass
class LoggedEntry:
    index: int
    changes: Sequence[ScheduleChange]
    rows: list[FiredRun] = field(default_factory=list)
    """The rows that it brings, whatever its note says."""
    is_asked: bool = False
    """Its row is a run that somebody has asked for."""
    created_ms: int = 0


class ScheduleHistory:
    """One random history. ``unnoted``: the share of entries with rows whose note is forgotten, a
    planted defect."""

    def __init__(self, seed: int, unnoted: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.unnoted = unnoted
        self.now_ms = START_MS
        self.log: list[LoggedEntry] = []
        """The committed entries."""
        self.queued: list[LoggedEntry] = []
        self.table = ScheduleTable({})
        self.specs: dict[bytes, Schedule] = {}
        self.saved: dict[str, bytes] = {}
        self.saved_index = 0

    def play(self, steps: int = 14) -> list[str]:
        """What the referee finds wrong at the end."""
        kinds = (self.put, self.delete, self.fire, self.fire, self.commit, self.fail, self.save)
        for _ in range(steps):
            self.now_ms += self.random.choice((0, 900, 4_000, 31_000, 200_000, -5_000))
            self.random.choice(kinds)()
        self.commit(whole=True)
        return wrong_runs(self.log, self.specs.__getitem__)

    def _queue(
        self,
        changes: Sequence[ScheduleChange],
        rows: Sequence[FiredRun] = (),
        *,
        is_asked: bool = False,
    ) -> None:
        last = [*self.log, *self.queued][-1:]
        index = 1 + (last[0].index if last else 0)
        entry = LoggedEntry(index, changes, list(rows), is_asked, self.now_ms)
        self.queued.append(entry)
        self.table.queue(changes, entry.index)

    def put(self) -> None:
        schedule = Schedule(
            *(self.random.choice(NAMES), TOPIC),
            every_ms=1000 * self.random.randint(1, 7),
            missed=self.random.choice(list(Missed)),
            count=self.random.choice((None, 5)),
            paused=self.random.random() < 0.2,
        )
        spec = schedule.encoded()
        self.specs[spec] = schedule
        self._queue([SchedulePut(schedule.name, spec, self.now_ms)])

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        if self.random.random() < 0.3 and self.table.get(name) is not None:
            self._queue([ScheduleDelete(name)])

    def fire(self) -> None:
        """Plan by what is queued now, or by what was so a moment ago; then fire what fits."""
        planned: list[FiredRun] = []
        for name in self.table.names():
            state = self.table.get(name)
            if state is None:
                continue
            plan = plan_runs(
                self.specs[state.spec],
                ScheduleProgress(state.decided_ms, state.runs),
                self.now_ms,
                runs_max=4,
            )
            planned += [
                FiredRun(
                    *(name, state.version, run.number, run.nominal_ms, run.nominal_ms),
                    *(run.passed_over, run.due_ms),
                )
                for run in plan.runs
            ]
        if self.random.random() < 0.3:
            self.random.choice((self.put, self.delete, self.run_now))()
        fits = [planned[at] for at in self.table.following(planned)]
        self._store(fits)

    def run_now(self) -> None:
        name = self.random.choice(NAMES)
        state = self.table.get(name)
        if state is not None:
            run = FiredRun(
                *(name, state.version, state.runs + 1, self.now_ms, state.decided_ms, 0),
                self.now_ms,
            )
            self._store([run], is_asked=True)

    def _store(self, runs: Sequence[FiredRun], *, is_asked: bool = False) -> None:
        if runs:
            noted = self.random.random() >= self.unnoted
            self._queue(runs if noted else [], runs, is_asked=is_asked)

    def commit(self, *, whole: bool = False) -> None:
        count = len(self.queued) if whole else self.random.randint(0, len(self.queued))
        for entry in self.queued[:count]:
            self.table.committed(entry.changes, entry.index, own=True)
        self.log += self.queued[:count]
        del self.queued[:count]

    def fail(self) -> None:
        """The master fails, or a write does: what follows on a place is lost."""
        del self.queued[self.random.randint(0, len(self.queued)) :]
        if self.random.random() < 0.3:
            self.table.withdraw([(entry.index, entry.changes) for entry in self.queued])
            return
        self.log += self.queued  # the next master has these
        self.queued = []
        self.table = ScheduleTable(self.saved)
        for entry in self.log:
            if entry.index > self.saved_index:
                self.table.committed(entry.changes, entry.index, own=False)

    def save(self) -> None:
        """A checkpoint: its records may be newer than its index."""
        records = self.table.unsaved()
        for name, state in records.items():
            if state is None:
                self.saved.pop(name, None)
            else:
                self.saved[name] = encode_schedule(state)
        self.table.saved(records)
        last = self.log[-1].index if self.log else 0
        self.saved_index = self.random.randint(self.saved_index, last)


def wrong_runs(log: Sequence[LoggedEntry], schedule_of: Callable[[bytes], Schedule]) -> list[str]:
    """What is wrong with the rows of a committed log: numbers have no gap and none comes twice, no
    nominal time comes twice, and each is a nominal time of the schedule in force."""
    wrong: list[str] = []
    state: dict[str, tuple[int, Schedule, int, int]] = {}
    for entry in log:
        for change in entry.changes:
            if isinstance(change, SchedulePut):
                _, _, runs, decided = state.get(change.name, (0, None, 0, 0))
                spec = schedule_of(change.spec)
                state[change.name] = entry.index, spec, runs, max(decided, change.from_ms - 1)
            elif isinstance(change, ScheduleDelete):
                state.pop(change.name, None)
        for row in entry.rows:
            known = state.get(row.name)
            if known is None:
                wrong.append(f"{entry.index}: {row.name} fired and is no schedule")
                continue
            version, schedule, runs, decided = known
            place = f"{entry.index}: {row.name} run {row.number}"
            if row.version != version:
                wrong.append(f"{place} of version {row.version}, in force is {version}")
            if row.number != runs + 1:
                wrong.append(f"{place} after {runs}")
            if not entry.is_asked:
                if schedule.paused:
                    wrong.append(f"{place} while it is paused")
                if row.nominal_ms <= decided:
                    wrong.append(f"{place} at {row.nominal_ms} again")
                nominal = decided
                for _ in range(row.missed + 1):
                    nominal = next_run(schedule, nominal, 0) or 0
                if nominal != row.nominal_ms:
                    wrong.append(f"{place} at {row.nominal_ms}, due is {nominal}")
                decided = row.nominal_ms
            state[row.name] = version, schedule, row.number, decided
    return wrong

"""A finished run of three peers whose messages are all of schedules, for faults to be planted in.

Theory: the log is described run by run, as the real rules plan them, with a node that was away for
some minutes, a pause, an end, a replacement, a deletion and runs that somebody asked for. A fault
changes the description, and then it is written with the real encoders; so offsets are dense, and
indexes, checksums and the versions in notes are right, whatever was left out or came twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from slotwheel.policy.schedules.missed import ScheduledRun as PlannedRun
from slotwheel.policy.schedules.missed import ScheduleProgress, plan_runs, run_now
from slotwheel.policy.schedules.runheaders import run_headers
from slotwheel.policy.schedules.spec import Missed, Schedule, Template
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.schedules import FiredRun, ScheduleDelete, SchedulePut, encode_runs
from support import factrows
from support.replayrun import PEERS, TOPIC, PeerRun, Run

START_MS = 1_790_002_800_000
"""A full hour, UTC."""
SECOND_MS = 1_000
AWAY_MS = range(START_MS + 400_000, START_MS + 640_000)
END_MS = START_MS + 900_000
STEP_MS = 5_000


@dataclass
class LoggedRun:
    """A run as its row, and its note, say. ``put``: the entry that put the schedule in force."""

    schedule: Schedule
    put: LoggedEntry
    run: PlannedRun
    decided_ms: int
    created_ms: int
    is_noted: bool = True
    noted: PlannedRun | None = None
    """What the note says; None: the same as the row."""
    topic: str = TOPIC
    offset: int = -1

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def ready_ms(self) -> int:
        """When it can leave."""
        return max(self.run.due_ms, self.created_ms)

    def changed(self, **fields: int) -> None:
        """The row, and its note, say something else."""
        self.run = self.run._replace(**fields)


@dataclass
class LoggedEntry:
    """Either a change or rows."""

    change: SchedulePut | ScheduleDelete | None = None
    runs: list[LoggedRun] = field(default_factory=list)
    index: int = -1


@dataclass
class ScheduledRun(Run):
    """``log``: all entries behind the configuration, in order."""

    log: list[LoggedEntry] = field(default_factory=list)

    def write(self, root: Path) -> list[str]:
        self.settle()
        return super().write(root)

    def runs(self, name: str) -> list[LoggedRun]:
        """All runs of a schedule, in the order of the log."""
        return [run for entry in self.log for run in entry.runs if run.name == name]

    def entry_of(self, run: LoggedRun) -> LoggedEntry:
        return next(entry for entry in self.log if run in entry.runs)

    def settle(self) -> None:
        """Number entries and rows, and make the description of the files of them."""
        self.log = [entry for entry in self.log if entry.change is not None or entry.runs]
        offset = 0
        entries: list[np.ndarray] = []
        self.changes, self.notes = {}, {}
        for index, entry in enumerate(self.log, 2):
            entry.index = index
            if entry.change is not None:
                self.changes.setdefault(len(entries), []).append(entry.change)
                continue
            for run in entry.runs:
                run.offset = offset
                offset += 1
            entries.append(np.arange(entry.runs[0].offset, offset))
        rows = [run for entry in self.log for run in entry.runs]
        for number, entry in enumerate(entry for entry in self.log if entry.runs):
            noted = [_noted(run) for run in entry.runs if run.is_noted]
            if noted:
                self.notes[number] = encode_runs(noted)
        self.rows = factrows.rows(*map(_row, rows))
        self.peers = [PeerRun(name, entries, {}, {}) for name in PEERS]
        rows.sort(key=lambda run: (run.ready_ms, run.run.due_ms, run.offset))
        for run in rows:
            others = self.peers[0].elsewhere
            is_usual = run.topic == TOPIC
            topic = self.peers[0].delivered if is_usual else others.setdefault(run.topic, [])
            topic.append((run.offset, run.ready_ms + 3))
        for peer in self.peers:
            peer.marks = Marks(Mark(rows[-1].ready_ms + 1, 0, offset - 1), 1, {}, offset)


def _row(run: LoggedRun) -> dict[str, object]:
    return {
        "offset": run.offset,
        "due": run.run.due_ms,
        "created": run.created_ms,
        "topic": run.topic,
        "value": run.schedule.template.value,
        "headers": run_headers(run.schedule, run.run),
    }


def _noted(run: LoggedRun) -> FiredRun:
    said = run.noted or run.run
    return FiredRun(
        *(run.name, run.put.index, said.number, said.nominal_ms, run.decided_ms),
        *(said.passed_over, said.due_ms),
    )


def schedules() -> list[Schedule]:
    template = Template(TOPIC, b"x")
    return [
        Schedule("beat", template, every_ms=10_000),
        Schedule("cron", template, cron="* * * * *", jitter_ms=4_000, missed=Missed.ALL),
        Schedule("skips", template, every_ms=20_000, missed=Missed.SKIP),
        Schedule("counted", template, every_ms=15_000, count=8),
        Schedule("ended", template, every_ms=30_000, end_ms=START_MS + 300_000),
        Schedule("paused", template, every_ms=10_000),
        Schedule("deleted", template, every_ms=10_000),
        Schedule("replaced", template, every_ms=10_000),
    ]


class _Writer:
    """Makes the log of a run without a fault."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.log: list[LoggedEntry] = []
        self.in_force: dict[str, tuple[Schedule, LoggedEntry, ScheduleProgress]] = {}

    def put(self, schedule: Schedule) -> None:
        entry = LoggedEntry(SchedulePut(schedule.name, schedule.encoded(), self.now_ms))
        self.log.append(entry)
        before = self.in_force.get(schedule.name)
        progress = (
            ScheduleProgress.beginning(self.now_ms)
            if before is None
            else replace(before[2].from_now(self.now_ms), passed_over=0)
        )
        self.in_force[schedule.name] = schedule, entry, progress

    def delete(self, name: str) -> None:
        self.log.append(LoggedEntry(ScheduleDelete(name)))
        del self.in_force[name]

    def ask(self, name: str) -> None:
        schedule, put, progress = self.in_force[name]
        run, after = run_now(replace(progress, passed_over=0), self.now_ms)
        self.in_force[name] = schedule, put, after
        self.fired([LoggedRun(schedule, put, run, progress.decided_ms, self.now_ms)])

    def fire(self) -> None:
        runs = []
        for name, (schedule, put, progress) in self.in_force.items():
            plan = plan_runs(schedule, progress, self.now_ms)
            self.in_force[name] = schedule, put, plan.progress
            runs += [
                LoggedRun(schedule, put, run, run.nominal_ms, self.now_ms) for run in plan.runs
            ]
        self.fired(runs)

    def fired(self, runs: Sequence[LoggedRun]) -> None:
        if runs:
            self.log.append(LoggedEntry(runs=list(runs)))


def made_schedules() -> ScheduledRun:
    """A run without a fault."""
    writer = _Writer()
    every = {schedule.name: schedule for schedule in schedules()}
    for schedule in every.values():
        writer.put(schedule)
    actions = {
        60_000: lambda: writer.put(every["paused"].pausing(True)),
        75_000: lambda: writer.ask("paused"),
        80_000: lambda: writer.ask("beat"),
        100_000: lambda: writer.put(replace(every["replaced"], every_ms=7_000)),
        150_000: lambda: writer.put(every["paused"].pausing(False)),
        200_000: lambda: writer.delete("deleted"),
    }
    for now_ms in range(START_MS, END_MS, STEP_MS):
        if now_ms in AWAY_MS:
            continue
        writer.now_ms = now_ms + 1
        if (action := actions.get(now_ms - START_MS)) is not None:
            action()
        writer.fire()
    nothing = factrows.rows({"offset": 0})
    run = ScheduledRun(nothing, 0, [], [], [], [], log=writer.log)
    run.settle()
    return run


def headers_of(run: FiredRun) -> list[tuple[bytes, bytes | None]]:
    """The headers with which a plain row of that run is stored."""
    planned = PlannedRun(run.number, run.nominal_ms, run.due_ms, run.missed)
    headers = run_headers(Schedule(run.name, Template(TOPIC), every_ms=1_000), planned)
    return [(name.encode(), value) for name, value in headers]

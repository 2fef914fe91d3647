"""Two callers change, pause, run and delete the same schedules at once while these fire, the node
is killed, and both ask again: each answer is true by the log, which is read from the journal. Each
rule that this rests on is taken out once, and that is noticed.

Theory: the log is the one order in which all happened. An answer names a version, which is the
index of an entry, so it can be held against that entry and what was in force before it.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from slotwheel.node import schedulerunner
from slotwheel.node.events import NodeEvents
from slotwheel.node.intake.callers import local_caller
from slotwheel.node.intake.scheduling import ScheduleActions, schedule_of
from slotwheel.node.metrics import Metrics
from slotwheel.node.schedulerunner import ScheduleRunner
from slotwheel.policy.schedules.missed import RunPlan, ScheduleProgress, plan_runs
from slotwheel.policy.schedules.spec import Missed, Schedule
from slotwheel.wheel import wheel as wheel_module
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import ScheduleChanged, SlotwheelError, UnknownSchedule
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schedules import FiredRun, ScheduleDelete, SchedulePut, StoredSchedule
from slotwheel.wheel.scheduletable import ScheduleTable
from support.firedruns import logged, wrong_by_the_log
from support.schedulelog import LoggedEntry
from support.wheels import NOW, Node

LIVES = 12
NAMES = ("a", "b")


Request = tuple[str, dict[str, Any]]
"""An action and its fields."""


class Call(NamedTuple):
    """A request that was answered."""

    action: str
    fields: dict[str, Any]
    answer: dict[str, Any]


class Life:
    """A node with two callers, by a seed."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.node = Node(path, WheelConfig(), NOW)
        self.now_ms = NOW
        self.calls: list[Call] = []
        self.unanswered: list[Request] = []
        """What callers have asked for when the node was killed; they ask again."""
        self.values = count()
        self._begin()

    def _begin(self) -> None:
        self.node.sync()
        changed: deque[str] = deque()
        self.runner = ScheduleRunner(
            self.node.wheel, lambda: self.now_ms, NodeEvents(Metrics()), changed
        )
        self.actions = ScheduleActions(self.node.wheel, lambda: self.now_ms, changed)

    def live(self, kills: int = 3) -> list[str]:
        """What is wrong at the end."""
        for _ in range(kills):
            again, self.unanswered = self.unanswered, []
            callers = [
                threading.Thread(
                    target=self._call_often, args=(Random(self.random.random()), again[at::2])
                )
                for at in range(2)
            ]
            for caller in callers:
                caller.start()
            for _ in range(self.random.randrange(4, 20)):
                self.now_ms += self.random.choice((0, 700, 40_000))
                self.runner.turn()
                self.node.wheel.write_pending(0.002)
            self.node.close()  # as a kill, it loses what is not written
            for caller in callers:
                caller.join()
            self.node.open(self.now_ms)
            self._begin()
        self.node.close()
        log = logged(self.node.path)
        return wrong_by_the_log(log) + untrue(self.calls, log)

    def _call_often(self, random: Random, again: Sequence[Request]) -> None:
        seen: dict[str, int] = {}
        requests = chain(again, (self._request(random, seen) for _ in count()))
        for request in requests:
            action, fields = request
            try:
                answer = getattr(self.actions, action)(local_caller(), fields)
            except (ScheduleChanged, UnknownSchedule):
                seen.clear()
                continue
            except (SlotwheelError, OSError):  # the node is killed, and its files are closed
                self.unanswered.append(request)
                return
            self.calls.append(Call(action, fields, answer))
            if "schedule" in answer:
                shown = answer["schedule"]
                seen[shown["schedule"]["name"]] = shown["version"]

    def _request(self, random: Random, seen: dict[str, int]) -> Request:
        name = random.choice(NAMES)
        action = random.choice(("put", "put", "pause", "resume", "run", "show", "delete"))
        fields: dict[str, Any] = {"name": name}
        if action == "put":
            template = {"topic": "t", "value": f"{next(self.values)}"}
            rhythm = {
                "every_ms": 1000 * random.randint(1, 7),
                "missed": random.choice(list(Missed)),
            }
            fields = {"schedule": {"name": name, "template": template, **rhythm}}
        if action not in ("show", "run") and random.random() < 0.7:
            fields["version"] = seen.get(name, 0) if action == "put" else seen.get(name, 1)
        return action, fields


def untrue(calls: Sequence[Call], log: Sequence[LoggedEntry]) -> list[str]:
    """Which answers are untrue, by the log."""
    puts: dict[int, tuple[SchedulePut, int]] = {}
    deleted: Counter[tuple[str, int]] = Counter()
    runs: dict[int, FiredRun] = {}
    version: dict[str, int] = {}
    for entry in log:
        for change in entry.changes:
            before = version.get(change.name, 0)
            if isinstance(change, SchedulePut):
                puts[entry.index] = change, before
                version[change.name] = entry.index
            elif isinstance(change, ScheduleDelete):
                deleted[change.name, before] += 1
                version.pop(change.name)
            else:
                runs[change.offset] = change
    wrong: list[str] = []
    for action, fields, answer in calls:
        asked, name = fields.get("version"), fields.get("name", "")
        if action == "delete":
            known = [key for key in deleted if key[0] == name and asked in (None, key[1])]
            true = bool(known)
        elif action == "run":
            run = runs.get(MessageId.parse(answer["id"]).offset)
            true = run is not None and (run.name, run.number) == (name, answer["run"])
        else:
            true = _is_true(action, fields, answer["schedule"], puts)
        if not true:
            wrong.append(f"{action} {fields}: {answer}")
    return wrong


def _is_true(
    action: str,
    fields: dict[str, Any],
    shown: dict[str, Any],
    puts: dict[int, tuple[SchedulePut, int]],
) -> bool:
    """True if an answer that shows a schedule shows it as the entry of its version has it, and that
    is what was asked for."""
    put, before = puts.get(shown["version"], (None, 0))
    if put is None or schedule_of(put.spec).to_json() != shown["schedule"]:
        return False
    asked = fields.get("version")
    if action == "put":
        wanted = Schedule.from_json(fields["schedule"]).to_json()
        return shown["schedule"] == wanted and asked in (None, before)
    if action == "show":
        return bool(put.name == fields["name"])
    is_as_asked = bool(shown["schedule"].get("paused")) == (action == "pause")
    is_it = put.name == fields["name"] and asked in (None, before, shown["version"])
    return is_as_asked and is_it


def wrong_in(lives: int) -> list[str]:
    for seed in range(lives):
        with tempfile.TemporaryDirectory() as path:
            if wrong := Life(Path(path), seed).live():
                return wrong
    return []


@pytest.mark.parametrize("lives", [LIVES, pytest.param(400, marks=pytest.mark.soak)])
def test_each_answer_is_true(lives: int) -> None:
    assert wrong_in(lives) == []


def test_a_version_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ScheduleTable.check
    monkeypatch.setattr(ScheduleTable, "check", lambda table, change, _: check(table, change, None))
    assert wrong_in(LIVES)


def test_an_answer_before_the_commit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = wheel_module._once_committed
    monkeypatch.setattr(wheel_module, "_once_committed", lambda states, _: answer(states, None))
    assert wrong_in(LIVES)


def test_an_answer_of_a_later_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScheduleActions._store

    def latest(actions: ScheduleActions, schedule: Schedule, *further: Any) -> StoredSchedule:
        own = store(actions, schedule, *further)
        return actions._engine.schedule(schedule.name) or own

    monkeypatch.setattr(ScheduleActions, "_store", latest)
    assert wrong_in(5 * LIVES)


def test_a_pause_that_is_not_looked_at_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_if_resumed(schedule: Schedule, *further: Any, **named: Any) -> RunPlan:
        return plan_runs(schedule.pausing(False), *further, **named)

    monkeypatch.setattr(schedulerunner, "plan_runs", as_if_resumed)
    assert wrong_in(LIVES)


def test_a_run_that_is_counted_from_now_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from the run before."""

    def from_now(
        schedule: Schedule, progress: ScheduleProgress, now_ms: int, **named: Any
    ) -> RunPlan:
        return plan_runs(schedule, progress.from_now(now_ms), now_ms, **named)

    monkeypatch.setattr(schedulerunner, "plan_runs", from_now)
    assert wrong_in(LIVES)


def test_a_row_without_its_note_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "encode_runs", lambda _: b"")
    with pytest.raises(AssertionError, match="is noted as"):
        wrong_in(LIVES)

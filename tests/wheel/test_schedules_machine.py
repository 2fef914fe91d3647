"""Schedules through all that may happen to a wheel: the model knows only what callers were told.

The table is a function of the log, whatever was spilled when, and each run that was taken leaves as
one message; and the verifier, which computes that function from the journal, finds the same.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import ScheduleChanged, UnknownSchedule
from slotwheel.wheel.schedules import FiredRun, ScheduleDelete, SchedulePut
from support.datadirs import assert_sound
from support.scheduledrun import headers_of
from support.wheels import NOW, Node

CONFIG = WheelConfig(chunk_rows_max=4, open_handles_max=2, segment_bytes=6000)
NAMES = ["a", "b", "ü" * 100]
names = st.sampled_from(NAMES)


@dataclass
class Known:
    """A schedule as its callers know it."""

    version: int
    spec: bytes
    runs: int = 0
    missed: int = 0


class Schedules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.node = Node(self.directory, CONFIG, NOW)
        self.now_ms = NOW
        self.known: dict[str, Known] = {}
        self.versions: set[int] = set()
        self.fired: list[tuple[int, bytes]] = []
        """Due time and value of runs that have not left."""
        self.left: list[bytes] = []
        self.count = 0

    def teardown(self) -> None:
        self.node.close()
        assert_sound(Path(self.directory))
        shutil.rmtree(self.directory)

    def _change(self, change: Any, version: int | None) -> None:
        future = self.node.wheel.change_schedules([(change, version)], self.now_ms)
        self.node.sync()
        future.result(0)

    @rule(name=names, right=st.sampled_from(["any", "right", "wrong"]))
    def put(self, name: str, right: str) -> None:
        self.count += 1
        spec = b"spec %d" % self.count
        before = self.known.get(name)
        version = {"any": None, "right": before.version if before else 0, "wrong": 999_999}[right]
        change = SchedulePut(name, spec, self.now_ms)
        if right == "wrong":
            with pytest.raises(ScheduleChanged, match="999999"):
                self.node.wheel.change_schedules([(change, version)], self.now_ms)
            return
        self._change(change, version)
        state = self.node.wheel.schedule(name)
        assert state is not None
        assert state.version not in self.versions, "a version came twice"
        self.versions.add(state.version)
        runs, missed = (before.runs, before.missed) if before else (0, 0)
        self.known[name] = Known(state.version, spec, runs, missed)

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name not in self.known:
            with pytest.raises(UnknownSchedule):
                self._change(ScheduleDelete(name), None)
            return
        self._change(ScheduleDelete(name), self.known.pop(name).version)

    @rule(
        runs=st.lists(
            st.tuples(names, st.integers(1, 3), st.sampled_from([0, 400, 2_500]), st.booleans()),
            min_size=1,
            max_size=3,
        )
    )
    def fire(self, runs: list[tuple[str, int, int, bool]]) -> None:
        """Several runs of a schedule in one entry, and some that are of another version."""
        asked: list[FiredRun] = []
        rows: list[Any] = []
        expected = 0
        broken: set[str] = set()  # behind a run that does not follow on no other does
        for name, count, ahead, is_stale in runs:
            state = self.known.get(name)
            for _ in range(count):
                self.count += 1
                due, value = self.now_ms + ahead, b"%d" % self.count
                number = 1 if state is None else state.runs + 1
                version = 0 if state is None or is_stale else state.version
                asked.append(FiredRun(name, version, number, due, due, 2, due))
                rows.append((due, b"t", None, None, value, headers_of(asked[-1])))
                if is_stale:
                    broken.add(name)
                if state is not None and name not in broken:
                    state.runs, state.missed = number, state.missed + 2
                    self.fired.append((due, value))
                    expected += 1
        done: list[object] = []
        taken = self.node.wheel.fire(asked, rows, self.now_ms, done.append)
        assert len(taken) == expected
        self.node.sync()
        assert done == ([None] if expected else [])
        assert [run.offset for run in taken] == list(
            range(taken[0].offset, taken[0].offset + expected) if taken else ()
        )

    @rule(ms=st.sampled_from([1, 700, 2_000, 90_000]))
    def deliver(self, ms: int) -> None:
        self.now_ms += ms
        self._deliver()

    def _deliver(self) -> None:
        self.left += self.node.delivered(self.now_ms)
        due = {value for due_ms, value in self.fired if due_ms <= self.now_ms}
        self.fired = [run for run in self.fired if run[0] > self.now_ms]
        assert due <= set(self.left)
        assert len(set(self.left)) == len(self.left)
        self.node.mark(self.now_ms)

    @rule(everything=st.booleans())
    def spill(self, everything: bool) -> None:
        self.node.wheel.spill(self.now_ms, everything=everything)

    @rule()
    def crash(self) -> None:
        self.node.reopen(self.now_ms)
        self.now_ms += 2 * CONFIG.reach_ahead_ms
        self._deliver()

    @invariant()
    def the_table_is_what_callers_were_told(self) -> None:
        wheel = self.node.wheel
        in_order = sorted(self.known)
        assert wheel.schedule_names() == in_order
        for at, name in enumerate(in_order):
            assert wheel.schedule_names(name) == in_order[at + 1 :]
        for name, known in self.known.items():
            state = wheel.schedule(name)
            assert state is not None
            found = Known(state.version, state.spec, state.runs, state.missed)
            assert found == known
        assert wheel.status().schedules == len(self.known)


Schedules.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_schedules_through_all_that_may_happen = Schedules.TestCase

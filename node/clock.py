"""The node's clock: the wall clock, unless it jumps far ahead (``wheel/jumps.py``).

A jump while the node was down is noticed, too, if the machine was not started anew meanwhile: the
data directory keeps how far the wall clock was ahead of the time since the machine's start, and the
id of that start. After another start the clock is believed, unless it stands behind messages that
have left: then it was started wrong. The mark is looked at each time, not only at the start, as a
peer may get the newest one only when it has caught up with the others. A node that has seen its own
clock step back does not compare the two, for then the mark comes from the time before the step.

While the clock is in doubt, delivery goes on by the time that the node believes, and no message is
accepted: a delay of 6 h that counts from a clock 5 h behind would be over after 1 h, once the clock
is right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..wheel.errors import NOTHING_STORED, NotRunning, Overloaded
from ..wheel.jumps import JUMP_MS, JumpGuard
from ..wheel.state import StateStore, StateUpdate
from ..wheel.texts import time_text
from ..wheel.wheel import Wheel
from .events import NodeEvents

LOOK_EVERY_S = 1.0
_NOTED_MS = 60_000
"""An offset that has moved by so much, ms, is written to the state again."""
_AGAIN_S = 0.05
_TRIES = 100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def passed_ms() -> int:
    """The time since the machine's start, ms, with the time that it has slept."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """The id of this start of the machine; empty if the system has none."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class NodeClock:
    """The clock of a node; a call returns its time. Thread-safe. ``wall`` and ``passed`` return the
    wall clock and the time since the machine's start, ms; ``boot`` the id of that start."""

    def __init__(
        self,
        wall: Callable[[], int] = wall_clock_ms,
        passed: Callable[[], int] = passed_ms,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._wall = wall
        self._passed = passed
        self._boot = boot()
        self._guard = JumpGuard()
        self._state: StateStore | None = None
        self._noted_ms: int | None = None
        self._proven: Callable[[], int] = lambda: -1

    def __call__(self) -> int:
        """The time, ms since the epoch."""
        # In this order: a thread that is stopped for long between the two calls sees a jump ahead,
        # once. In the other order it would see a step back, which the node would follow.
        passed_ms = self._passed()
        return self._guard.time(self._wall(), passed_ms, self._proven())

    @property
    def ahead_ms(self) -> int:
        """The jump of the wall clock that is not believed, ms; 0 while the clock is believed."""
        self()
        return self._guard.ahead_ms

    def why_not_believed(self) -> str:
        """A text for people on why the wall clock is not believed, with a remedy; else empty."""
        problem, remedy = self._doubt(self())
        return problem and f"{problem}. {remedy}"

    def doubts(self, now_ms: int) -> Overloaded | None:
        """The error with which messages are refused at ``now_ms``, a time of this clock; None while
        they are accepted."""
        problem, remedy = self._doubt(now_ms)
        if not problem:
            return None
        return Overloaded(problem, remedy=f"{NOTHING_STORED} {remedy}; then send again")

    def _doubt(self, now_ms: int) -> tuple[str, str]:
        """The problem with a time that was read, and the remedy; both are empty without one."""
        wall_ms, proven_ms = self._wall(), self._proven()
        if wall_ms - now_ms > JUMP_MS:
            return (
                f"the wall clock says {time_text(wall_ms)}, and the node goes by"
                f" {time_text(now_ms)} and takes nothing new: the clock jumped"
                f" {(wall_ms - now_ms) / JUMP_MS:.1f} h ahead",
                "Set it right or, if it is right now, let the node believe it: 'slotwheel clock"
                " --accept'",
            )
        if not self._guard.stepped_back and proven_ms - now_ms > JUMP_MS:
            return (
                f"the clock says {time_text(now_ms)}, and messages have left until"
                f" {time_text(proven_ms)}, so it is behind, or one was ahead: the node takes"
                " nothing new",
                "Set it right or, if it is right, go on from it: 'slotwheel clock --set-back'",
            )
        return "", ""

    def begin(self, state: StateStore, noted: str) -> None:
        """Go on from ``noted``, which an earlier run since this boot has left in ``state``."""
        boot, _, offset_ms = noted.partition(" ")
        if boot and boot == self._boot:
            self._noted_ms = int(offset_ms)
            self._guard = JumpGuard(self._noted_ms)
        self._state = state

    def follow(self, proven: Callable[[], int]) -> None:
        """Compare the clock with ``proven`` from now on: it returns the latest time, ms, at which
        messages have left. Times read before are forgotten, unless an earlier run has left a note.
        """
        if self._noted_ms is None:
            self._guard = JumpGuard()
        self._proven = proven

    def note(self) -> None:
        """Write the believed offset to the state, if it has moved. Errors: ``OSError``,
        ``SyncFailed``."""
        self()
        offset_ms = self._guard.offset_ms
        if self._state is None or not self._boot or offset_ms is None:
            return
        if self._noted_ms is None or abs(offset_ms - self._noted_ms) >= _NOTED_MS:
            self._state.commit(StateUpdate(clock=f"{self._boot} {offset_ms}"))
            self._noted_ms = offset_ms

    def accept(self) -> None:
        """Believe the wall clock as it is. Errors: as of ``note``."""
        passed_ms = self._passed()
        self._guard.accept(self._wall(), passed_ms)
        self.note()


class OperatedClock:
    """The commands of an operator for a node's clock (``intake.ports.ClockPort``)."""

    def __init__(self, clock: Callable[[], int], wheel: Wheel, events: NodeEvents) -> None:
        self._clock = clock
        self._wheel = wheel
        self._events = events

    def show(self) -> dict[str, Any]:
        now_ms, mark_ms = self._clock(), self._wheel.status().mark_c
        ahead_ms = self._clock.ahead_ms if isinstance(self._clock, NodeClock) else 0
        return {
            "now_ms": now_ms,
            "wall_ms": now_ms + ahead_ms,
            "jumped_ms": ahead_ms,
            "mark_ms": mark_ms,
            "behind_ms": max(0, mark_ms - now_ms),
        }

    def accept(self) -> None:
        if isinstance(self._clock, NodeClock):
            ahead_ms = self._clock.ahead_ms
            self._clock.accept()
            self._events.event("clock-accepted", jumped_ms=ahead_ms)

    def set_back(self) -> None:
        """Set the mark back to the clock. Returns when it is committed, so that no other master,
        and no restart, goes on from the old mark; and when the state has the clock, which is right
        by the word of a person: otherwise a node that is killed before its next note, in the same
        second, would believe a jump to the wrong time from which the mark was set back.

        Errors: ``NotMaster``, ``NotRunning``, ``Overloaded``; and as of ``NodeClock.note``."""
        before_ms = self._wheel.status().mark_c
        for _ in range(_TRIES):
            if self._wheel.set_back(self._clock()):
                if isinstance(self._clock, NodeClock):
                    self._clock.note()
                self._events.event("mark-set-back", from_ms=before_ms, to_ms=self._clock())
                return
            time.sleep(_AGAIN_S)
        if self._wheel.status().mark_c <= self._clock():
            raise NotRunning(
                "the mark that was set back is not committed; whether it will be is not known",
                limit=f"{_TRIES * _AGAIN_S:.0f} s",
                remedy="Try again; '/readyz' says what the journal waits for",
                uncertain=True,
            )
        raise Overloaded(
            "the sink has messages for which it has not answered, so the mark was not set back",
            limit=f"{_TRIES * _AGAIN_S:.0f} s",
            remedy="Nothing was changed. Try again when the sink has answered",
        )

"""Messages in slots of three widths while the clock steps: each leaves once, in its time.

The account is a list of what was sent and cancelled. What must have left by a time follows from it
and from the clock alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import ClockBehind
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.slots.slot import width_s
from support.wheels import NOW, Node

SECOND_MS, HOUR_MS, DAY_MS = 1_000, 3_600_000, 86_400_000
CONFIG = WheelConfig(
    far_horizon_ms=30 * DAY_MS, chunk_rows_max=5, window_bytes_max=1_500, open_handles_max=1
)
AHEAD_MS = [0, 900, 7_200_000, 7_201_000, 3 * HOUR_MS, 2 * DAY_MS, 2 * DAY_MS + 1, 9 * DAY_MS]
STEPS_MS = [
    *(10, SECOND_MS, HOUR_MS, 3 * HOUR_MS, 2 * DAY_MS),
    *(-10, -SECOND_MS, -HOUR_MS, -3 * HOUR_MS, -2 * DAY_MS),
]


@dataclass
class Account:
    """What has to leave. ``due``: by value, of what was sent and is to leave."""

    node: Node
    now_ms: int = NOW
    due: dict[bytes, int] = field(default_factory=dict)
    ids: dict[bytes, MessageId] = field(default_factory=dict)
    left: list[bytes] = field(default_factory=list)
    furthest_ms: int = NOW
    """The latest time by the clock at which messages left."""

    def send(self, ahead_ms: list[int]) -> None:
        first = len(self.ids) + 10_000
        rows = [(self.now_ms + ms, "t", b"%d" % n) for n, ms in enumerate(ahead_ms, first)]
        ids = self.node.ids_of(self.node.send(rows, self.now_ms))
        self.due |= {value: due for due, _, value in rows}
        self.ids |= {row[2]: message_id for row, message_id in zip(rows, ids, strict=True)}

    def cancel(self, number: int) -> None:
        """Cancel a message, whatever became of it. Unknown: it could have left before a restart,
        so it is not stopped."""
        if not self.due:
            return
        value = sorted(self.due)[number % len(self.due)]
        ids = [self.ids[value]]
        [answer] = self.node.blocking(lambda: self.node.wheel.cancel(ids, self.now_ms))
        assert value not in self.left or answer is not CancelAnswer.CANCELLED
        assert value in self.left or answer is not CancelAnswer.DELIVERED
        if answer is CancelAnswer.CANCELLED:
            del self.due[value]

    def spill(self) -> None:
        self.node.wheel.spill(self.now_ms, everything=True)

    def deliver(self) -> None:
        try:
            values = self.node.delivered(self.now_ms)
        except ClockBehind:
            assert self.now_ms < self.furthest_ms
            return
        self.furthest_ms = max(self.furthest_ms, self.now_ms)
        self.left += values
        assert len(set(self.left)) == len(self.left), "twice"
        due_by_now = {value for value, due in self.due.items() if due <= self.now_ms}
        assert due_by_now <= {*self.left}, "not in its time"
        assert {*self.left} <= {*self.due}, "cancelled, or never sent"

    def restart(self, down_ms: int) -> None:
        self.node.mark(self.now_ms)
        self.now_ms += down_ms
        self.node.reopen(self.now_ms)

    def finish(self) -> None:
        """All leave at last, and their files go."""
        self.deliver()
        last_ms = max(message_id.due for message_id in self.ids.values())
        self.now_ms = max(self.now_ms, self.furthest_ms, last_ms) + 3 * DAY_MS
        self.deliver()
        assert sorted(self.left) == sorted(self.due)
        self.node.mark(self.now_ms)
        while self.node.wheel.clean(self.now_ms):
            pass
        assert list(self.node.wheel.stock_point().catalog) == []


several = st.lists(st.sampled_from(AHEAD_MS), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), several),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("spill"), st.none()),
        st.tuples(st.just("step"), st.sampled_from(STEPS_MS)),
        st.tuples(st.just("deliver"), st.none()),
        st.tuples(st.just("restart"), st.sampled_from([0, 3 * DAY_MS])),
    ),
    max_size=15,
)


def run(first: list[int], steps: list[tuple[str, Any]]) -> set[int]:
    """Live a life; returns the widths of the slots that its messages lay in."""
    with tempfile.TemporaryDirectory() as path:
        account = Account(Node(path, CONFIG, NOW))
        widths: set[int] = set()
        try:
            account.send(first)
            for what, detail in steps:
                if what == "send":
                    account.send(detail)
                elif what == "cancel":
                    account.cancel(detail)
                elif what == "spill":
                    account.spill()
                elif what == "step":
                    account.now_ms += detail
                elif what == "deliver":
                    account.deliver()
                else:
                    account.restart(detail)
                widths |= {width_s(slot) for slot in account.node.wheel.stock_point().catalog}
            account.finish()
        finally:
            account.node.close()
    return widths


@settings(max_examples=40)
@given(several, steps)
def test_each_message_leaves_once_and_in_its_time(
    first: list[int], steps: list[tuple[str, Any]]
) -> None:
    run(first, steps)


def test_around_each_spill_the_clock_steps_there_and_back() -> None:
    for step_ms in (HOUR_MS, 3 * HOUR_MS, 2 * DAY_MS):
        for signed in (step_ms, -step_ms):
            shape: list[tuple[str, Any]] = [
                *(("spill", None), ("step", signed), ("send", AHEAD_MS), ("spill", None)),
                *(("cancel", 3), ("deliver", None), ("step", -signed), ("send", AHEAD_MS)),
                *(("cancel", 11), ("spill", None), ("deliver", None)),
                *(("restart", 3 * DAY_MS), ("deliver", None), ("send", AHEAD_MS), ("spill", None)),
            ]
            assert run(AHEAD_MS, shape) == {1, 3_600, 86_400}, signed

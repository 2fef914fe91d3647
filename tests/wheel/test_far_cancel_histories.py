"""Whatever is spilled when, and to files of which widths: who is told *cancelled* is never sent the
message, who is told *already delivered* was sent it, and what can be known is.

The widths are small (conftest), and so is all that is kept in memory: answers come from the tail,
from files of three widths and from records, and after a restart from nothing else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotwheel.wheel import config as wheel_config
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.due import cancels as register
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.mark import BY_TOPICS
from support.wheels import Node, master_of, opened

BEGIN = 1_600_000_000_000
LONG, SHORT = 7_200_000, 6_000
"""What has left is known for so long, ms."""

numbers = st.lists(st.integers(0, 30), min_size=1, max_size=5)
ahead = st.sampled_from([0, 900, 3_000, 3_500, 7_000, 13_000, 20_000, 20_400, 33_000, 60_000])
steps = st.one_of(
    st.tuples(st.just("send"), st.lists(ahead, min_size=1, max_size=4)),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("ask_again"), st.none()),
    st.tuples(st.just("move"), st.tuples(st.integers(0, 30), ahead)),
    st.tuples(st.just("spill"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0, 400, 2_000, 11_000])),
    st.tuples(st.just("reopen"), st.none()),
)


@dataclass
class History:
    """Messages by their number, which is their value, and what became of them."""

    node: Node
    kept_ms: int
    now_ms: int = BEGIN
    ids: list[MessageId] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """What has left before is known, as under exactly-once."""
        master_of(self.node.wheel).resume(self.now_ms, exact=BY_TOPICS)
        self.node.sync()

    def send(self, delays: Sequence[int]) -> None:
        first = len(self.ids)
        rows = [(self.now_ms + ms, "t", b"%d" % n) for n, ms in enumerate(delays, first)]
        self.ids += self.node.ids_of(self.node.send(rows, self.now_ms))

    def cancel(self, numbers: Sequence[int]) -> None:
        asked = [number % len(self.ids) for number in numbers if self.ids]
        if not asked:
            return
        ids = [self.ids[number] for number in asked]
        for number, answer in zip(
            asked, self.node.blocking(lambda: self.node.wheel.cancel(ids, self.now_ms)), strict=True
        ):
            self.check(number, answer)

    def ask_again(self, _: None = None) -> None:
        """About all of which there is an answer by now."""
        pending = self.node.wheel.status().pending
        self.cancel(sorted(self.cancelled | self.delivered))
        assert self.node.wheel.status().pending == pending, "a message was cancelled twice"

    def move(self, which: tuple[int, int]) -> None:
        if not self.ids:
            return
        number, delay = which[0] % len(self.ids), which[1]
        answer, moved = self.node.blocking(
            lambda: self.node.wheel.reschedule(self.ids[number], self.now_ms + delay, self.now_ms)
        )
        was_pending = number not in self.cancelled | self.delivered
        self.check(number, answer)
        assert (moved is not None) is (was_pending and answer is CancelAnswer.CANCELLED)
        if moved is not None:  # its value is that of the old one
            self.ids[number] = moved
            self.cancelled.discard(number)

    def check(self, number: int, answer: CancelAnswer) -> None:
        known = self.ids[number].due > self.now_ms - self.kept_ms
        if answer is CancelAnswer.CANCELLED:
            assert number not in self.delivered, f"{number} was delivered"
            self.cancelled.add(number)
        elif answer is CancelAnswer.DELIVERED:
            assert number in self.delivered, f"{number} was not delivered"
        else:
            assert not known, f"{number} could be known"
            assert number in self.delivered | self.cancelled, f"{number} has not left"

    def spill(self, _: None = None) -> None:
        self.node.wheel.spill(self.now_ms, everything=True)

    def wait(self, ms: int) -> None:
        """Time passes as far as the next message is due, and then on; the node does its work."""
        for now_ms in range(self.now_ms, self.now_ms + ms + 1, 1_000):
            self.now_ms = now_ms
            left = [int(value) for value in self.node.delivered(now_ms)]
            assert not self.cancelled.intersection(left), "a cancelled message left"
            assert not self.delivered.intersection(left), "a message left twice"
            assert all(self.ids[number].due <= now_ms for number in left)
            self.delivered.update(left)
            self.node.mark(now_ms)
            self.node.wheel.clean(now_ms)

    def reopen(self, _: None = None) -> None:
        self.node.mark(self.now_ms)
        self.node.reopen(self.now_ms)
        self.begin()

    def end(self) -> None:
        """All that is left leaves, and no file stays."""
        self.ask_again()
        self.wait(64_000)
        assert self.delivered | self.cancelled == set(range(len(self.ids)))
        assert self.node.wheel.status().pending == 0
        self.spill()
        self.wait(16_000)
        assert not list(self.node.wheel.stock_point().catalog)


def check_history(history: Sequence[tuple[str, object]], kept_ms: int) -> None:
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel_config, "_SHORT_HORIZON_MS", kept_ms)
        config = WheelConfig(
            slots=2, far_horizon_ms=60 * TICK_MS, cancels_remembered_max=3, disk_reserve_bytes=0
        )
        with opened(Path(path), config, BEGIN) as node:
            told = History(node, config.short_horizon_ms)
            told.begin()
            for step, argument in history:
                getattr(told, step)(argument)
            told.end()


@pytest.fixture(autouse=True)
def little_memory(small_widths: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "_SECONDS_MAX", 4)
    monkeypatch.setattr(register, "_NEAR_SECONDS", 3)


common = settings(suppress_health_check=list(HealthCheck), database=None, print_blob=True)
histories = given(st.lists(steps, max_size=40), st.sampled_from([LONG, SHORT]))


@settings(common, derandomize=True, max_examples=50)
@histories
def test_answers_are_true(history: list[tuple[str, object]], kept_ms: int) -> None:
    check_history(history, kept_ms)


@pytest.mark.soak
@settings(common, max_examples=int(os.environ.get("SLOTWHEEL_SOAK_EXAMPLES", "2000")))
@histories
def test_answers_are_true_for_long(history: list[tuple[str, object]], kept_ms: int) -> None:
    check_history(history, kept_ms)

"""Cancels without a pause, and an account of what each answer was worth.

A client sends messages that are due within seconds; another one cancels nearly all of them, batch
by batch, at random ages: long before they are due, while they are on their way, behind it. Some are
rescheduled instead. Each message's value is its number, so what arrives shows which answers were
true: what is *cancelled* never arrives under that id, what is *already delivered* has arrived.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from slotwheel.client import Client, Receipts
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import from_columns
from support.chaosaccount import Arrival
from support.waiting import now_ms

_ROWS = 200
_ASKED_WITHIN_S = 6.0
"""After it was sent: from long before it is due to behind it."""
_MOVES = 2
_ASKERS = 4
"""A cancel of what a sink has in hand waits for the sink; others go on meanwhile."""
Sent = tuple[int, int]
"""A message's number, and the offset of the id it was asked for by."""


@dataclass
class Truth:
    """What the answers were worth. ``counts``: how often each was given."""

    counts: Counter[str]
    cancelled_and_arrived: set[Sent]
    delivered_and_missing: set[Sent]
    lost: set[int]
    """Numbers with a receipt that nobody was told to be cancelled, and that never arrived."""
    arrived_under_two: set[int]
    """Rescheduled numbers that arrived under the old id and the new one."""

    def line(self) -> str:
        told = ", ".join(f"{count} {answer}" for answer, count in sorted(self.counts.items()))
        return (
            f"{self.counts.total()} cancels ({told}): {len(self.cancelled_and_arrived)} cancelled"
            f" and delivered, {len(self.delivered_and_missing)} delivered and missing,"
            f" {len(self.lost)} lost, {len(self.arrived_under_two)} delivered twice by a move"
        )

    def check(self) -> None:
        assert not self.cancelled_and_arrived
        assert not self.delivered_and_missing
        assert not self.lost
        assert not self.arrived_under_two
        # A node that says unknown to everything would pass as well.
        assert self.counts["cancelled"] > self.counts.total() / 100


@dataclass
class CancelLoad:
    """``rate`` messages a second from construction on, until ``stop``."""

    addresses: str
    topics: list[str]
    rng: Random
    rate: float = 2000
    ahead_ms: int = 4000
    counts: Counter[str] = field(default_factory=Counter)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._reach: list[tuple[float, int, Receipts]] = []
        """When to ask for a batch, its first number, its receipts."""
        self._receipts: list[Receipts] = []
        self._answers: dict[Sent, str] = {}
        self._moved: dict[int, str] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._sender = Client(self.addresses, timeout_s=90)
        self._asker = Client(self.addresses, timeout_s=10)
        self._threads = [
            threading.Thread(target=self._guard, args=(step, pause_s), daemon=True)
            for step, pause_s in ((self._send, _ROWS / self.rate), *[(self._ask, 0.01)] * _ASKERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def asked(self) -> int:
        return self.counts.total()

    def stop(self) -> None:
        """Ends when every receipt and answer is there. Errors: those of the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]
        self._sender.flush(120)
        self._sender.close()
        self._asker.close()

    def wanted(self) -> set[int]:
        """Numbers that have to arrive under some id."""
        gone = {number for (number, _), answer in self._answers.items() if answer != "delivered"}
        gone |= self._moved.keys()
        return set(range(self._sent)) - gone

    def truth(self, arrivals: Iterable[Arrival]) -> Truth:
        """Hold all answers against what arrived, everywhere and under whatever id."""
        found = {(one.number, one.offset) for one in arrivals}
        numbers = {number for number, _ in found}
        cancelled = {one for one, answer in self._answers.items() if answer == "cancelled"}
        delivered = {one for one, answer in self._answers.items() if answer == "already delivered"}
        offsets: dict[int, set[int]] = {}
        for number, offset in found:
            offsets.setdefault(number, set()).add(offset)
        return Truth(
            self.counts,
            cancelled & found,
            delivered - found,
            self.wanted() - numbers,
            {number for number in self._moved if len(offsets.get(number, ())) > 1},
        )

    def _guard(self, step: Callable[[], None], pause_s: float) -> None:
        try:
            while not self._stop.wait(pause_s):
                step()
        except BaseException as error:
            self._failures.append(error)

    def _send(self) -> None:
        first, now = self._sent, now_ms()
        numbers = range(first, first + _ROWS)
        nothing = [None] * _ROWS
        batch = from_columns(
            [now + self.rng.randint(0, self.ahead_ms) for _ in numbers],
            [self.topics[number % len(self.topics)] for number in numbers],
            nothing,
            nothing,
            [b"%d" % number for number in numbers],
            [()] * _ROWS,
        )
        receipts = self._sender.send_table(batch)
        self._sent += _ROWS
        self._receipts.append(receipts)
        with self._lock:
            ask_s = time.monotonic() + self.rng.uniform(0, _ASKED_WITHIN_S)
            self._reach.append((ask_s, first, receipts))

    def _ask(self) -> None:
        with self._lock:
            chosen = min(self._reach, default=None, key=lambda one: one[0])
            if chosen is None or chosen[0] > time.monotonic() or not chosen[2].done():
                return
            self._reach.remove(chosen)
        _, first, receipts = chosen
        assert not receipts.errors(), receipts.errors()
        ids = [receipts[row].id for row in range(len(receipts))]
        rows = self.rng.sample(range(len(ids)), len(ids))
        for row in rows[:_MOVES]:
            self._move(first + row, ids[row])
        asked = rows[_MOVES : -len(ids) // 10]  # and a tenth is left alone
        try:
            answers = self._asker.cancel([ids[row] for row in asked])
        except SlotwheelError as error:
            answers = [f"no answer ({error.code})"] * len(asked)
        for row, answer in zip(asked, answers, strict=True):
            self._note(first + row, ids[row], answer)

    def _move(self, number: int, id_: str) -> None:
        due = now_ms() + self.rng.randint(0, self.ahead_ms)
        try:
            answer, moved = self._asker.reschedule(id_, due=due)
        except SlotwheelError as error:
            answer, moved = f"no answer ({error.code})", None
        self._note(number, id_, answer)
        if moved is not None:
            self._moved[number] = moved

    def _note(self, number: int, id_: str, answer: str) -> None:
        with self._lock:
            self.counts[answer] += 1
        self._answers[number, MessageId.parse(id_).offset] = answer

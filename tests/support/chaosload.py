"""What a client asks of a group in trouble, and what it was promised.

Theory: every message's value is its number. What became of a number is known from the client's
answers alone: its receipt, and the answers to its cancel or reschedule. From these follows which
ids must arrive, which may, and which must not; `support.chaosaccount` holds that against the
topics.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

import numpy as np

from slotwheel.client import Client, Receipts
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import Int64s
from support.waiting import now_ms

BATCH_ROWS = 100
LATE_SHARE = 0.02
LATE_MAX_MS = 5_000
_MEDDLE_EVERY_S = 0.4
_CANCELS, _MOVES = 6, 2
_CALM_MS = 1_500
"""What is due sooner than this is cancelled now and then; the others are meant to be in time."""


class Fate(Enum):
    CANCELLED = "its cancel was confirmed: it must not arrive"
    UNCERTAIN = "its cancel got no certain answer: it may arrive"
    MOVED = "rescheduled: it must arrive under its new id, and not under the old one"
    MAYBE_MOVED = "no answer: it must arrive under one of the two"


@dataclass(frozen=True)
class Meddled:
    """``due`` and ``offset``: of the new id, if it was rescheduled; offset -1 if not known."""

    fate: Fate
    due: int = -1
    offset: int = -1


@dataclass(frozen=True)
class Promised:
    """By number, shape (messages,). ``offset`` -1: no receipt, so nothing was promised."""

    due: Int64s
    offset: Int64s
    meddled: dict[int, Meddled] = field(default_factory=dict)
    errors: Sequence[str] = ()

    @property
    def refused(self) -> int:
        return int(np.count_nonzero(self.offset < 0))

    def count(self, fate: Fate) -> int:
        return sum(one.fate is fate for one in self.meddled.values())

    def wanted(self) -> int:
        """Numbers that have to arrive."""
        free = self.count(Fate.CANCELLED) + self.count(Fate.UNCERTAIN)
        return len(self.due) - self.refused - free


class ChaosLoad:
    """``rate`` messages a second from construction on, until ``stop``. ``ahead_ms``: how far in
    the future they are due, at most."""

    def __init__(
        self,
        addresses: str,
        topics: Sequence[str],
        rng: Random,
        *,
        rate: float,
        ahead_ms: int,
    ) -> None:
        self._topics = topics
        self._rng = rng
        self._every_s = BATCH_ROWS / rate
        self._ahead_ms = ahead_ms
        self._due: list[int] = []
        self._receipts: list[Receipts] = []
        self._recent: deque[tuple[int, Receipts]] = deque(maxlen=200)
        self._meddled: dict[int, Meddled] = {}
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._sender = Client(addresses, timeout_s=60)
        self._asker = Client(addresses, timeout_s=20)
        self._threads = [
            threading.Thread(target=self._guard, args=(step, wait_s), daemon=True)
            for step, wait_s in ((self._send, self._every_s), (self._meddle, _MEDDLE_EVERY_S))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def sent(self) -> int:
        return len(self._due)

    def stop(self) -> Promised:
        """Stop, and wait until every answer is there. Errors: those of the threads."""
        self._ending.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]
        self._sender.flush(90)
        self._sender.close()
        self._asker.close()
        offsets = [receipts.offsets(0) for receipts in self._receipts]
        errors = [str(error) for one in self._receipts for error in one.errors().values()]
        return Promised(
            np.array(self._due, np.int64),
            np.concatenate(offsets) if offsets else np.zeros(0, np.int64),
            self._meddled,
            errors,
        )

    def _guard(self, step: Callable[[], None], wait_s: float) -> None:
        try:
            next_s = time.monotonic()
            while not self._ending.wait(max(0.0, next_s - time.monotonic())):
                step()
                # After a time of trouble it goes on at its pace, and does not catch up.
                next_s = max(next_s + wait_s, time.monotonic() - wait_s)
        except BaseException as error:
            self._failures.append(error)

    def _send(self) -> None:
        first, now = len(self._due), now_ms()
        numbers = range(first, first + BATCH_ROWS)
        due = [self._when(now) for _ in numbers]
        nothing = [None] * BATCH_ROWS
        batch = from_columns(
            due,
            [self._topics[number % len(self._topics)] for number in numbers],
            nothing,
            [b"key %d" % (number % 50) for number in numbers],
            [b"%d" % number for number in numbers],
            [()] * BATCH_ROWS,
        )
        receipts = self._sender.send_table(batch)
        self._due += due
        self._receipts.append(receipts)
        self._recent.append((first, receipts))

    def _when(self, now: int) -> int:
        if self._rng.random() < LATE_SHARE:
            return now - self._rng.randint(1, LATE_MAX_MS)
        return now + self._rng.randint(0, self._ahead_ms)

    def _meddle(self) -> None:
        if not self._recent:
            return
        rng = self._rng
        first, receipts = rng.choice(list(self._recent))
        if not receipts.done() or receipts.errors():
            return
        due, now = receipts.due_ms, now_ms()
        earliest = now - 300 if rng.random() < 0.2 else now + _CALM_MS
        rows = np.flatnonzero(due > earliest).tolist()
        rows = [row for row in rows if first + row not in self._meddled]
        chosen = rng.sample(rows, min(len(rows), _CANCELS + _MOVES))
        self._cancel(first, receipts, chosen[_MOVES:])
        for row in chosen[:_MOVES]:
            self._move(first + row, receipts[row].id)

    def _cancel(self, first: int, receipts: Receipts, rows: Sequence[int]) -> None:
        if not rows:
            return
        try:
            answers = self._asker.cancel([receipts[row].id for row in rows])
        except SlotwheelError:
            answers = ["unknown"] * len(rows)
        for row, answer in zip(rows, answers, strict=True):
            if answer == "cancelled":
                self._meddled[first + row] = Meddled(Fate.CANCELLED)
            elif answer != "already delivered":  # that one is a promise, too
                self._meddled[first + row] = Meddled(Fate.UNCERTAIN)

    def _move(self, number: int, id_: str) -> None:
        due = now_ms() + self._rng.randint(0, self._ahead_ms)
        try:
            answer, moved = self._asker.reschedule(id_, due=due)
        except SlotwheelError:
            self._meddled[number] = Meddled(Fate.MAYBE_MOVED, due)
            return
        if moved is not None:
            self._meddled[number] = Meddled(Fate.MOVED, due, MessageId.parse(moved).offset)
        elif answer != "already delivered":
            self._meddled[number] = Meddled(Fate.MAYBE_MOVED, due)

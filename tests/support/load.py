"""Clients that send numbered messages without a pause, and what they were promised.

Theory: every message's value is its number. What became of a number is known from the client's
answers alone: its receipt, and the answers to its cancel or reschedule. From these follows which
ids must arrive, which may, and which must not; `support.chaosaccount` and `support.killing` hold
that against the topics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from slotwheel.client import Client, Message, Receipts
from slotwheel.wheel.schema import Int64s
from support.waiting import PATIENCE_S, now_ms
from support.wheels import batch

STEADY_MS = 4
"""Between two messages of a steady stream."""
AHEAD_MS = 3_000
_STEADY_ROWS = 50
When = Callable[[range], Sequence[int]]
"""The due times of the messages with these numbers, which are about to be sent."""


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

    @property
    def refused(self) -> int:
        return int(np.count_nonzero(self.offset < 0))

    def count(self, fate: Fate) -> int:
        return sum(one.fate is fate for one in self.meddled.values())

    def wanted(self) -> set[int]:
        """Numbers that have to arrive, under one id or another."""
        wanted = set(np.flatnonzero(self.offset >= 0).tolist())
        for number, one in self.meddled.items():
            if one.fate is Fate.MOVED:
                wanted.add(number)
            elif one.fate in (Fate.CANCELLED, Fate.UNCERTAIN):
                wanted.discard(number)
        return wanted


class Load:
    """Sends batches of ``rows`` messages every ``every_s`` from construction on, until ``stop``.

    ``catches_up``: what a time of trouble has delayed is sent at once behind it; else it goes on at
    its pace. ``receipts``: where the client keeps what it was promised.
    """

    def __init__(
        self,
        addresses: str,
        topics: Sequence[str],
        when: When,
        *,
        rows: int,
        every_s: float,
        catches_up: bool = False,
        receipts: Path | None = None,
    ) -> None:
        self.due: list[int] = []
        """Due time of each message, by its number."""
        self.receipts: list[Receipts] = []
        self._topics = topics
        self._when = when
        self._rows = rows
        self._client = Client(addresses, timeout_s=PATIENCE_S, receipts=receipts)
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._send, every_s, catches_up)

    def _begin(self, step: Callable[[], None], every_s: float, catches_up: bool = False) -> None:
        """Do that again and again in a thread of its own, until the end."""

        def run() -> None:
            next_s = time.monotonic()
            try:
                while not self._ending.wait(max(0.0, next_s - time.monotonic())):
                    step()
                    earliest_s = 0.0 if catches_up else time.monotonic() - every_s
                    next_s = max(next_s + every_s, earliest_s)
            except BaseException as error:
                self._failures.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def stop(self) -> Promised:
        """Stop, and wait until every answer is there. Errors: those of the threads."""
        self._ending.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]
        self._client.flush(PATIENCE_S)
        self._client.close()
        errors = [str(error) for one in self.receipts for error in one.errors().values()]
        assert not errors, errors[:3]
        offsets = [np.zeros(0, np.int64), *(receipts.offsets(0) for receipts in self.receipts)]
        return Promised(np.array(self.due, np.int64), np.concatenate(offsets))

    def _send(self) -> None:
        numbers = range(len(self.due), len(self.due) + self._rows)
        due = self._when(numbers)
        names = [self._topics[number % len(self._topics)] for number in numbers]
        values = [b"%d" % number for number in numbers]
        self.receipts.append(
            self._client.send_table(batch(list(zip(due, names, values, strict=True))))
        )
        self.due += due


def steady(addresses: str, topics: Sequence[str], every_ms: int = STEADY_MS) -> Load:
    """Message ``n`` is due ``AHEAD_MS + n * every_ms`` after it began. So whatever happens to the
    way in, something is due all the time, and a gap between arrivals is a gap in delivery."""
    first_ms = now_ms() + AHEAD_MS

    def when(numbers: range) -> Sequence[int]:
        return [first_ms + number * every_ms for number in numbers]

    every_s = _STEADY_ROWS * every_ms / 1000
    return Load(addresses, topics, when, rows=_STEADY_ROWS, every_s=every_s, catches_up=True)


def messages(topic: str, count: int, first_ms: int, last_ms: int) -> list[Message]:
    """Due evenly over that time, each with its number as the value."""
    return [
        Message(
            topic, b"%d" % n, b"key-%d" % (n % 50), due=first_ms + (last_ms - first_ms) * n // count
        )
        for n in range(count)
    ]

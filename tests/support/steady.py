"""A steady stream of due messages, and the silences in it: how long nobody delivered.

Messages are due one every few milliseconds, and are handed in some seconds before. So whatever
happens to the way in, something is due all the time, and a gap between two arrivals is a gap in
delivery.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from slotwheel.client import Client, Receipts
from slotwheel.wheel.rows import from_columns
from support.chaosaccount import Arrival
from support.chaosload import Promised
from support.waiting import now_ms

EVERY_MS = 4
AHEAD_MS = 3_000
_ROWS = 50


class Steady:
    """Sends from construction on until ``stop``: message ``n`` is due ``n * EVERY_MS`` after it
    began. The first ones are due ``AHEAD_MS`` later."""

    def __init__(self, addresses: str, topics: Sequence[str]) -> None:
        self._client = Client(addresses, timeout_s=60)
        self._topics = topics
        self._due: list[int] = []
        self._receipts: list[Receipts] = []
        self._next_ms = now_ms() + AHEAD_MS
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> Promised:
        """Stop, and wait for every receipt; messages stay due for ``AHEAD_MS``."""
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        self._client.flush(60)
        self._client.close()
        errors = [str(error) for one in self._receipts for error in one.errors().values()]
        assert not errors, errors[:3]
        offsets = [receipts.offsets(0) for receipts in self._receipts]
        return Promised(np.array(self._due, np.int64), np.concatenate(offsets))

    def _run(self) -> None:
        try:
            while not self._ending.wait(max(0.0, (self._next_ms - AHEAD_MS - now_ms()) / 1000)):
                self._send()
        except BaseException as error:
            self._failure = error

    def _send(self) -> None:
        first = len(self._due)
        numbers = range(first, first + _ROWS)
        due = [self._next_ms + row * EVERY_MS for row in range(_ROWS)]
        nothing = [None] * _ROWS
        batch = from_columns(
            due,
            [self._topics[number % len(self._topics)] for number in numbers],
            nothing,
            nothing,
            [b"%d" % number for number in numbers],
            [()] * _ROWS,
        )
        self._receipts.append(self._client.send_table(batch))
        self._due += due
        self._next_ms += _ROWS * EVERY_MS


def next_after(arrivals: Iterable[Arrival], at_ms: int) -> int | None:
    """How long after ``at_ms`` something arrived again, in ms."""
    later = [one.at_ms for one in arrivals if one.at_ms > at_ms]
    return min(later) - at_ms if later else None


def longest_gap(arrivals: Iterable[Arrival], begin_ms: int, end_ms: int) -> int:
    """The longest time between two arrivals that follow each other, in ms."""
    inside = sorted(one.at_ms for one in arrivals if begin_ms <= one.at_ms <= end_ms)
    assert len(inside) > 1
    return max(later - one for one, later in itertools.pairwise(inside))

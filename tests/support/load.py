"""A client that sends numbered messages without a pause, cancels and reschedules some of them, and
keeps what it was told of each.

Theory: every message's value is its number. What became of a number is known from the client's
answers alone: its receipt, and the answers to its cancel or reschedule. From these follows which
ids must arrive, which may, and which must not (`support.promises`). For example, a message whose
cancel got no answer may arrive, one with *cancelled* must not, and one with *already delivered*
must, for that is a promise, too.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from slotwheel.client import Client, Message, Receipts
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.ids import MessageId
from support.promises import Fate, Meddled, Promised
from support.waiting import PATIENCE_S, now_ms
from support.wheels import batch

STEADY_MS = 4
"""Between two messages of a steady stream."""
AHEAD_MS = 3_000
_STEADY_ROWS = 50
NEARLY_ALL = 178
"""Cancels of a batch of 200 messages, of which two more are moved: a tenth is left alone."""
When = Callable[[range], Sequence[int]]
"""The due times of the messages with these numbers, which are about to be sent."""
Id = tuple[int, int]
"""A message's number, and the offset of the id that it was asked for by."""


@dataclass(frozen=True)
class Asks:
    """Each batch is asked about once, at a random moment within ``within_s`` of its sending: long
    before its messages are due, while they are on their way, or behind it. So many of its messages
    are cancelled (``cancels``) and rescheduled (``moves``), to within ``ahead_ms`` of that moment.
    """

    rng: Random
    cancels: int
    moves: int = 2
    within_s: float = 6.0
    ahead_ms: int = 4_000
    askers: int = 4
    """A cancel of what a sink has in hand waits for the sink; others go on meanwhile."""


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
        asks: Asks | None = None,
    ) -> None:
        self.due: list[int] = []
        """Due time of each message, by its number."""
        self.receipts: list[Receipts] = []
        self.counts: Counter[str] = Counter()
        """How often each answer to a cancel or reschedule was given."""
        self.ids: dict[Id, str] = {}
        """The id of each message that was cancelled or moved, and of what a move has made."""
        self.told: defaultdict[Id, list[str]] = defaultdict(list)
        """Every answer about each of them, in their order; none where no answer came."""
        self._topics = topics
        self._when = when
        self._rows = rows
        self._addresses = addresses
        self._meddled: dict[int, Meddled] = {}
        self._to_ask: list[tuple[float, int]] = []
        """When to ask for which batch."""
        self._lock = threading.Lock()
        self._client = Client(addresses, timeout_s=PATIENCE_S, receipts=receipts)
        self._asker = Client(addresses, timeout_s=20)
        self._ending = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._asks = asks
        self._begin(self._send, every_s, catches_up)
        for _ in range(asks.askers if asks else 0):
            self._begin(self._ask, 0.01)

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
        self._asker.close()
        errors = [str(error) for one in self.receipts for error in one.errors().values()]
        assert not errors, errors[:3]
        offsets = [np.zeros(0, np.int64), *(receipts.offsets(0) for receipts in self.receipts)]
        due = np.array(self.due, np.int64)
        return Promised(due, np.concatenate(offsets), self._meddled, self._topics)

    @property
    def asked(self) -> int:
        """How many answers to cancels and reschedules there are."""
        return self.counts.total()

    def ask_again(self) -> Counter[str]:
        """Cancel once more all ids that were asked for, and those that were made by a move, once
        all of them have left or were cancelled; how often each answer was given."""
        asked = list(self.ids)
        with Client(self._addresses, timeout_s=60) as client:
            answers = client.cancel([self.ids[key] for key in asked])
        for key, answer in zip(asked, answers, strict=True):
            self.told[key].append(answer)
        return Counter(answers)

    @property
    def contradictions(self) -> list[tuple[str, list[str]]]:
        """Ids with answers that contradict each other. *Unknown* contradicts none."""
        return [
            (self.ids[key], answers)
            for key, answers in self.told.items()
            if len({*answers} - {"unknown"}) > 1
        ]

    def _rows_of(self, numbers: range, due: Sequence[int]) -> pa.RecordBatch:
        names = [self._topics[number % len(self._topics)] for number in numbers]
        values = [b"%d" % number for number in numbers]
        return batch(list(zip(due, names, values, strict=True)))

    def _send(self) -> None:
        numbers = range(len(self.due), len(self.due) + self._rows)
        due = self._when(numbers)
        self.receipts.append(self._client.send_table(self._rows_of(numbers, due)))
        self.due += due
        if self._asks is not None:
            ask_s = time.monotonic() + self._asks.rng.uniform(0, self._asks.within_s)
            with self._lock:
                self._to_ask.append((ask_s, len(self.receipts) - 1))

    def _ask(self) -> None:
        assert self._asks is not None
        with self._lock:
            chosen = min(self._to_ask, default=None)
            if chosen is None or chosen[0] > time.monotonic():
                return
            receipts, first = self.receipts[chosen[1]], chosen[1] * self._rows
            if not receipts.done():
                return
            self._to_ask.remove(chosen)
        assert not receipts.errors(), receipts.errors()
        moves, cancels = self._asks.moves, self._asks.cancels
        rows = self._asks.rng.sample(range(self._rows), moves + cancels)
        for row in rows[:moves]:
            self._move(first + row, receipts[row].id)
        ids = {row: receipts[row].id for row in rows[moves:]}
        try:
            answers = self._asker.cancel(list(ids.values()))
        except SlotwheelError as error:
            answers = [f"no answer ({error.code})"] * cancels
        for (row, id_), answer in zip(ids.items(), answers, strict=True):
            fate = Fate.CANCELLED if answer == "cancelled" else Fate.UNCERTAIN
            self._note(first + row, id_, answer, Meddled(fate))

    def _move(self, number: int, id_: str) -> None:
        assert self._asks is not None
        due = now_ms() + self._asks.rng.randint(0, self._asks.ahead_ms)
        try:
            answer, moved = self._asker.reschedule(id_, due=due)
        except SlotwheelError as error:
            answer, moved = f"no answer ({error.code})", None
        if moved is None:
            self._note(number, id_, answer, Meddled(Fate.MAYBE_MOVED, due))
            return
        offset = MessageId.parse(moved).offset
        self._note(number, id_, answer, Meddled(Fate.MOVED, due, offset))
        self.ids[number, offset] = moved

    def _note(self, number: int, id_: str, answer: str, meddled: Meddled) -> None:
        """Book a message's first answer. *Already delivered* leaves it as it was promised: a node
        that said so and did not deliver it would else pass."""
        key = number, MessageId.parse(id_).offset
        with self._lock:
            self.counts[answer] += 1
            self.ids[key] = id_
            if not answer.startswith("no answer"):
                self.told[key].append(answer)
            if answer != "already delivered":
                self._meddled[number] = meddled


def soon(rng: Random, ahead_ms: int, late_share: float = 0.0) -> When:
    """Each is due within ``ahead_ms`` of its sending; of a share of them the time is over, since
    up to five seconds."""

    def due(now: int) -> int:
        if rng.random() < late_share:
            return now - rng.randint(1, 5_000)
        return now + rng.randint(0, ahead_ms)

    def when(numbers: range) -> Sequence[int]:
        now = now_ms()
        return [due(now) for _ in numbers]

    return when


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

"""Cancels without a pause, and an account of what each answer was worth.

A client sends messages that are due within seconds; another one cancels nearly all of them, batch
by batch, at random ages: long before they are due, while they are on their way, behind it. Some are
rescheduled instead. Each message's value is its number, so what arrives shows which answers were
true: what is *cancelled* never arrives under that id, what is *already delivered* has arrived.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from slotwheel.client import Client
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.ids import MessageId
from support.chaosaccount import Arrival
from support.load import Load, Promised
from support.waiting import now_ms

_ROWS = 200
AHEAD_MS = 4_000
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


class CancelLoad(Load):
    """``rate`` messages a second, nearly all of which it cancels."""

    def __init__(
        self, addresses: str, topics: Sequence[str], rng: Random, rate: float = 2000
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._to_ask: list[tuple[float, int]] = []
        """When to ask for which batch."""
        self._answers: dict[Sent, str] = {}
        self.ids: dict[Sent, str] = {}
        """Of all that was asked for."""
        self.told: defaultdict[Sent, list[str]] = defaultdict(list)
        """Every answer about each of them, in their order; none where no answer came."""
        self._moved: dict[int, str] = {}
        self._lock = threading.Lock()
        self._addresses = addresses
        self._asker = Client(addresses, timeout_s=10)
        super().__init__(addresses, topics, self._soon, rows=_ROWS, every_s=_ROWS / rate)
        for _ in range(_ASKERS):
            self._begin(self._ask, 0.01)

    @property
    def asked(self) -> int:
        return self.counts.total()

    def stop(self) -> Promised:
        promised = super().stop()
        self._asker.close()
        return promised

    def ask_again(self) -> Counter[str]:
        """Ask once more for all ids that were asked for, and for those that were made by a move,
        once all of them have left or were cancelled; how often each answer was given."""
        for number, moved in self._moved.items():
            self.ids.setdefault((number, MessageId.parse(moved).offset), moved)
        asked = list(self.ids)
        with Client(self._addresses, timeout_s=60) as client:
            answers = client.cancel([self.ids[one] for one in asked])
        for one, answer in zip(asked, answers, strict=True):
            self.told[one].append(answer)
        return Counter(answers)

    @property
    def contradictions(self) -> list[tuple[str, list[str]]]:
        """Ids with answers that contradict each other. *Unknown* contradicts none."""
        return [
            (self.ids[one], answers)
            for one, answers in self.told.items()
            if len({*answers} - {"unknown"}) > 1
        ]

    def wanted(self) -> set[int]:
        """Numbers that have to arrive under some id."""
        gone = {number for (number, _), answer in self._answers.items() if answer != "delivered"}
        gone |= self._moved.keys()
        return set(range(len(self.due))) - gone

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

    def _soon(self, numbers: range) -> Sequence[int]:
        now = now_ms()
        return [now + self._rng.randint(0, AHEAD_MS) for _ in numbers]

    def _send(self) -> None:
        super()._send()
        with self._lock:
            ask_s = time.monotonic() + self._rng.uniform(0, _ASKED_WITHIN_S)
            self._to_ask.append((ask_s, len(self.receipts) - 1))

    def _ask(self) -> None:
        with self._lock:
            chosen = min(self._to_ask, default=None)
            if chosen is None or chosen[0] > time.monotonic():
                return
            receipts, first = self.receipts[chosen[1]], chosen[1] * _ROWS
            if not receipts.done():
                return
            self._to_ask.remove(chosen)
        assert not receipts.errors(), receipts.errors()
        ids = [receipts[row].id for row in range(len(receipts))]
        rows = self._rng.sample(range(len(ids)), len(ids))
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
        due = now_ms() + self._rng.randint(0, AHEAD_MS)
        try:
            answer, moved = self._asker.reschedule(id_, due=due)
        except SlotwheelError as error:
            answer, moved = f"no answer ({error.code})", None
        self._note(number, id_, answer)
        if moved is not None:
            self._moved[number] = moved

    def _note(self, number: int, id_: str, answer: str) -> None:
        one = number, MessageId.parse(id_).offset
        with self._lock:
            self.counts[answer] += 1
        self._answers[one], self.ids[one] = answer, id_
        if not answer.startswith("no answer"):
            self.told[one].append(answer)

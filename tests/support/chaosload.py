"""A client that cancels and reschedules some of what it sends to a group in trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from slotwheel.client import Client, Receipts
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.ids import MessageId
from support.load import Fate, Load, Meddled, Promised
from support.waiting import now_ms

BATCH_ROWS = 100
LATE_SHARE = 0.02
LATE_MAX_MS = 5_000
_MEDDLE_EVERY_S = 0.4
_RECENT = 200
"""Batches of which messages are chosen."""
_CANCELS, _MOVES = 6, 2
_CALM_MS = 1_500
"""What is due sooner than this is cancelled now and then; the others are meant to be in time."""


class ChaosLoad(Load):
    """``rate`` messages a second. ``ahead_ms``: how far in the future they are due, at most."""

    def __init__(
        self,
        addresses: str,
        topics: Sequence[str],
        rng: Random,
        *,
        rate: float,
        ahead_ms: int,
    ) -> None:
        self._rng = rng
        self._ahead_ms = ahead_ms
        self._meddled: dict[int, Meddled] = {}
        self._asker = Client(addresses, timeout_s=20)
        super().__init__(addresses, topics, self._soon, rows=BATCH_ROWS, every_s=BATCH_ROWS / rate)
        self._begin(self._meddle, _MEDDLE_EVERY_S)

    def stop(self) -> Promised:
        promised = super().stop()
        self._asker.close()
        return replace(promised, meddled=self._meddled)

    def _soon(self, numbers: range) -> Sequence[int]:
        now = now_ms()
        return [self._due_from(now) for _ in numbers]

    def _due_from(self, now: int) -> int:
        if self._rng.random() < LATE_SHARE:
            return now - self._rng.randint(1, LATE_MAX_MS)
        return now + self._rng.randint(0, self._ahead_ms)

    def _meddle(self) -> None:
        rng, count = self._rng, len(self.receipts)
        if not count:
            return
        chosen_batch = rng.randrange(max(0, count - _RECENT), count)
        first, receipts = chosen_batch * BATCH_ROWS, self.receipts[chosen_batch]
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

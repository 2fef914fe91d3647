"""Callers that use the same names at once, and a model that reads nothing but their answers.

Each message's value is its number. What a caller was told of the message that had the name before
decides what must become of that one; whatever got no certain answer may go either way, and so may
every message that it may have replaced.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from slotwheel import Client, Message, SlotwheelError
from slotwheel.client.predecessor import Predecessor
from slotwheel.wheel.answers import Before, CancelAnswer
from slotwheel.wheel.errors import NameTaken
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.names import IfExists
from support.promises import Fate, Meddled, Promised
from support.waiting import now_ms


@dataclass
class NamedNumber:
    """A message as its caller knows it; times in ms."""

    name: str
    due: int
    sent_ms: int
    answered_ms: int = 0
    id: str = ""
    before: Predecessor | None = None
    error: SlotwheelError | None = None


class NameCallers:
    """``callers`` threads, each with a client, that send to ``topic`` under ``names`` names, in
    batches of ``rows`` and one by one, and cancel by name, until ``operations`` were answered or
    ``stop``. Messages are due in ``ahead_ms`` at most."""

    def __init__(
        self,
        addresses: str,
        topic: str,
        *,
        names: int,
        ahead_ms: int,
        rows: int = 20,
        callers: int = 8,
        seed: int = 0,
    ) -> None:
        self.answers: Counter[str] = Counter()
        self._addresses, self._topic, self._rows = addresses.split(","), topic, rows
        self._names = [f"order-{number}" for number in range(names)]
        self._ahead_ms = ahead_ms
        self._all: list[NamedNumber] = []
        self._cancelled: list[tuple[str, str, int]] = []
        """Answer, id and time of cancels by name."""
        self._cancels_in_doubt: set[str] = set()
        """Names of which a cancel got no certain answer."""
        self._failed: list[BaseException] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[Random(seed * 100 + number)])
            for number in range(callers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def operations(self) -> int:
        """Messages and cancels that have an answer."""
        return self.answers.total()

    def _run(self, rng: Random) -> None:
        try:
            with Client(self._addresses, timeout_s=60.0) as client:
                while not self._stop.is_set():
                    kind = rng.random()
                    if kind < 0.2:
                        self._cancel(client, rng.choice(self._names))
                    else:
                        self._send(client, rng, 1 if kind < 0.6 else self._rows)
        except BaseException as error:
            self._failed.append(error)

    def _send(self, client: Client, rng: Random, count: int) -> None:
        # A name once a batch: a refused row refuses all of them, for what is its own fault.
        names = rng.sample(self._names, count)
        mode = rng.choice(list(IfExists))
        sent_ms = now_ms()
        sent = [
            NamedNumber(name, sent_ms + rng.randint(100, self._ahead_ms), sent_ms) for name in names
        ]
        with self._lock:
            first = len(self._all)
            self._all += sent
        messages = [
            Message(
                self._topic,
                b"%d" % (first + number),
                due=one.due,
                name=one.name,
                if_exists=mode,
            )
            for number, one in enumerate(sent)
        ]
        for one, receipt in zip(sent, client.send_many(messages), strict=True):
            try:
                one.before = receipt.before
                one.id = receipt.id
                if one.before is not None and one.before.dropped_id:
                    one.id = one.before.dropped_id
                what = "stored" if one.before is None else one.before.what
            except SlotwheelError as error:
                one.error = error
                what = "refused" if isinstance(error, NameTaken) else "in doubt"
                what = what if error.uncertain or what == "refused" else "not stored"
            one.answered_ms = now_ms()
            with self._lock:
                self.answers[what] += 1

    def _cancel(self, client: Client, name: str) -> None:
        try:
            answer, before = client.cancel(topic=self._topic, name=name)
        except SlotwheelError as error:
            answer, before = "cancel in doubt" if error.uncertain else "cancel refused", None
        with self._lock:
            self.answers[f"cancel: {answer}"] += 1
            if answer == CancelAnswer.CANCELLED or before is not None:
                self._cancelled.append((answer, before or "", now_ms()))
            if answer not in (CancelAnswer.CANCELLED, CancelAnswer.DELIVERED, "cancel refused"):
                self._cancels_in_doubt.add(name)

    def stop(self) -> Promised:
        """End it. What must become of each number."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        self._number_of = {
            MessageId.parse(one.id).offset: number for number, one in enumerate(self._all) if one.id
        }
        doubted = self._cancels_in_doubt | {
            one.name for one in self._all if one.error is not None and one.error.uncertain
        }
        meddled: dict[int, Meddled] = {}
        for number, one in enumerate(self._all):
            if one.error is not None:
                fate = Fate.UNCERTAIN if one.error.uncertain else Fate.REFUSED
                meddled[number] = Meddled(fate)
            elif one.name in doubted:
                meddled[number] = Meddled(Fate.UNCERTAIN)
        for one in self._all:
            if one.before is None:
                continue
            before = self._numbered(one.before.id)
            if one.before.what == Before.REPLACED and before is not None:
                meddled[before] = Meddled(Fate.CANCELLED)
            elif one.before.what == Before.KEPT:
                own = self._numbered(one.id)
                assert own is not None
                meddled[own] = Meddled(Fate.CANCELLED)
        for answer, message_id, _ in self._cancelled:
            target = self._numbered(message_id)
            if target is not None and answer == CancelAnswer.CANCELLED:
                meddled[target] = Meddled(Fate.CANCELLED)
        offset = [MessageId.parse(one.id).offset if one.id else -1 for one in self._all]
        due = np.array([one.due for one in self._all], np.int64)
        return Promised(due, np.array(offset, np.int64), meddled, (self._topic,))

    def _numbered(self, message_id: str) -> int | None:
        return self._number_of.get(MessageId.parse(message_id).offset)

    def false_answers(self, arrived: Collection[int]) -> Sequence[str]:
        """What callers were told and is not so. ``arrived``: the numbers that have. Call it after
        ``stop``."""
        false = []
        by_name: dict[str, list[int]] = defaultdict(list)
        told: set[int] = set()
        for number, one in enumerate(self._all):
            if one.id and (one.before is None or not one.before.dropped_id):
                by_name[one.name].append(number)
            if one.before is None:
                continue
            before = self._numbered(one.before.id)
            if before is None:
                continue
            if self._all[before].name != one.name:
                false.append(f"{number} is told of {before}, which has another name")
            if one.before.what == Before.DELIVERED and before not in arrived:
                false.append(f"{number} is told that {before} was delivered, which it was not")
            if one.before.what == Before.REPLACED:
                if before in told:
                    false.append(f"{before} was replaced twice")
                told.add(before)
        for numbers in by_name.values():
            numbers.sort(key=lambda number: MessageId.parse(self._all[number].id).offset)
            for before, after in itertools.pairwise(numbers):
                # It was pending until it was due, and its end was told to nobody.
                waits = before in arrived and self._all[after].answered_ms < self._all[before].due
                if waits:
                    false.append(f"{before} and {after} were pending under one name")
        return false

"""Callers that use the same names at once, and a model that reads nothing but their answers.

A message is a row of the model, and so is what became of it by a reschedule: each has an id of its
own. What a caller was told of the row that had the name before decides what must become of that
one; a request that got no certain answer may have been done or not, and so every row of its name
that was pending meanwhile may arrive or not.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from slotwheel import Client, Message, SlotwheelError
from slotwheel.client.predecessor import NamedId, Predecessor
from slotwheel.wheel.answers import Before, CancelAnswer
from slotwheel.wheel.errors import NameTaken, UnknownId
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.names import IfExists
from slotwheel.wheel.protocol import RESCHEDULE
from support.promises import Arrival, Fate, Meddled, Promised
from support.waiting import now_ms

BATCHES, CANCELS, MOVES, DEBOUNCES = 0.02, 0.12, 0.12, 0.1
"""Shares of what callers do; the rest are single messages. A batch has many operations."""
DEBOUNCED = 4
"""So many messages replace each other, and are due in a moment."""


@dataclass
class ModelRow:
    """A row as its caller knows it; times in ms. ``number``: its value. ``offset`` -1: it has no
    id, as there was no answer or it was refused."""

    number: int
    name: str
    due: int
    sent_ms: int
    answered_ms: int = 0
    offset: int = -1
    before: Predecessor | None = None
    error: SlotwheelError | None = None

    @property
    def is_dropped(self) -> bool:
        return self.before is not None and self.before.what == Before.KEPT

    def stored(self, message_id: str, before: Predecessor | None) -> str:
        """Take the answer; what the caller was told."""
        if before is not None and before.dropped_id:
            message_id = before.dropped_id
        self.offset, self.before = offset_of(message_id), before
        self.answered_ms = now_ms()
        return "stored" if before is None else before.what

    def failed(self, error: SlotwheelError) -> str:
        self.error = error
        self.answered_ms = now_ms()
        if isinstance(error, NameTaken):
            return "refused"
        return "in doubt" if error.uncertain else "not stored"


@dataclass(frozen=True)
class NameAction:
    """A cancel or reschedule by name. ``answer`` empty: it may have been done or not. ``offset``:
    of the row that it was about, -1: of none. ``due``: the new one, -1 of a cancel."""

    name: str
    answer: str
    offset: int
    sent_ms: int
    answered_ms: int
    due: int = -1


class NameCallers:
    """``callers`` threads, each with a client, that send to ``topic`` under ``names`` names, in
    batches of ``rows`` and one by one, cancel and reschedule by name, until ``stop``. Messages are
    due in ``ahead_ms`` at most."""

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
        self._sent: list[ModelRow] = []
        """By number."""
        self._moved: list[ModelRow] = []
        self._actions: list[NameAction] = []
        self._retired: set[str] = set()
        """Names of which a reschedule is in doubt. They are used no more: what a later answer says
        could be about a row of which nobody has an id."""
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
        """Messages, cancels and reschedules that have an answer."""
        return self.answers.total()

    # -- what they do ----------------------------------------------------------------------------

    def _run(self, rng: Random) -> None:
        try:
            with Client(self._addresses, timeout_s=60.0) as client:
                while not self._stop.is_set():
                    kind = rng.random()
                    if kind < BATCHES:
                        self._send_batch(client, rng)
                    elif kind < BATCHES + CANCELS:
                        self._cancel(client, self._name(rng))
                    elif kind < BATCHES + CANCELS + MOVES:
                        self._reschedule(client, self._name(rng), self._due(rng))
                    elif kind < BATCHES + CANCELS + MOVES + DEBOUNCES:
                        self._debounce(client, rng)
                    else:
                        self._store(client, self._name(rng), self._due(rng), self._mode(rng))
        except BaseException as error:
            self._failed.append(error)

    def _name(self, rng: Random) -> str:
        while (name := rng.choice(self._names)) in self._retired:
            pass
        return name

    def _due(self, rng: Random) -> int:
        return now_ms() + rng.randint(100, self._ahead_ms)

    def _mode(self, rng: Random) -> IfExists:
        return rng.choice(list(IfExists))

    def _rows_of(self, sent: Sequence[tuple[str, int]]) -> list[ModelRow]:
        with self._lock:
            first, at_ms = len(self._sent), now_ms()
            rows = [
                ModelRow(first + number, name, due, at_ms)
                for number, (name, due) in enumerate(sent)
            ]
            self._sent += rows
        return rows

    def _message(self, row: ModelRow, mode: IfExists) -> Message:
        value = b"%d" % row.number
        return Message(self._topic, value, due=row.due, name=row.name, if_exists=mode)

    def _count(self, what: str) -> None:
        with self._lock:
            self.answers[what] += 1

    def _store(self, client: Client, name: str, due: int, mode: IfExists) -> None:
        [row] = self._rows_of([(name, due)])
        try:
            stored = client.store(self._message(row, mode))
            assert isinstance(stored, NamedId)
            self._count(row.stored(stored, stored.before))
        except SlotwheelError as error:
            self._count(row.failed(error))

    def _send_batch(self, client: Client, rng: Random) -> None:
        """Rows that replace and keep in turn, most names twice; or rows that refuse: each name once
        as a rule, for else the batch would be refused for itself."""
        names = rng.sample(self._names, self._rows)
        names = [name for name in names if name not in self._retired]
        modes = [IfExists.REFUSE] * len(names)
        if rng.random() < 0.8:
            names = rng.choices(names[: len(names) // 2], k=len(names))
            modes = rng.choices([IfExists.REPLACE, IfExists.KEEP], k=len(names))
        elif rng.random() < 0.1:
            names[-1] = names[0]
        else:  # few, or somebody has one of them
            names, modes = names[:2], modes[:2]
        self._send_all(client, names, [self._due(rng) for _ in names], modes)

    def _debounce(self, client: Client, rng: Random) -> None:
        name = self._name(rng)
        dues = [now_ms() + rng.randint(20, 60) for _ in range(DEBOUNCED)]
        for due in dues:
            self._send_all(client, [name], [due], [IfExists.REPLACE])

    def _send_all(
        self, client: Client, names: Sequence[str], dues: Sequence[int], modes: Sequence[IfExists]
    ) -> None:
        rows = self._rows_of([*zip(names, dues, strict=True)])
        messages = [self._message(row, mode) for row, mode in zip(rows, modes, strict=True)]
        for row, receipt in zip(rows, client.send_many(messages), strict=True):
            try:
                self._count(row.stored(receipt.id, receipt.before))
            except SlotwheelError as error:
                self._count(row.failed(error))

    def _cancel(self, client: Client, name: str) -> None:
        sent_ms = now_ms()
        try:
            answer, message_id = client.cancel(topic=self._topic, name=name)
        except SlotwheelError as error:
            answer, message_id = "" if error.uncertain else "not done", None
        self._count(f"cancel: {answer or 'in doubt'}")
        action = NameAction(name, answer, offset_of(message_id or ""), sent_ms, now_ms())
        with self._lock:
            self._actions.append(action)

    def _reschedule(self, client: Client, name: str, due: int) -> None:
        sent_ms = now_ms()
        fields = {"topic": self._topic, "name": name, "due_ms": due}
        try:
            told = client.ask(RESCHEDULE, fields)  # it has the old id, too
        except SlotwheelError as error:
            told = {"answer": "" if error.uncertain else "not done", "id": None, "old_id": None}
        answer, moved, before = told["answer"], told["id"], told["old_id"]
        self._count(f"moved: {answer or 'in doubt'}")
        action = NameAction(name, answer, offset_of(before or ""), sent_ms, now_ms(), due)
        with self._lock:
            self._actions.append(action)
            if moved is not None:
                own = ModelRow(-1, name, due, sent_ms, action.answered_ms, offset_of(moved))
                own.before = Predecessor(Before.REPLACED, before)
                self._moved.append(own)
            if not answer or (answer == CancelAnswer.UNKNOWN and before is not None):
                self._retired.add(name)

    # -- what must become of it ------------------------------------------------------------------

    def stop(self) -> Promised:
        """End it. The promises, a number for each row: those of messages are their values, and
        those of reschedules follow."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        self._moved.sort(key=lambda row: row.offset)
        self.rows = [*self._sent, *self._moved]
        self._by_offset = {row.offset: at for at, row in enumerate(self.rows) if row.offset >= 0}
        for row in self._moved:
            assert row.before is not None
            before = self._row(offset_of(row.before.id))
            row.number = -1 if before is None else before.number
        self._doubts = self._all_doubts()
        meddled: dict[int, Meddled] = {}
        for at, row in enumerate(self.rows):
            if row.error is not None:
                fate = Fate.UNCERTAIN if row.error.uncertain else Fate.REFUSED
                meddled[at] = Meddled(fate)
                continue
            for doubt in self._doubts.get(row.name, ()):
                if row.sent_ms <= doubt.answered_ms and row.due > doubt.sent_ms:
                    meddled[at] = Meddled(Fate.UNCERTAIN)
        for offset in self._cancelled:
            if (number := self._by_offset.get(offset)) is not None:
                meddled[number] = Meddled(Fate.CANCELLED)
        due = np.array([row.due for row in self.rows], np.int64)
        offsets = np.array([row.offset for row in self.rows], np.int64)
        return Promised(due, offsets, meddled, (self._topic,))

    def _all_doubts(self) -> Mapping[str, Sequence[NameAction]]:
        """By name: requests that may have been done or not."""
        doubts: dict[str, list[NameAction]] = defaultdict(list)
        for action in self._actions:
            unclear = action.answer == CancelAnswer.UNKNOWN and action.offset >= 0
            if not action.answer or unclear:
                doubts[action.name].append(action)
        for row in self._sent:
            if row.error is not None and row.error.uncertain:
                action = NameAction(row.name, "", -1, row.sent_ms, row.answered_ms)
                doubts[row.name].append(action)
        return doubts

    @property
    def _cancelled(self) -> Iterator[int]:
        """Offsets of rows of which somebody was told that they never leave."""
        for row in self.rows:
            if row.is_dropped:
                yield row.offset
            elif row.before is not None and row.before.what == Before.REPLACED:
                yield offset_of(row.before.id)
        for action in self._actions:
            if action.answer == CancelAnswer.CANCELLED:
                yield action.offset

    def _row(self, offset: int) -> ModelRow | None:
        at = self._by_offset.get(offset)
        return None if at is None else self.rows[at]

    def numbered(self, arrivals: Sequence[Arrival], promised: Promised) -> list[Arrival]:
        """Arrivals with the numbers of the promises: their values' are those of messages, whatever
        became of these. One of which nobody has the id is what a reschedule in doubt has made of
        the last row of its message, and that may arrive so. Call it after ``stop``."""
        last = {row.number: at for at, row in enumerate(self.rows)}
        found = []
        for arrival in arrivals:
            at = self._by_offset.get(arrival.offset, last.get(arrival.number, -1))
            found.append(arrival._replace(number=at))
            if arrival.offset in self._by_offset or at not in promised.meddled:
                continue
            doubts = self._doubts.get(self.rows[at].name, ())
            in_doubt = promised.meddled[at].fate is Fate.UNCERTAIN
            if in_doubt and any(doubt.due == arrival.due for doubt in doubts):
                promised.meddled[at] = Meddled(Fate.UNCERTAIN, arrival.due)
        return found

    def history(self, number: int) -> str:
        """For people: what callers were told of the name of a promise."""
        name = self.rows[number].name
        told: list[ModelRow | NameAction] = [row for row in self.rows if row.name == name]
        told += [action for action in self._actions if action.name == name]
        return "\n".join(map(str, sorted(told, key=lambda each: each.sent_ms)))

    def numbers_of(self, wanted: set[int]) -> set[int]:
        """The values of the promises with these numbers."""
        return {self.rows[at].number for at in wanted}

    def answered_ms(self, offset: int) -> float:
        """When the caller of a row had its answer: that was decided before. Infinite: it never had
        one."""
        row = self._row(offset)
        return float("inf") if row is None else row.answered_ms

    def false_answers(self, arrived: Mapping[int, int]) -> list[str]:
        """What callers were told and is not so. ``arrived``: by offset, when a row arrived first,
        ms. Call it after ``stop``."""
        false: list[str] = []
        replaced = Counter(
            row.before.id
            for row in self.rows
            if row.before is not None and row.before.what == Before.REPLACED
        )
        twice = [message_id for message_id, times in replaced.items() if times > 1]
        false += [f"{message_id} was replaced twice" for message_id in twice]
        gone_ms = self._gone_ms(arrived)
        for row in self.rows:
            what, offset = "refused", -1
            if row.before is not None:
                what, offset = row.before.what, offset_of(row.before.id)
            elif isinstance(row.error, NameTaken):
                offset = offset_of(str(row.error.got))  # or of the same batch
            if offset < 0 or (before := self._row(offset)) is None:
                continue
            told = f"{row.name}: {row.offset} is told that {offset}, due {before.due}, is {what}"
            if before.name != row.name:
                false.append(f"{told}, which is {before.name}")
            if row.offset >= 0 and before.offset >= row.offset:
                false.append(f"{told}, which came later")
            if what == Before.DELIVERED and not arrived.get(offset, 1 << 62) <= row.answered_ms:
                false.append(f"{told}, which arrived at {arrived.get(offset)}")
            if what in ("refused", Before.KEPT) and gone_ms.get(offset, 1 << 62) < row.sent_ms:
                false.append(f"{told}, which was gone at {gone_ms[offset]}")
        for action in self._actions:
            came = arrived.get(action.offset, 1 << 62)
            if action.answer == CancelAnswer.DELIVERED and not came <= action.answered_ms:
                false.append(f"{action} is told of what had not arrived")
            before = self._row(action.offset)
            if before is not None and before.name != action.name:
                false.append(f"{action} is told of {before}")
        return [*false, *self._untold(arrived)]

    def _gone_ms(self, arrived: Mapping[int, int]) -> dict[int, int]:
        """By offset: when it was certain at the latest that a row is pending no more."""
        gone = dict(arrived)
        told = [
            (offset_of(row.before.id), row.answered_ms)
            for row in self.rows
            if row.before is not None and row.before.what == Before.REPLACED
        ]
        told += [
            (action.offset, action.answered_ms)
            for action in self._actions
            if action.answer == CancelAnswer.CANCELLED
        ]
        for offset, at_ms in told:
            gone[offset] = min(at_ms, gone.get(offset, at_ms))
        return gone

    def _untold(self, arrived: Mapping[int, int]) -> Iterator[str]:
        """Rows that had no predecessor for all that their callers were told, although one was
        pending."""
        cancelled = set(self._cancelled)
        by_name: dict[str, list[ModelRow]] = defaultdict(list)
        for row in self.rows:
            if row.offset >= 0 and not row.is_dropped:
                by_name[row.name].append(row)
        for name, rows in by_name.items():
            rows.sort(key=lambda row: row.offset)
            for before, after in itertools.pairwise(rows):
                in_doubt = any(
                    before.sent_ms <= doubt.answered_ms and doubt.sent_ms < after.answered_ms
                    for doubt in self._doubts.get(name, ())
                )
                has_left = arrived.get(before.offset, 1 << 62) <= after.answered_ms
                if before.offset not in cancelled and not has_left and not in_doubt:
                    yield f"{name}: {before} was pending, and {after} was taken"


def offset_of(message_id: str) -> int:
    """The offset of an id; -1: it is none."""
    try:
        return MessageId.parse(message_id).offset
    except UnknownId:
        return -1

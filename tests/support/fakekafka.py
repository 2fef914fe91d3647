"""A broker with transactions, as a model: small, and exact where it matters.

Theory: what exactly-once delivery rests on is not the network but a few rules of Kafka, and each of
them is one method of ``FakeBroker``:

- to take over a transactional id raises its epoch; a transaction that is open there is aborted
  first, and one that is about to end is waited for (``Concurrent``);
- a request of an older epoch changes nothing (``Fenced``), whenever it arrives;
- once the end of a transaction is decided it is certain; its markers are written later, and the
  group's offset changes later still (``progress``). Until then a *stable* read of the offset waits
  (``Unstable``), and any other one gets the offset from before;
- markers of different ids are written in any order; of two offsets the one that was stored last
  counts.

Every request passes ``Net.call``. There a test loses it, loses only its answer, lets it arrive when
nobody waits for it any more, stops the caller, or cuts the power.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from slotwheel.delivery.kafka.alternating import AlternatingTransactions, TransactionalProducer
from slotwheel.delivery.kafka.plan import KafkaSettings, SendFailure, SendPlan
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.kafka.topicbook import Found, NotYet, TopicBook, TopicInfo, Unreachable
from slotwheel.delivery.kafka.transactions import Fenced, StoredMark, Transactions
from slotwheel.delivery.sink import Answer
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.rows import Header
from slotwheel.wheel.schema import times

T = TypeVar("T")
POISON = b"poison"
"""A value that starts so is refused for good."""
PATIENCE = 12
"""How often a client asks again when the broker says *later*."""


class Concurrent(Exception):
    """A transaction of that id is about to end: ask again."""


class Unstable(Exception):
    """A transaction that has not ended may change the offset: ask again."""


class Lost(OSError):
    """No answer: nobody knows what became of the request."""


@dataclass(frozen=True)
class Record:
    """``key``: due time and offset of the row."""

    topic: str
    key: tuple[int, int]
    value: bytes | None
    headers: tuple[Header, ...]


class State(Enum):
    EMPTY = "no transaction"
    ONGOING = "open"
    COMMITTING = "the commit is certain, its markers are not written"
    ABORTING = "the abort is certain, its markers are not written"


@dataclass
class TransactionalId:
    epoch: int = -1
    state: State = State.EMPTY
    records: list[Record] = field(default_factory=list)
    mark: tuple[int, StoredMark] | None = None
    """With its place in the order in which marks were stored."""


class FakeBroker:
    """Topics with one partition each, and the offset of one group. ``committed``: gets the records
    of a transaction at the moment at which its commit is certain."""

    def __init__(self, committed: Callable[[Sequence[Record]], None] = lambda _: None) -> None:
        self.committed = committed
        self.ids: dict[str, TransactionalId] = {}
        self.mark: StoredMark | None = None
        self._stored = self._applied = 0
        self.blocked: set[str] = set()
        """Topics without a leader."""
        self.down = False
        self._unapplied: list[tuple[int, StoredMark]] = []
        """Of transactions whose markers are written already."""

    # Requests of producers

    def take_over(self, name: str) -> int:
        """InitProducerId: the epoch. Errors: ``Concurrent``."""
        one = self.ids.setdefault(name, TransactionalId())
        if one.state is State.ONGOING:
            one.epoch += 1
            one.state = State.ABORTING
        if one.state is not State.EMPTY:
            raise Concurrent
        one.epoch += 1
        return one.epoch

    def produce(self, name: str, epoch: int, records: Sequence[Record]) -> None:
        self._in_transaction(name, epoch).records += records

    def store(self, name: str, epoch: int, mark: StoredMark) -> None:
        one = self._in_transaction(name, epoch)
        self._stored += 1
        one.mark = self._stored, mark

    def end(self, name: str, epoch: int, *, commit: bool) -> None:
        """Answers when the end is certain; not when it can be seen."""
        one = self._mine(name, epoch)
        if one.state is not State.ONGOING:
            raise Lost("there is no transaction to end")
        self._decide(one, commit=commit)

    def _mine(self, name: str, epoch: int) -> TransactionalId:
        one = self.ids[name]
        if epoch != one.epoch:
            raise Fenced(f"{name} is of epoch {one.epoch}, not {epoch}")
        return one

    def _in_transaction(self, name: str, epoch: int) -> TransactionalId:
        one = self._mine(name, epoch)
        if one.state in (State.COMMITTING, State.ABORTING):
            raise Concurrent
        one.state = State.ONGOING
        return one

    def _decide(self, one: TransactionalId, *, commit: bool) -> None:
        one.state = State.COMMITTING if commit else State.ABORTING
        if commit:
            self.committed(one.records)

    # The group's offset

    def read_mark(self, *, stable: bool) -> StoredMark | None:
        """Errors: ``Unstable``."""
        if stable and (self._unapplied or any(one.mark for one in self.ids.values())):
            raise Unstable
        return self.mark

    def store_outside(self, mark: StoredMark) -> None:
        """An offset that is committed without a transaction."""
        self._stored += 1
        self._applied, self.mark = self._stored, mark

    # What happens by itself

    def progress(self) -> bool:
        """One thing that the broker still has to do; whether there was one."""
        if self._unapplied:
            number, mark = self._unapplied.pop(0)
            if number > self._applied:
                self._applied, self.mark = number, mark
            return True
        for one in self.ids.values():
            if one.state in (State.COMMITTING, State.ABORTING):
                if one.mark is not None and one.state is State.COMMITTING:
                    self._unapplied.append(one.mark)
                one.state, one.mark = State.EMPTY, None
                one.records = []
                return True
        return False

    def time_out(self) -> None:
        """Abort what has been open for too long."""
        for one in self.ids.values():
            if one.state is State.ONGOING:
                one.epoch += 1
                one.state = State.ABORTING


class Net:
    """The way of a client to the broker. This one works; tests break it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def call(self, name: str, request: Callable[[], T]) -> T:
        """Errors: ``Lost``; those of the request."""
        del name
        return request()

    def wait(self) -> None:
        """The broker has said *later*."""
        self.broker.progress()

    def insist(self, name: str, request: Callable[[], T]) -> T:
        for _ in range(PATIENCE):
            try:
                return self.call(name, request)
            except (Concurrent, Unstable):
                self.wait()
        raise Lost(f"{name}: the broker said *later* too often")


class FakeProducer(TransactionalProducer):
    def __init__(self, net: Net, name: str) -> None:
        super().__init__()
        self._net = net
        self._broker = net.broker
        self._name = name
        self._epoch = -1
        self._sent = False
        self._fatal: Fenced | None = None

    def take_over(self) -> None:
        self._epoch = self._net.insist("take over", lambda: self._broker.take_over(self._name))

    def begin(self) -> None:
        self._sent = False  # the broker does not hear of it

    def send(self, plan: SendPlan, *, singly: bool) -> dict[int, SendFailure]:
        topics, values = plan.records.topics, plan.records.values
        refused = [
            row
            for row in plan.rows
            if (values[row] or b"").startswith(POISON) and topics[row] != DEAD_LETTER_TOPIC
        ]
        failures = {}
        for row in plan.rows:
            if topics[row] in self._broker.blocked:
                failures[row] = SendFailure(Answer.UNKNOWN, "no leader")
            elif refused and singly and row > refused[0]:
                failures[row] = SendFailure(Answer.UNKNOWN, "not sent: behind a refused row")
            elif any(topics[one] == topics[row] for one in refused) and not singly:
                alone = sum(topics[one] == topics[row] for one in plan.rows) == 1
                failures[row] = SendFailure(Answer.REFUSED, "poison", bystander=not alone)
            elif row in refused:
                failures[row] = SendFailure(Answer.REFUSED, "poison")
        good = [row for row in plan.rows if row not in failures]
        try:
            if good:
                self._produce(plan, good)
        except (Fenced, Lost) as error:
            self._fatal = error if isinstance(error, Fenced) else None
            failures |= dict.fromkeys(good, SendFailure(Answer.UNKNOWN, str(error)))
        return failures

    def _produce(self, plan: SendPlan, rows: list[int]) -> None:
        due, offset = times(plan.batch, "due").tolist(), times(plan.batch, "offset").tolist()
        made = plan.records
        records = [
            Record(made.topics[at], (due[at], offset[at]), made.values[at], tuple(made.headers[at]))
            for at in rows
        ]
        self._sent = True
        request = self._broker.produce
        self._net.insist("produce", lambda: request(self._name, self._epoch, records))

    def store(self, offset: int, metadata: str) -> None:
        self._raise_fatal()
        mark, request = StoredMark(offset, metadata), self._broker.store
        self._sent = True
        self._net.insist("store", lambda: request(self._name, self._epoch, mark))

    def commit(self) -> None:
        self._end(commit=True)

    def abort(self) -> None:
        self._raise_fatal()
        if self._sent:
            self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        self._raise_fatal()
        request = self._broker.end
        name = "commit" if commit else "abort"
        self._net.call(name, lambda: request(self._name, self._epoch, commit=commit))

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def close(self) -> None: ...

    # No threads: a schedule is the same each time.

    def within(self, limit_s: float, call: Callable[[], None]) -> None:
        del limit_s
        call()

    def touch(self, topics: dict[str, int]) -> bool:
        """Nothing: this broker forgets no end of a transaction."""
        del topics
        return True

    def abandon(self) -> None:
        self.abandoned = True


class FakeTransactions(AlternatingTransactions):
    def __init__(self, net: Net, group: str = "slotwheel-default") -> None:
        super().__init__(KafkaSettings("fake"), group, DEAD_LETTER_TOPIC)
        self._net = net

    def _take_over(self, transactional_id: str, deadline: float) -> TransactionalProducer:
        del deadline
        producer = FakeProducer(self._net, transactional_id)
        try:
            producer.take_over()
        except Lost as error:
            raise Unreachable(str(error)) from error
        return producer

    def _read_mark(self, deadline: float) -> StoredMark | None:
        del deadline
        try:
            return self._net.insist("read mark", self.read)
        except Lost as error:
            raise Unreachable(str(error)) from error

    def read(self) -> StoredMark | None:
        return self._net.broker.read_mark(stable=True)


class FakeKafkaSink(KafkaSink):
    """The real plan, into the model. Nothing is remembered of a topic."""

    def __init__(self, mint: IdMint, net: Net) -> None:
        super().__init__(mint, KafkaSettings("fake"), FakeTransactions(net))
        self._net = net
        later: Iterator[int] = itertools.count(0, 1000)
        self.book = TopicBook(self._fetch, 0.0, lambda: float(next(later)))

    @staticmethod
    def make_transactions(settings: KafkaSettings, group: str, topic: str) -> Transactions:
        raise NotImplementedError

    def _fetch(self, topics: Sequence[str]) -> dict[str, Found]:
        try:
            return self._net.call("topics", lambda: {topic: self._look(topic) for topic in topics})
        except Lost as error:
            raise Unreachable(str(error)) from error

    def _look(self, topic: str) -> Found:
        if self._net.broker.down:
            raise Unreachable("down")
        return NotYet("no leader") if topic in self._net.broker.blocked else TopicInfo(1)

    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        raise AssertionError("sent without a transaction")

    def close(self) -> None:
        assert self.transactions is not None
        self.transactions.close()


__all__ = ["POISON", "FakeBroker", "FakeKafkaSink", "FakeTransactions", "Lost", "Net", "Record"]

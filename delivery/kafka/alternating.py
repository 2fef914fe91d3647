"""Two transactional producers in turn: the states of ``Transactions``, whatever the client.

They take turns because the broker goes on writing the end of one transaction while the next one
runs: with one producer each cycle would wait for that. After ``start`` the id that was taken over
first has the first turn. When two masters start at once, each may get one of the ids; then the one
that got the second id fails before it commits anything, and the other one fails at its second turn.

A client counts the records it sent to each partition, refused ones among them; the broker does not
count these. So a transaction with a failed row is followed by new producers. Taking the ids anew
might fence another master, so the mark is read again: it must be our last one.

A broker that comes back may end a transaction by itself, a prepared one or one that is too old,
while it knows no leader of its partitions; then it never writes the end into them. The rows stay
open there, and would count with the next commit of that id. So a transaction that did not end
cleanly, and whose mark is not the one that was read, is aborted once more by ``start``, in each of
its topics. Nothing is sent to such a topic until that has worked.

A client's calls that end a transaction may wait without a limit. They run on a thread that is left
behind after ``END_S``. Such a call may end its transaction yet, so the producer is not used again;
it is closed once the call is over.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from ...broker.limits import started
from ..sink import Answer
from .plan import KafkaSettings, SendFailure, SendPlan
from .topicbook import Unreachable
from .transactions import (
    METADATA_BYTES_MAX,
    Aborted,
    Fenced,
    Refused,
    StoredMark,
    Transactions,
    Unclear,
)

TRANSACTION_TIMEOUT_S = 10.0
"""The broker itself aborts a transaction that has been open for longer."""
END_S = 5.0
"""The longest time, s, that a commit or an abort may take."""
STABLE_S = 3.0
"""The longest time, s, in which a mark becomes stable once both ids are taken over."""
QUICK_S = 2.0
"""A broker that is killed takes longer than this, s, to be back."""
TOUCH = b"slotwheel"
"""Key and value of records that are aborted for sure."""
SINGLY_S = 5.0
"""The longest time, s, that rows are sent one by one; those left then are not sent."""


class Abortable(Exception):
    """A transaction can only be aborted; its producer is good for another transaction."""


class TransactionalProducer(ABC):
    """One client's producer, with one transactional id. After an error other than ``Fenced``,
    ``Refused`` and ``Abortable`` nobody knows the outcome of the call."""

    def __init__(self) -> None:
        self.abandoned = False
        self.committing = False
        """True from the begin of a commit until it is seen to end."""
        self._ending: Future[None] | None = None

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, plan: SendPlan, *, singly: bool) -> dict[int, SendFailure]: ...

    @abstractmethod
    def store(self, offset: int, metadata: str) -> None:
        """Add the mark to the transaction."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def touch(self, topics: dict[str, int]) -> bool:
        """Send a record to each partition of ``topics`` (name: number of partitions), in the open
        transaction, which will be aborted. Returns True when all partitions took it."""

    @abstractmethod
    def close(self) -> None:
        """Free connections and threads; may take long."""

    def within(self, limit_s: float, call: Callable[[], None]) -> None:
        """Call on a thread of its own. Errors: those of ``call``; ``TimeoutError``: the thread was
        left behind after ``limit_s``."""
        self._ending = started(call)
        self._ending.result(limit_s)

    def abandon(self) -> None:
        """Close the producer as soon as its last call has ended. Does not wait."""
        self.abandoned = True

        def close() -> None:
            if self._ending is not None:
                wait([self._ending])
            with suppress(Exception):
                self.close()

        threading.Thread(target=close, name="kafka-transaction-close", daemon=True).start()


@dataclass(slots=True)
class _Sent:
    """The last transaction of an id, empty once it was committed cleanly: the ``topics`` it had
    rows for, with their numbers of partitions, and the ``mark`` that it may have committed."""

    topics: dict[str, int] = field(default_factory=dict)
    mark: tuple[int, str] | None = None


class AlternatingTransactions(Transactions):
    """Base of the implementations, which make producers and read the mark."""

    client_errors: tuple[type[Exception], ...] = ()
    """The exceptions of the client's library."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        super().__init__(settings, group, topic)
        self._lock = threading.Lock()  # guards _producers and _closed: any thread may close
        self._producers: list[TransactionalProducer] = []
        self._closed = False
        self._left_behind: list[TransactionalProducer] = []  # since a mark was read
        self._turn = 0
        self._open: TransactionalProducer | None = None
        self._failed = False  # a row of the open transaction was not accepted
        self._spoilt = False  # a row of any transaction since ``start`` was not accepted
        self._last: tuple[int, str] | None = None  # the mark, as far as is known
        self._sent = [_Sent(), _Sent()]
        self._hanging: list[dict[str, int]] = [{}, {}]  # by id: topics where its rows are open

    @abstractmethod
    def _take_over(self, transactional_id: str, deadline: float) -> TransactionalProducer:
        """A producer that has the id. ``deadline``: monotonic time, s. Errors: as of ``start``."""

    @abstractmethod
    def _read_mark(self, deadline: float) -> StoredMark | None:
        """Read the group's offset once it is stable. Errors: as of ``start``."""

    def start(self) -> StoredMark | None:
        self._abandon()
        self._open = None
        deadline = time.monotonic() + self.settings.delivery_timeout_s
        try:
            for number in range(2):
                producer = self._take_over(f"{self.group}-{number}", deadline)
                with self._lock:
                    closed = self._closed
                    if not closed:
                        self._producers.append(producer)
                if closed:
                    producer.abandon()
                    raise Unreachable("the transactions are closed")
            mark = self._stable_mark(deadline)
            self._last = (mark.offset, mark.metadata) if mark is not None else None
            if mark is not None:
                self._left_behind.clear()
            self._end_what_hangs()
        except BaseException:
            self._abandon()
            raise
        self._turn, self._spoilt = 0, False
        return mark

    @property
    def in_doubt(self) -> bool:  # type: ignore[override]
        return any(producer.committing for producer in self._left_behind)

    def _stable_mark(self, deadline: float) -> StoredMark | None:
        """Read the mark. Nobody has a transaction open by now: if the mark is not stable, the end
        of one was never written to it, and an abort writes it. Errors: as of ``start``."""
        try:
            return self._read_mark(min(deadline, time.monotonic() + STABLE_S))
        except Unreachable:
            self._abort_marks()
            return self._read_mark(time.monotonic() + STABLE_S)

    def _abort_marks(self) -> None:
        try:
            for producer in self._pair():
                self._guard(producer.begin)
                self._guard(partial(producer.within, END_S, partial(producer.store, 0, "")))
                self._guard(partial(producer.within, END_S, producer.abort))
        except (Unclear, Abortable) as error:
            raise Unreachable(str(error)) from error

    def _end_what_hangs(self) -> None:
        """Abort transactions whose mark Kafka does not have once more. Errors: as of ``start``."""
        for sent, topics in zip(self._sent, self._hanging, strict=True):
            if sent.mark is None or sent.mark != self._last:
                topics.update(sent.topics)
        self._sent = [_Sent(), _Sent()]
        try:
            for producer, topics in zip(self._pair(), self._hanging, strict=True):
                if topics and self._abort_in(producer, topics):
                    topics.clear()
                for topic, count in list(topics.items()):
                    if self._abort_in(producer, {topic: count}):
                        del topics[topic]
        except (Unclear, Abortable) as error:
            raise Unreachable(str(error)) from error

    def _abort_in(self, producer: TransactionalProducer, topics: dict[str, int]) -> bool:
        """Let the broker write the end of an aborted transaction into each partition. Returns True
        when it reached all of them."""
        self._guard(producer.begin)
        touched = producer.touch(topics)
        self._guard(lambda: producer.within(END_S, producer.abort))
        return touched

    def begin(self) -> None:
        assert self._open is None, "a transaction is open"
        producers = self._pair()
        if self._spoilt:
            self._renew()
            producers = self._pair()
        producer = producers[self._turn]
        self._sent[self._turn] = _Sent()
        self._turn = 1 - self._turn
        self._guard(producer.begin)
        self._open, self._failed = producer, False

    def send(self, plan: SendPlan, *, singly: bool = False) -> dict[int, SendFailure]:
        producer = self._open
        if producer is None or producer.abandoned:
            gone = SendFailure(Answer.UNKNOWN, "there is no transaction")
            return dict.fromkeys(plan.rows, gone)
        failures = self._stuck(plan)
        if not failures:
            sent = self._sent[1 - self._turn]
            sent.topics.update({topic: info.count for topic, info in plan.topics.items()})
            failures = producer.send(plan, singly=singly)
        if failures:
            self._failed = self._spoilt = True
        return _in_transaction(failures)

    def _stuck(self, plan: SendPlan) -> dict[int, SendFailure]:
        """The rows of topics in which an earlier transaction is still open."""
        hanging = self._hanging[0].keys() | self._hanging[1].keys()
        failure = SendFailure(Answer.UNKNOWN, "an earlier transaction is still open in this topic")
        return {
            row: failure for row in plan.rows if hanging and plan.records.topics[row] in hanging
        }

    def commit(self, offset: int, metadata: str) -> None:
        assert len(metadata.encode()) <= METADATA_BYTES_MAX, "the text beside the mark is too long"
        producer = self._take_open()
        if self._failed:
            self._abort(producer)
            raise Aborted("a row of the transaction was not accepted")
        sent = self._sent[1 - self._turn]
        sent.mark = offset, metadata

        def end() -> None:
            producer.store(offset, metadata)
            producer.committing = True
            if producer.abandoned:
                producer.committing = False
                raise Unclear("abandoned before the commit")
            producer.commit()

        try:
            self._guard(lambda: producer.within(END_S, end))
        except Abortable as error:
            self._spoilt = True
            sent.mark = None
            self._abort(producer)
            producer.committing = False
            raise Aborted(str(error)) from error
        producer.committing = False
        self._last = (offset, metadata)
        self._sent[1 - self._turn] = _Sent()

    def abort(self) -> None:
        self._abort(self._take_open())

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._abandon()

    def _pair(self) -> list[TransactionalProducer]:
        with self._lock:
            producers = list(self._producers)
        if len(producers) < 2:
            raise Unclear("there are no producers: start first")
        return producers

    def _renew(self) -> None:
        """Make new producers. Errors: ``Fenced`` if another master stored a mark meanwhile."""
        known, sent = self._last, self._sent
        self._sent = [_Sent(), _Sent()]  # the last transactions were aborted cleanly, just now
        began_s = time.monotonic()
        try:
            self.start()
        except (Unreachable, Refused) as error:
            self._sent = sent
            raise Unclear(str(error)) from error
        if time.monotonic() - began_s > QUICK_S:
            self._sent = sent
            self._abandon()
            raise Unclear("the broker may have been away meanwhile")
        if self._last != known:
            self._abandon()
            raise Fenced("another master has stored a mark meanwhile")

    def _take_open(self) -> TransactionalProducer:
        producer, self._open = self._open, None
        if producer is None:
            raise Unclear("there is no transaction")
        return producer

    def _abort(self, producer: TransactionalProducer) -> None:
        try:
            self._guard(lambda: producer.within(END_S, producer.abort))
        except Abortable as error:
            self._abandon()
            raise Unclear(f"not aborted: {error}") from error

    def _guard(self, call: Callable[[], None]) -> None:
        """Call a producer. After any error but ``Abortable`` both producers are abandoned."""
        unclear: tuple[type[Exception], ...] = (Unclear, OSError, RuntimeError, *self.client_errors)
        try:
            call()
        except Abortable:
            raise
        except (Fenced, Refused):
            self._abandon()
            raise
        except TimeoutError as error:
            self._abandon()
            raise Unclear(f"no answer within {END_S:g} s") from error
        except unclear as error:
            self._abandon()
            raise Unclear(str(error) or type(error).__name__) from error

    def _abandon(self) -> None:
        with self._lock:
            producers, self._producers = self._producers, []
        self._left_behind += producers
        for producer in producers:
            producer.abandon()


def _in_transaction(failures: dict[int, SendFailure]) -> dict[int, SendFailure]:
    """The answers of rows that share a transaction, which fails as a whole: each failure but a
    refusal becomes UNKNOWN. Where a row was refused the others failed only with it, as bystanders,
    and can be sent again at once."""
    refused = any(failure.answer is Answer.REFUSED for failure in failures.values())
    return {
        row: failure
        if failure.answer is Answer.REFUSED
        else replace(failure, answer=Answer.UNKNOWN, bystander=refused)
        for row, failure in failures.items()
    }

"""The common part of the two Kafka sinks: they plan before they send, within bounds.

A chunk is cut so that rows and bytes in flight are bounded. Each part is compared with the topic
book first - missing topic, missing partition, no leader - so that the client only gets records it
can send: otherwise a bad row would fail the batch it shares with good ones. A subclass implements
``_send``, which sends the planned rows and reports those that failed.

After a failure with an unknown outcome the producer is thrown away: a late retry inside it could
otherwise put an old row behind a newer one. Held-back topics are tried with producers of their own,
so that throwing one of them away affects no other topic.

Topics are never created: a message for a topic that does not exist becomes a dead letter.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from cachetools import TTLCache

from ...wheel.ids import IdMint
from ...wheel.schema import Int64s, sizes
from ..sink import Answer, Answers, Sink, split_by_topic
from .clocks import ClockAlarms
from .plan import NO_PARTITION, KafkaSettings, SendFailure, SendPlan
from .produceerrors import INVALID_TIMESTAMP
from .records import to_records
from .topicbook import TOPICS_REMEMBERED, Found, NotYet, TopicBook, TopicInfo, Unreachable
from .transactions import Transactions

_RECORD_OVERHEAD = 200
"""An estimate of a record's bytes besides key, value and the message's headers."""
SINGLY_S = 60.0
"""A topic is sent row by row for so long, s, after a batch was refused for one of its rows, and the
broker did not say which."""
_BATCH_OVERHEAD = 61 + 100
"""The least bytes of a batch of one record besides its key, value and the message's headers."""


class KafkaSink(Sink):
    """Base of the sinks to a real Kafka. Construction does not need Kafka to be there.

    ``transactions``: rows are sent in the open transaction, and an answer counts only once that is
    committed. If a row is refused, the unknown ones may only have shared its batch: the caller
    aborts, and sends them again at once. A sink closes its transactions.
    """

    def __init__(
        self, mint: IdMint, settings: KafkaSettings, transactions: Transactions | None = None
    ) -> None:
        super().__init__(mint)
        self.settings = settings
        self.transactions = transactions
        self._singly: TTLCache[str, bool] = TTLCache(TOPICS_REMEMBERED, SINGLY_S)
        self.book = TopicBook(self._fetch, settings.unknown_topic_after_s)
        self._asked = "slotwheel-dead-letters"
        self.clocks = ClockAlarms()
        self.failed: Callable[[SendPlan, dict[int, SendFailure]], None] = lambda _plan, _failed: (
            None
        )
        """Gets the failed rows of a transaction, which can only be aborted."""

    @property
    def problems(self) -> Mapping[str, str]:
        return self.clocks.problems

    def sends_singly(self, topics: Iterable[str]) -> bool:
        """Returns True when rows of one of these topics are sent one by one now, which is slow."""
        return any(topic in self._singly for topic in topics)

    @staticmethod
    @abstractmethod
    def make_transactions(settings: KafkaSettings, group: str, topic: str) -> Transactions:
        """Make ``Transactions`` with this sink's client. Arguments: as of those."""

    @abstractmethod
    def _fetch(self, topics: Sequence[str]) -> Mapping[str, Found]:
        """Ask a broker for topics; it has ``metadata_timeout_s`` to answer for each of them.
        Errors: ``Unreachable``."""

    @abstractmethod
    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        """Send ``rows``. Returns those that failed. Errors: ``Unreachable``: none was sent."""

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        answers = Answers.same(rows.num_rows, Answer.ACCEPTED)
        blocked: dict[str, str] = {}
        lengths = sizes(rows)
        for start, stop in self._parts(lengths):
            part = rows.slice(start, stop - start)
            try:
                self._deliver_part(part, lengths[start:stop], start, answers, blocked, trial)
            except Unreachable as error:
                answers.codes[start:] = Answer.NOT_NOW
                answers.reasons[start] = str(error)
                answers.down = True
                return answers
        if blocked:
            answers.down = not self.healthy()
        return answers

    def probe(self, topic: str) -> bool:
        try:
            # A topic that does not exist (None) is worth a try as well, in which its rows are
            # refused.
            self.book.lookup(topic, fresh=True)
        except (NotYet, Unreachable):
            return False
        return True

    def healthy(self) -> bool:
        try:
            self._fetch([self._asked])
        except Unreachable:
            return False
        return True

    def expect(self, topics: Collection[str]) -> None:
        self.book.ask_ahead(topics)

    def _parts(self, lengths: Int64s) -> Iterator[tuple[int, int]]:
        """Cut rows of these sizes, bytes, into ranges that stay within the limits in flight."""
        ends = np.cumsum(lengths + _RECORD_OVERHEAD)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            limit = before + self.settings.bytes_in_flight_max
            stop = int(np.searchsorted(ends, limit, side="right"))
            stop = max(start + 1, min(stop, start + self.settings.rows_in_flight_max))
            yield start, stop
            start = stop

    def _deliver_part(
        self,
        rows: pa.RecordBatch,
        lengths: Int64s,
        start: int,
        answers: Answers,
        blocked: dict[str, str],
        trial: bool,
    ) -> None:
        """Deliver a part of a batch and set its ``answers``, from row ``start`` on. ``lengths`` has
        the bytes of each row. ``blocked`` has the topics with an unanswered row, and the reason:
        their later rows are not sent, as they would overtake it. Errors: ``Unreachable``."""
        partitions = _partitions(rows.column("partition"))
        infos: dict[str, TopicInfo] = {}
        send = np.ones(rows.num_rows, np.bool_)

        def not_sent(skipped: Int64s, answer: Answer, reason: str) -> None:
            send[skipped] = False
            for row in skipped.tolist():
                answers.set(start + row, answer, reason)

        topics, parts = split_by_topic(rows)
        known = self.book.lookup_all(topic for topic in topics if topic not in blocked)
        for topic, part in zip(topics, parts, strict=True):
            info = known.get(topic)
            if isinstance(info, TopicInfo) and int(partitions[part].max()) >= info.count:
                info = self.book.ask(topic)  # it may have more partitions now
            if isinstance(info, NotYet) or topic in blocked:
                reason = blocked.setdefault(topic, str(info))
                not_sent(part, Answer.NOT_NOW, reason)
                continue
            if info is None:
                not_sent(part, Answer.REFUSED, f"topic {topic} does not exist")
                continue
            infos[topic] = info
            wrong = part[partitions[part] >= info.count]
            not_sent(wrong, Answer.REFUSED, f"topic {topic} has only {info.count} partitions")
            if info.bytes_max is not None:
                wrong = part[lengths[part] + _BATCH_OVERHEAD > info.bytes_max]
                reason = f"too large: topic {topic} takes {info.bytes_max} bytes"
                not_sent(wrong, Answer.REFUSED, reason)
        chosen = np.flatnonzero(send).tolist()
        if not chosen:
            return
        plan = SendPlan(rows, to_records(rows, self.mint), chosen, partitions, infos)
        failures = self._send_all(plan, trial)
        for row, failure in failures.items():
            topic, reason = plan.records.topics[row], failure.reason
            if failure.code == INVALID_TIMESTAMP:
                reason = blocked.get(topic) or self.clocks.refused(topic, infos[topic], reason)
            answers.set(start + row, failure.answer, reason)
            if failure.answer is not Answer.REFUSED:
                blocked.setdefault(topic, reason)
                self.book.forget(topic)
        self.clocks.taken(topic for topic in infos if topic not in blocked)

    def _send_all(self, plan: SendPlan, trial: bool) -> dict[int, SendFailure]:
        """Send, and send bystanders of a failure again for as long as the time limit allows."""
        if self.transactions is not None:
            return self._send_in(self.transactions, plan)
        limit_s = self.settings.trial_timeout_s if trial else self.settings.delivery_timeout_s
        deadline = time.monotonic() + limit_s
        failures = self._send(plan, limit_s, trial=trial)
        while time.monotonic() < deadline:
            again = sorted(row for row, failure in failures.items() if failure.bystander)
            if not again:
                break
            try:
                repeated = self._send(replace(plan, rows=again), limit_s, trial=trial)
            except Unreachable:  # the first try has answered for the other rows
                break
            for row in again:
                del failures[row]
            for row, failure in repeated.items():
                unsent = failure.answer is Answer.NOT_NOW  # it may have been sent in the first try
                failures[row] = replace(failure, answer=Answer.UNKNOWN) if unsent else failure
        return failures

    def _send_in(self, transactions: Transactions, plan: SendPlan) -> dict[int, SendFailure]:
        """Send in the open transaction. A refusal that may be of another row of the batch becomes
        UNKNOWN, and for a while the topic is sent row by row, which shows the bad one."""
        topics = plan.records.topics
        batched = [row for row in plan.rows if topics[row] not in self._singly]
        failures = transactions.send(replace(plan, rows=batched)) if batched else {}
        if not failures and len(batched) < len(plan.rows):
            singly = [row for row in plan.rows if topics[row] in self._singly]
            failures = transactions.send(replace(plan, rows=singly), singly=True)
        elif failures:
            behind = SendFailure(Answer.UNKNOWN, "not sent: another row failed", bystander=True)
            unsent = [row for row in plan.rows if topics[row] in self._singly]
            failures |= dict.fromkeys(unsent, behind)
        if failures:
            self.failed(plan, failures)
        for row, failure in failures.items():
            if failure.answer is Answer.REFUSED and failure.bystander:
                self._singly[topics[row]] = True
                failures[row] = replace(failure, answer=Answer.UNKNOWN)
        return failures


def _partitions(column: pa.Array) -> Int64s:
    """The partition of each row, ``NO_PARTITION`` where the key decides."""
    if column.null_count == len(column):
        return np.full(len(column), NO_PARTITION, np.int64)
    return np.asarray(column.fill_null(NO_PARTITION), dtype=np.int64)

"""Transactions with confluent-kafka (librdkafka): the extra ``fast``.

librdkafka's ``retry.backoff.ms`` is also how long it waits while the broker still ends the
transaction before, so it is as short as can be. A fatal error is raised out of ``flush``, in the
middle of the reports, so ``send`` takes that as an unknown outcome of every row.

A refused batch fails as a whole. Only sometimes does the client name the invalid record in it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from kafka.errors import KafkaError

from ...wheel.errors import InvalidConfiguration
from ..sink import Answer
from .alternating import (
    END_S,
    SINGLY_S,
    TOUCH,
    TRANSACTION_TIMEOUT_S,
    Abortable,
    AlternatingTransactions,
    TransactionalProducer,
)
from .confluent_client import (
    ck,
    ck_admin,
    client_config,
    client_log,
    end_producer,
    need_extra,
    producer_config,
    send_by,
)
from .kafka_python_client import members_of
from .plan import KafkaSettings, SendFailure, SendPlan
from .reach import why_not
from .settings import ClientKind
from .topicbook import Unreachable
from .transactions import Fenced, Refused, StoredMark

_T = TypeVar("_T")

_RETRY_PAUSE_S = 0.05
_INVALID, _NEIGHBOUR = "INVALID_RECORD: ", "_INVALID_DIFFERENT_RECORD: "
"""How reasons begin where the client names the invalid records of a batch."""
_UPGRADE = "Use brokers of version 2.5 or newer, with offset.metadata.max.bytes of at least 4096"
_LATER = {
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSTABLE_OFFSET_COMMIT",
}
"""Of a broker that has just come up; a consumer of librdkafka does not say that they pass."""
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_NO_RIGHTS = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "id",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}
_CANNOT = {"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION", "OFFSET_METADATA_TOO_LARGE"}


class ConfluentTransactions(AlternatingTransactions):
    """``Transactions`` with confluent-kafka. Errors: ``MissingExtra`` when it is not installed."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        need_extra()
        self.client_errors = (ck.KafkaException,)
        super().__init__(settings, group, topic)

    def _take_over(self, transactional_id: str, deadline: float) -> TransactionalProducer:
        try:
            producer = ConfluentProducer(self.settings, transactional_id, self.group, self.topic)
            try:
                insist(producer.take_over, deadline)
            except BaseException:
                producer.abandon()
                raise
        except (ck.KafkaException, Abortable) as error:
            raise self._unreachable(error) from error
        return producer

    def _read_mark(self, deadline: float) -> StoredMark | None:
        config = {"group.id": self.group, "isolation.level": "read_committed"}
        config |= client_config(self.settings, ClientKind.CONSUMER)
        consumer = ck.Consumer(config, logger=client_log)
        try:
            found = insist(lambda left_s: self._committed(consumer, left_s), deadline)
            if found is None:
                return None
            members = insist(self._members, deadline)
            return StoredMark(found.offset, found.metadata or "", members)
        except (ck.KafkaException, Abortable, TimeoutError, KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            close_behind(consumer)

    def _unreachable(self, error: Exception) -> Unreachable:
        why = why_not(self.settings.bootstrap, self.settings.extra, error)
        return Unreachable(f"Kafka at {self.settings.bootstrap}: {why}")

    def _committed(self, consumer: Any, left_s: float) -> Any:
        """The stored offset, or None."""
        known = consumer.list_topics(self.topic, left_s).topics[self.topic]
        if known.error is not None and known.error.name() == "UNKNOWN_TOPIC_OR_PART":
            raise Refused.no_topic(self.topic)
        if known.error is not None:
            raise ck.KafkaException(known.error)
        (found,) = consumer.committed([ck.TopicPartition(self.topic, 0)], left_s)
        if found.error is not None:
            raise ck.KafkaException(found.error)
        return found if found.offset >= 0 else None

    def _members(self, left_s: float) -> int:
        """By a client of kafka-python: in librdkafka this request ends the process if it runs out
        of time while a broker comes back. Only with settings that kafka-python has not, by it."""
        with suppress(InvalidConfiguration):
            return members_of(self.settings, self.group, time.monotonic() + left_s)
        admin = ck_admin.AdminClient(
            client_config(self.settings, ClientKind.ADMIN), logger=client_log
        )
        asked = admin.describe_consumer_groups([self.group], request_timeout=left_s)
        return len(asked[self.group].result(left_s).members)


class ConfluentProducer(TransactionalProducer):
    """One producer of librdkafka with a transactional id."""

    def __init__(
        self, settings: KafkaSettings, transactional_id: str, group: str, topic: str
    ) -> None:
        super().__init__()
        self._timeout_s = min(settings.trial_timeout_s, TRANSACTION_TIMEOUT_S)
        config = producer_config(settings, self._timeout_s)
        config |= client_config(settings, ClientKind.PRODUCER)
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            "retry.backoff.ms": 1,
        }
        self._producer = ck.Producer(config | own, logger=client_log)
        self._topic = topic
        # It never subscribes, so it never joins: it is only there to name the group.
        of_group = client_config(settings, ClientKind.CONSUMER) | {"group.id": group}
        namer = ck.Consumer(of_group, logger=client_log)
        self._group = namer.consumer_group_metadata()
        close_behind(namer)

    def take_over(self, left_s: float) -> None:
        self._producer.init_transactions(left_s)

    def begin(self) -> None:
        insist(lambda _: self._producer.begin_transaction(), 0)

    def send(self, plan: SendPlan, *, singly: bool) -> dict[int, SendFailure]:
        topics = plan.records.topics
        if not singly:
            return blame(self._send(plan, plan.rows), topics)
        deadline = time.monotonic() + SINGLY_S
        for at, row in enumerate(plan.rows):
            if time.monotonic() > deadline:
                late = SendFailure(Answer.UNKNOWN, "not sent: one by one takes too long")
                return dict.fromkeys(plan.rows[at:], late)
            failures = self._send(plan, [row])
            if failures:
                behind = SendFailure(Answer.UNKNOWN, "not sent: behind a refused row")
                return failures | dict.fromkeys(plan.rows[at + 1 :], behind)
        return {}

    def _send(self, plan: SendPlan, rows: list[int]) -> dict[int, SendFailure]:
        try:
            return send_by(self._producer, plan, rows, self._timeout_s)
        except (ck.KafkaException, SystemError) as error:
            return dict.fromkeys(rows, SendFailure(Answer.UNKNOWN, str(error)))

    def store(self, offset: int, metadata: str) -> None:
        mark = ck.TopicPartition(self._topic, 0, offset, metadata)
        deadline = time.monotonic() + END_S
        send = self._producer.send_offsets_to_transaction
        insist(lambda left_s: send([mark], self._group, left_s), deadline)

    def commit(self) -> None:
        insist(self._producer.commit_transaction, time.monotonic() + END_S)

    def abort(self) -> None:
        try:
            insist(self._producer.abort_transaction, time.monotonic() + END_S)
        except ck.KafkaException as error:
            # The broker refused each partition, so it has no transaction that could be aborted.
            if error.args[0].name() != "INVALID_TXN_STATE":
                raise

    def touch(self, topics: dict[str, int]) -> bool:
        failed: list[Any] = []
        for topic, count in topics.items():
            for partition in range(count):
                self._producer.produce(
                    topic, TOUCH, TOUCH, partition, lambda error, _: failed.append(error)
                )
        return self._producer.flush(self._timeout_s + END_S) == 0 and not failed

    def close(self) -> None:
        end_producer(self._producer)


def blame(failures: dict[int, SendFailure], topics: list[str]) -> dict[int, SendFailure]:
    """Tell which refusals are of a record itself: one alone in its topic, or one that was named.
    The others are of a batch: ``bystander``."""
    refused = Counter(topics[row] for row, one in failures.items() if one.answer is Answer.REFUSED)
    named = {topics[row] for row, one in failures.items() if one.reason.startswith(_NEIGHBOUR)}
    return {
        row: replace(one, bystander=True)
        if one.answer is Answer.REFUSED
        and refused[topics[row]] > 1
        and not (topics[row] in named and one.reason.startswith(_INVALID))
        else one
        for row, one in failures.items()
    }


def close_behind(consumer: Any) -> None:
    """Close a consumer without waiting for it."""
    threading.Thread(target=consumer.close, name="confluent-close", daemon=True).start()


def insist(call: Callable[[float], _T], deadline: float) -> _T:
    """Call with the time left, s, again for as long as the client says that this may help.

    Errors: ``Fenced``, ``Refused``, ``Abortable``; else the client's.
    """
    while True:
        try:
            return call(max(0.01, deadline - time.monotonic()))
        except ck.KafkaException as raised:
            error = raised.args[0]
            later = error.retriable() or error.name() in _LATER
            if later and time.monotonic() + _RETRY_PAUSE_S < deadline:
                time.sleep(_RETRY_PAUSE_S)
                continue
            found = meaning(error)
            if found is None:
                raise
            raise found from raised


def meaning(error: Any) -> Fenced | Refused | Abortable | None:
    """What an error of librdkafka means for a transaction; None: its outcome is not known."""
    name, reason = error.name(), f"{error.name()}: {error.str()}"
    if name in _FENCED:
        return Fenced(reason)
    if name in _NO_RIGHTS:
        return Refused.rights(_NO_RIGHTS[name], reason)
    if name in _CANNOT:
        return Refused(f"Kafka refuses the transactions: {reason}", remedy=_UPGRADE)
    return Abortable(reason) if error.txn_requires_abort() else None

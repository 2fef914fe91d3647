"""Transactions with confluent-kafka (librdkafka): the extra ``fast``.

librdkafka also waits for ``retry.backoff.ms`` while the broker still ends the transaction before,
so that setting is as short as can be. ``flush`` raises a fatal error in the middle of its reports,
so ``send`` then takes the outcome of every row as unknown.

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

from ...broker.reach import why_not
from ...broker.settings import ClientKind
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
from .topicbook import Unreachable
from .transactions import Fenced, Refused, StoredMark

_T = TypeVar("_T")

_RETRY_PAUSE_S = 0.05
_INVALID, _NEIGHBOUR = "INVALID_RECORD: ", "_INVALID_DIFFERENT_RECORD: "
"""A reason begins so where the client names the invalid records of a batch."""
_UPGRADE = "Use brokers of version 2.5 or newer, with offset.metadata.max.bytes of at least 4096"
_LATER = {
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "UNSTABLE_OFFSET_COMMIT",
}
"""Errors of a broker just come up, which librdkafka's consumer does not call retriable."""
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
        config = client_config(self.settings, ClientKind.CONSUMER) | {
            "group.id": self.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
        consumer = ck.Consumer(config, logger=client_log)
        try:
            committed = insist(lambda left_s: self._committed(consumer, left_s), deadline)
            if committed is None:
                return None
            members = insist(self._members, deadline)
            return StoredMark(committed.offset, committed.metadata or "", members)
        except (ck.KafkaException, Abortable, TimeoutError, KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            close_behind(consumer)

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = why_not(self.settings.bootstrap, self.settings.extra, error)
        return Unreachable(f"Kafka at {self.settings.bootstrap}: {reason}")

    def _committed(self, consumer: Any, left_s: float) -> Any:
        described = consumer.list_topics(self.topic, left_s).topics[self.topic]
        if described.error is not None and described.error.name() == "UNKNOWN_TOPIC_OR_PART":
            raise Refused.no_topic(self.topic)
        if described.error is not None:
            raise ck.KafkaException(described.error)
        (committed,) = consumer.committed([ck.TopicPartition(self.topic, 0)], left_s)
        if committed.error is not None:
            raise ck.KafkaException(committed.error)
        return committed if committed.offset >= 0 else None

    def _members(self, left_s: float) -> int:
        """Count the group's members with a client of kafka-python: librdkafka ends the process when
        this request runs out of time while a broker comes back. Settings that kafka-python does not
        know leave no choice but librdkafka."""
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
        transactional = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            "retry.backoff.ms": 1,
        }
        self._producer = ck.Producer(config | transactional, logger=client_log)
        self._topic = topic
        # This consumer never subscribes, so it never joins the group: it only names it.
        consumer_config = client_config(settings, ClientKind.CONSUMER) | {"group.id": group}
        namer = ck.Consumer(consumer_config, logger=client_log)
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
    """Mark the refusals that may be another record's fault as ``bystander``. A record is refused
    for itself if it is the only refused one of its topic, or the client names it."""
    refused = Counter(
        topics[row] for row, failure in failures.items() if failure.answer is Answer.REFUSED
    )
    named = {
        topics[row] for row, failure in failures.items() if failure.reason.startswith(_NEIGHBOUR)
    }
    return {
        row: replace(failure, bystander=True)
        if failure.answer is Answer.REFUSED
        and refused[topics[row]] > 1
        and not (topics[row] in named and failure.reason.startswith(_INVALID))
        else failure
        for row, failure in failures.items()
    }


def close_behind(consumer: Any) -> None:
    """Close a consumer on a thread of its own, as that may take long."""
    threading.Thread(target=consumer.close, name="confluent-close", daemon=True).start()


def insist(call: Callable[[float], _T], deadline: float) -> _T:
    """Call with the time left, s, and again until ``deadline`` while the client says that the error
    passes. Returns the call's result. Errors: ``Fenced``, ``Refused``, ``Abortable``; else the
    client's."""
    while True:
        try:
            return call(max(0.01, deadline - time.monotonic()))
        except ck.KafkaException as raised:
            error = raised.args[0]
            later = error.retriable() or error.name() in _LATER
            if later and time.monotonic() + _RETRY_PAUSE_S < deadline:
                time.sleep(_RETRY_PAUSE_S)
                continue
            translated = meaning(error)
            if translated is None:
                raise
            raise translated from raised


def meaning(error: Any) -> Fenced | Refused | Abortable | None:
    """Translate an error of librdkafka for a transaction; None: nobody knows its outcome."""
    name, reason = error.name(), f"{error.name()}: {error.str()}"
    if name in _FENCED:
        return Fenced(reason)
    if name in _NO_RIGHTS:
        return Refused.rights(_NO_RIGHTS[name], reason)
    if name in _CANNOT:
        return Refused(f"Kafka refuses the transactions: {reason}", remedy=_UPGRADE)
    return Abortable(reason) if error.txn_requires_abort() else None

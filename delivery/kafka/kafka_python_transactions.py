"""Transactions with kafka-python.

``ProducerLane`` appends past the client's ``send``, so its subclass here adds each partition to the
transaction, as ``send`` would. It also turns a recovery of the client off, with which a fenced
producer would take its id back from the master that fenced it.

The client splits a batch that is too large, and the broker names an invalid record, so a refusal is
always of the row itself.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...broker.reach import why_not
from ...broker.settings import ClientKind
from ...wheel.rows import Header
from ..sink import Answer
from .alternating import (
    END_S,
    TOUCH,
    TRANSACTION_TIMEOUT_S,
    Abortable,
    AlternatingTransactions,
    TransactionalProducer,
)
from .kafka_python_client import client_config, members_of, send_by
from .lane import ProducerLane
from .plan import KafkaSettings, SendFailure, SendPlan
from .topicbook import Unreachable
from .transactions import Fenced, Refused, StoredMark

FENCED = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
)
_NO_RIGHTS: dict[type[Exception], str] = {
    kafka_errors.TransactionalIdAuthorizationFailedError: "id",
    kafka_errors.GroupAuthorizationFailedError: "group",
    kafka_errors.TopicAuthorizationFailedError: "topic",
    kafka_errors.ClusterAuthorizationFailedError: "cluster",
}
_CANNOT = (
    kafka_errors.UnsupportedVersionError,
    kafka_errors.KafkaConfigurationError,
    kafka_errors.OffsetMetadataTooLargeError,
)
_UPGRADE = "Use brokers of version 2.5 or newer, with offset.metadata.max.bytes of at least 4096"


class KafkaPythonTransactions(AlternatingTransactions):
    """``Transactions`` with kafka-python."""

    client_errors = (kafka_errors.KafkaError,)

    def _take_over(self, transactional_id: str, deadline: float) -> TransactionalProducer:
        try:
            producer = KafkaPythonProducer(self.settings, transactional_id, self.group, self.topic)
            try:
                producer.take_over(deadline)
            except BaseException:
                producer.abandon()
                raise
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._meaning(error) from error
        return producer

    def _read_mark(self, deadline: float) -> StoredMark | None:
        try:
            committed = self._committed(deadline)
            if committed is None:
                return None
            # confluent-kafka stores a NUL behind the text.
            text = committed.metadata.removesuffix("\0")
            return StoredMark(
                committed.offset, text, members_of(self.settings, self.group, deadline)
            )
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._meaning(error) from error

    def _committed(self, deadline: float) -> Any:
        """The stored offset, or None. With read_committed the client requires a stable one."""
        config = client_config(self.settings, ClientKind.CONSUMER) | {
            "group_id": self.group,
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
        }
        consumer = KafkaConsumer(**config)
        try:
            if not consumer.partitions_for_topic(self.topic):
                raise Refused.no_topic(self.topic)
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            mark = TopicPartition(self.topic, 0)
            return consumer.committed(mark, metadata=True, timeout_ms=left_ms)
        finally:
            consumer.close(autocommit=False)

    def _meaning(self, error: Exception) -> Exception:
        translated = meaning(error)
        if isinstance(translated, Fenced | Refused):
            return translated
        reason = why_not(self.settings.bootstrap, self.settings.extra, error)
        return Unreachable(f"Kafka at {self.settings.bootstrap}: {reason}")


class TransactionalLane(ProducerLane):
    """A lane with a transactional id."""

    def __init__(self, settings: KafkaSettings, timeout_s: float, transactional_id: str) -> None:
        transactional = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": int(TRANSACTION_TIMEOUT_S * 1000),
            "retry_backoff_ms": 10,  # the client sleeps so long while the last transaction ends
        }
        super().__init__(settings, timeout_s, transactional)
        self.producer = self._producer
        self.manager = self._producer._transaction_manager
        # Otherwise a producer that finds its epoch outdated would ask for a new one.
        self.manager._supports_epoch_bump = lambda: False

    def _keep_batches_in_flight(self) -> None:
        """Change nothing: a transaction counts as a whole, so all its batches may be given up."""

    def send(self, plan: SendPlan, rows: list[int], partitions: list[int]) -> list[Any]:
        topics = plan.records.topics
        for topic, partition in {(topics[row], partitions[row]) for row in rows}:
            self.manager.maybe_add_partition_to_transaction(TopicPartition(topic, partition))
        return super().send(plan, rows, partitions)

    def append(
        self,
        target: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        timestamp_ms: int | None = None,
    ) -> Any:
        self.manager.maybe_add_partition_to_transaction(target)
        return super().append(target, key, value, headers, timestamp_ms)


class KafkaPythonProducer(TransactionalProducer):
    """One producer of kafka-python with a transactional id."""

    def __init__(
        self, settings: KafkaSettings, transactional_id: str, group: str, topic: str
    ) -> None:
        super().__init__()
        self._timeout_s = min(settings.trial_timeout_s, TRANSACTION_TIMEOUT_S)
        self._lane = TransactionalLane(settings, self._timeout_s, transactional_id)
        self._group = group
        self._mark = TopicPartition(topic, 0)

    def take_over(self, deadline: float) -> None:
        while True:
            try:
                self._lane.producer.init_transactions()
            except kafka_errors.KafkaTimeoutError:  # it goes on when called again
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def begin(self) -> None:
        self._do(self._lane.producer.begin_transaction)

    def send(self, plan: SendPlan, *, singly: bool) -> dict[int, SendFailure]:
        del singly  # a refusal is of the row itself anyway
        try:
            return send_by(self._lane, plan, self._timeout_s)
        except kafka_errors.KafkaError as error:
            return dict.fromkeys(plan.rows, SendFailure(Answer.UNKNOWN, str(error)))

    def store(self, offset: int, metadata: str) -> None:
        mark = {self._mark: OffsetAndMetadata(offset, metadata, -1)}
        self._do(self._lane.producer.send_offsets_to_transaction, mark, self._group)

    def commit(self) -> None:
        self._do(self._lane.producer.commit_transaction)

    def abort(self) -> None:
        # Where the broker refused each partition, it has no transaction that could be aborted.
        with suppress(kafka_errors.InvalidTxnStateError):
            self._do(self._lane.producer.abort_transaction)

    def touch(self, topics: dict[str, int]) -> bool:
        producer = self._lane.producer
        try:
            sent = [
                producer.send(topic, TOUCH, TOUCH, partition=partition)
                for topic, count in topics.items()
                for partition in range(count)
            ]
            for future in sent:
                future.get(self._timeout_s + END_S)
        except kafka_errors.KafkaError:
            return False
        return True

    def abandon(self) -> None:
        # A call in the producer may wait without a limit; it ends when the producer is closed.
        super().abandon()
        with suppress(Exception):
            self._lane.producer._sender.force_close()

    def close(self) -> None:
        self._lane.abandon()

    def _do(self, call: Any, *arguments: Any) -> None:
        """Call and translate errors, by the client's last one: when it raises for an earlier error,
        the reason is only there. Errors: ``Fenced``, ``Refused``, ``Abortable``, the client's."""
        try:
            call(*arguments)
        except kafka_errors.KafkaError as error:
            manager = self._lane.manager
            translated: Exception | None = meaning(manager.last_error or error)
            if translated is None and manager.has_abortable_error():
                translated = Abortable(str(manager.last_error))
            if translated is None:
                raise
            raise translated from error


def meaning(error: Exception) -> Fenced | Refused | None:
    """Translate an error of kafka-python for a transaction; None: it is neither of the two."""
    reason = str(error) or type(error).__name__
    if isinstance(error, FENCED):
        return Fenced(reason)
    for kind, right in _NO_RIGHTS.items():
        if isinstance(error, kind):
            return Refused.rights(right, reason)
    if isinstance(error, _CANNOT):
        return Refused(f"Kafka refuses the transactions: {reason}", remedy=_UPGRADE)
    return None

"""Transactions of a consumer by kafka-python.

Its calls that end a transaction wait without a limit: they run on a thread that is left behind.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors
from kafka.partitioner.default import murmur2
from kafka.structs import TopicPartition

from ..broker.limits import within
from ..delivery.kafka.kafka_python_client import classify
from ..delivery.kafka.kafka_python_transactions import FENCED, TransactionalLane
from ..delivery.kafka.plan import KafkaSettings
from ..delivery.sink import Answer
from .inflight import CommitBatch
from .kafka_python_source import offsets_of
from .message import OutputRecord
from .source import ConsumerFailed, SourceAway
from .transactions import END_S, TransactionFailed, Transactor

_ASK_MS = 2000


class KafkaPythonTransactor(Transactor):
    def __init__(self, bootstrap: str, transactional_id: str, extra: Mapping[str, Any]) -> None:
        self._settings = KafkaSettings(bootstrap, extra=dict(extra))
        self._id = transactional_id
        self._lane: TransactionalLane | None = None

    def start(self) -> None:
        self.close()
        deadline = time.monotonic() + END_S
        try:
            lane = TransactionalLane(self._settings, END_S, self._id)
            self._lane = lane
            while True:
                try:
                    lane.producer.init_transactions()
                except kafka_errors.KafkaTimeoutError:  # it goes on when called again
                    if time.monotonic() > deadline:
                        raise
                else:
                    return
        except (kafka_errors.KafkaError, OSError) as error:
            self.close()
            if isinstance(error, kafka_errors.AuthorizationError):
                raise ConsumerFailed(
                    f"Kafka refuses the transactions: {type(error).__name__}: {error}",
                    remedy=f"Give this client the rights to the transactional id {self._id!r}",
                ) from error
            raise SourceAway(f"no transactional producer: {error}") from error

    def commit(self, batch: CommitBatch) -> None:
        lane = self._lane
        if lane is None:
            raise TransactionFailed("there is no producer")
        futures: list[Any] = []

        def run() -> None:
            lane.producer.begin_transaction()
            anywhere: dict[str, int] = {}
            for _, _, output in batch.outputs:
                target = _target(lane, output, anywhere)
                content = output.key, output.value, list(output.headers), output.timestamp_ms
                futures.append(lane.append(target, *content))
            lane.producer._sender.wakeup()
            # A refused record's own future has the error; the commit would wait for ever.
            for future in futures:
                future.get(END_S)
            offsets = offsets_of(batch.positions)
            lane.producer.send_offsets_to_transaction(offsets, batch.member)
            lane.producer.commit_transaction()

        try:
            ended = within(END_S, run)
        except (kafka_errors.KafkaError, OSError, RuntimeError, ValueError) as error:
            reason = lane.manager.last_error or error
            text = str(reason) or type(reason).__name__
            if isinstance(reason, FENCED):
                raise TransactionFailed(text, fenced=True) from error
            raise self._failure(text, batch, futures) from error
        if not ended:
            raise self._failure(f"no answer within {END_S:g} s", batch, list(futures))

    def _failure(self, reason: str, batch: CommitBatch, futures: list[Any]) -> TransactionFailed:
        for (partition, offset, _), future in zip(batch.outputs, futures, strict=False):
            if not future.is_done or future.exception is None:
                continue
            failure = classify(future.exception, aborted=TransactionalLane.aborted(future))
            if failure.answer is Answer.REFUSED:
                return TransactionFailed(failure.reason, (partition, offset))
        return self.unclear(batch, reason)

    def partitions(self, topic: str) -> int | None:
        lane = self._lane
        if lane is None:
            return None
        asked_ms = time.monotonic() * 1000
        try:
            return len(lane.producer._wait_on_metadata(topic, _ASK_MS))
        except kafka_errors.KafkaTimeoutError:
            # The brokers have answered that there is no such topic, or have not answered.
            answered = lane.producer._metadata._last_successful_refresh_ms > asked_ms
            return 0 if answered else None
        except kafka_errors.KafkaError:
            return None

    def close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            # A call that waits without a limit ends with the producer.
            with suppress(Exception):
                lane.producer._sender.force_close()
            within(0, lane.abandon)


def _target(
    lane: TransactionalLane, output: OutputRecord, anywhere: dict[str, int]
) -> TopicPartition:
    """A record's target: the partition that it names, else that of its key. Records without a key
    go to one random partition of their topic, kept in ``anywhere``, for a whole transaction."""
    if output.partition is not None:
        return TopicPartition(output.topic, output.partition)
    count = len(lane.producer.partitions_for(output.topic))
    if output.key is not None:
        return TopicPartition(output.topic, (murmur2(output.key) & 0x7FFFFFFF) % count)
    return TopicPartition(output.topic, anywhere.setdefault(output.topic, random.randrange(count)))

"""Transactions of a consumer by confluent-kafka (librdkafka): the extra ``fast``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from ..broker.limits import within
from ..broker.settings import ClientKind, for_confluent, refused
from .confluent_source import confluent
from .inflight import CommitBatch
from .source import ConsumerFailed, SourceAway
from .transactions import END_S, TRANSACTION_S, TransactionFailed, Transactor

_log = logging.getLogger("slotwheel.librdkafka")
_REFUSED = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD"}
_REFUSED |= {"INVALID_TIMESTAMP", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_PAUSE_S = 0.02
_ASK_S = 2.0


class ConfluentTransactor(Transactor):
    def __init__(self, bootstrap: str, transactional_id: str, extra: Mapping[str, Any]) -> None:
        self._ck = confluent()
        self._config = {
            "bootstrap.servers": bootstrap,
            "client.id": "slotwheel-consumer",
            "reconnect.backoff.max.ms": 1000,
            "log.connection.close": False,
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
            "delivery.report.only.error": True,
            "linger.ms": 1,
            "message.timeout.ms": int(END_S * 1000),
            "message.max.bytes": 64 << 20,  # the topic's own limit decides
            **for_confluent(extra, ClientKind.PRODUCER),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_S * 1000),
            # The client also waits so long while the transaction before still ends.
            "retry.backoff.ms": 1,
        }
        self._producer: Any = None
        self._singly = False
        """True after a batch was refused: only batches of one record show the bad one."""

    def start(self) -> None:
        self.close()
        config = self._config | ({"batch.num.messages": 1} if self._singly else {})
        try:
            self._producer = self._ck.Producer(config, logger=_log)
        except self._ck.KafkaException as error:
            raise refused(error.args[0]) or SourceAway(str(error)) from None
        try:
            self._insist(self._producer.init_transactions, time.monotonic() + END_S)
        except self._ck.KafkaException as error:
            self.close()
            if "AUTHORIZATION" in error.args[0].name():
                raise ConsumerFailed(
                    f"Kafka refuses the transactions: {error.args[0].str()}",
                    remedy="Give this client the rights to the transactional id"
                    f" {self._config['transactional.id']!r}",
                ) from error
            raise SourceAway(f"no transactional producer: {error}") from error

    def commit(self, batch: CommitBatch) -> None:
        producer = self._producer
        if producer is None:
            raise TransactionFailed("there is no producer")
        deadline = time.monotonic() + END_S
        failures: dict[int, Any] = {}

        def note(row: int, error: Any, _message: Any) -> None:
            failures[row] = error

        def run() -> None:
            producer.begin_transaction()
            for row, (_, _, output) in enumerate(batch.outputs):
                part = -1 if output.partition is None else output.partition
                try:
                    self._produce(producer, output, part, partial(note, row), deadline)
                except self._ck.KafkaException as error:
                    note(row, error.args[0], None)
                    raise
            # The commit would wait in vain for the records behind a refused one.
            while self._singly and len(producer) and time.monotonic() < deadline:
                producer.poll(_PAUSE_S)
                for failure in failures.values():
                    raise self._ck.KafkaException(failure)
            offsets = [
                self._ck.TopicPartition(*place, position)
                for place, position in batch.positions.items()
            ]
            store = partial(producer.send_offsets_to_transaction, offsets, batch.member)
            self._insist(store, deadline)
            self._insist(producer.commit_transaction, deadline)

        try:
            # Without a coordinator the client does not keep to its own limit.
            ended = within(END_S, run)
        except (self._ck.KafkaException, BufferError) as error:
            producer.purge()
            with suppress(self._ck.KafkaException):
                producer.flush(0.2)
            if isinstance(error, self._ck.KafkaException) and error.args[0].name() in _FENCED:
                raise TransactionFailed(str(error), fenced=True) from error
            raise self._failure(batch, failures, str(error)) from error
        if not ended:
            raise self._failure(batch, dict(failures), f"no answer within {END_S:g} s")

    def _produce(self, producer: Any, output: Any, part: int, report: Any, deadline: float) -> None:
        while True:
            try:
                producer.produce(
                    output.topic,
                    output.value,
                    output.key,
                    part,
                    report,
                    headers=list(output.headers),
                    timestamp=output.timestamp_ms or 0,
                )
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise
                producer.poll(0.05)

    def _failure(
        self, batch: CommitBatch, failures: dict[int, Any], reason: str
    ) -> TransactionFailed:
        refused = [row for row, error in sorted(failures.items()) if error.name() in _REFUSED]
        self._singly = len(refused) > 1 and not self._singly
        if refused and not self._singly:
            partition, offset, _ = batch.outputs[refused[0]]
            error = failures[refused[0]]
            return TransactionFailed(f"{error.name()}: {error.str()}", (partition, offset))
        return self.unclear(batch, reason)

    def _insist(self, call: Callable[[float], None], deadline: float) -> None:
        """Call with the time that is left, s, and again while the client calls the error one that
        passes. Errors: confluent-kafka's."""
        while True:
            try:
                call(max(0.1, deadline - time.monotonic()))
                return
            except self._ck.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def partitions(self, topic: str) -> int | None:
        producer = self._producer
        if producer is None:
            return None
        try:
            described = producer.list_topics(topic, _ASK_S).topics[topic]
        except self._ck.KafkaException:
            return None
        if described.error is None:
            return len(described.partitions)
        return 0 if described.error.name() in _REFUSED | {"UNKNOWN_TOPIC_OR_PART"} else None

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

            def close() -> None:
                with suppress(self._ck.KafkaException):
                    producer.close()

            within(0, close)

"""A group's subscription by confluent-kafka (librdkafka): the extra ``fast``.

Callbacks come out of ``poll``, on the consumer's own thread. The member that a transaction names is
read when partitions are assigned: later the client may have lost its membership, and would name a
member that the brokers do not check.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..broker.collection import without_collection
from ..broker.header_names import headers_of
from ..broker.limits import within
from ..broker.settings import ClientKind, for_confluent, refused
from ..wheel.errors import InvalidConfiguration
from .making import make_by_confluent, no_brokers
from .message import Received, SourcePartition
from .source import (
    CLOSE_S,
    COMMIT_S,
    Assignment,
    ConsumerFailed,
    Source,
    SourceAway,
    no_topic,
    refuse_cooperative,
)

_log = logging.getLogger("slotwheel.librdkafka")
_ASK_S = 5.0
_LATER = {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_MAX_POLL_EXCEEDED", "_STATE"}
_LATER |= {"_NO_OFFSET", "_PARTITION_EOF", "_ASSIGNMENT_LOST", "UNSTABLE_OFFSET_COMMIT"}
_LATER |= {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"}
_LATER |= {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_WAIT_COORD", "_RESOLVE"}


class ConfluentSource(Source):
    """A ``Source`` of Kafka. Errors on construction: ``InvalidConfiguration`` for a topic that does
    not exist, or without the extra; ``NodeUnreachable``."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        assignment: Assignment,
        *,
        create: Sequence[str] = (),
        needed: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Arguments: as of ``KafkaPythonSource``."""
        self._ck = confluent()
        self._assignment = assignment
        self._held: set[SourcePartition] = set()
        self._closing = False
        settings = extra or {}
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": "slotwheel-consumer"}
        common |= {"reconnect.backoff.max.ms": 1000, "log.connection.close": False}
        config: dict[str, Any] = common | {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,  # its offset is also behind marks of transactions
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.queue.backoff.ms": 10,  # a full queue is left alone for a second by default
            "socket.timeout.ms": 10_000,  # a commit inside a rebalance has no other limit
        }
        config |= for_confluent(settings, ClientKind.CONSUMER)
        refuse_cooperative([config.get("partition.assignment.strategy", "")])
        config |= {"group.id": group, "enable.auto.commit": False}
        config["enable.auto.offset.store"] = False
        try:
            self._consumer = self._ck.Consumer(config, logger=_log)
        except self._ck.KafkaException as error:
            raise refused(error.args[0]) or no_brokers(bootstrap, settings, error) from None
        try:
            existing = self._consumer.list_topics(timeout=_ASK_S).topics
            if missing := [name for name in create if name not in existing]:
                make_by_confluent(common, settings, missing)
                existing = self._consumer.list_topics(timeout=_ASK_S).topics
            required = (*topics, *needed)
            if missing := [name for name in required if name not in (*existing, *create)]:
                raise no_topic(missing, list(existing))
            self._consumer.subscribe(
                list(topics),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except self._ck.KafkaException as error:
            self.close()
            raise no_brokers(bootstrap, settings, error) from error
        except BaseException:
            self.close()
            raise

    def poll(self, timeout_s: float, count: int) -> list[Received]:
        self.seen = {}
        try:
            # ``consume`` waits until it has as many as it may return, so ``poll`` waits instead.
            first = self._consumer.poll(timeout_s)
        except self._ck.KafkaException as raised:
            raise self._meaning(raised.args[0]) from raised
        if first is None:
            return []
        with without_collection():
            return self._messages([first, *self._more(count - 1)])

    def _more(self, count: int) -> list[Any]:
        """Up to ``count`` further records that the client has. Errors: ``ConsumerFailed``."""
        if count < 1:
            return []
        try:
            records: list[Any] = self._consumer.consume(count, 0)
        except self._ck.KafkaException as raised:
            meaning = self._meaning(raised.args[0])
            # The client's position is behind the first record by now: raising would lose it.
            if not isinstance(meaning, SourceAway):
                raise meaning from raised
            return []
        return records

    def _messages(self, records: list[Any]) -> list[Received]:
        messages: list[Received] = []
        seen: dict[tuple[str, int], int] = {}
        unwanted = self.unwanted
        for record in records:
            error = record.error()
            if error is None:
                topic, partition, offset = record.topic(), record.partition(), record.offset()
                seen[topic, partition] = offset
                headers = headers_of(record)
                if unwanted is None or not unwanted(topic, headers):
                    key, value, timestamp = record.key(), record.value(), record.timestamp()[1]
                    messages.append(
                        Received(topic, partition, offset, key, value, headers, timestamp)
                    )
                continue
            if error.code() == self._ck.KafkaError._PARTITION_EOF:
                if record.offset() > 0:
                    seen[record.topic(), record.partition()] = record.offset() - 1
                continue
            meaning = self._meaning(error)
            if not isinstance(meaning, SourceAway):
                raise meaning
        self.seen = {SourcePartition(*place): offset for place, offset in seen.items()}
        return messages

    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        try:
            if not within(COMMIT_S, lambda: self._commit(positions)):
                raise SourceAway(f"not committed within {COMMIT_S:g} s")
        except self._ck.KafkaException as error:
            raise self._meaning(error.args[0]) from error

    def _commit(self, positions: Mapping[SourcePartition, int]) -> None:
        for partition in self._consumer.commit(offsets=self._parts(positions), asynchronous=False):
            if partition.error is not None:
                raise self._ck.KafkaException(partition.error)

    def hold(self, partitions: Collection[SourcePartition]) -> None:
        assigned = set(_names(self._consumer.assignment()))
        paused = assigned.intersection(partitions)
        held = self._held & assigned
        try:
            if paused - held:
                self._consumer.pause(self._parts(dict.fromkeys(paused - held, 0)))
            if held - paused:
                self._consumer.resume(self._parts(dict.fromkeys(held - paused, 0)))
        except self._ck.KafkaException as error:
            raise self._meaning(error.args[0]) from error
        self._held = paused

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        assigned = set(_names(self._consumer.assignment()))
        ours = {partition: start for partition, start in starts.items() if partition in assigned}
        deadline = time.monotonic() + COMMIT_S
        try:
            left_s = max(0.1, deadline - time.monotonic())
            committed = self._consumer.committed(self._parts(ours), left_s) if ours else []
            for part in committed:
                if part.error is not None:
                    raise self._ck.KafkaException(part.error)
                start = ours[SourcePartition(part.topic, part.partition)]
                part.offset = part.offset if part.offset >= 0 else start
                self._consumer.seek(part)
        except self._ck.KafkaException as error:
            raise SourceAway(f"positions could not be read: {error}") from error

    def close(self) -> None:
        self._closing = True
        within(CLOSE_S, self._close)

    def _close(self) -> None:
        with contextlib.suppress(self._ck.KafkaException):
            # An assignment that waits is answered while the client still runs. ``close`` would
            # hand it over while the client ends, and may wait for ever for that to be answered,
            # with the interpreter in its hands.
            self._consumer.poll(0)
        self._consumer.close()

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        if self._closing:
            # Nobody reads them, and the client may have left its group: it would raise.
            return
        self._assignment.assigned(_names(partitions), consumer.consumer_group_metadata())

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        positions = self._assignment.finished(_names(partitions))
        if positions:
            try:
                self._commit(positions)
                self._assignment.committed(positions)
            except self._ck.KafkaException as error:
                _log.warning("slotwheel consumer: at a rebalance: %s", error)
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        names = _names(partitions)
        self._assignment.revoked(names)
        held = self._held.intersection(names)
        if held and not self._closing:
            # Otherwise the client would hold them still when they are assigned again.
            consumer.resume(self._parts(dict.fromkeys(held, 0)))
            self._held -= held

    def _parts(self, positions: Mapping[SourcePartition, int]) -> list[Any]:
        return [self._ck.TopicPartition(*place, position) for place, position in positions.items()]

    def _meaning(self, error: Any) -> Exception:
        if error.retriable() or error.name() in _LATER:
            return SourceAway(error.str())
        return ConsumerFailed(
            f"Kafka refuses: {error.name()}: {error.str()}",
            remedy="Check the rights of this client and the settings in kafka={…}",
        )


def confluent() -> Any:
    """The client's module. Errors: ``InvalidConfiguration`` when it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise InvalidConfiguration(
            "confluent-kafka is not installed",
            got='client="confluent"',
            remedy="Run: pip install 'slotwheel[fast]', or take client=\"kafka-python\"",
        ) from None
    return confluent_kafka


def _names(partitions: list[Any]) -> list[SourcePartition]:
    return [SourcePartition(part.topic, part.partition) for part in partitions]

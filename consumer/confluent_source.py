"""A group's subscription by confluent-kafka (librdkafka): the extra ``fast``.

Callbacks come out of ``poll``, on the consumer's own thread. The member as a transaction names it
is asked for when partitions are assigned: later the client may have lost its membership, and would
name a member that the brokers do not check.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..delivery.kafka.collection import without_collection
from ..delivery.kafka.header_names import headers_of
from ..delivery.kafka.limits import within
from ..delivery.kafka.settings import ClientKind, for_confluent, refused
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
    """Errors on construction: ``InvalidConfiguration`` for a topic that is not there, or without
    the extra; ``NodeUnreachable``."""

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
        """As ``KafkaPythonSource``."""
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
            "enable.partition.eof": True,  # it tells of marks of transactions, too
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
            there = self._consumer.list_topics(timeout=_ASK_S).topics
            if missing := [name for name in create if name not in there]:
                make_by_confluent(common, settings, missing)
                there = self._consumer.list_topics(timeout=_ASK_S).topics
            wanted = (*topics, *needed)
            if missing := [name for name in wanted if name not in (*there, *create)]:
                raise no_topic(missing, list(there))
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
            # ``consume`` waits until it has all it may return, so it is not asked to wait.
            first = self._consumer.poll(timeout_s)
        except self._ck.KafkaException as raised:
            raise self._meaning(raised.args[0]) from raised
        if first is None:
            return []
        with without_collection():
            return self._messages([first, *self._more(count - 1)])

    def _more(self, count: int) -> list[Any]:
        """Further records that are there. Errors: ``ConsumerFailed``."""
        if count < 1:
            return []
        try:
            found: list[Any] = self._consumer.consume(count, 0)
        except self._ck.KafkaException as raised:
            meaning = self._meaning(raised.args[0])
            # The client's position is behind the first record by now: it would be passed over.
            if not isinstance(meaning, SourceAway):
                raise meaning from raised
            return []
        return found

    def _messages(self, records: list[Any]) -> list[Received]:
        found: list[Received] = []
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
                    found.append(Received(topic, partition, offset, key, value, headers, timestamp))
                continue
            if error.code() == self._ck.KafkaError._PARTITION_EOF:
                if record.offset() > 0:
                    seen[record.topic(), record.partition()] = record.offset() - 1
                continue
            meaning = self._meaning(error)
            if not isinstance(meaning, SourceAway):
                raise meaning
        self.seen = {SourcePartition(*place): offset for place, offset in seen.items()}
        return found

    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        try:
            if not within(COMMIT_S, lambda: self._commit(positions)):
                raise SourceAway(f"not committed within {COMMIT_S:g} s")
        except self._ck.KafkaException as error:
            raise self._meaning(error.args[0]) from error

    def _commit(self, positions: Mapping[SourcePartition, int]) -> None:
        for one in self._consumer.commit(offsets=self._parts(positions), asynchronous=False):
            if one.error is not None:
                raise self._ck.KafkaException(one.error)

    def hold(self, partitions: Collection[SourcePartition]) -> None:
        own = {SourcePartition(one.topic, one.partition) for one in self._consumer.assignment()}
        wanted = own.intersection(partitions)
        held = self._held & own
        try:
            if wanted - held:
                self._consumer.pause(self._parts(dict.fromkeys(wanted - held, 0)))
            if held - wanted:
                self._consumer.resume(self._parts(dict.fromkeys(held - wanted, 0)))
        except self._ck.KafkaException as error:
            raise self._meaning(error.args[0]) from error
        self._held = wanted

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        own = {SourcePartition(one.topic, one.partition) for one in self._consumer.assignment()}
        wanted = {one: start for one, start in starts.items() if one in own}
        deadline = time.monotonic() + COMMIT_S
        try:
            left_s = max(0.1, deadline - time.monotonic())
            found = self._consumer.committed(self._parts(wanted), left_s) if wanted else []
            for one in found:
                if one.error is not None:
                    raise self._ck.KafkaException(one.error)
                start = wanted[SourcePartition(one.topic, one.partition)]
                one.offset = one.offset if one.offset >= 0 else start
                self._consumer.seek(one)
        except self._ck.KafkaException as error:
            raise SourceAway(f"positions could not be read: {error}") from error

    def close(self) -> None:
        self._closing = True
        within(CLOSE_S, self._consumer.close)

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
            # Else the client would hold them still when they are assigned again.
            consumer.resume(self._parts(dict.fromkeys(held, 0)))
            self._held -= held

    def _parts(self, positions: Mapping[SourcePartition, int]) -> list[Any]:
        return [self._ck.TopicPartition(*one, position) for one, position in positions.items()]

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
    return [SourcePartition(one.topic, one.partition) for one in partitions]

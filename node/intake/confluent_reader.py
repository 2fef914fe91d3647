"""Reads delay topics with confluent-kafka (extra ``fast``), several times faster than the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from ...broker.header_names import headers_of
from ...broker.settings import ClientKind, for_confluent
from ...broker.sources import Place, StoredOffset
from .records import ConsumerRecords
from .source_reader import (
    NO_LEADER,
    RECORDS_MAX,
    TIMEOUT_S,
    DescribedTopic,
    Polled,
    SourceOutOfRange,
    SourceUnreachable,
    SourceUnreadable,
    ask_leaders,
    until_answered,
)

_CLOSE_S = 1.0
_NO_TOPIC = "slotwheel-none"
"""A topic to ask for when only the cluster's id is needed: without one, all topics are listed."""


class ConfluentReader:
    """A ``SourceReader`` for the consumer group ``group``. ``settings``: of the client, in
    librdkafka's names. Errors on construction: ``ImportError`` without the extra,
    ``SourceUnreachable``."""

    def __init__(
        self, bootstrap: str, group: str, settings: Mapping[str, Any] | None = None
    ) -> None:
        import confluent_kafka as kafka
        import confluent_kafka.admin

        self._kafka: Any = kafka
        self._group = group
        self._last_error = last_error = [""]
        """The last error of a connection: a request that times out gives no reason itself."""
        self._refused = refused = [""]
        """The reason that offsets were not stored which nobody waited for."""
        given = {"reconnect.backoff.max.ms": 1000, **(settings or {})}
        common = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            # It is no method: a client in a cycle would end in whatever thread collects it.
            "error_cb": lambda error: last_error.__setitem__(0, str(error.str())),
        }
        # It asks for topic ids only. A request of it that runs out of time while Kafka comes back
        # can end the process; only for this one it was shown that it does not.
        self._admin: Any = kafka.admin.AdminClient(for_confluent(given, ClientKind.ADMIN) | common)
        self._asked: set[Future[Any]] = set()
        self._consumer: Any = kafka.Consumer(
            {
                **for_confluent(given, ClientKind.CONSUMER),
                **common,
                "group.id": group,
                "session.timeout.ms": 6000,  # the longest time that storing an offset takes
                "on_commit": lambda error, _: refused.__setitem__(0, error and str(error.str())),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 100,
                "max.partition.fetch.bytes": 8 << 20,
                "queued.max.messages.kbytes": 32 << 10,
            }
        )
        self._leaders: dict[Place, int] = {}
        """The leaders as of the last ``describe``."""
        self._reading: set[Place] = set()
        self._returned: dict[Place, int] = {}
        try:
            self.cluster: str = self._metadata(_NO_TOPIC).cluster_id or ""
        except BaseException:
            self.close()
            raise

    def _metadata(self, *topic: str) -> Any:
        """Errors: ``SourceUnreachable``."""
        try:
            return self._consumer.list_topics(*topic, timeout=TIMEOUT_S)
        except self._kafka.KafkaException as error:
            self._consumer.poll(0)  # it calls error_cb
            raise SourceUnreachable(self._last_error[0] or error.args[0].str()) from None

    def every_topic(self) -> list[str]:
        return list(self._metadata().topics)

    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]:
        requested = list(topics)
        self._metadata(requested[0])
        names = self._kafka.TopicCollection(requested)
        asked = self._admin.describe_topics(names, request_timeout=TIMEOUT_S)
        self._asked = {future for future in self._asked if not future.done()} | {*asked.values()}
        described: dict[str, DescribedTopic | SourceUnreadable] = {}
        for name, future in asked.items():
            try:
                topic = future.result(TIMEOUT_S + 1)
            except TimeoutError:
                raise SourceUnreachable(self._last_error[0] or "no answer") from None
            except self._kafka.KafkaException as error:
                code, reason = error.args[0].code(), error.args[0].str()
                if code in (self._kafka.KafkaError._TIMED_OUT, self._kafka.KafkaError._TRANSPORT):
                    raise SourceUnreachable(self._last_error[0] or reason) from None
                described[name] = SourceUnreadable(reason)
                continue
            # An id of zeros is none.
            topic_id = str(topic.topic_id or "")
            leaders = {
                Place(name, partition.id): (
                    NO_LEADER if partition.leader is None else partition.leader.id
                )
                for partition in topic.partitions
            }
            self._leaders |= leaders
            described[name] = DescribedTopic(
                "" if set(topic_id) == {"A"} else topic_id,
                [leaders[place] != NO_LEADER for place in sorted(leaders)],
            )
        return described

    def offsets(self, places: Collection[Place], at: int) -> dict[Place, int]:
        # The times that stand for the earliest and the last offset are the protocol's own.
        def ask(group: list[Place]) -> dict[Place, int]:
            targets = [self._kafka.TopicPartition(*place, at) for place in group]
            try:
                answers = self._consumer.offsets_for_times(targets, timeout=TIMEOUT_S)
            except self._kafka.KafkaException as error:
                raise self._failed(error, "its offsets") from None
            return {
                Place(answer.topic, answer.partition): answer.offset
                for answer in answers
                if answer.error is None and answer.offset >= 0
            }

        return ask_leaders(places, self._leaders, ask)

    def stored(self, places: Collection[Place]) -> dict[Place, StoredOffset]:
        targets = [self._kafka.TopicPartition(*place) for place in places]
        if not targets:
            return {}
        committed = self._for_group(
            "its offsets", lambda: self._consumer.committed(targets, timeout=TIMEOUT_S)
        )
        return {
            Place(answer.topic, answer.partition): StoredOffset(
                answer.offset, answer.metadata or ""
            )
            for answer in committed
            if answer.offset >= 0 and answer.error is None
        }

    def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
        targets = [
            self._kafka.TopicPartition(*place, stored.offset, stored.topic_id)
            for place, stored in offsets.items()
        ]
        refused, self._refused[0] = self._refused[0], ""
        if refused:
            raise SourceUnreadable(f"a position in it of the group {self._group!r}: {refused}")
        self._for_group(
            "a position in it",
            lambda: self._consumer.commit(offsets=targets, asynchronous=not wait),
        )

    def _for_group(self, subject: str, ask: Callable[[], Any]) -> Any:
        try:
            return until_answered(ask, self._passes)
        except self._kafka.KafkaException as error:
            raise self._failed(error, f"{subject} of the group {self._group!r}") from None

    def _failed(self, error: Any, subject: str) -> SourceUnreachable | SourceUnreadable:
        code, reason = error.args[0].code(), error.args[0].str()
        if code in (self._kafka.KafkaError._TIMED_OUT, self._kafka.KafkaError._TRANSPORT):
            return SourceUnreachable(self._last_error[0] or reason)
        return SourceUnreadable(f"{subject}: {reason}")

    def _passes(self, error: Exception) -> bool:
        codes = self._kafka.KafkaError
        return isinstance(error, self._kafka.KafkaException) and error.args[0].code() in (
            *(codes.NOT_COORDINATOR, codes.COORDINATOR_LOAD_IN_PROGRESS, codes._WAIT_COORD),
            codes.COORDINATOR_NOT_AVAILABLE,
        )

    def read(self, offsets: Mapping[Place, int]) -> None:
        self.leave([place for place in offsets if place in self._reading])
        self._consumer.incremental_assign(
            [self._kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        )
        self._reading |= offsets.keys()

    def leave(self, places: Collection[Place]) -> None:
        if left := self._reading.intersection(places):
            self._consumer.incremental_unassign(
                [self._kafka.TopicPartition(*place) for place in left]
            )
            self._reading -= left
        for place in places:
            self._returned.pop(place, None)

    def poll(self, timeout_s: float) -> Polled:
        received: dict[Place, list[Any]] = {}
        errors: dict[Place, SourceUnreadable] = {}
        for record in self._consumer.consume(RECORDS_MAX, timeout_s):
            place = Place(record.topic(), record.partition())
            # After an error the client goes on behind the records that it could not read.
            if place in errors or place not in self._reading:
                continue
            error = record.error()
            if error is None:
                received.setdefault(place, []).append(record)
                self._returned[place] = record.offset() + 1
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._returned[place] = record.offset()
            elif error.code() in (
                self._kafka.KafkaError._AUTO_OFFSET_RESET,
                self._kafka.KafkaError.OFFSET_OUT_OF_RANGE,
            ):
                errors[place] = SourceOutOfRange(error.str())
            elif not error.retriable():
                errors[place] = SourceUnreadable(error.str())
        self.leave(errors.keys())
        records = {
            place: ConsumerRecords(
                [record.offset() for record in batch],
                [record.timestamp()[1] for record in batch],
                [record.key() for record in batch],
                [record.value() for record in batch],
                [headers_of(record) for record in batch],
            )
            for place, batch in received.items()
        }
        return Polled(records, errors)

    def positions(self) -> dict[Place, int]:
        return dict(self._returned)

    def close(self) -> None:
        """Close, but wait only a moment: with the broker away, librdkafka takes 45 s."""

        def close(consumer: Any, _admin: Any, asked: set[Future[Any]]) -> None:
            consumer.close()
            futures.wait(asked, 2 * TIMEOUT_S)  # the admin client does not end before them

        left = (self._consumer, self._admin, self._asked)
        closing = threading.Thread(target=close, args=left, name="reader-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

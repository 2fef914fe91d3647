"""Topics of Kafka, by a client of kafka-python.

Theory: a message is stored without Kafka, so while brokers are away, programs can still send to a
topic that was seen before; only a topic that nobody has asked for yet is refused with 503. While
they are away, one call at a time tries to reach them, and the others share its answer: otherwise
each would hold a thread for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from cachetools import LRUCache
from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec

from ...broker.reach import why_not
from ...consumer.kafka_python_source import KafkaPythonSource
from ...consumer.message import SourcePartition
from ...consumer.source import Assignment, PositionedSource
from ...delivery.kafka.kafka_python_client import admin_config
from ...delivery.kafka.plan import KafkaSettings
from ...wheel.checks import is_topic
from ..errors import HttpError
from .cluster import Cluster
from .errors import KAFKA_REFUSES, not_now
from .types import PartitionDescription, PartitionExtent, Replica, TopicDescription

T = TypeVar("T")
FRESH_S = 60.0
"""A known topic is asked for again after so long, s: it may have more partitions, or be gone."""
_TOPICS_REMEMBERED = 10_000
_AWAY_S = 1.0
_TEXT_MAX = 300
"""An error's text is cut to so many characters: kafka-python names each partition."""
_OF_AN_INSTANCE = {
    "client.id": "slotwheel-gateway",
    # Each of many instances may hold so many bytes.
    "fetch.max.bytes": 2 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}
_MISSING = (
    kafka_errors.UnknownTopicOrPartitionError.errno,
    kafka_errors.InvalidTopicError.errno,
)


class KafkaCluster(Cluster):
    """The topics of the Kafka at ``bootstrap``. ``settings``: of Kafka's clients, in librdkafka's
    names."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        self._bootstrap, self._settings = bootstrap, settings
        self._config = admin_config(KafkaSettings(bootstrap, extra=dict(settings)))
        self._lock = threading.Lock()
        self._admin: Any = None
        self._away: tuple[float, str] | None = None
        self._known: LRUCache[str, tuple[float, int]] = LRUCache(_TOPICS_REMEMBERED)
        self._knowing = threading.Lock()  # guards _known, and is never held during a question

    def topics(self) -> list[str]:
        names: list[str] = self.ask(lambda admin: admin.list_topics())
        return sorted(name for name in names if not name.startswith("__"))

    def describe(self, topic: str) -> TopicDescription | None:
        if not is_topic(topic):
            return None
        description = self.ask(lambda admin: self._described(admin, topic))
        if description is not None:
            with self._knowing:
                self._known[topic] = time.monotonic(), len(description.partitions)
        return description

    def _described(self, admin: Any, topic: str) -> TopicDescription | None:
        (entry,) = admin.describe_topics([topic])
        if entry["error_code"] in _MISSING:
            return None
        if entry["error_code"]:
            raise kafka_errors.for_code(entry["error_code"])
        partitions = sorted(entry["partitions"], key=lambda part: part["partition_index"])
        return TopicDescription(topic, _configs(admin, topic), list(map(_partition, partitions)))

    def extents(
        self, partitions: Collection[SourcePartition]
    ) -> dict[SourcePartition, PartitionExtent]:
        asked = {partition: TopicPartition(*partition) for partition in partitions}

        def ask(admin: Any) -> dict[SourcePartition, PartitionExtent]:
            first, end = (
                admin.list_partition_offsets(dict.fromkeys(asked.values(), spec))
                for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
            return {
                partition: PartitionExtent(first[at].offset, end[at].offset)
                for partition, at in asked.items()
            }

        return self.ask(ask) if asked else {}

    def brokers(self) -> list[int]:
        cluster = self.ask(lambda admin: admin.describe_cluster())
        return sorted(broker["broker_id"] for broker in cluster["brokers"])

    def known_partitions(self, topics: Collection[str]) -> dict[str, int]:
        since = time.monotonic() - FRESH_S
        with self._knowing:
            entries = {topic: self._known.get(topic) for topic in topics}
        return {
            topic: entry[1]
            for topic, entry in entries.items()
            if entry is not None and entry[0] > since
        }

    def ask_partitions(self, topics: Collection[str]) -> dict[str, int]:
        names = [topic for topic in topics if is_topic(topic)]
        if not names:
            return {}
        try:
            counts = self.ask(lambda admin: _counts(admin, names))
        except HttpError:
            with self._knowing:
                known = {topic: self._known.get(topic) for topic in names}
            if None in known.values():
                raise
            return {topic: entry[1] for topic, entry in known.items() if entry is not None}
        now = time.monotonic()
        with self._knowing:
            for topic in names:
                if topic in counts:
                    self._known[topic] = now, counts[topic]
                else:
                    self._known.pop(topic, None)
        return counts

    def open_source(
        self,
        group: str,
        assignment: Assignment,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[SourcePartition] = (),
        latest: bool,
    ) -> PositionedSource:
        extra = {
            **self._settings,
            **_OF_AN_INSTANCE,
            "auto.offset.reset": "latest" if latest else "earliest",
        }
        return KafkaPythonSource(
            self._bootstrap, group, topics, assignment, partitions=partitions, extra=extra
        )

    def forget(self, topic: str) -> None:
        """Ask Kafka for a topic again before the next message to it: it was changed."""
        with self._knowing:
            self._known.pop(topic, None)

    def close(self) -> None:
        if self._lock.acquire(timeout=_AWAY_S):
            try:
                self._drop()
            finally:
                self._lock.release()

    def ask(self, question: Callable[[Any], T]) -> T:
        """Ask a broker, one caller at a time. Errors: 503, if none answers; 500, if it refuses."""
        with self._lock:
            away = self._away
            if away is not None and time.monotonic() - away[0] < _AWAY_S:
                raise not_now(away[1])
            try:
                if self._admin is None:
                    self._admin = KafkaAdminClient(**self._config)
                answer = question(self._admin)
            except (kafka_errors.KafkaError, OSError) as error:
                text = (str(error) or type(error).__name__)[:_TEXT_MAX]
                if isinstance(error, kafka_errors.BrokerResponseError) and not error.retriable:
                    raise HttpError(
                        500,
                        f"Kafka refuses: {text}",
                        error_code=KAFKA_REFUSES,
                        remedy="Check the rights of the gateway's client, and its --kafka settings",
                    ) from error
                self._drop()
                reason = why_not(self._bootstrap, self._settings, text)
                text = f"Kafka's brokers do not answer: {reason}"
                self._away = time.monotonic(), text
                raise not_now(text) from error
            self._away = None
            return answer

    def _drop(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()


def _counts(admin: Any, topics: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in admin.describe_topics(topics):
        if entry["error_code"] in _MISSING:
            continue
        if entry["error_code"]:
            raise kafka_errors.for_code(entry["error_code"])
        counts[entry["name"]] = len(entry["partitions"])
    return counts


def _configs(admin: Any, topic: str) -> dict[str, str | None]:
    """A topic's configuration; empty if this client may not see it."""
    try:
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {name: entry["value"] for name, entry in configs["topic"][topic].items()}
    except (kafka_errors.BrokerResponseError, KeyError, TypeError):
        return {}


def _partition(entry: Mapping[str, Any]) -> PartitionDescription:
    leader = entry["leader_id"]
    in_sync = set(entry["isr_nodes"])
    replicas = [Replica(node, node == leader, node in in_sync) for node in entry["replica_nodes"]]
    return PartitionDescription(entry["partition_index"], leader, replicas)

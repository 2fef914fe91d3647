"""Topics of Kafka, asked for by kafka-python.

Theory: a message is stored without Kafka, so brokers that are away stop nobody who sends to a topic
that was seen before. Only of a topic that nobody has asked for yet nothing true can be said then.
While the brokers are away, one call at a time finds that out, and the others share its answer.
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

from ...consumer.kafka_python_source import KafkaPythonSource
from ...consumer.message import SourcePartition
from ...consumer.source import Assignment, PositionedSource
from ...delivery.kafka.kafka_python_client import admin_config
from ...delivery.kafka.plan import KafkaSettings
from ...delivery.kafka.reach import why_not
from ...wheel.checks import is_topic
from ..errors import HttpError
from .cluster import Cluster
from .errors import KAFKA_REFUSES, not_now
from .types import PartitionDescription, PartitionExtent, Replica, TopicDescription

T = TypeVar("T")
FRESH_S = 60.0
"""After this time a known topic is asked for again: it may have more partitions, or be gone."""
_TOPICS_REMEMBERED = 10_000
_AWAY_S = 1.0
_TEXT_MAX = 300
"""Of an error, characters: kafka-python names each partition."""
_OF_AN_INSTANCE = {
    "client.id": "slotwheel-gateway",
    # There are many of them, and each holds so much.
    "fetch.max.bytes": 2 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}
_MISSING = (
    kafka_errors.UnknownTopicOrPartitionError.errno,
    kafka_errors.InvalidTopicError.errno,
)


class KafkaCluster(Cluster):
    """``settings``: of Kafka's clients, in librdkafka's names."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        self._bootstrap, self._settings = bootstrap, settings
        self._config = admin_config(KafkaSettings(bootstrap, extra=dict(settings)))
        self._lock = threading.Lock()
        self._admin: Any = None
        self._away: tuple[float, str] | None = None
        self._known: LRUCache[str, tuple[float, int]] = LRUCache(_TOPICS_REMEMBERED)
        self._knowing = threading.Lock()  # guards _known, and is never held during a question

    def topics(self) -> list[str]:
        found: list[str] = self._ask(lambda admin: admin.list_topics())
        return sorted(name for name in found if not name.startswith("__"))

    def describe(self, topic: str) -> TopicDescription | None:
        if not is_topic(topic):
            return None
        found = self._ask(lambda admin: self._described(admin, topic))
        if found is not None:
            with self._knowing:
                self._known[topic] = time.monotonic(), len(found.partitions)
        return found

    def _described(self, admin: Any, topic: str) -> TopicDescription | None:
        (found,) = admin.describe_topics([topic])
        if found["error_code"] in _MISSING:
            return None
        if found["error_code"]:
            raise kafka_errors.for_code(found["error_code"])
        partitions = sorted(found["partitions"], key=lambda one: one["partition_index"])
        return TopicDescription(
            topic, _configs(admin, topic), [_partition(one) for one in partitions]
        )

    def extents(
        self, partitions: Collection[SourcePartition]
    ) -> dict[SourcePartition, PartitionExtent]:
        asked = {one: TopicPartition(*one) for one in partitions}

        def ask(admin: Any) -> dict[SourcePartition, PartitionExtent]:
            first, end = (
                admin.list_partition_offsets(dict.fromkeys(asked.values(), spec))
                for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
            return {
                one: PartitionExtent(first[at].offset, end[at].offset) for one, at in asked.items()
            }

        return self._ask(ask) if asked else {}

    def brokers(self) -> list[int]:
        found = self._ask(lambda admin: admin.describe_cluster())
        return sorted(one["broker_id"] for one in found["brokers"])

    def known_partitions(self, topics: Collection[str]) -> dict[str, int]:
        since = time.monotonic() - FRESH_S
        with self._knowing:
            known = {topic: self._known.get(topic) for topic in topics}
        return {topic: one[1] for topic, one in known.items() if one is not None and one[0] > since}

    def ask_partitions(self, topics: Collection[str]) -> dict[str, int]:
        names = [topic for topic in topics if is_topic(topic)]
        if not names:
            return {}
        try:
            found = self._ask(lambda admin: _counts(admin, names))
        except HttpError:
            with self._knowing:
                known = {topic: self._known.get(topic) for topic in names}
            if None in known.values():
                raise
            return {topic: one[1] for topic, one in known.items() if one is not None}
        now = time.monotonic()
        with self._knowing:
            for topic in names:
                if topic in found:
                    self._known[topic] = now, found[topic]
                else:
                    self._known.pop(topic, None)
        return found

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

    def close(self) -> None:
        if self._lock.acquire(timeout=_AWAY_S):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Errors: 503, if the brokers do not answer; 500, if they refuse."""
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
                why = why_not(self._bootstrap, self._settings, text)
                text = f"Kafka's brokers do not answer: {why}"
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
    """How many partitions those topics have that there are."""
    counts: dict[str, int] = {}
    for one in admin.describe_topics(topics):
        if one["error_code"] in _MISSING:
            continue
        if one["error_code"]:
            raise kafka_errors.for_code(one["error_code"])
        counts[one["name"]] = len(one["partitions"])
    return counts


def _configs(admin: Any, topic: str) -> dict[str, str | None]:
    """Empty if this client may not see them."""
    try:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {name: one["value"] for name, one in found["topic"][topic].items()}
    except (kafka_errors.BrokerResponseError, KeyError, TypeError):
        return {}


def _partition(found: Mapping[str, Any]) -> PartitionDescription:
    leader = found["leader_id"]
    in_sync = set(found["isr_nodes"])
    replicas = [Replica(one, one == leader, one in in_sync) for one in found["replica_nodes"]]
    return PartitionDescription(found["partition_index"], leader, replicas)

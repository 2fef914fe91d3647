"""A topic of a real Kafka as Arrow batches, from its beginning to where it ends now.

Theory: a dump is evidence, so it must be complete. The end of each partition is read once, before
its records, and later records are left out; the end is reached by position and not by the last
record, as there may be positions without a record behind it: a transaction's marker, or compacted
records. Records of uncommitted transactions are left out, as for every consumer.

Rules
- Partitions are assigned, not subscribed: no group, nothing committed, no other consumer affected.
- A topic is never created by reading it.
- Records that were deleted while they were about to be read are an error, not a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewTopic as KafkaTopicSpec
from kafka.errors import BrokerResponseError, KafkaError

from ...broker.settings import ClientKind, for_kafka_python
from ...wheel.errors import NodeUnreachable
from ...wheel.rows import header_column
from ...wheel.schema import TIME
from .dump import CALL_S, DUMP, STALLED_S, NewTopic, no_such_topic, not_purged
from .looking import open_looking, unreachable

_POLL_MS = 500
_CALL_MS = int(1000 * CALL_S)
_ROWS_MAX = 5_000


class KafkaTopic:
    """A topic that exists. ``settings``: further ones of the Kafka client.

    Errors: ``NodeUnreachable``; ``InvalidMessage``: there is no such topic.
    """

    def __init__(self, bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._settings = settings
        self._consumer = open_looking(
            bootstrap,
            "slotwheel-consume",
            settings,
            auto_offset_reset="none",
            max_poll_records=_ROWS_MAX,
            bootstrap_timeout_ms=_CALL_MS,
        )
        try:
            self._parts = self._find()
            self._starts = self._consumer.beginning_offsets(self._parts, timeout_ms=_CALL_MS)
            self.ends: dict[TopicPartition, int] = self._consumer.end_offsets(
                self._parts, timeout_ms=_CALL_MS
            )
        except (KafkaError, OSError) as error:
            self.close()
            raise unreachable(self._bootstrap, self._settings, error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def narrow(self, partition: int, position: int) -> None:
        """Read from now on only what stands there."""
        part = TopicPartition(self.topic, partition)
        there = part in self.ends and self._starts[part] <= position < self.ends[part]
        self._parts = [part] if there else []
        self._starts = dict.fromkeys(self._parts, position)
        self.ends = dict.fromkeys(self._parts, position + 1)

    def create(self, new: NewTopic) -> None:
        """Create another topic. Errors: ``NodeUnreachable``."""
        topic = KafkaTopicSpec(new.name, new.partitions, -1, topic_configs=dict(new.config))
        try:
            config = for_kafka_python(self._settings, ClientKind.ADMIN)
            reached = {"bootstrap_servers": self._bootstrap} | config
            with closing(KafkaAdminClient(**reached)) as admin:
                admin.create_topics([topic], timeout_ms=_CALL_MS)
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, self._settings, error) from None

    def purge(self) -> None:
        """Delete all records up to where it ended when it was opened; the topic itself, and what
        consumer groups have stored for it, stay. Errors: ``NodeUnreachable``; ``SlotwheelError``:
        Kafka refuses it."""
        try:
            config = for_kafka_python(self._settings, ClientKind.ADMIN)
            reached = {"bootstrap_servers": self._bootstrap} | config
            with closing(KafkaAdminClient(**reached)) as admin:
                admin.delete_records(dict(self.ends), timeout_ms=_CALL_MS)
        except BrokerResponseError as error:
            raise not_purged(self.topic, str(error)) from None
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, self._settings, error) from None

    @property
    def some_deleted(self) -> bool:
        """Whether its oldest records are deleted."""
        return any(self._starts.values())

    def total(self, position: int = 0) -> int:
        """How many positions there are from ``position`` on; there are at most as many records."""
        starts = {part: max(position, start) for part, start in self._starts.items()}
        return sum(max(0, end - starts[part]) for part, end in self.ends.items())

    def batches(
        self, position: int = 0, go_on: Callable[[], bool] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Committed records, schema ``DUMP``; a batch is of one partition, in its order.

        ``position``: where to begin in each partition. ``go_on``: do not end with the topic; called
        when there is nothing new, returns whether to go on.

        Errors: ``NodeUnreachable``, also when records were deleted before they were read.
        """
        try:
            yield from self._batches(position, go_on)
        except (KafkaError, OSError) as error:
            raise unreachable(self._bootstrap, self._settings, error) from None

    def _batches(self, position: int, go_on: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        consumer = self._consumer
        consumer.assign(self._parts)
        places = {part: max(position, start) for part, start in self._starts.items()}
        for part, place in places.items():
            consumer.seek(part, place)
        reading = dict(places)
        if go_on is None:
            reading = {part: at for part, at in places.items() if at < self.ends[part]}
            consumer.pause(*(part for part in self._parts if part not in reading))
        moved = time.monotonic()
        while reading:
            found = consumer.poll(timeout_ms=_POLL_MS)
            for part, records in found.items():
                end = self.ends[part]
                wanted = records if go_on is not None else [r for r in records if r.offset < end]
                if wanted:
                    yield to_batch(self.topic, wanted)
            now = time.monotonic()
            if go_on is not None:
                if not found and not go_on():
                    return
                continue
            for part, before in list(reading.items()):
                at = min(self.ends[part], consumer.position(part, timeout_ms=_CALL_MS))
                if at > before:
                    reading[part], moved = at, now
                if at >= self.ends[part]:
                    consumer.pause(part)
                    del reading[part]
            if now - moved > STALLED_S:
                part, at = next(iter(reading.items()))
                raise NodeUnreachable(
                    f"Kafka at {self._bootstrap} gives nothing of {part.topic}-{part.partition}",
                    got=f"position {at} for {STALLED_S:.0f} s",
                    limit=f"its end at {self.ends[part]}",
                    remedy="Check that the partition has a leader",
                )

    def _find(self) -> list[TopicPartition]:
        # All topics: a single one that does not exist would be requested again and again.
        self.topics = frozenset(self._consumer.topics())
        there = self.topic in self.topics
        numbers = self._consumer.partitions_for_topic(self.topic) if there else None
        if not numbers:
            raise no_such_topic(self.topic, self.topics)
        return [TopicPartition(self.topic, number) for number in sorted(numbers)]


def to_batch(topic: str, records: list[Any]) -> pa.RecordBatch:
    """kafka-python's records, unchanged, in the schema ``DUMP``."""
    stamps = [None if record.timestamp < 0 else record.timestamp for record in records]
    columns = [
        pa.array([topic] * len(records), pa.utf8()),
        pa.array([record.partition for record in records], pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array(stamps, pa.int64()).cast(TIME),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        header_column([record.headers for record in records]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUMP)

"""Reading a delay topic with kafka-python: one assigned partition, no group membership.

The group's name is used only for committed offsets, so that any tool for Kafka shows the lag. Every
call is bounded in time.
"""

from __future__ import annotations

from itertools import chain

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from ..delivery.kafka.header_names import read_leniently
from .delay_topic import SourceOutOfRange, SourceUnreachable
from .records import ConsumerRecords

RECORDS_MAX = 5000
_TIMEOUT_S = 3.0


class KafkaPythonReader:
    """Errors on construction: ``SourceUnreachable`` (also when the partition does not exist)."""

    def __init__(self, bootstrap: str, topic: str, partition: int, group: str) -> None:
        read_leniently()
        self._source = TopicPartition(topic, partition)
        try:
            self._consumer = KafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="none",  # decided here, with an alarm
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                max_poll_records=RECORDS_MAX,
                max_partition_fetch_bytes=8 << 20,
                fetch_max_wait_ms=100,
                bootstrap_timeout_ms=int(_TIMEOUT_S * 1000),
                reconnect_backoff_max_ms=1000,
            )
        except (KafkaError, OSError) as error:
            raise SourceUnreachable(str(error) or repr(error)) from error
        try:
            partitions = self._consumer.partitions_for_topic(topic)
        except (KafkaError, OSError) as error:
            self.close()
            raise SourceUnreachable(str(error) or repr(error)) from error
        if partition not in (partitions or ()):
            self.close()
            raise SourceUnreachable(f"there is no partition {partition} of topic {topic!r}")
        self._consumer.assign([self._source])

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._source, offset)

    def poll(self, timeout_s: float) -> ConsumerRecords:
        try:
            found = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except OffsetOutOfRangeError as error:
            raise SourceOutOfRange(str(error)) from error
        except KafkaError as error:
            # A poll looks for the group's coordinator: rarely, it is there that a broker is missed.
            if not error.retriable:
                raise
            raise SourceUnreachable(str(error) or repr(error)) from error
        records = list(chain.from_iterable(found.values()))
        return ConsumerRecords(
            [record.offset for record in records],
            [record.timestamp for record in records],
            [record.key for record in records],
            [record.value for record in records],
            [record.headers for record in records],
        )

    def range(self) -> tuple[int, int]:
        timeout_ms = int(_TIMEOUT_S * 1000)
        try:
            earliest = self._consumer.beginning_offsets([self._source], timeout_ms=timeout_ms)
            end = self._consumer.end_offsets([self._source], timeout_ms=timeout_ms)
            return earliest[self._source], end[self._source]
        except (KafkaError, OSError, KeyError) as error:
            raise SourceUnreachable(str(error) or repr(error)) from error

    def commit(self, offset: int) -> None:
        self._consumer.commit_async({self._source: OffsetAndMetadata(offset, "", -1)})

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=int(_TIMEOUT_S * 1000))

"""What has come so far at the targets of a group: Kafka's topics, or every peer's embedded ones.

Each reads on from where its last look ended, and keeps numbers only: a message's value is its
number. Times are the target's own: the broker's clock when it appended, or ``delivered``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, TopicPartition

from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schema import times
from support.chaosaccount import Arrival


class KafkaArrivals:
    """Follows ``topics`` of a broker that stamps records with the time of their arrival."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "arrivals", "log_level": 0}
        self._consumer = Consumer(config | {"enable.auto.commit": False})
        self._parts: list[TopicPartition] = []
        for topic in topics:
            known = self._consumer.list_topics(topic, 10).topics[topic]
            assert known.error is None, known.error
            self._parts += [TopicPartition(topic, part, 0) for part in known.partitions]
        self._consumer.assign(self._parts)
        self.all: list[Arrival] = []
        self.numbers: set[int] = set()

    def look(self) -> list[Arrival]:
        """Everything so far, in the order of reading."""
        held = sum(self._consumer.get_watermark_offsets(part, 10)[1] for part in self._parts)
        while len(self.all) < held:
            for record in self._consumer.consume(10_000, 0.2):
                error = record.error()
                if error is None:
                    self._add(record)
                elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise AssertionError(error)
        return self.all

    def _add(self, record: object) -> None:
        headers = dict(record.headers())  # type: ignore[attr-defined]
        said = MessageId.parse(headers["slotwheel-id"].decode())
        kind, at_ms = record.timestamp()  # type: ignore[attr-defined]
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        number = int(record.value())  # type: ignore[attr-defined]
        self.all.append(Arrival(number, said.due, said.offset, at_ms))
        self.numbers.add(number)

    def close(self) -> None:
        self._consumer.close()


class EmbeddedArrivals:
    """Follows the embedded topics of every peer: each delivered while it was the master."""

    def __init__(self, directories: Sequence[Path], topics: Sequence[str]) -> None:
        self._files = [OsFiles(path) for path in directories]
        self._readers = [TopicReader(files, topic) for files in self._files for topic in topics]
        self.all: list[Arrival] = []
        self.numbers: set[int] = set()

    def look(self) -> list[Arrival]:
        """Everything so far, in the order of reading."""
        for reader in self._readers:
            for batch in reader.batches():
                columns = [times(batch, name).tolist() for name in ("due", "offset", "delivered")]
                numbers = [int(value) for value in batch.column("value").to_pylist()]
                self.all += map(Arrival, numbers, *columns)
                self.numbers.update(numbers)
        return self.all

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for files in self._files:
            files.close()

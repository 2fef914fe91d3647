"""What has come so far at the targets of a load: Kafka's topics, or embedded ones.

Each reads on from where its last look ended, and keeps numbers only: a message's value is its
number. Times are the target's own: the broker's clock when it appended, or ``delivered``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Self

from slotwheel.reading.topicreader import TopicReader, topics
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times
from support.kafkaread import Reader
from support.nodeprocess import topic_rows
from support.promises import Arrival
from support.waiting import PATIENCE_S


class Arrivals:
    def __init__(self) -> None:
        self.all: list[Arrival] = []
        self.numbers: set[int] = set()

    def look(self) -> list[Arrival]:
        """Everything so far, in the order of reading."""
        new = self._new()
        self.all += new
        self.numbers.update(one.number for one in new)
        return self.all

    def wait_for(self, numbers: set[int], within_s: float = PATIENCE_S) -> None:
        """Look until all of them are there, or the time is over."""
        deadline = time.monotonic() + within_s
        while not numbers <= self.numbers and time.monotonic() < deadline:
            time.sleep(0.1)
            self.look()

    def _new(self) -> list[Arrival]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KafkaArrivals(Arrivals):
    """Follows ``topics`` of a broker that stamps records with the time of their arrival."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        super().__init__()
        self._reader = Reader(bootstrap, topics)

    def _new(self) -> list[Arrival]:
        return [
            Arrival(int(one.value or b""), one.due_ms, one.offset, one.appended_ms, one.topic)
            for one in self._reader.new()
        ]

    def close(self) -> None:
        self._reader.close()


class EmbeddedArrivals(Arrivals):
    """Follows the embedded topics of a node, or of every peer: each delivered while it was the
    master."""

    def __init__(self, directories: Sequence[Path], topics: Sequence[str]) -> None:
        super().__init__()
        self._files = [OsFiles(path) for path in directories]
        self._readers = [
            (topic, TopicReader(files, topic)) for files in self._files for topic in topics
        ]

    def _new(self) -> list[Arrival]:
        found: list[Arrival] = []
        for topic, reader in self._readers:
            for batch in reader.batches():
                columns = [times(batch, name).tolist() for name in ("due", "offset", "delivered")]
                values = map(int, batch.column("value").to_pylist())
                found += map(Arrival, values, *columns, repeat(topic))
        return found

    def close(self) -> None:
        for _, reader in self._readers:
            reader.close()
        for files in self._files:
            files.close()


def numbers_in_topics(data: Path) -> list[int]:
    """Of the demo's messages, in all embedded topics of a directory."""
    with closing(OsFiles(data)) as files:
        names = topics(files)
    return [int(row["value"][8:]) for name in names for row in topic_rows(data, name)]

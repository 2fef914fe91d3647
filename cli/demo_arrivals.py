"""What has arrived in the demo's topics, read from their files beside the running node."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..delivery.topicreader import TopicReader
from ..wheel.schema import Int64s, times
from .demo_proof import Arrived
from .directory import ReadOnlyFiles

TOPICS = ("demo-orders", "demo-mails", "demo-alarms")
VALUE = "message {:08d}"
"""A message's value: its number, by which the proof knows it."""


class Arrivals:
    """Reads the topics as they grow; keeps what the proof needs."""

    def __init__(self, data: Path) -> None:
        self._files = ReadOnlyFiles(data)
        self._readers = [TopicReader(self._files, topic) for topic in TOPICS]
        self._parts: list[tuple[list[int], Int64s, Int64s, Int64s, Int64s]] = []
        self._seen: set[int] = set()

    @property
    def messages(self) -> int:
        """Different messages so far."""
        return len(self._seen)

    def look(self) -> None:
        for reader in self._readers:
            for batch in reader.batches():
                names = ("offset", "due", "created", "delivered")
                offset, due, created, delivered = (times(batch, name).copy() for name in names)
                numbers = [_number(value) for value in batch.column("value").to_pylist()]
                self._seen.update(numbers)
                self._parts.append((numbers, offset, due, created, delivered))

    def result(self) -> Arrived:
        """In the order of arrival, topic by topic (a message never changes its topic)."""
        empty = np.zeros(0, np.int64)
        columns = ([np.asarray(part[at], np.int64) for part in self._parts] for at in range(5))
        return Arrived(*(np.concatenate([empty, *column]) for column in columns))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._files.close()


def _number(value: bytes | None) -> int:
    """The number a value carries; -1 when it is none of ours."""
    text = (value or b"").decode("ascii", "replace")
    digits = text.removeprefix("message ")
    return int(digits) if digits.isdigit() and VALUE.format(int(digits)) == text else -1

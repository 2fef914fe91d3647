"""What has arrived in the demo's topics, read from their files beside the running nodes.

Each peer has embedded topics of its own, with what it delivered while it was the master.
"""

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

    def __init__(self, *data: Path) -> None:
        self._files = [ReadOnlyFiles(one) for one in data]
        self._readers = [TopicReader(files, topic) for files in self._files for topic in TOPICS]
        self._latest_ms = 0
        self._parts: list[tuple[list[int], Int64s, Int64s, Int64s, Int64s]] = []
        self._seen: set[int] = set()

    @classmethod
    def all(cls, *data: Path) -> Arrived:
        """All that stands in the files now."""
        arrivals = cls(*data)
        try:
            arrivals.look()
            return arrivals.result()
        finally:
            arrivals.close()

    @property
    def latest_ms(self) -> int:
        """When the last one was delivered, ms since the epoch."""
        return self._latest_ms

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
                self._latest_ms = max(self._latest_ms, int(delivered.max(initial=0)))
                self._parts.append((numbers, offset, due, created, delivered))

    def result(self) -> Arrived:
        """In the order in which the files were read."""
        empty = np.zeros(0, np.int64)
        columns = ([np.asarray(part[at], np.int64) for part in self._parts] for at in range(5))
        return Arrived(*(np.concatenate([empty, *column]) for column in columns))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for files in self._files:
            files.close()


def _number(value: bytes | None) -> int:
    """The number a value carries; -1 when it is none of ours."""
    text = (value or b"").decode("ascii", "replace")
    digits = text.removeprefix("message ")
    return int(digits) if digits.isdigit() and VALUE.format(int(digits)) == text else -1

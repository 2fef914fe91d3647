"""A delay topic of one partition that is a list, read without Kafka."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from slotwheel.broker.sources import Place, StoredOffset
from slotwheel.node.intake.records import ConsumerRecords
from slotwheel.node.intake.source_reader import (
    EARLIEST_AT,
    DescribedTopic,
    Polled,
    SourceUnreadable,
)


class ListReader:
    """`failures` are raised by `poll`, or are of the partition, one after the other."""

    cluster = "a cluster"

    def __init__(
        self, content: ConsumerRecords, failures: Sequence[Exception] = (), chunk: int = 50
    ) -> None:
        self._content = content
        self._count = len(content.offsets)
        self._failures = list(failures)
        self._chunk = chunk
        self._next = 0
        self._read: set[Place] = set()
        self.stored_offsets: dict[Place, StoredOffset] = {}
        self.closed = False

    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]:
        return {one: DescribedTopic("an id", [True]) for one in topics}

    def offsets(self, places: Collection[Place], at: int) -> dict[Place, int]:
        return dict.fromkeys(places, 0 if at == EARLIEST_AT or at > 0 else self._count)

    def every_topic(self) -> list[str]:
        return []

    def stored(self, places: Collection[Place]) -> dict[Place, StoredOffset]:
        return {one: at for one, at in self.stored_offsets.items() if one in places}

    def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
        self.stored_offsets |= offsets

    def read(self, offsets: Mapping[Place, int]) -> None:
        self._read |= offsets.keys()
        for offset in offsets.values():
            self._next = max(0, offset - 3)  # some clients hand over more than was asked for

    def leave(self, places: Collection[Place]) -> None:
        self._read.difference_update(places)

    def poll(self, timeout_s: float) -> Polled:
        if self._failures and self._read:
            error = self._failures.pop(0)
            if not isinstance(error, SourceUnreadable):
                raise error
            place = self._read.pop()
            return Polled({}, {place: error})
        records = self._content.part(self._next, self._next + self._chunk)
        if not records.offsets or not self._read:
            time.sleep(timeout_s / 10)
            return Polled({}, {})
        self._next += len(records.offsets)
        return Polled(dict.fromkeys(self._read, records), {})

    def positions(self) -> dict[Place, int]:
        return dict.fromkeys(self._read, self._next)

    def close(self) -> None:
        self.closed = True

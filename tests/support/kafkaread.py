"""What slotwheel brought to Kafka, read back, and the rules all of it has to keep.

The topics must stamp records with the time of their arrival (``LogAppendTime``, the default of
``Cluster.create_topic``): against that clock lateness is measured, and nothing may be early.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from kafka.partitioner.default import murmur2

from slotwheel.wheel.rows import Header
from slotwheel.wheel.schema import Int64s
from support.deliveries import Sent
from support.kafkaload import NAMED
from support.waiting import PATIENCE_S

OURS = ("slotwheel-id", "slotwheel-due-ms", "slotwheel-created-ms")


class Arrived(NamedTuple):
    """One record of a target topic; the offset of its id is its place in the wheel's log."""

    topic: str
    partition: int
    appended_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    id: str
    due_ms: int
    created_ms: int
    offset: int

    @property
    def late_ms(self) -> int:
        return self.appended_ms - max(self.due_ms, self.created_ms)

    def content(self, partition: int | None = None) -> Sent:
        return Sent(self.topic, self.value, self.key, self.headers, partition, self.due_ms)


class Record(NamedTuple):
    """Any record. ``timestamp``: ms; ``kind``: confluent-kafka's number of what that means."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    kind: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class RecordReader:
    """Follows the committed records of topics from their beginning."""

    def __init__(self, bootstrap: str, topics: Iterable[str]) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
        config |= {"auto.offset.reset": "error", "log_level": 0, "enable.partition.eof": True}
        config["fetch.wait.max.ms"] = (
            50  # an empty answer of the broker says where a partition ends
        )
        self._consumer = Consumer(config)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._parts = []
        for topic in topics:
            known = self._consumer.list_topics(topic, 10).topics[topic]
            assert known.error is None, known.error
            self._parts += [TopicPartition(topic, p, 0) for p in sorted(known.partitions)]
        self._consumer.assign(self._parts)
        self._all: list[Record] = []
        self._latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._read = {(part.topic, part.partition): 0 for part in self._parts}

    def records(self, count: int, within_s: float = PATIENCE_S) -> list[Record]:
        """Wait until there are ``count`` records, and read all that there are."""
        deadline = time.monotonic() + within_s
        while len(self._all) < count:
            assert time.monotonic() < deadline, f"{len(self._all)} of {count} are there"
            time.sleep(0.05)
            self.new_records(within_s)
        return list(self._all)

    def new_records(self, within_s: float = PATIENCE_S) -> list[Record]:
        """What came since this was asked last, up to what can be read now: not what stands behind
        the beginning of an open transaction."""
        known, deadline = len(self._all), time.monotonic() + within_s
        ends = self.ends(within_s)  # once: they may grow faster than they are read
        while any(self._read[part] < end for part, end in ends.items()):
            assert time.monotonic() < deadline, f"read up to {self._read} of {ends}"
            for record in self._consumer.consume(10_000, 0.02):
                error = record.error()
                at: Any = (record.topic(), record.partition())
                if error is None:
                    self._all.append(_record(record))
                    self._read[at] = self._all[-1].offset + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._read[at] = record.offset() or 0  # behind the marks of transactions, too
                elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise AssertionError(error)
        return self._all[known:]

    def ends(
        self, within_s: float = PATIENCE_S, *, committed: bool = True
    ) -> dict[tuple[str, int], int]:
        """Where each partition ends, for a reader of committed records or for one of all; of a
        broker that has just come back, once it has told the client of all partitions again."""
        deadline = time.monotonic() + within_s
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        while True:
            asked = self._admin.list_offsets(
                dict.fromkeys(self._parts, self._latest), isolation_level=level, request_timeout=10
            )
            try:
                return {(at.topic, at.partition): one.result().offset for at, one in asked.items()}
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def close(self) -> None:
        self._consumer.close()


class Reader(RecordReader):
    """The same of what slotwheel has delivered."""

    kind = TIMESTAMP_LOG_APPEND_TIME
    """The meaning of the records' times, by confluent-kafka's number."""

    def read(self, count: int, within_s: float = PATIENCE_S) -> list[Arrived]:
        return self._arrived(self.records(count, within_s))

    def new(self, within_s: float = PATIENCE_S) -> list[Arrived]:
        return self._arrived(self.new_records(within_s))

    def _arrived(self, records: Iterable[Record]) -> list[Arrived]:
        found = list(records)
        assert all(record.kind == self.kind for record in found), "not the times of these topics"
        return [_arrived(record) for record in found]


class HandedReader(Reader):
    """The same of topics whose records keep the time at which the node sent them, by its own wall
    clock (``message.timestamp.type=CreateTime``); ``appended_ms`` is that time."""

    kind = TIMESTAMP_CREATE_TIME


def read_all(bootstrap: str, topics: Iterable[str], count: int) -> list[Arrived]:
    """All records of ``topics``, each partition in its order; waits for ``count`` of them."""
    with closing(Reader(bootstrap, topics)) as reader:
        return reader.read(count)


def read_committed(
    bootstrap: str, topic: str, count: int, *, settle_s: float = 0.3, within_s: float = PATIENCE_S
) -> list[Record]:
    """At least ``count`` committed records of a topic, and those that come right behind them."""
    with closing(RecordReader(bootstrap, [topic])) as reader:
        reader.records(count, within_s)
        time.sleep(settle_s)
        reader.new_records(within_s)
        return reader.records(count)


def held(bootstrap: str, topics: Iterable[str]) -> int:
    """Committed records that ``topics`` hold now, in all."""
    with closing(Reader(bootstrap, topics)) as reader:
        return len(reader.new())


def _record(record: Any) -> Record:
    kind, timestamp = record.timestamp()
    place = record.topic(), record.partition(), record.offset(), timestamp, kind
    return Record(*place, record.key(), record.value(), tuple(record.headers() or ()))


def _arrived(record: Record) -> Arrived:
    own, ours = record.headers[:-3], record.headers[-3:]
    assert tuple(name for name, _ in ours) == OURS, record.headers
    id_ = (ours[0][1] or b"").decode("ascii")
    _, due, offset, _ = id_.split(".")
    assert due == (ours[1][1] or b"").decode()
    return Arrived(
        record.topic,
        record.partition,
        record.timestamp,
        record.key,
        record.value,
        own,
        id_,
        int(due),
        int(ours[2][1] or b""),
        int(offset),
    )


def assert_none_early(arrived: Iterable[Arrived]) -> None:
    early = [one for one in arrived if one.appended_ms < one.due_ms]
    assert not early, (len(early), early[0])


def assert_partitions(arrived: Iterable[Arrived], partitions: int) -> None:
    """As named; else as Kafka's own partitioner says. Without a key it may be any."""
    for one in arrived:
        named = dict(one.headers).get(NAMED)
        if named is not None:
            assert one.partition == int(named), one
        elif one.key is not None:
            assert one.partition == (murmur2(one.key) & 0x7FFFFFFF) % partitions, one


@dataclass(frozen=True)
class Order:
    """``late``: rows behind others of their partition that were due after them."""

    late: int


def assert_order(arrived: Iterable[Arrived], grace_ms: int = 3000) -> Order:
    """To one partition by (due, offset), but for rows that came in after their due time: those by
    offset. ``grace_ms``: how long a row may have taken from its creation to its commit.

    A row behind one with a higher (due, offset) must be one that came late: the mark had passed
    it. What the mark passed leaves in offset order.
    """
    partitions: dict[tuple[str, int], list[Arrived]] = defaultdict(list)
    for one in arrived:
        partitions[one.topic, one.partition].append(one)
    late = 0
    for rows in partitions.values():
        highest, last_late = (-1, -1), -1
        for one in rows:
            place = one.due_ms, one.offset
            if place > highest:
                highest = place
                continue
            assert one.due_ms <= one.created_ms + grace_ms, ("not in due order", one, highest)
            assert one.offset > last_late, ("late ones not in offset order", one, last_late)
            last_late, late = one.offset, late + 1
    return Order(late)


def lateness(arrived: Sequence[Arrived]) -> Int64s:
    """``arrival - max(due, created)`` in ms, shape (len(arrived),)."""
    return np.array([one.late_ms for one in arrived], np.int64)


def percentiles(arrived: Sequence[Arrived]) -> str:
    """For people: how late they were."""
    late = lateness(arrived)
    p50, p99 = np.percentile(late, [50, 99])
    return f"lateness p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {late.max()} ms"


def numbers(arrived: Iterable[Arrived]) -> Counter[int]:
    """How often each came, where values are numbers."""
    return Counter(int(one.value or b"-1") for one in arrived)

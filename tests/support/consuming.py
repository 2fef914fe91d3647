"""Records for consumers to receive, and what they leave in Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from slotwheel import Consumer, Received
from slotwheel.wheel.rows import Header
from support.broker import Cluster
from support.consumerprocess import QUICK
from support.waiting import PATIENCE_S

MakeGroup = Callable[..., "Group"]


@dataclass(frozen=True)
class Wheel:
    address: str
    delays: str
    """The node's delay topic."""
    letters: str
    """Where its dead letters go."""


@dataclass(frozen=True)
class Group:
    """A consumer group with its topics."""

    name: str
    topic: str
    dead: str


@contextmanager
def opened(broker: Cluster, group: Group, wheel: Wheel, **more: Any) -> Iterator[Consumer]:
    client = more.setdefault("client", "kafka-python")
    settings = {
        "bootstrap": broker.bootstrap,
        "wheel": None if more.get("transactional") else wheel.address,
        "retry": "200ms 300ms",
        "dead_letter_topic": group.dead,
        "kafka": QUICK[client],
    }
    with Consumer(group.topic, group.name, **settings | more) as consumer:
        yield consumer


def values(messages: Sequence[Any]) -> list[int]:
    return sorted(int(one.value or b"") for one in messages)


def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    *,
    headers: Sequence[Header] = (),
    partition: int | None = None,
    timestamp_ms: int | None = None,
) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=5)
    sent = [
        producer.send(
            topic, value, headers=list(headers), partition=partition, timestamp_ms=timestamp_ms
        )
        for value in values
    ]
    producer.close()
    assert all(one.succeeded() for one in sent)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def take(consumer: Consumer, count: int, within_s: float = PATIENCE_S) -> list[Received]:
    """The next ``count`` messages, none of them answered."""
    found: list[Received] = []
    deadline = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        found += consumer.take(count - len(found), 0.2)
    return found


def finish(consumer: Consumer, count: int) -> list[Received]:
    """The next ``count`` messages, done."""
    found = take(consumer, count)
    consumer.done(*found)
    return found


def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int | None:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    try:
        found: int | OffsetAndMetadata | None = consumer.committed(TopicPartition(topic, partition))
        return None if found is None else int(found)
    finally:
        consumer.close(autocommit=False)

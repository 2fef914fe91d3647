"""Workers that fail by a plan, and keep what they saw of each attempt.

``PlainWorker`` knows nothing of slotwheel but the names of headers, and has no ``wheel``.

It reads a topic and its group's retry topic with a plain Kafka client. A record that fails is
produced to the delay topic as it was received, with two headers more, and at the first failure with
those that name the group and the record. What it saw of each attempt is kept for the test.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from slotwheel import Consumer as Library
from slotwheel.consumer.message import Received
from support.waiting import now_ms

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Seen:
    """An attempt: the record, and when the retry was asked for (ms; 0: it was not)."""

    topic: str
    partition: int
    offset: int
    appended_ms: int
    key: bytes | None
    headers: tuple[Header, ...]
    retried_ms: int

    @property
    def said(self) -> dict[str, bytes | None]:
        return dict(self.headers)


@dataclass
class PlainWorker:
    """``fails``: whether an attempt (from 1 on) at the message of that number fails. ``seen``: by
    number, the attempts in the order in which they came."""

    bootstrap: str
    topic: str
    group: str
    delay_topic: str
    policy: str
    fails: Callable[[int, int], bool]
    dead_topic: str = "slotwheel-dead-letters"
    wheel: str = ""
    seen: dict[int, list[Seen]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    records: int = 0
    error: BaseException | None = None

    def __enter__(self) -> PlainWorker:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plain-worker", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        consumer = Consumer({**settings, "group.id": self.group, "enable.auto.commit": False})
        producer = Producer({**settings, "linger.ms": 1, "acks": "all"})
        topics = (self.topic, f"{self.group}-retry")
        try:
            parts = [
                TopicPartition(topic, partition, 0)
                for topic in topics
                for partition in consumer.list_topics(topic, 10).topics[topic].partitions
            ]
            consumer.assign(parts)
            while not self._stop.is_set():
                for record in consumer.consume(500, 0.05):
                    assert record.error() is None, record.error()
                    self._handle(record, producer)
                producer.poll(0)
            assert producer.flush(60) == 0
        except BaseException as error:
            self.error = error
        finally:
            consumer.close()

    def _handle(self, record: Any, producer: Producer) -> None:
        headers: list[Header] = record.headers() or []
        number = int(record.value())
        attempt = int(dict(headers).get("slotwheel-retry-attempt") or b"1")
        failed, at_ms = self.fails(number, attempt), 0
        if failed:
            more: list[Header] = [
                ("slotwheel-retry", self.policy.encode()),
                ("slotwheel-error", error_of(number, attempt).encode()),
            ]
            if attempt == 1:
                more += [
                    ("slotwheel-retry-group", self.group.encode()),
                    ("slotwheel-origin-topic", record.topic().encode()),
                    ("slotwheel-origin-partition", b"%d" % record.partition()),
                    ("slotwheel-origin-offset", b"%d" % record.offset()),
                ]
            at_ms = now_ms()
            # mypy knows no header without a value here.
            copied: Any = [*headers, *more]
            producer.produce(
                self.delay_topic, record.value(), record.key(), headers=copied, timestamp=at_ms
            )
        else:
            self.done.add(number)
        self.records += 1
        place = record.topic(), record.partition(), record.offset(), record.timestamp()[1]
        seen = Seen(*place, record.key(), tuple(headers), at_ms)
        self.seen.setdefault(number, []).append(seen)


@dataclass
class LibraryWorker(PlainWorker):
    """The same with ``slotwheel.Consumer``, which sends retries to the node at ``wheel``."""

    client: str = "confluent"

    def _run(self) -> None:
        try:
            with Library(
                self.topic,
                self.group,
                bootstrap=self.bootstrap,
                client=self.client,
                wheel=self.wheel,
                retry=self.policy,
                dead_letter_topic=self.dead_topic,
            ) as consumer:
                while not self._stop.is_set():
                    for message in consumer.take(100, 0.05):
                        self._answer(message, consumer)
        except BaseException as error:
            self.error = error

    def _answer(self, message: Received, consumer: Library) -> None:
        number, attempt = int(message.value or b""), message.attempt
        failed, at_ms = self.fails(number, attempt), 0
        if failed:
            at_ms = now_ms()
            consumer.retry(message, error_of(number, attempt))
        else:
            consumer.done(message)
            self.done.add(number)
        self.records += 1
        place = message.topic, message.partition, message.offset, message.timestamp_ms
        seen = Seen(*place, message.key, tuple(message.headers), at_ms)
        self.seen.setdefault(number, []).append(seen)


def error_of(number: int, attempt: int) -> str:
    return f"attempt {attempt} at {number}: käputt"


def send(bootstrap: str, topic: str, count: int, rate: float) -> None:
    """Produce ``count`` numbered records, ``rate`` a second."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1})
    started = time.monotonic()
    for number in range(count):
        own: Any = [("own", b"%d" % number), ("twice", b"1"), ("twice", None)]
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 50), headers=own)
        if number % 20 == 19:
            producer.poll(0)
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
    assert producer.flush(60) == 0

"""The delay topic on a real broker: exactly once, read-committed, through restarts and failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from kafka.structs import OffsetAndMetadata

from slotwheel.intake import delay_topic
from slotwheel.intake.confluent_reader import ConfluentReader
from slotwheel.intake.delay_topic import (
    DelayTopicIntake,
    SourceOutOfRange,
    SourceReader,
    SourceUnreachable,
)
from slotwheel.intake.kafka_reader import KafkaPythonReader
from slotwheel.intake.ports import IntakeEvents
from slotwheel.intake.records import ConsumerRecords
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.rows import Header
from support.broker import Broker, Cluster, TopicFactory
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms

READERS: dict[str, Callable[..., SourceReader]] = {
    "kafka-python": KafkaPythonReader,
    "confluent-kafka": ConfluentReader,
}


class Events(IntakeEvents):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.fields: list[dict[str, Any]] = []

    def appended(self, rows: int, nbytes: int, seconds: float) -> None: ...

    def refused(self, code: str, rows: int) -> None:
        self.event(code, rows=rows)

    def event(self, name: str, **fields: object) -> None:
        self.names.append(name)
        self.fields.append(fields)

    alarm = event

    def of(self, name: str) -> dict[str, Any]:
        return self.fields[self.names.index(name)]


@contextmanager
def running(
    wheel: FakeWheel,
    open_reader: Callable[[], SourceReader],
    topic: str = "delays",
    events: Events | None = None,
) -> Iterator[DelayTopicIntake]:
    intake = DelayTopicIntake(
        wheel, open_reader, topic=topic, partition=0, events=events or Events()
    )
    stop = threading.Event()
    thread = threading.Thread(target=intake.run, args=[stop])
    thread.start()
    try:
        yield intake
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def headers(**more: bytes) -> list[Header]:
    due = b"%d" % (now_ms() + 60_000)
    return [("slotwheel-topic", b"orders"), ("slotwheel-due-ms", due), *more.items()]


def produce(producer: KafkaProducer, topic: str, values: range) -> None:
    for number in values:
        producer.send(topic, b"%d" % number, headers=headers(), partition=0)
    producer.flush()


@pytest.mark.parametrize("name", READERS)
def test_records_arrive_once_through_restarts(
    broker: Cluster, topic: TopicFactory, name: str
) -> None:
    source = topic("delays")
    wheel = FakeWheel()

    def reader() -> SourceReader:
        return READERS[name](broker.bootstrap, source, 0, "wheel")

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(source, b"first", key=b"k", headers=headers(h=b"1"), partition=0)
        producer.send(source, key=b"k", headers=[("slotwheel-topic", b"orders")], partition=0)
        with running(wheel, reader, source) as intake:
            eventually(lambda: len(wheel.rows) == 2, 20)
            row, dead = wheel.rows
            assert (row["topic"], row["key"], row["value"]) == ("orders", b"k", b"first")
            assert row["headers"] == [{"key": "h", "value": b"1"}]
            assert dead["topic"] == DEAD_LETTER_TOPIC
            assert dead["value"] is None
            eventually(lambda: intake.reachable)
        for start in range(0, 6000, 2000):
            produce(producer, source, range(start, start + 1000))
            with running(wheel, reader, source) as intake:
                produce(producer, source, range(start + 1000, start + 2000))
                middle = start + 1500
                eventually(lambda: intake.position >= middle, 20)  # noqa: B023
        with running(wheel, reader, source) as intake:
            eventually(lambda: intake.position == 6001, 20)
            eventually(lambda: intake.lag == 0, 10)
    assert wheel.values()[2:] == [b"%d" % number for number in range(6000)]
    with KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="wheel") as consumer:
        place = TopicPartition(source, 0)
        eventually(lambda: consumer.committed(place) == 6002, 10)


@pytest.mark.parametrize("name", READERS)
def test_aborted_transactions_are_not_taken(
    broker: Cluster, topic: TopicFactory, name: str
) -> None:
    source = topic("delays")
    wheel = FakeWheel()
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"{source}-{name}"
    ) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            produce(producer, source, range(number * 10, number * 10 + 10))
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with running(wheel, lambda: READERS[name](broker.bootstrap, source, 0, "w"), source):
            eventually(lambda: len(wheel.rows) == 30, 20)
            producer.begin_transaction()
            produce(producer, source, range(100, 110))
            time.sleep(0.5)
            assert len(wheel.rows) == 30  # open: not taken yet
            producer.commit_transaction()
            eventually(lambda: len(wheel.rows) == 40, 20)
    numbers = [int(value) for value in wheel.values()]
    assert numbers == [*range(10), *range(20, 30), *range(40, 50), *range(100, 110)]


@pytest.mark.parametrize("name", READERS)
def test_retention_passed_us(broker: Cluster, topic: TopicFactory, name: str) -> None:
    source = topic("delays")
    wheel = FakeWheel()
    events = Events()

    def reader() -> SourceReader:
        return READERS[name](broker.bootstrap, source, 0, "w")

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        produce(producer, source, range(100))
        with running(wheel, reader, source) as intake:
            eventually(lambda: intake.position == 99, 20)
        produce(producer, source, range(100, 200))
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(source, 0): 150})
        with running(wheel, reader, source, events) as intake:
            eventually(lambda: intake.position == 199, 20)
    assert wheel.values() == [b"%d" % n for n in [*range(100), *range(150, 200)]]
    missed = events.of("delay-topic-records-missed")
    assert (missed["wanted"], missed["earliest"]) == (100, 150)


def test_topic_made_anew_is_not_taken_for_old_records(broker: Cluster, topic: TopicFactory) -> None:
    source = topic("delays")
    events = Events()
    wheel = FakeWheel()
    wheel._positions[0] = 1000
    with running(
        wheel, lambda: KafkaPythonReader(broker.bootstrap, source, 0, "w"), source, events
    ):
        eventually(lambda: "delay-topic-shorter-than-read" in events.names, 20)
    assert events.of("delay-topic-shorter-than-read") == {
        "source": f"{source}/0",
        "wanted": 1001,
        "end": 0,
    }


def test_broker_away_at_start_and_later(own_broker: Broker) -> None:
    """Under each kind of reader at once."""
    wheels = [FakeWheel() for _ in READERS]
    told = [Events() for _ in READERS]
    source = own_broker.create_topic("delays")
    with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
        produce(producer, source, range(100))
    own_broker.stop()
    with ExitStack() as stack:
        intakes = [
            stack.enter_context(
                running(wheel, partial(make, own_broker.bootstrap, source, 0, name), source, events)
            )
            for (name, make), wheel, events in zip(READERS.items(), wheels, told, strict=True)
        ]

        def unreachable(times: int) -> bool:
            counts = [events.names.count("delay-topic-unreachable") for events in told]
            return counts == [times] * len(told)

        def arrived(position: int) -> bool:
            return all(intake.position == position for intake in intakes)

        eventually(lambda: unreachable(1), 20)
        own_broker.start()
        eventually(lambda: arrived(99), 30)
        own_broker.kill()
        eventually(lambda: unreachable(2), 30)
        own_broker.start()
        with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
            produce(producer, source, range(100, 200))
        eventually(lambda: arrived(199), 30)
    for wheel, events in zip(wheels, told, strict=True):
        assert wheel.values() == [b"%d" % number for number in range(200)]
        assert "delay-topic-failed" not in events.names, events.fields


def test_a_poll_says_when_the_broker_is_away_and_what_is_wrong_otherwise(
    broker: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python raises from a poll only when the broker goes at one certain moment."""
    reader = KafkaPythonReader(broker.bootstrap, topic("delays"), 0, "wheel")
    for error, expected in (
        (KafkaConnectionError("111 ECONNREFUSED"), SourceUnreachable),
        (TopicAuthorizationFailedError({"delays"}), TopicAuthorizationFailedError),
    ):
        monkeypatch.setattr(KafkaConsumer, "poll", Mock(side_effect=error))
        with pytest.raises(expected):
            reader.poll(0.1)
    reader.close()


class NotUtf8(str):
    """A header key as a careless client writes it."""

    def encode(self, *_args: Any, **_more: Any) -> bytes:
        return b"\xff\xfe"


@pytest.mark.parametrize("name", READERS)
def test_header_key_that_is_not_utf8_blocks_nobody(
    broker: Cluster, topic: TopicFactory, name: str
) -> None:
    source = topic("delays")
    wheel = FakeWheel()
    with KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=100) as producer:
        for number in range(10):
            more: list[Header] = [(NotUtf8("x"), b"h")] if number == 4 else []
            producer.send(source, b"%d" % number, headers=headers() + more, partition=0)
        producer.flush()
    events = Events()
    with running(
        wheel, lambda: READERS[name](broker.bootstrap, source, 0, "w"), source, events
    ) as intake:
        eventually(lambda: intake.position == 9, 20)
    assert "delay-topic-failed" not in events.names, events.fields
    assert wheel.values() == [b"%d" % number for number in range(10)]
    assert [row["topic"] == DEAD_LETTER_TOPIC for row in wheel.rows] == [n == 4 for n in range(10)]


def test_partition_that_is_not_there(broker: Cluster, topic: TopicFactory) -> None:
    source = topic("delays")
    for make in READERS.values():
        with pytest.raises(SourceUnreachable):
            make(broker.bootstrap, source, 5, "w")


class ListReader:
    """A partition that is a list; ``failures`` are raised by ``poll``, one after the other."""

    def __init__(self, count: int, failures: list[Exception], value: bytes = b"") -> None:
        self._count = count
        self._failures = failures
        self._value = value
        self._next = 0
        self.closed = False

    def seek(self, offset: int) -> None:
        self._next = max(0, offset - 3)  # some clients hand over more than was asked for

    def poll(self, timeout_s: float) -> ConsumerRecords:
        if self._failures:
            raise self._failures.pop(0)
        offsets = list(range(self._next, min(self._next + 50, self._count)))
        if not offsets:
            time.sleep(timeout_s / 10)
        self._next += len(offsets)
        n = len(offsets)
        values: list[bytes | None] = [self._value or b"%d" % offset for offset in offsets]
        return ConsumerRecords(
            offsets, [now_ms()] * n, [None] * n, values, [headers() for _ in offsets]
        )

    def range(self) -> tuple[int, int]:
        return 0, self._count

    def commit(self, offset: int) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_the_loop_outlives_everything_and_overlaps_are_trimmed() -> None:
    wheel = FakeWheel()
    events = Events()
    failures: list[Exception] = [
        ZeroDivisionError("a defect"),
        SourceUnreachable("away"),
        SourceOutOfRange("odd"),
        OSError("disk"),
    ]
    raised: list[str] = []

    def fail(rows: object) -> None:
        if len(wheel.batches) in (1, 3) and len(raised) < 2:
            raised.append("now")
            raise RuntimeError("append failed")

    wheel.before_append = fail
    made: list[ListReader] = []

    def open_reader() -> ListReader:
        made.append(ListReader(500, failures))
        return made[-1]

    with running(wheel, open_reader, events=events) as intake:
        eventually(lambda: intake.position == 499, 20)
    assert wheel.values() == [b"%d" % number for number in range(500)]
    assert all(reader.closed for reader in made)
    assert events.names.count("delay-topic-failed") >= 3
    assert "ZeroDivisionError" in events.of("delay-topic-failed")["error"]


def test_overloaded_waits_and_goes_on() -> None:
    wheel = FakeWheel()
    events = Events()
    wheel.has_room.clear()
    with running(wheel, lambda: ListReader(500, []), events=events) as intake:
        eventually(lambda: "overloaded" in events.names)
        assert wheel.values() == []
        wheel.has_room.set()
        eventually(lambda: intake.position == 499)
    assert wheel.values() == [b"%d" % number for number in range(500)]


class SlowWheel(FakeWheel):
    """Its first commit takes long, and then fails."""

    failing: Future[Any] | None = None

    def append_source(self, rows: Any, now_ms: int, **place: Any) -> Future[Any]:
        if self.failing is None:
            self.failing = Future()
            self._positions[place["partition"]] = place["last"]
            return self.failing
        return super().append_source(rows, now_ms, **place)


def test_a_commit_that_takes_long_and_fails_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay_topic, "SLOW_COMMIT_S", 0.0)
    wheel = SlowWheel()
    events = Events()
    with running(wheel, lambda: ListReader(500, []), events=events) as intake:
        eventually(lambda: "delay-topic-commit-slow" in events.names)
        assert wheel.values() == []
        assert wheel.failing is not None
        wheel._positions.clear()
        failed = Overloaded("the journal could not be written")
        wheel.failing.set_exception(failed)
        eventually(lambda: intake.position == 499)
    assert failed.__traceback__ is None, "its frames would keep the records"
    assert wheel.values() == [b"%d" % number for number in range(500)]


def test_a_stop_does_not_wait_for_a_commit() -> None:
    wheel = SlowWheel()
    with running(wheel, lambda: ListReader(500, [])):
        eventually(lambda: wheel.failing is not None)
    assert wheel.values() == []


class OneCall:
    """librdkafka's consumer, which tells once that a position is out of range."""

    def __init__(self) -> None:
        self.results: list[list[Any]] = [[Told(None), Told(KafkaError._AUTO_OFFSET_RESET)]]

    def consume(self, _count: int, _timeout_s: float) -> list[Any]:
        return self.results.pop(0) if self.results else []

    def assign(self, _partitions: object) -> None: ...


class Told:
    def __init__(self, code: int | None) -> None:
        self._code = code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def key(self) -> None: ...
    def value(self) -> None: ...
    def headers(self) -> None: ...


def test_out_of_range_behind_records_is_not_forgotten() -> None:
    reader = ConfluentReader.__new__(ConfluentReader)
    consumer: Any = OneCall()
    reader._kafka, reader._consumer, reader._out_of_range = confluent_kafka, consumer, ""
    reader._source = confluent_kafka.TopicPartition("delays", 0)
    assert reader.poll(0.1).offsets == [7]
    for _ in range(2):
        with pytest.raises(SourceOutOfRange):
            reader.poll(0.1)
    reader.seek(0)
    assert reader.poll(0.1).offsets == []


def test_records_that_do_not_fit_one_batch_are_split() -> None:
    wheel = FakeWheel(
        config=WheelConfig(batch_rows_max=40, batch_bytes_max=40_000, message_bytes_max=20_000)
    )
    with running(wheel, lambda: ListReader(200, [], b"x" * 9_000)) as intake:
        eventually(lambda: intake.position == 199)
    assert wheel.values() == [b"x" * 9_000] * 200


def test_lag_is_told_to_kafka_for_the_group(broker: Cluster, topic: TopicFactory) -> None:
    source = topic("delays")
    reader = KafkaPythonReader(broker.bootstrap, source, 0, "lag-of-a-wheel")
    reader.seek(0)

    def told() -> object:
        reader.commit(0)  # it is not waited for, and a new broker takes its time
        reader.poll(0.2)
        return consumer.committed(TopicPartition(source, 0), metadata=True)

    with KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="lag-of-a-wheel") as consumer:
        found = eventually(told)
    reader.close()
    assert isinstance(found, OffsetAndMetadata)
    assert found.offset == 0

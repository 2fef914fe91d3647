"""The delay topic on a real broker: exactly once, read-committed, through restarts and failures."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar
from unittest.mock import Mock

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    KafkaConnectionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from slotwheel.broker.sources import LATEST, Place, StoredOffset
from slotwheel.node.intake import appending, delay_topic
from slotwheel.node.intake.confluent_reader import ConfluentReader
from slotwheel.node.intake.delay_topic import DelayTopicIntake
from slotwheel.node.intake.door import Door
from slotwheel.node.intake.kafka_reader import KafkaPythonReader
from slotwheel.node.intake.records import ConsumerRecords
from slotwheel.node.intake.source_reader import (
    NO_LEADER,
    DescribedTopic,
    Polled,
    SourceOutOfRange,
    SourceReader,
    SourceUnreachable,
    SourceUnreadable,
    ask_leaders,
)
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.security.principals import Authenticator
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NameTaken, Overloaded
from slotwheel.wheel.rows import Header
from support.broker import Broker, Cluster, TopicFactory
from support.events import ToldEvents
from support.fakewheel import FakeWheel
from support.listreader import ListReader
from support.securing import parsed
from support.waiting import PATIENCE_S, eventually, now_ms

READERS: dict[str, Callable[..., SourceReader]] = {
    "kafka-python": KafkaPythonReader,
    "confluent-kafka": ConfluentReader,
}


@contextmanager
def running(
    wheel: FakeWheel,
    open_reader: Callable[[], SourceReader],
    topic: str = "delays",
    events: ToldEvents | None = None,
    **more: Any,
) -> Iterator[DelayTopicIntake]:
    intake = DelayTopicIntake(
        wheel, open_reader, topics=[topic], events=events or ToldEvents(), **more
    )
    stop = threading.Event()
    thread = threading.Thread(target=intake.run, args=[stop])
    thread.start()
    try:
        yield intake
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def position(intake: DelayTopicIntake) -> int:
    """Of its only source."""
    return max((one.position for one in intake.states()), default=-1)


def is_read(intake: DelayTopicIntake) -> bool:
    """Whether all was read."""
    return not intake.unready() and {one.lag for one in intake.states()} == {0}


def headers(**more: bytes) -> list[Header]:
    due = b"%d" % (now_ms() + 60_000)
    return [("slotwheel-topic", b"orders"), ("slotwheel-due-ms", due), *more.items()]


def reader_of(
    count: int, failures: list[Exception] | None = None, value: bytes = b""
) -> ListReader:
    offsets = list(range(count))
    values: list[bytes | None] = [value or b"%d" % offset for offset in offsets]
    content = ConsumerRecords(
        offsets, [now_ms()] * count, [None] * count, values, [headers() for _ in offsets]
    )
    reader = ListReader(content)
    # Shared: what one reader has raised, the next one does not.
    reader._failures = [] if failures is None else failures
    return reader


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
        return READERS[name](broker.bootstrap, "wheel")

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(source, b"first", key=b"k", headers=headers(h=b"1"), partition=0)
        producer.send(source, key=b"k", headers=[("slotwheel-topic", b"orders")], partition=0)
        with running(wheel, reader, source) as intake:
            eventually(lambda: len(wheel.rows) == 2)
            row, dead = wheel.rows
            assert (row["topic"], row["key"], row["value"]) == ("orders", b"k", b"first")
            assert row["headers"] == [{"key": "h", "value": b"1"}]
            assert dead["topic"] == DEAD_LETTER_TOPIC
            assert dead["value"] is None
            eventually(lambda: not intake.unready())
        for start in range(0, 6000, 2000):
            produce(producer, source, range(start, start + 1000))
            with running(wheel, reader, source) as intake:
                produce(producer, source, range(start + 1000, start + 2000))
                middle = start + 1500
                eventually(lambda: position(intake) >= middle)  # noqa: B023
        with running(wheel, reader, source) as intake:
            eventually(lambda: position(intake) == 6001)
            eventually(lambda: is_read(intake))
    assert wheel.values()[2:] == [b"%d" % number for number in range(6000)]
    with KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="wheel") as consumer:
        place = TopicPartition(source, 0)
        eventually(lambda: consumer.committed(place) == 6002)


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
        with running(wheel, lambda: READERS[name](broker.bootstrap, "w"), source) as intake:
            eventually(lambda: len(wheel.rows) == 30)
            eventually(lambda: is_read(intake))
            producer.begin_transaction()
            produce(producer, source, range(100, 110))
            time.sleep(0.5)
            assert len(wheel.rows) == 30  # open: not taken yet
            producer.commit_transaction()
            eventually(lambda: len(wheel.rows) == 40)
            producer.begin_transaction()
            produce(producer, source, range(200, 210))
            producer.abort_transaction()
            with KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="w") as consumer:
                place = TopicPartition(source, 0)
                end = consumer.end_offsets([place])[place]
                eventually(lambda: consumer.committed(place) == end)
            assert is_read(intake)
    numbers = [int(value) for value in wheel.values()]
    assert numbers == [*range(10), *range(20, 30), *range(40, 50), *range(100, 110)]


@pytest.mark.parametrize("name", READERS)
def test_retention_passed_us(broker: Cluster, topic: TopicFactory, name: str) -> None:
    source = topic("delays")
    wheel = FakeWheel()
    events = ToldEvents()

    def reader() -> SourceReader:
        return READERS[name](broker.bootstrap, "w")

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        produce(producer, source, range(100))
        with running(wheel, reader, source) as intake:
            eventually(lambda: position(intake) == 99)
        produce(producer, source, range(100, 200))
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(source, 0): 150})
        with running(wheel, reader, source, events) as intake:
            eventually(lambda: position(intake) == 199)
    assert wheel.values() == [b"%d" % n for n in [*range(100), *range(150, 200)]]
    missed = events.of("delay-topic-records-missed")
    assert (missed["partitions"], missed["offsets"]) == ("0", 50)
    note = wheel.sources["notes"][0]
    assert (note["topic"], note["unread"]) == (source, [[0, 100, 149]])


def test_broker_away_at_start_and_later(own_broker: Broker) -> None:
    """Under each kind of reader at once."""
    wheels = [FakeWheel() for _ in READERS]
    told = [ToldEvents() for _ in READERS]
    source = own_broker.create_topic("delays")
    with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
        produce(producer, source, range(100))
    own_broker.stop()
    with ExitStack() as stack:
        intakes = [
            stack.enter_context(
                running(wheel, partial(make, own_broker.bootstrap, name), source, events)
            )
            for (name, make), wheel, events in zip(READERS.items(), wheels, told, strict=True)
        ]

        def unreachable(times: int) -> bool:
            counts = [events.names.count("delay-topic-unreachable") for events in told]
            return counts == [times] * len(told)

        def arrived(number: int) -> bool:
            return all(position(intake) == number for intake in intakes)

        eventually(lambda: unreachable(1))
        own_broker.start()
        eventually(lambda: arrived(99))
        own_broker.kill()
        eventually(lambda: unreachable(2))
        own_broker.start()
        with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
            produce(producer, source, range(100, 200))
        eventually(lambda: arrived(199))
    for wheel, events in zip(wheels, told, strict=True):
        assert wheel.values() == [b"%d" % number for number in range(200)]
        assert "delay-topic-failed" not in events.names, events.told


def test_a_poll_says_of_whom_an_error_is_and_when_the_broker_is_away(
    broker: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python raises from a poll, also for one partition of several."""
    reader = KafkaPythonReader(broker.bootstrap, "wheel")
    name = topic("delays", 2)
    for error, expected in (
        (OffsetOutOfRangeError({TopicPartition(name, 1): 7}), {Place(name, 1): SourceOutOfRange}),
        (
            TopicAuthorizationFailedError({name}),
            {Place(name, 0): SourceUnreadable, Place(name, 1): SourceUnreadable},
        ),
    ):
        reader.read({Place(name, 0): 0, Place(name, 1): 0})
        with monkeypatch.context() as patched:
            patched.setattr(KafkaConsumer, "poll", Mock(side_effect=[error, {}]))
            errors = reader.poll(0.1).errors
        assert {place: type(one) for place, one in errors.items()} == expected
        assert not {TopicPartition(*place) for place in errors} & reader._consumer.assignment()
    monkeypatch.setattr(KafkaConsumer, "poll", Mock(side_effect=KafkaConnectionError("refused")))
    with pytest.raises(SourceUnreachable, match="refused"):
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
    events = ToldEvents()
    with running(wheel, lambda: READERS[name](broker.bootstrap, "w"), source, events) as intake:
        eventually(lambda: position(intake) == 9)
    assert "delay-topic-failed" not in events.names, events.told
    assert wheel.values() == [b"%d" % number for number in range(10)]
    assert [row["topic"] == DEAD_LETTER_TOPIC for row in wheel.rows] == [n == 4 for n in range(10)]


def test_the_loop_outlives_everything_and_overlaps_are_trimmed() -> None:
    wheel = FakeWheel()
    events = ToldEvents()
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
        made.append(reader_of(500, failures))
        return made[-1]

    with running(wheel, open_reader, events=events) as intake:
        eventually(lambda: position(intake) == 499)
    assert wheel.values() == [b"%d" % number for number in range(500)]
    assert all(reader.closed for reader in made)
    assert events.names.count("delay-topic-failed") == 2
    assert events.names.count("delay-topic-not-read") >= 1
    assert "ZeroDivisionError" in events.of("delay-topic-failed")["error"]


def test_overloaded_waits_and_goes_on() -> None:
    wheel = FakeWheel()
    events = ToldEvents()
    wheel.has_room.clear()
    with running(wheel, lambda: reader_of(500), events=events) as intake:
        eventually(lambda: "overloaded" in events.names)
        assert wheel.values() == []
        wheel.has_room.set()
        eventually(lambda: position(intake) == 499)
    assert wheel.values() == [b"%d" % number for number in range(500)]


def test_records_over_a_quota_wait_until_others_have_left() -> None:
    wheel, events = FakeWheel(), ToldEvents()
    quota = "[members]\n'delay:delays' = ['all']\n[roles.all]\nschedule = ['*']\n"
    quota += "[quotas.'delay:delays'.pending.'orders']\nrows = 120"
    authenticator = Authenticator(parsed(quota))
    ledger = authenticator.pending
    with running(
        wheel, lambda: reader_of(200), events=events, authenticator=authenticator
    ) as intake:
        eventually(lambda: "over-quota" in events.names and position(intake) == 119)
        ledger.counted(ledger.patterns, [(0, 0)], 120)
        eventually(lambda: position(intake) == 199)
    assert wheel.values() == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("since", ["the start", "the reading"])
def test_while_the_clock_is_in_doubt_nothing_is_read_and_nothing_dies(
    since: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The believed time lags a day behind: what is due in a minute would be beyond the horizon."""
    wheel, events = FakeWheel(), ToldEvents()
    doubt = Overloaded("the wall clock says 12:00, and the node goes by 11:00")
    lag_ms = [0]

    def jump() -> None:
        if not lag_ms[0]:
            wheel.doubt, lag_ms[0] = doubt, 24 * 3_600_000

    if since == "the start":
        jump()
    else:
        poll = ListReader.poll

        def poll_and_jump(reader: ListReader, timeout_s: float) -> Polled:
            polled = poll(reader, timeout_s)
            jump()
            return polled

        monkeypatch.setattr(ListReader, "poll", poll_and_jump)
    clock = lambda: now_ms() - lag_ms[0]  # noqa: E731
    with running(wheel, lambda: reader_of(500), events=events, clock=clock) as intake:
        eventually(lambda: any("12:00" in why for why in intake.unready()))
        assert wheel.values() == []
        assert any("delays" in why for why in intake.unready())
        wheel.doubt, lag_ms[0] = None, -1
        eventually(lambda: position(intake) == 499)
        eventually(lambda: not intake.unready())
    assert wheel.values() == [b"%d" % number for number in range(500)]
    assert "delay-topic-dead-letters" not in events.names
    assert "delay-topic-failed" not in events.names


def test_what_takes_the_place_of_records_that_kafka_lost_is_named() -> None:
    """A broker lost the partition's end, and new records have its offsets by now."""
    wheel = FakeWheel()
    with running(wheel, lambda: reader_of(500)) as intake:
        eventually(lambda: position(intake) == 499)

    class Shorter(ListReader):
        def read(self, offsets: Mapping[Place, int]) -> None:
            super().read(offsets)
            if min(offsets.values()) > self._count:
                self._failures = [SourceOutOfRange("odd")]

    reader = Shorter(reader_of(520)._content)
    reader._count = 480
    with running(wheel, lambda: reader) as intake:
        for end in (480, 490):
            reader._count = end
            eventually(lambda: f"ends at offset {end}" in str(intake.unready()))  # noqa: B023
        reader._count = 520
        eventually(lambda: position(intake) == 519 and not intake.unready())
    [note] = wheel.sources["notes"]
    assert note["unread"] == [[0, 480, 499]]
    assert len(wheel.values()) == 520


class Partitions(ListReader):
    """Two partitions; the leader of the second is there for other clients only."""

    answers = True

    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]:
        return {one: DescribedTopic("an id", [True, True]) for one in topics}

    def offsets(self, places: Collection[Place], at: int) -> dict[Place, int]:
        found = super().offsets(places, at)
        return {one: end for one, end in found.items() if self.answers or one.partition == 0}


def test_a_leader_that_alone_stops_to_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_topic, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(delay_topic, "_MEASURE_AGAIN_S", 0.0)
    wheel, events = FakeWheel(), ToldEvents()
    reader = Partitions(reader_of(100)._content, chunk=1)
    with running(wheel, lambda: reader, events=events) as intake:
        eventually(lambda: is_read(intake))
        reader.answers = False
        eventually(intake.unready)
        [why] = intake.unready()
        assert "(partition 1) is not read: the partition's leader does not answer" in why
        assert events.names.count("delay-topic-not-read") == 1
        reader.answers = True
        eventually(lambda: is_read(intake))
        reader._count += 5
        why = "(partitions 0-1) is not read: the partition has records, and its leader returns none"
        eventually(lambda: why in str(intake.unready()))


def test_a_leader_that_returns_nothing_is_named_while_others_give_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = threading.Event()

    class Starving(Partitions):
        def poll(self, timeout_s: float) -> Polled:
            if position(intake) > 15_000:  # what is named must be named before the others end
                named.wait(PATIENCE_S)
            found = super().poll(timeout_s).records
            return Polled({one: records for one, records in found.items() if not one.partition}, {})

        def positions(self) -> dict[Place, int]:
            return {one: 0 if one.partition else at for one, at in super().positions().items()}

    monkeypatch.setattr(delay_topic, "CHECK_INTERVAL_S", 0.0)
    reader = Starving(reader_of(20_000)._content, chunk=1)
    with running(FakeWheel(), lambda: reader) as intake:
        why = "(partition 1) is not read: the partition has records, and its leader returns none"
        eventually(lambda: why in str(intake.unready()))
        assert 5 * delay_topic.SILENT_CHECKS <= position(intake) < 19_999
        named.set()


def test_where_reading_begins_is_agreed_before_it_is_stored_and_stored_before_it_is_read() -> None:
    """Another master decides as this one did, wherever this one ends."""

    class Watched(ListReader):
        failing = 2

        def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
            begins.append(wheel.sources and wheel.sources["topics"][0]["begins"])
            if self.failing:
                self.failing -= 1
                raise SourceUnreachable("away")
            super().store(offsets, wait=wait)

        def read(self, offsets: Mapping[Place, int]) -> None:
            assert self.stored_offsets
            super().read(offsets)

    wheel, begins = FakeWheel(), list[Any]()
    reader = Watched(reader_of(50)._content)
    with running(wheel, lambda: reader) as intake:
        eventually(lambda: position(intake) == 49)
    assert begins[:3] == [{"0": 0}] * 3
    assert wheel.values() == [b"%d" % number for number in range(50)]


def test_a_begin_that_cannot_be_stored_stops_its_partition_only() -> None:
    """An idle one, after a restart, without the right to commit."""

    class Idle(Partitions):
        refuses = False

        def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
            if self.refuses:
                raise SourceUnreadable("no right to commit")
            super().store(offsets, wait=wait)

        def poll(self, timeout_s: float) -> Polled:
            found = super().poll(timeout_s).records
            return Polled({one: records for one, records in found.items() if not one.partition}, {})

    wheel = FakeWheel()
    with running(wheel, lambda: Idle(reader_of(50)._content)) as intake:
        eventually(lambda: position(intake) == 49)
    reader = Idle(reader_of(100)._content)
    reader.refuses = True
    with running(wheel, lambda: reader) as intake:
        eventually(lambda: position(intake) == 99)
        [why] = intake.unready()
        assert "(partition 1) is not read" in why
        assert why.endswith("cannot be stored in Kafka: no right to commit")
        reader.refuses = False
        eventually(lambda: not intake.unready())


def test_what_is_new_and_has_no_leader_at_first_is_read_from_its_first_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is asked for where nothing is known."""
    monkeypatch.setattr(delay_topic, "CHECK_INTERVAL_S", 0.0)

    class Growing(ListReader):
        led: tuple[bool, ...] = (True,)

        def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]:
            return {one: DescribedTopic("an id", self.led) for one in topics}

    wheel = FakeWheel()
    reader = Growing(reader_of(50)._content)
    with running(wheel, lambda: reader, begin_at=LATEST) as intake:
        eventually(lambda: is_read(intake))
        reader.led = (True, False, False)
        eventually(intake.unready)
        [why] = intake.unready()
        assert "(partitions 1-2) is not read: the partition has no leader" in why
        reader.led = (True, False, True)
        eventually(lambda: "partition 1)" in intake.unready()[0])
        reader.led = (True, True, True)
        eventually(lambda: is_read(intake))
    assert wheel.sources["topics"][0]["begins"] == {"0": 50, "1": 0, "2": 0}


class Topics:
    """Kafka has one topic, and answers after a moment."""

    rows_let_in: ClassVar[int] = 0

    def knows(self, topics: Collection[str]) -> bool:
        return set(topics) == {"orders"}

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        assert settled
        return None if waited_s < 0.1 else [one for one in topics if one != "orders"]


def test_a_message_to_a_topic_that_kafka_does_not_have_is_a_dead_letter_at_once() -> None:
    targets = [b"orders", b"missing", b"orders", b"gone"]
    due = ("slotwheel-due-ms", b"%d" % (now_ms() + 3_600_000))
    content = ConsumerRecords(
        [0, 1, 2, 3],
        [now_ms()] * 4,
        [None] * 4,
        [b"0", b"1", b"2", b"3"],
        [[("slotwheel-topic", target), due] for target in targets],
    )
    wheel, door = FakeWheel(), Door(Topics(), [DEAD_LETTER_TOPIC])
    with running(wheel, lambda: ListReader(content), door=door) as intake:
        eventually(lambda: position(intake) == 3)
    assert wheel.values() == [b"0", b"1", b"2", b"3"]
    for row, target in zip(wheel.rows, targets, strict=True):
        said = {one["key"]: one["value"] for one in row["headers"]}
        if target == b"orders":
            assert (row["topic"], said) == ("orders", {})
        else:
            assert row["topic"] == DEAD_LETTER_TOPIC
            assert row["due"].timestamp() * 1000 <= now_ms()
            assert (said["slotwheel-dead-reason"], said["slotwheel-dead-topic"]) == (
                b"refused",
                target,
            )
            assert b"Kafka has no such topic" in said["slotwheel-dead-error"]


@pytest.mark.parametrize("later", [False, True])
def test_a_record_that_may_not_take_a_name_is_a_dead_letter_and_the_others_are_stored(
    monkeypatch: pytest.MonkeyPatch, *, later: bool
) -> None:
    """``later``: the wheel says so when the append is committed, and not at once."""
    count, refused = 50, {7, 8, 30, 49}
    due = ("slotwheel-due-ms", b"%d" % (now_ms() + 3_600_000))
    content = ConsumerRecords(
        list(range(count)),
        [now_ms()] * count,
        [None] * count,
        [b"%d" % number for number in range(count)],
        [
            [
                ("slotwheel-topic", b"orders"),
                due,
                ("slotwheel-name", b"taken" if number in refused else b"%d" % number),
                ("slotwheel-if-exists", b"refuse"),
            ]
            for number in range(count)
        ],
    )
    wheel = FakeWheel()
    appended: list[int] = []
    append = wheel.append_source

    def counted(rows: Any, *given: Any, **more: Any) -> Future[Any]:
        appended.append(rows.num_rows)
        try:
            return append(rows, *given, **more)
        except NameTaken as error:
            if not later:
                raise
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    monkeypatch.setattr(wheel, "append_source", counted)
    wheel.log.names["orders", "taken"] = now_ms() + 3_600_000, 1_000_000
    with running(wheel, lambda: ListReader(content)) as intake:
        eventually(lambda: position(intake) == count - 1)
    assert wheel.values() == content.values
    letters = [row for row in wheel.rows if row["topic"] == DEAD_LETTER_TOPIC]
    assert [int(row["value"]) for row in letters] == sorted(refused)
    for row in letters:
        said = {pair["key"]: pair["value"] for pair in row["headers"]}
        assert (said["slotwheel-dead-reason"], said["slotwheel-dead-name"]) == (
            b"refused",
            b"taken",
        )
        assert "slotwheel-name" not in said
    assert len(appended) < count


@pytest.mark.parametrize("for_good", [False, True])
def test_records_whose_names_are_just_leaving_hold_up_the_others_for_a_moment_at_most(
    monkeypatch: pytest.MonkeyPatch, *, for_good: bool
) -> None:
    count, named = 50, {7, 8, 30, 49}
    content = ConsumerRecords(
        list(range(count)),
        [now_ms()] * count,
        [None] * count,
        [b"%d" % number for number in range(count)],
        [
            [
                ("slotwheel-topic", b"orders"),
                ("slotwheel-due-ms", b"%d" % (now_ms() + 3_600_000)),
                ("slotwheel-name", b"leaving" if number in named else b"%d" % number),
            ]
            for number in range(count)
        ],
    )
    monkeypatch.setattr(appending, "LEAVING_S", 1.0 if for_good else 600.0)
    wheel = FakeWheel()
    ends = time.monotonic() + (600.0 if for_good else 1.0)
    tried: Counter[int] = Counter()

    def look(rows: pa.RecordBatch) -> None:
        for row, headers in enumerate(rows.column("headers").to_pylist()):
            pairs = [(pair["key"], pair["value"]) for pair in headers]
            if ("slotwheel-name", b"leaving") in pairs and time.monotonic() < ends:
                tried[rows.num_rows] += 1
                raise Overloaded("the message that has this name is just leaving", row=row)

    wheel.before_append = look
    with running(wheel, lambda: ListReader(content)) as intake:
        eventually(lambda: position(intake) == count - 1)
    assert tried[1], "each was tried alone"
    assert wheel.values() == content.values
    letters = [row for row in wheel.rows if row["topic"] == DEAD_LETTER_TOPIC]
    assert [int(row["value"]) for row in letters] == (sorted(named) if for_good else [])
    for row in letters:
        said = {pair["key"]: pair["value"] for pair in row["headers"]}
        assert said["slotwheel-dead-reason"] == b"refused"
        assert b"just leaving" in said["slotwheel-dead-error"]


def test_a_broker_that_does_not_answer_takes_no_answer_from_others() -> None:
    asked: list[list[Place]] = []

    def ask(group: list[Place]) -> dict[Place, int]:
        asked.append(group)
        if leaders[group[0]] == 7:
            raise SourceUnreachable("away")
        if group[0].topic == "secret":
            raise SourceUnreadable("no rights")
        return dict.fromkeys(group, 5)

    leaders = {Place("a", 0): 3, Place("a", 1): 7, Place("b", 0): 7, Place("secret", 0): 3}
    leaders[Place("a", 2)] = NO_LEADER
    assert ask_leaders(leaders, leaders, ask) == {Place("a", 0): 5}
    assert asked == [[Place("a", 0)], [Place("a", 1)], [Place("secret", 0)]]


class SlowWheel(FakeWheel):
    """Its first commit takes long, and then fails."""

    failing: Future[Any] | None = None

    def append_source(self, rows: Any, now_ms: int, **place: Any) -> Future[Any]:
        if self.failing is None:
            self.failing = Future()
            self._positions[place["source"]] = place["last"]
            return self.failing
        return super().append_source(rows, now_ms, **place)


def test_a_commit_that_takes_long_and_fails_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appending, "SLOW_COMMIT_S", 0.0)
    wheel = SlowWheel()
    events = ToldEvents()
    with running(wheel, lambda: reader_of(500), events=events) as intake:
        eventually(lambda: "delay-topic-commit-slow" in events.names)
        assert wheel.values() == []
        assert wheel.failing is not None
        wheel._positions.clear()
        failed = Overloaded("the journal could not be written")
        wheel.failing.set_exception(failed)
        eventually(lambda: position(intake) == 499)
    assert failed.__traceback__ is None, "its frames would keep the records"
    assert wheel.values() == [b"%d" % number for number in range(500)]


def test_a_stop_does_not_wait_for_a_commit() -> None:
    wheel = SlowWheel()
    with running(wheel, lambda: reader_of(500)):
        eventually(lambda: wheel.failing is not None)
    assert wheel.values() == []


class Consumed:
    """librdkafka's consumer, which goes on behind what it could not read."""

    def __init__(self, *told: Told) -> None:
        self._told = list(told)

    def consume(self, _count: int, _timeout_s: float) -> list[Told]:
        told, self._told = self._told, []
        return told

    def incremental_unassign(self, _partitions: object) -> None: ...


class Told:
    def __init__(self, offset: int, partition: int = 0, code: int | None = None) -> None:
        self._offset, self._partition, self._code = offset, partition, code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def topic(self) -> str:
        return "delays"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def key(self) -> None: ...
    def value(self) -> None: ...
    def headers(self) -> None: ...


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._BAD_COMPRESSION])
def test_what_comes_behind_an_error_is_not_taken(code: int) -> None:
    """librdkafka tells once that a set of records cannot be read, and goes on behind it."""
    reader = ConfluentReader.__new__(ConfluentReader)
    consumer: Any = Consumed(Told(7), Told(8, 0, code), Told(3, 1), Told(9))
    reader._kafka, reader._consumer = confluent_kafka, consumer
    reader._returned, reader._reading = {}, {Place("delays", 0), Place("delays", 1)}
    polled = reader.poll(0.1)
    assert {place.partition: one.offsets for place, one in polled.records.items()} == {
        0: [7],
        1: [3],
    }
    assert list(polled.errors) == [Place("delays", 0)]
    assert reader.positions() == {Place("delays", 1): 4}


def test_records_that_do_not_fit_one_batch_are_split() -> None:
    wheel = FakeWheel(
        config=WheelConfig(batch_rows_max=40, batch_bytes_max=40_000, message_bytes_max=20_000)
    )
    with running(wheel, lambda: reader_of(200, value=b"x" * 9_000)) as intake:
        eventually(lambda: position(intake) == 199)
    assert wheel.values() == [b"x" * 9_000] * 200

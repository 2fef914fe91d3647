"""What every source of a consumer must do; each source's tests inherit ``SourceContract``, those of
a real Kafka ``KafkaSourceContract``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from kafka import KafkaProducer

from slotwheel.broker.header_names import UNREADABLE
from slotwheel.consumer import confluent_source, kafka_python_source
from slotwheel.consumer.confluent_source import ConfluentSource
from slotwheel.consumer.message import Received, SourcePartition
from slotwheel.consumer.source import Source, SourceAway
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.sink import Answer
from slotwheel.wheel.errors import InvalidConfiguration, NodeUnreachable
from slotwheel.wheel.rows import Header
from support.broker import Broker, Cluster, TopicFactory
from support.deliveries import MINT, Sent, id_of, odd, rows_of
from support.sinkcontract import deliver_until_accepted
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S


class Book:
    """An ``Assignment`` that notes what it is told. ``at``: what to commit at a revoke; ``told``:
    what was committed."""

    def __init__(self) -> None:
        self.own: set[SourcePartition] = set()
        self.at: dict[SourcePartition, int] = {}
        self.told: dict[SourcePartition, int] = {}
        self.gone: list[SourcePartition] = []
        self.member: Any = None

    def assigned(self, partitions: Sequence[SourcePartition], member: Any) -> None:
        self.own |= set(partitions)
        self.member = member

    def finished(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        return {one: self.at[one] for one in partitions if one in self.at}

    def committed(self, positions: Mapping[SourcePartition, int]) -> None:
        self.told |= positions

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        self.own -= set(partitions)
        self.gone += partitions


class SourceRig(ABC):
    """Fills topics and opens sources, which it closes in the end."""

    def __init__(self) -> None:
        self.opened: list[Source] = []

    @abstractmethod
    def topic(self, name: str) -> str: ...

    @abstractmethod
    def fill(self, sent: Sequence[Sent], first: int = 0) -> None: ...

    @abstractmethod
    def make(self, group: str, topics: Sequence[str], book: Book) -> Source: ...

    def open(self, topics: str | Sequence[str], group: str = "") -> tuple[Source, Book]:
        names = [topics] if isinstance(topics, str) else list(topics)
        book = Book()
        source = self.make(group or f"{names[0]}-group", names, book)
        self.opened.append(source)
        return source, book

    def close(self, source: Source) -> None:
        self.opened.remove(source)
        source.close()

    def close_all(self) -> None:
        for source in list(self.opened):
            self.close(source)


def read(source: Source, count: int, *, each: int = 1000) -> list[Received]:
    """Poll until there are ``count`` records."""
    found: list[Received] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        try:
            found += source.poll(0.1, min(each, count - len(found)))
        except SourceAway:
            time.sleep(0.1)
    return found


def settled(members: Sequence[tuple[Source, Book, int]]) -> None:
    """Poll until each has so many partitions."""
    deadline = time.monotonic() + PATIENCE_S
    while any(len(book.own) != count for _, book, count in members):
        assert time.monotonic() < deadline, [book.own for _, book, _ in members]
        for source, _, _ in members:
            with suppress(SourceAway):
                source.poll(0.05, 100)


def values(records: Sequence[Received]) -> list[int]:
    return [int(one.value or b"-1") for one in records]


def numbers(topic: str, first: int, end: int) -> list[Sent]:
    return [Sent(topic, b"%d" % number) for number in range(first, end)]


class SourceContract:
    """Needs the fixture ``rig``."""

    def test_every_byte_arrives(self, rig: SourceRig) -> None:
        topic = rig.topic("odd")
        sent = odd(topic)
        rig.fill(sent, 40)
        source, _ = rig.open(topic)
        got = read(source, len(sent))
        assert [(g.key, g.value, tuple(g.headers[:-3])) for g in got] == [
            (s.key, s.value, s.headers) for s in sent
        ]
        assert [g.id for g in got] == [id_of(s, 40 + at) for at, s in enumerate(sent)]
        assert [g.due_ms for g in got] == [s.due for s in sent]
        assert [(g.topic, g.partition, g.offset) for g in got] == [
            (topic, 0, at) for at in range(len(sent))
        ]
        assert all(abs(g.timestamp_ms / 1000 - time.time()) < 600 for g in got)

    def test_order_is_kept_in_small_polls(self, rig: SourceRig) -> None:
        topic = rig.topic("order")
        rig.fill(numbers(topic, 0, 1000))
        source, _ = rig.open(topic)
        found: list[Received] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < 1000:
            polled = source.poll(0.1, 64)
            assert len(polled) <= 64
            found += polled
            assert time.monotonic() < deadline
        assert values(found) == list(range(1000))

    def test_the_next_member_begins_at_what_is_committed(self, rig: SourceRig) -> None:
        topic = rig.topic("committed")
        rig.fill(numbers(topic, 0, 30))
        source, _ = rig.open(topic)
        got = read(source, 30)
        source.commit({SourcePartition(topic, 0): got[17].offset})
        rig.close(source)
        again, _ = rig.open(topic)
        assert values(read(again, 13)) == list(range(17, 30))

    def test_without_a_commit_everything_comes_again(self, rig: SourceRig) -> None:
        topic = rig.topic("uncommitted")
        rig.fill(numbers(topic, 0, 10))
        for _ in range(2):
            source, _ = rig.open(topic)
            assert values(read(source, 10)) == list(range(10))
            rig.close(source)

    def test_groups_do_not_know_each_other(self, rig: SourceRig) -> None:
        topic = rig.topic("groups")
        rig.fill(numbers(topic, 0, 5))
        for group in ("one", "two"):
            source, _ = rig.open(topic, f"{topic}-{group}")
            assert values(read(source, 5)) == list(range(5))
            source.commit({SourcePartition(topic, 0): 5})
            rig.close(source)

    def test_a_topic_that_is_held_is_not_read_until_it_is_let_go(self, rig: SourceRig) -> None:
        held, free = rig.topic("held"), rig.topic("free")
        rig.fill(numbers(held, 0, 5) + numbers(free, 0, 5))
        source, book = rig.open([held, free])
        got = read(source, 10)
        assert {one.topic for one in got} == {held, free}
        source.hold({SourcePartition(held, 0)})
        rig.fill(numbers(held, 5, 10) + numbers(free, 5, 10), 100)
        assert {one.topic for one in read(source, 5)} == {free}
        assert source.poll(0.3, 100) == []
        assert book.own == {SourcePartition(held, 0), SourcePartition(free, 0)}
        source.hold(set())
        assert [(one.topic, int(one.value or b"")) for one in read(source, 5)] == [
            (held, number) for number in range(5, 10)
        ]

    def test_it_reads_again_from_what_is_committed(self, rig: SourceRig) -> None:
        topic, other = rig.topic("rewound"), rig.topic("begun")
        rig.fill(numbers(topic, 0, 20) + numbers(other, 0, 3))
        source, _ = rig.open([topic, other])
        read(source, 23)
        source.commit({SourcePartition(topic, 0): 12})
        source.rewind({SourcePartition(topic, 0): 0, SourcePartition(other, 0): 0})
        got = read(source, 8 + 3)
        assert values([one for one in got if one.topic == topic]) == list(range(12, 20))
        assert values([one for one in got if one.topic == other]) == [0, 1, 2]

    def test_what_comes_later_is_read(self, rig: SourceRig) -> None:
        topic = rig.topic("later")
        rig.fill(numbers(topic, 0, 1))
        source, _ = rig.open(topic)
        assert values(read(source, 1)) == [0]
        began = Stopwatch()
        assert source.poll(0.2, 10) == []
        assert began.seconds < 2
        rig.fill(numbers(topic, 1, 3), 10)
        assert values(read(source, 2)) == [1, 2]

    def test_it_closes_at_once(self, rig: SourceRig) -> None:
        topic = rig.topic("closing")
        rig.fill(numbers(topic, 0, 3))
        source, _ = rig.open(topic)
        read(source, 3)
        began = Stopwatch()
        rig.close(source)
        assert began.seconds < 1.5


class _NotText(str):
    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def send_not_text(bootstrap: str, topic: str, value: bytes, headers: list[Header]) -> None:
    """Send a record with a header whose name is not UTF-8, and behind it the others."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, value, headers=[(_NotText("?"), b"1"), *headers]).get(10)
    producer.close()


class KafkaRig(SourceRig):
    """``kind``: the class of the source; ``quick``: settings by which a member soon sees that the
    group changes."""

    def __init__(
        self, broker: Cluster, topic: TopicFactory, kind: Any, quick: dict[str, Any]
    ) -> None:
        super().__init__()
        self.quick = quick
        self.broker, self._topic, self.kind = broker, topic, kind
        self._sink = KafkaPythonSink(MINT, KafkaSettings(broker.bootstrap))

    def topic(self, name: str) -> str:
        return self._topic(name)

    def fill(self, sent: Sequence[Sent], first: int = 0) -> None:
        answers = self._sink.deliver(rows_of(sent, first))
        assert (answers.codes == Answer.ACCEPTED).all()

    def make(self, group: str, topics: Sequence[str], book: Book) -> Source:
        made: Source = self.kind(self.broker.bootstrap, group, topics, book, extra=self.quick)
        return made

    def close_all(self) -> None:
        super().close_all()
        self._sink.close()


class KafkaSourceContract(SourceContract):
    """Needs ``kind`` and ``quick``, as of ``KafkaRig``."""

    kind: Any
    quick: dict[str, Any]

    @pytest.fixture
    def rig(self, broker: Cluster, topic: TopicFactory) -> Iterator[KafkaRig]:
        rig = KafkaRig(broker, topic, self.kind, self.quick)
        yield rig
        rig.close_all()

    def test_members_share_and_go_on_where_the_other_was(
        self, rig: KafkaRig, topic: TopicFactory
    ) -> None:
        """The second member takes over partitions at what the first one finished, committed while
        they are revoked."""
        name = topic("shared", 4)
        rig.fill([Sent(name, b"%d" % n, partition=n % 4) for n in range(40)])
        first, book = rig.open(name)
        got = read(first, 40)
        assert len(book.own) == 4
        book.at = {SourcePartition(name, part): 5 for part in range(4)}
        before = book.member
        second, other = rig.open(name)
        found: list[Received] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < 10 or len(book.own) != 2:
            assert time.monotonic() < deadline, (len(found), book.own, other.own)
            first.poll(0.05, 100)  # what it keeps it may read again
            found += second.poll(0.05, 100)
        assert book.told == book.at
        assert len(other.own) == 2
        assert not book.own & other.own
        assert sorted(one.offset for one in found) == sorted([*range(5, 10)] * 2)
        assert book.member is not before
        assert len(got) == 40
        # What a member has had before and has kept goes on, too.
        rig.fill([Sent(name, b"%d" % n, partition=n % 4) for n in range(40, 44)], 100)
        more: set[int] = set()
        while not more >= set(range(40, 44)):
            assert time.monotonic() < deadline, more
            for source in (first, second):
                more |= set(values(source.poll(0.05, 100)))
        rig.close(second)
        while len(book.own) != 4:
            assert time.monotonic() < deadline
            first.poll(0.05, 100)

    def test_what_was_held_is_read_again_after_a_rebalance(
        self, rig: KafkaRig, topic: TopicFactory
    ) -> None:
        name = topic("held", 2)
        first, book = rig.open(name)
        settled([(first, book, 2)])
        first.hold(book.own)
        second, other = rig.open(name)
        settled([(first, book, 1), (second, other, 1)])
        rig.close(second)
        settled([(first, book, 2)])
        first.hold(set())
        rig.fill([Sent(name, b"%d" % part, partition=part) for part in range(2)])
        assert sorted(values(read(first, 2))) == [0, 1]

    def test_aborted_records_are_not_seen(self, rig: KafkaRig) -> None:
        name = rig.topic("aborted")
        producer = KafkaProducer(bootstrap_servers=rig.broker.bootstrap, transactional_id=name)
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send(name, end.__name__.encode()).get(10)
            end()
        producer.close()
        source, _ = rig.open(name)
        (got,) = read(source, 1)
        assert got.value == b"commit_transaction"
        assert got.offset == 2, "the mark of the aborted transaction stands between"

    def test_a_header_whose_name_is_not_text_holds_nothing_up(self, rig: KafkaRig) -> None:
        name = rig.topic("not-text")
        send_not_text(rig.broker.bootstrap, name, b"0", [("h", b"2")])
        rig.fill(numbers(name, 1, 2))
        source, _ = rig.open(name)
        odd, sound = read(source, 2)
        assert (odd.value, sound.value) == (b"0", b"1")
        shown = [("\ufffd\ufffd", b"1"), ("h", b"2")]
        assert odd.headers == (UNREADABLE if rig.kind is ConfluentSource else shown)

    def test_positions_are_never_committed_by_the_client_itself(self, rig: KafkaRig) -> None:
        name = rig.topic("auto")
        rig.fill(numbers(name, 0, 3))
        own = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
        if rig.kind is ConfluentSource:
            own = {"enable.auto.commit": True, "auto.commit.interval.ms": 10}
        for _ in range(2):
            source = rig.kind(rig.broker.bootstrap, name, [name], Book(), extra=own)
            assert values(read(source, 3)) == [0, 1, 2]
            source.poll(0.1, 10)
            source.close()

    def test_a_missing_topic_is_named(self, rig: KafkaRig) -> None:
        there = rig.topic("there")
        with pytest.raises(InvalidConfiguration, match=r"no-such-topic.*create_topics=True"):
            rig.kind(rig.broker.bootstrap, "g", [there, "no-such-topic"], Book())
        with pytest.raises(InvalidConfiguration, match="no-such-letters"):
            rig.kind(rig.broker.bootstrap, "g", [there], Book(), needed=["no-such-letters"])

    def test_topics_are_made_once(self, rig: KafkaRig) -> None:
        there = rig.topic("base")
        made = f"{there}-made"
        for _ in range(2):
            source = rig.kind(rig.broker.bootstrap, there, [there, made], Book(), create=[made])
            source.close()
        rig.fill(numbers(made, 0, 1))
        rig.broker.delete_topic(made)

    @pytest.fixture
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka_python_source, "_BOOTSTRAP_S", 1.0)
        for module in (kafka_python_source, confluent_source):
            monkeypatch.setattr(module, "COMMIT_S", 1.0)
        monkeypatch.setattr(confluent_source, "_ASK_S", 1.0)

    @pytest.mark.usefixtures("impatient")
    def test_no_broker_at_start(self) -> None:
        began = Stopwatch()
        with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1:9"):
            self.kind("127.0.0.1:9", "g", ["t"], Book())
        assert began.seconds < 5

    @pytest.mark.usefixtures("impatient")
    def test_a_broker_that_is_away_costs_nothing_but_time(self, own_broker: Broker) -> None:
        name = own_broker.create_topic("outage")
        sink = KafkaPythonSink(MINT, KafkaSettings(own_broker.bootstrap))
        deliver_until_accepted(sink, numbers(name, 0, 5))
        source: Source = self.kind(own_broker.bootstrap, "g", [name], Book())
        read(source, 5)
        own_broker.kill()
        began = Stopwatch()
        with suppress(SourceAway):
            assert source.poll(0.2, 10) == []
        with pytest.raises(SourceAway):
            source.commit({SourcePartition(name, 0): 5})
        assert began.seconds < 8
        own_broker.start()
        deliver_until_accepted(sink, numbers(name, 5, 8))
        assert set(values(read(source, 3))) >= {5}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                source.commit({SourcePartition(name, 0): 5})
                break
            except SourceAway:
                assert time.monotonic() < deadline
                source.poll(0.1, 10)
        own_broker.pause()
        began = Stopwatch()
        source.close()
        assert began.seconds < 2
        own_broker.resume()
        sink.close()

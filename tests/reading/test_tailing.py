"""The tail of a topic: from positions on, across its being made, restarted and replaced."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.reading.growing import tails as growing_tails
from slotwheel.reading.kafka import tails
from slotwheel.reading.kafka.opening import open_tails
from slotwheel.reading.kafka.tails import KafkaTails
from slotwheel.reading.problems import Problem
from slotwheel.reading.tailing import TailStart
from slotwheel.reading.topicreader import walk
from slotwheel.wheel.errors import InvalidConfiguration, NodeUnreachable
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times
from slotwheel.wheel.topics.topicfile import segment_path
from support.broker import Broker, TopicFactory
from support.damage import flipped
from support.deliveries import MINT, NOW_MS, Sent, rows_of
from support.waiting import eventually, now_ms


def fill(root: Path, first: int, count: int) -> None:
    sink = EmbeddedSink(OsFiles(root), MINT, lambda: NOW_MS)
    sent = [Sent("t", b"%d" % number) for number in range(first, first + count)]
    assert (sink.deliver(rows_of(sent, first)).codes == Answer.ACCEPTED).all()
    sink.close()


class Tail:
    """One topic that is followed, in Kafka or below a data directory."""

    def __init__(
        self,
        topic: str,
        start: TailStart,
        *,
        root: Path | None = None,
        bootstrap: str | None = None,
    ) -> None:
        self.topic = topic
        self.tails = open_tails(root, bootstrap, {})
        self.tails.follow(topic, start)
        self.source = ""
        self.problems: list[str] = []

    def read(self, wait_s: float) -> list[TailRecord]:
        records = []
        for new in self.tails.read(wait_s):
            if isinstance(new, Problem):
                assert new.file == self.topic
                self.problems.append(new.text)
                continue
            self.source = new.source
            values_ = new.rows.column("value").to_pylist()
            for position, value in zip(times(new.rows, "position").tolist(), values_, strict=True):
                records.append(TailRecord(new.partition, position + 1, value))
        return records

    def lag(self) -> int:
        return self.tails.lag()

    def close(self) -> None:
        self.tails.close()


class TailRecord(NamedTuple):
    partition: int
    next_position: int
    value: bytes | None


def embedded(root: Path, positions: Mapping[int, int]) -> Tail:
    return Tail("t", TailStart(positions=positions), root=root)


def values(records: list[TailRecord]) -> list[bytes | None]:
    return [one.value for one in records]


def test_an_embedded_topic_is_read_from_its_position_on(tmp_path: Path) -> None:
    with closing(embedded(tmp_path, {})) as tail:
        assert tail.read(0) == []
        assert tail.lag() == 0
        fill(tmp_path, 0, 3)
        assert tail.lag() == 3
        found = tail.read(5)
        assert values(found) == [b"0", b"1", b"2"]
        assert [(one.partition, one.next_position) for one in found] == [(0, 1), (0, 2), (0, 3)]
        assert tail.lag() == 0
        assert tail.read(0.01) == []
        fill(tmp_path, 3, 2)
        assert values(tail.read(5)) == [b"3", b"4"]
    with closing(embedded(tmp_path, {0: 2})) as tail:  # in the middle of a block
        assert values(tail.read(5)) == [b"2", b"3", b"4"]


def test_a_damaged_block_is_named_and_what_follows_is_read(tmp_path: Path) -> None:
    for number in range(3):
        fill(tmp_path, number, 1)
    path = tmp_path / segment_path("t", 0)
    first, *_ = (block for _, block in walk(OsFiles(tmp_path), "t"))
    path.write_bytes(flipped(path.read_bytes(), (first.end + 20) * 8))
    with closing(embedded(tmp_path, {})) as tail:
        assert values(tail.read(0)) == [b"0", b"2"]
        (problem,) = tail.problems
        assert "CRC-32C" in problem
        assert tail.read(0) == []
        assert len(tail.problems) == 1


def test_a_long_topic_is_read_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_tails, "_BYTES_MAX", 1)
    for number in range(3):
        fill(tmp_path, number, 1)
    with closing(embedded(tmp_path, {})) as tail:
        turns: list[int] = []
        while not turns or not tail.tails.at_end:
            turns.append(len(tail.read(0)))
        assert max(turns) < sum(turns) == 3


def test_another_embedded_topic_of_that_name_is_read_from_its_begin(tmp_path: Path) -> None:
    fill(tmp_path, 0, 3)
    shutil.rmtree(tmp_path / "topics")
    fill(tmp_path, 7, 2)
    with closing(embedded(tmp_path, {0: 3})) as tail:
        assert values(tail.read(5)) == [b"7", b"8"]


@pytest.mark.parametrize("read_meanwhile", [True, False])
def test_a_topic_that_is_purged_beside_its_tail_is_read_from_its_begin(
    tmp_path: Path, read_meanwhile: bool
) -> None:
    fill(tmp_path, 0, 3)
    fill(tmp_path, 3, 3)
    with closing(embedded(tmp_path, {0: 0})) as tail:
        assert len(tail.read(0)) == 6
        shutil.rmtree(tmp_path / "topics/t")
        if read_meanwhile:
            assert tail.read(0) == []
        fill(tmp_path, 7, 2)
        assert values(tail.read(0)) == [b"7", b"8"]
        assert tail.read(0) == []
        assert [text for text in tail.problems if "deleted" in text] == tail.problems
        assert len(tail.problems) == 1


def test_a_topic_needs_a_place() -> None:
    with pytest.raises(InvalidConfiguration, match="nowhere to read"):
        open_tails(None, None, {})
    with pytest.raises(NodeUnreachable, match="Kafka at"):
        open_tails(None, "127.0.0.1:1", {"bootstrap_timeout_ms": "500"})


def send(bootstrap: str, topic: str, values_: list[bytes], partitions: int) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for number, value in enumerate(values_):
            producer.send(topic, value, partition=number % partitions).get(30)


def read_all(tail: Tail, count: int) -> list[TailRecord]:
    found: list[TailRecord] = []

    def all_there() -> bool:
        found.extend(tail.read(0.2))
        return len(found) >= count

    eventually(all_there, otherwise=lambda: f"{len(found)} of {count} records")
    return found


def test_a_kafka_topic_is_read_from_its_positions_on(broker: Broker, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    sent = [b"%d" % number for number in range(30)]
    send(broker.bootstrap, name, sent, 3)

    def tail(positions: Mapping[int, int]) -> Tail:
        return Tail(name, TailStart(positions=positions), bootstrap=broker.bootstrap)

    with closing(tail({})) as one:
        found = read_all(one, 30)
        assert sorted(values(found), key=lambda value: int(value or b"")) == sent
        assert one.lag() == 0
        assert one.read(0.1) == []
    half = dict.fromkeys(range(2), 5)
    with closing(tail(half)) as one:
        again = read_all(one, 20)
        first = [one.next_position for one in again if one.partition in half]
        assert sorted(first) == sorted([*range(6, 11)] * 2)
    # A position behind the end is of a topic that was there before.
    with closing(tail({0: 1000, 1: 10, 2: 10})) as one:
        assert [record.partition for record in read_all(one, 10)] == [0] * 10
    # What was deleted is named, and passed over.
    broker.delete_records(name)
    send(broker.bootstrap, name, [b"new"], 1)
    with closing(tail({0: 3, 1: 10, 2: 10})) as one:
        assert values(read_all(one, 1)) == [b"new"]
        assert one.problems == ["7 records were deleted before they were read"]


def test_a_kafka_topic_made_anew_is_read_from_its_begin(
    broker: Broker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read, and between two readings; though it has as many records again."""
    monkeypatch.setattr(tails, "_LOOK_EVERY_S", 0.2)
    name, sent = topic(), [b"%d" % number for number in range(10)]

    def make(values_: list[bytes]) -> None:
        broker.delete_topic(name)
        broker.create_topic(name)
        send(broker.bootstrap, name, values_, 1)

    def tail(source: str) -> Tail:
        start = TailStart(positions={0: 10}, source=source)
        return Tail(name, start, bootstrap=broker.bootstrap)

    send(broker.bootstrap, name, sent, 1)
    with closing(Tail(name, TailStart(), bootstrap=broker.bootstrap)) as one:
        assert values(read_all(one, 10)) == sent
        first = one.source
    with closing(tail("")) as one:  # of a store that does not know it yet
        assert one.read(0.2) == []
        make([b"second"] * 12)
        found: list[TailRecord] = []

        def read_anew() -> bool:
            found.extend(one.read(0.2))
            return one.source != first and len(found) >= 12

        eventually(read_anew)
        assert values(found)[-12:] == [b"second"] * 12
        second = one.source
    with closing(tail(second)) as one:
        assert values(read_all(one, 2)) == [b"second"] * 2
    with closing(tail(first)) as one:
        assert values(read_all(one, 12)) == [b"second"] * 12
        assert one.source == second


def test_a_kafka_topic_may_come_later(broker: Broker) -> None:
    name = "tail-comes-later"
    with closing(Tail(name, TailStart(), bootstrap=broker.bootstrap)) as tail:
        assert tail.read(0.1) == []
        assert tail.lag() == 0
        broker.create_topic(name, 2)
        send(broker.bootstrap, name, [b"a", b"b"], 2)
        assert sorted(values(read_all(tail, 2)), key=str) == [b"a", b"b"]
    broker.delete_topic(name)


def _seen(broker: Broker, name: str, from_ms: int, *, earlier: bool = True) -> tuple[int, int]:
    """How many records and problems of the topic there are from a time on."""
    tail = Tail(name, TailStart(from_ms, earlier=earlier), bootstrap=broker.bootstrap)
    records = tail.read(0)
    while not tail.tails.at_end:
        records += tail.read(0)
    tail.close()
    return len(records), len(tail.problems)


def test_a_topic_made_anew_is_read_from_its_begin_and_what_was_left_is_a_problem(
    broker: Broker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "_LOOK_EVERY_S", 0.0)
    name, records = topic(), list[TailRecord]()
    tail = Tail(name, TailStart(now_ms()), bootstrap=broker.bootstrap)

    def are_read(count: int, problems: int) -> bool:
        with suppress(NodeUnreachable):  # while it is not there
            records.extend(tail.read(0))
        return (len(records), len(tail.problems)) == (count, problems)

    send(broker.bootstrap, name, [b"%d" % number for number in range(3)], 1)
    eventually(lambda: are_read(3, 0))
    broker.delete_topic(name)
    broker.create_topic(name)
    send(broker.bootstrap, name, [b"%d" % number for number in range(5)], 1)
    eventually(lambda: are_read(8, 1))
    tail.close()


class TwoRecords:
    """A consumer of a topic with one partition."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0}

    def offsets_for_times(self, parts: dict[TopicPartition, int]) -> dict[TopicPartition, None]:
        return dict.fromkeys(parts)

    def beginning_offsets(self, parts: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(parts, 0)

    def end_offsets(
        self, parts: list[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(parts, 2)

    def assign(self, _parts: list[TopicPartition]) -> None: ...

    def seek(self, _part: TopicPartition, offset: int) -> None:
        self.begun.append(offset)


def test_a_broker_that_names_the_former_topic_makes_none_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = ["c/one", "c/two", "c/one", "", "c/two", "c/one", "c/three"]
    monkeypatch.setattr(tails, "open_looking", lambda *_, **__: TwoRecords())
    monkeypatch.setattr(tails, "source_of", lambda *_: named.pop(0))
    followed = KafkaTails("nowhere", {}, "id", 100)
    followed.follow("t", TailStart(0))
    problems = []
    while named:
        followed._look()
        problems.append(len(followed._cut))
    assert problems == [0, 1, 1, 1, 1, 1, 2]
    assert len(followed._consumer.begun) == 3


def test_what_may_have_been_deleted_before_the_first_look_is_a_problem(
    broker: Broker, topic: TopicFactory
) -> None:
    name, begun_ms = topic(), now_ms()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    between_ms = []
    for number in range(3):
        producer.send(name, b"%d" % number).get(10)
        time.sleep(0.05)
        between_ms.append(now_ms())
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert _seen(broker, name, begun_ms) == (3, 0)
        admin.delete_records({TopicPartition(name, 0): 1})
        assert _seen(broker, name, begun_ms) == (2, 1)
        assert _seen(broker, name, begun_ms, earlier=False) == (2, 0)
        # What is still there is older than what is wanted, and so was what is not.
        assert _seen(broker, name, between_ms[1]) == (1, 0)
        assert _seen(broker, name, between_ms[2]) == (0, 0)
        admin.delete_records({TopicPartition(name, 0): -1})
        assert _seen(broker, name, begun_ms) == (0, 1)
    finally:
        admin.close()

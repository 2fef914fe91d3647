"""The tail of a topic: from positions on, across its being made, restarted and replaced."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.sink import Answer
from slotwheel.reading.kafka import kafkatail
from slotwheel.reading.kafka.anytail import open_tail
from slotwheel.reading.tailing import TailRecord, TopicTail
from slotwheel.wheel.errors import InvalidConfiguration, NodeUnreachable
from slotwheel.wheel.files import OsFiles
from support.broker import Broker, TopicFactory
from support.deliveries import MINT, NOW_MS, Sent, rows_of
from support.waiting import eventually


def fill(root: Path, first: int, count: int) -> None:
    sink = EmbeddedSink(OsFiles(root), MINT, lambda: NOW_MS)
    sent = [Sent("t", b"%d" % number) for number in range(first, first + count)]
    assert (sink.deliver(rows_of(sent, first)).codes == Answer.ACCEPTED).all()
    sink.close()


def embedded(root: Path, positions: Mapping[int, int]) -> TopicTail:
    return open_tail("t", positions, root=root, bootstrap=None, settings={})


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
    with closing(embedded(tmp_path, {0: 2})) as tail:
        assert values(tail.read(5)) == [b"2"]
        assert values(tail.read(5)) == [b"3", b"4"]


def test_another_embedded_topic_of_that_name_is_read_from_its_begin(tmp_path: Path) -> None:
    fill(tmp_path, 0, 3)
    shutil.rmtree(tmp_path / "topics")
    fill(tmp_path, 7, 2)
    with closing(embedded(tmp_path, {0: 3})) as tail:
        assert values(tail.read(5)) == [b"7", b"8"]


def test_a_topic_needs_a_place() -> None:
    with pytest.raises(InvalidConfiguration, match="nowhere to read"):
        open_tail("t", {}, root=None, bootstrap=None, settings={})
    with pytest.raises(NodeUnreachable, match="Kafka at"):
        open_tail(
            "t", {}, root=None, bootstrap="127.0.0.1:1", settings={"bootstrap_timeout_ms": "500"}
        )


def send(bootstrap: str, topic: str, values_: list[bytes], partitions: int) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for number, value in enumerate(values_):
            producer.send(topic, value, partition=number % partitions).get(30)


def read_all(tail: TopicTail, count: int) -> list[TailRecord]:
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

    def tail(positions: Mapping[int, int]) -> TopicTail:
        return open_tail(name, positions, root=None, bootstrap=broker.bootstrap, settings={})

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
    # What was deleted is passed over.
    broker.delete_records(name)
    send(broker.bootstrap, name, [b"new"], 1)
    with closing(tail({0: 3, 1: 10, 2: 10})) as one:
        assert values(read_all(one, 1)) == [b"new"]


def test_a_kafka_topic_made_anew_is_read_from_its_begin(
    broker: Broker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read, and between two readings; though it has as many records again."""
    monkeypatch.setattr(kafkatail, "_PARTITIONS_EVERY_S", 0.2)
    name, sent = topic(), [b"%d" % number for number in range(10)]

    def make(values_: list[bytes]) -> None:
        broker.delete_topic(name)
        broker.create_topic(name)
        send(broker.bootstrap, name, values_, 1)

    def tail(source: str) -> TopicTail:
        where: Any = {"root": None, "bootstrap": broker.bootstrap, "settings": {}}
        return open_tail(name, {0: 10}, **where, source=source)

    send(broker.bootstrap, name, sent, 1)
    with closing(tail("")) as one:  # of a store that does not know it yet
        assert one.read(0.2) == []
        first = one.source
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
    with closing(open_tail(name, {}, root=None, bootstrap=broker.bootstrap, settings={})) as tail:
        assert tail.read(0.1) == []
        assert tail.lag() == 0
        broker.create_topic(name, 2)
        send(broker.bootstrap, name, [b"a", b"b"], 2)
        assert sorted(values(read_all(tail, 2)), key=str) == [b"a", b"b"]
    broker.delete_topic(name)

"""What is told of a topic that is followed from a time on, when some of it was deleted."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from slotwheel.audit.watch import kafkatails as tails_module
from slotwheel.audit.watch.delivered import TopicRows
from slotwheel.audit.watch.kafkatails import KafkaTails
from slotwheel.audit.watch.tails import TailRows
from slotwheel.reading.problems import Problem
from slotwheel.wheel.errors import NodeUnreachable
from support.broker import Broker, TopicFactory
from support.waiting import eventually, now_ms


def _seen(broker: Broker, name: str, from_ms: int, *, whole: bool = True) -> tuple[int, int]:
    """How many records and problems of the topic there are."""
    tails = KafkaTails(broker.bootstrap, "default", {})
    tails.follow(name, from_ms, whole=whole)
    found = list(tails.read())
    while not tails.at_end:
        found += tails.read()
    tails.close()
    rows = [one for one in found if isinstance(one, TopicRows)]
    problems = [one.file for one in found if isinstance(one, Problem)]
    assert set(problems) <= {name}
    return sum(len(one.value) for one in rows), len(problems)


def test_a_topic_made_anew_is_read_from_its_begin_and_what_was_left_is_a_problem(
    broker: Broker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails_module, "_LOOK_EVERY_S", 0.0)
    name, found = topic(), list[TailRows]()
    tails = KafkaTails(broker.bootstrap, "default", {})
    tails.follow(name, now_ms(), whole=True)

    def send(count: int) -> None:
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(count):
                producer.send(name, b"%d" % number).get(10)

    def are_read(rows: int, problems: int) -> bool:
        with suppress(NodeUnreachable):  # while it is not there
            found.extend(tails.read())
        those = [one for one in found if isinstance(one, TopicRows)]
        return (sum(len(one.value) for one in those), len(found) - len(those)) == (rows, problems)

    send(3)
    eventually(lambda: are_read(3, 0))
    broker.delete_topic(name)
    broker.create_topic(name)
    send(5)
    eventually(lambda: are_read(8, 1))
    tails.close()


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

    def end_offsets(self, parts: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(parts, 2)

    def assign(self, _parts: list[TopicPartition]) -> None: ...

    def seek(self, _part: TopicPartition, offset: int) -> None:
        self.begun.append(offset)


def test_a_broker_that_names_the_former_topic_makes_none_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = ["c/one", "c/two", "c/one", "", "c/two", "c/one", "c/three"]
    monkeypatch.setattr(tails_module, "open_looking", lambda *_, **__: TwoRecords())
    monkeypatch.setattr(tails_module, "source_of", lambda *_: named.pop(0))
    tails = KafkaTails("nowhere", "default", {})
    tails.follow("t", 0)
    problems = []
    while named:
        tails._look()
        problems.append(len(tails._cut))
    assert problems == [0, 1, 1, 1, 1, 1, 2]
    assert len(tails._consumer.begun) == 3


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
        assert _seen(broker, name, begun_ms, whole=False) == (0, 0)
        # What is still there is older than what is wanted, and so was what is not.
        assert _seen(broker, name, between_ms[1]) == (1, 0)
        assert _seen(broker, name, between_ms[2]) == (0, 0)
        admin.delete_records({TopicPartition(name, 0): -1})
        assert _seen(broker, name, begun_ms) == (0, 1)
    finally:
        admin.close()

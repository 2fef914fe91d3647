"""What is told of a topic that is followed from a time on, when some of it was deleted."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from slotwheel.audit.watch import tails as tails_module
from slotwheel.audit.watch.delivered import TopicRows
from slotwheel.audit.watch.tails import KafkaTails, TailRows
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

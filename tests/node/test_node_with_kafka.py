"""A node that delivers to Kafka, also from a delay topic and along routes."""

from __future__ import annotations

import importlib.util
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from slotwheel import Client, Message
from support.broker import Cluster, TopicFactory
from support.nodeprocess import NodeProcess

SINKS = ["kafka-python"]
if importlib.util.find_spec("confluent_kafka"):
    SINKS.append("confluent")


@pytest.mark.parametrize("sink", SINKS)
def test_messages_and_delay_records_reach_their_topic(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, sink: str
) -> None:
    target, delays = topic("target"), topic("delays")
    options = ("--sink", sink, "--bootstrap", broker.bootstrap, "--delay-topic", delays)
    with NodeProcess(tmp_path / "data", *options) as node:
        with Client(node.address) as client:
            client.send_many(
                [Message(target, f"c{number}", delay=0.5) for number in range(50)]
            ).result(60)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        headers = [("slotwheel-topic", target.encode()), ("slotwheel-delay-ms", b"500")]
        for number in range(50):
            producer.send(delays, f"d{number}".encode(), headers=headers)
        producer.close()
        records = read(broker.bootstrap, target, 100)
        expected = {f"{way}{number}".encode() for way in "cd" for number in range(50)}
        assert {record.value for record in records} == expected
        assert len(records) == 100
        for record in records:
            assert record.timestamp >= int(dict(record.headers)["slotwheel-due-ms"])
        assert node.signal() < 2.0
        assert node.running.returncode == 0


def test_records_that_wait_for_a_node_find_the_routes_of_its_file(
    tmp_path: Path, broker: Cluster, topic: TopicFactory
) -> None:
    """None of them is judged by what held before the file did."""
    targets, delays, dead = [topic("one"), topic("two")], topic("delays"), topic("dead")
    headers = [("slotwheel-route", b"both"), ("slotwheel-delay-level", b"100ms")]
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(200):
            producer.send(delays, b"%d" % number, headers=headers)
    path = tmp_path / "policies.toml"
    path.write_text(f"levels = ['100ms']\n[[routes.both]]\nto = {targets}")
    options = ("--sink", SINKS[-1], "--bootstrap", broker.bootstrap, "--delay-topic", delays)
    with NodeProcess(
        tmp_path / "data", *options, "--dead-letter-topic", dead, "--policies", str(path)
    ) as node:
        for target in targets:
            records = read(broker.bootstrap, target, 200)
            assert {record.value for record in records} == {b"%d" % n for n in range(200)}
            assert all(name != "slotwheel-route" for one in records for name, _ in one.headers)
        assert node.metric("slotwheel_delivered_total") == 400


def read(bootstrap: str, topic: str, count: int, timeout_s: float = 30) -> list[Any]:
    """The first ``count`` records of a topic with one partition, and what comes right behind."""
    with closing(
        KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for records in consumer.poll(timeout_ms=200).values():
                found += records
        for records in consumer.poll(timeout_ms=500).values():
            found += records
        return found

"""A node that delivers to Kafka, also from a delay topic and along routes."""

from __future__ import annotations

from pathlib import Path

from kafka import KafkaProducer

from support.broker import Cluster, TopicFactory
from support.kafkaread import read_committed
from support.nodeprocess import NodeProcess
from support.waiting import eventually


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
    options = ("--sink", "confluent", "--bootstrap", broker.bootstrap, "--delay-topic", delays)
    with NodeProcess(
        tmp_path / "data", *options, "--dead-letter-topic", dead, "--policies", str(path)
    ) as node:
        for target in targets:
            records = read_committed(broker.bootstrap, target, 200)
            assert len(records) == 200
            assert {record.value for record in records} == {b"%d" % n for n in range(200)}
            assert all(name != "slotwheel-route" for one in records for name, _ in one.headers)
        eventually(lambda: node.metric("slotwheel_delivered_total") == 400)  # behind the topic

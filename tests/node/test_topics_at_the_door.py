"""A message for a topic that Kafka does not have is refused when it is sent, whatever its way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from kafka import KafkaProducer

from slotwheel import Client, Message
from slotwheel.wheel.errors import UnknownTopic
from support.broker import Cluster, TopicFactory
from support.gatewayprocess import NodeWithGateway
from support.kafkaread import read_all
from support.nodeprocess import NodeProcess
from support.ports import free_address

SINKS = ["kafka-python"]
if importlib.util.find_spec("confluent_kafka"):
    SINKS.append("confluent")


@pytest.mark.parametrize("sink", SINKS)
def test_an_unknown_topic_is_refused_at_the_door_and_its_neighbours_are_taken(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, sink: str
) -> None:
    good, dead, delays = topic("good"), topic("dead"), topic("delays")
    missing = [f"{good}-missing-{number}" for number in range(250)]
    options = ["--sink", sink, "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead]
    options += ["--delay-topic", delays]
    with NodeWithGateway(tmp_path / "data", *options) as node, Client(node.address) as client:
        with pytest.raises(UnknownTopic, match=f"{missing[0]}.*Create it"):
            client.send(Message(missing[0], "first", delay=0)).result(60)
        with pytest.raises(UnknownTopic):  # nor is it taken a second time
            client.send(Message(missing[0], "second", delay=0)).result(60)
        batch = [Message(name, "many", delay=0) for name in (*missing, good, *missing)]
        receipts = client.send_many(batch)
        errors = receipts.errors()
        assert sorted(errors) == [at for at, one in enumerate(batch) if one.topic != good]
        assert all(error.got == batch[at].topic for at, error in errors.items())
        for name in (missing[1], good):
            body = {"topic": name, "value": "http", "delay_ms": 0}
            found = node.ask("POST", "/v1/messages", json=body)
            assert found.status_code == (201 if body["topic"] == good else 422), found.text
            assert body["topic"] == good or found.json()["code"] == "unknown-topic"
        schedule = {"name": "s", "every_ms": 1_009 * 3_600_000, "template": {"topic": missing[2]}}
        with pytest.raises(UnknownTopic, match=f"{missing[2]}.*Create it"):
            client.schedules.put(schedule)
        refused = node.ask("PUT", "/v1/schedules/s", json=schedule)
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown-topic")
        assert refused.json()["place"] == "$.template.topic"
        assert [*client.schedules.list()] == [], "nothing was stored"
        client.schedules.put({**schedule, "template": {"topic": good}})
        with pytest.raises(UnknownTopic):
            client.schedules.put(schedule)
        client.schedules.delete("s")
        broker.create_topic(missing[0])
        client.send(Message(missing[0], "third", delay=0)).result(60)  # it is there since a moment
        client.send(Message(dead, "own", delay=0)).result(60)
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            headers = [("slotwheel-topic", missing[1].encode()), ("slotwheel-delay-ms", b"3600000")]
            producer.send(delays, b"a letter", headers=headers).get(20)
        arrived = read_all(broker.bootstrap, [good, missing[0], dead], 5)
        values = sorted(one.value or b"" for one in arrived)
        assert values == [b"a letter", b"http", b"many", b"own", b"third"]
        broker.delete_topic(missing[0])


def test_unknown_topics_are_taken_where_that_is_asked_for_and_while_kafka_is_away(
    tmp_path: Path, broker: Cluster, topic: TopicFactory
) -> None:
    dead = topic("dead")
    options = ("--sink", SINKS[-1], "--dead-letter-topic", dead)
    taking = ("--bootstrap", broker.bootstrap, "--unknown-topics", "accept")
    with NodeProcess(tmp_path / "taking", *options, *taking) as node, Client(node.address) as one:
        one.send(Message("no-such-topic", "a letter", delay=0)).result(60)
        (letter,) = read_all(broker.bootstrap, [dead], 1)
        assert letter.value == b"a letter"
    away = ("--bootstrap", free_address())
    with NodeProcess(tmp_path / "away", *options, *away) as node, Client(node.address) as one:
        one.send(Message("no-such-topic", "who knows", delay=0)).result(60)
        template = {"topic": "no-such-topic"}
        one.schedules.put(
            {"name": "who knows", "every_ms": 1_009 * 3_600_000, "template": template}
        )

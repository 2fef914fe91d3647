"""Bare producers and consumers of both libraries, traced, on a real Kafka."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from slotwheel.trace import (
    TRACE_TOPIC,
    ConfluentTarget,
    KafkaPythonTarget,
    Recorder,
    decode,
    traced_consumer,
    traced_producer,
)
from support.broker import Cluster, TopicFactory
from support.tracing import KeptEvents

CLIENTS = ["kafka-python", "confluent"]
HEADERS: list[Any] = [("slotwheel-id", b"default.1.2.00000003"), ("tag", b"red")]


def _send(bootstrap: str, client: str, recorder: Recorder, topic: str) -> list[Any]:
    if client == "kafka-python":
        producer = traced_producer(KafkaProducer(bootstrap_servers=bootstrap), recorder)
        sent = [
            producer.send(topic, b"v", key=b"k%d" % number, headers=HEADERS).get(30)
            for number in range(5)
        ]
        assert [one.offset for one in sent] == list(range(5))
        producer.close()
        return []
    told: list[Any] = []
    producer = traced_producer(Producer({"bootstrap.servers": bootstrap}), recorder)
    for number in range(5):
        producer.produce(
            topic,
            b"v",
            key=b"k%d" % number,
            headers=HEADERS,
            on_delivery=lambda error, sent: told.append((error, sent.offset())),
        )
    producer.flush(60)
    assert told == [(None, number) for number in range(5)]
    return told


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer_tells_where_each_record_is_and_how_long_it_took(
    broker: Cluster, topic: TopicFactory, client: str
) -> None:
    name = topic()
    kept = KeptEvents()
    recorder = Recorder(kept)
    _send(broker.bootstrap, client, recorder, name)
    events = kept.of(recorder)
    assert sorted((one["offset"], one["key"]) for one in events) == [
        (number, b"k%d" % number) for number in range(5)
    ]
    for event in events:
        assert (event["kind"], event["topic"], event["partition"]) == ("produced", name, 0)
        assert (event["id"], event["tag"], event["error"]) == (
            *("default.1.2.00000003", "red"),
            None,
        )
        assert 0 < event["took_us"] < 60_000_000


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer_tells_what_the_brokers_do_not_take(
    broker: Cluster, topic: TopicFactory, client: str
) -> None:
    name = topic()
    kept = KeptEvents()
    recorder = Recorder(kept)
    large = b"x" * 3_000_000
    if client == "kafka-python":
        made = KafkaProducer(bootstrap_servers=broker.bootstrap, max_request_size=10_000_000)
        producer = traced_producer(made, recorder)
        future = producer.send(name, large, key=b"large")
        with pytest.raises(Exception, match="MessageSizeTooLarge"):
            future.get(30)
        producer.close()
    else:
        settings = {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 10_000_000}
        producer = traced_producer(Producer(settings), recorder)
        producer.produce(name, large, key=b"large")
        producer.flush(60)
    (event,) = kept.of(recorder)
    assert (event["key"], event["offset"]) == (b"large", None)
    assert event["error"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_consumer_tells_what_it_got_and_what_became_of_it(
    broker: Cluster, topic: TopicFactory, client: str
) -> None:
    name = topic()
    quiet = Recorder(KeptEvents())
    _send(broker.bootstrap, client, quiet, name)
    quiet.close()
    kept = KeptEvents()
    recorder = Recorder(kept)
    records = []
    if client == "kafka-python":
        consumer = traced_consumer(
            KafkaConsumer(name, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"),
            recorder,
            "billing",
        )
        records.append(next(consumer))
        while len(records) < 5:
            for found in consumer.poll(1000).values():
                records += found
    else:
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"of-{name}",
            "auto.offset.reset": "earliest",
        }
        consumer = traced_consumer(Consumer(settings), recorder, "billing")
        consumer.subscribe([name])
        while len(records) < 1:
            if (message := consumer.poll(1.0)) is not None:
                records.append(message)
        while len(records) < 5:
            records += consumer.consume(10, 1.0)
    began_s = time.monotonic() - 2
    consumer.processed(records[0], began_s=began_s)
    consumer.processed(records[1], began_s=began_s, error=ValueError("no"))
    consumer.close()
    events = kept.of(recorder)
    received = [one for one in events if one["kind"] == "received"]
    assert [one["offset"] for one in received] == list(range(5))
    assert {(one["group"], one["topic"], one["id"]) for one in received} == {
        ("billing", name, "default.1.2.00000003")
    }
    good, bad = (one for one in events if one["kind"] == "processed")
    assert (good["offset"], good["error"], bad["offset"], bad["error"]) == (0, None, 1, "no")
    assert good["took_us"] > 2_000_000


@pytest.mark.parametrize("client", CLIENTS)
def test_events_can_go_straight_to_kafka(broker: Cluster, topic: TopicFactory, client: str) -> None:
    name, traces = topic(), topic("traces")
    if client == "kafka-python":
        of_events: Any = KafkaProducer(bootstrap_servers=broker.bootstrap)
        target: Any = KafkaPythonTarget(of_events, traces)
    else:
        of_events = Producer({"bootstrap.servers": broker.bootstrap})
        target = ConfluentTarget(of_events, traces)
    recorder = Recorder(target)
    _send(broker.bootstrap, client, recorder, name)
    recorder.close()
    assert (recorder.sent, recorder.dropped) == (5, 0)
    reader = KafkaConsumer(traces, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    found: list[Any] = []
    while len(found) < 5:
        for records in reader.poll(1000).values():
            for record in records:
                found += decode(record.value)[1].to_pylist()
    reader.close()
    assert [one["number"] for one in found] == list(range(5))
    assert TRACE_TOPIC not in (name, traces)

"""What a failure of Spark's Kafka source is told as; records behind an open transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from slotwheel.replay.facts import kafka_topics
from slotwheel.replay.facts.kafka_topics import (
    KafkaTopics,
    TransactionOpen,
    wait_for_transactions,
)
from slotwheel.replay.following.audit_state import VERSION, State
from slotwheel.wheel.errors import InvalidConfiguration
from support.broker import Cluster, TopicFactory

NO_NODE = """An error occurred while calling o59.count.
: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed \
out waiting for a node assignment. Call: listNodes
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
"""
NO_RECORD = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: \
java.util.concurrent.TimeoutException: Cannot fetch record for offset 0 in 30000 milliseconds
\tat org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.fetchData(KafkaDataConsumer.scala:7)
"""
OURS = """An exception was thrown from the Python worker:
Traceback (most recent call last):
\tat org.apache.spark.sql.kafka010.KafkaSourceRDD.compute(KafkaSourceRDD.scala:9)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NO_NODE, "failed while it was read: Timed out waiting for a node assignment. Call"),
        (NO_RECORD, "failed while it was read: Cannot fetch record for offset 0"),
    ],
)
def test_a_broker_that_fails_meanwhile(text: str, said: str) -> None:
    failure = KafkaTopics("127.0.0.1:9").failure(RuntimeError(text))
    assert said in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize("text", [OURS, "Job aborted: no space left on device"])
def test_another_failure_is_none_of_kafka(text: str) -> None:
    assert KafkaTopics("127.0.0.1:9").failure(RuntimeError(text)) is None


@contextmanager
def open_transaction(broker: Cluster, topic: str) -> Iterator[Any]:
    """A transaction with one record, and a record of somebody else's behind it."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"in it", partition=0)
    producer.flush(60)
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as other:
        other.send(topic, b"behind it", partition=0).get(30)
    yield producer


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_what_stands_behind_an_open_transaction_is_waited_for(
    broker: Cluster, topic: TopicFactory, end: str
) -> None:
    name = topic("orders", 2)
    parts = [(name, 0), (name, 1)]
    with (
        KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin,
        open_transaction(broker, name) as producer,
    ):
        begun: list[float] = []

        def end_it() -> None:
            begun.append(time.monotonic())
            getattr(producer, end)(30)

        timer = threading.Timer(1.0, end_it)
        timer.start()
        wait_for_transactions(admin, parts)
        done = time.monotonic()
        timer.join()
        wait_for_transactions(admin, parts)
    assert begun, "it did not wait"
    assert done >= begun[0]


def test_a_transaction_that_stays_open_is_an_error(
    broker: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("orders")
    monkeypatch.setattr(kafka_topics, "_OPEN_S", 0.5)
    with (
        KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin,
        open_transaction(broker, name) as producer,
    ):
        with pytest.raises(TransactionOpen, match=rf"{name}-0 from 0 on"):
            wait_for_transactions(admin, [(name, 0)])
        producer.abort_transaction(30)


def test_an_audit_that_goes_on_refuses_a_topic_that_was_made_anew(
    broker: Cluster, topic: TopicFactory
) -> None:
    """Spark would go on at the offsets of the old one."""
    name = topic("followed")
    topics = KafkaTopics(broker.bootstrap, [name, "no-such-topic"], "nor-this-one")
    state = State()
    state.read_from(topics.sources())
    assert list(state.sources) == [name]
    again = State.from_json(State(version=2, sources=state.sources).to_json())
    assert again.version == VERSION
    again.read_from(topics.sources())
    broker.delete_topic(name)
    again.read_from(topics.sources())  # gone; Spark says what is wrong with that
    broker.create_topic(name)
    with pytest.raises(InvalidConfiguration, match=f"{name} was made anew.*--state"):
        again.read_from(topics.sources())

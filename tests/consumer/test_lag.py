"""A group's lag is 0 when all is read, also behind what is no record: marks of transactions, and
records of those that were aborted."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec

from slotwheel.consumer import Consumer
from support.broker import Cluster, TopicFactory
from support.waiting import PATIENCE_S


def transactions(broker: Cluster, name: str, *ends: str) -> None:
    """One of two records in each of two partitions for each of ``ends``: commit or abort."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    with closing(producer):
        producer.init_transactions()
        for end in ends:
            producer.begin_transaction()
            for number in range(4):
                producer.send(name, end.encode(), partition=number % 2).get(10)
            getattr(producer, f"{end}_transaction")()


def lag(broker: Cluster, group: str, name: str) -> int:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        parts = [TopicPartition(name, number) for number in range(2)]
        ends = admin.list_partition_offsets(dict.fromkeys(parts, OffsetSpec.LATEST))
        stored = admin.list_group_offsets(group)[group]
    return sum(ends[one].offset - stored[one].offset if one in stored else 1000 for one in parts)


def until_no_lag(broker: Cluster, group: str, name: str, consumer: Consumer) -> None:
    """What comes meanwhile is done: a transaction that failed gives its records again, for example
    after a heartbeat that was late on a busy machine."""
    deadline = time.monotonic() + PATIENCE_S
    while left := lag(broker, group, name):
        assert time.monotonic() < deadline, left
        consumer.done(*consumer.take(4, 0.1))


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_a_consumer_gets_to_the_end(
    broker: Cluster, topic: TopicFactory, client: str, transactional: bool
) -> None:
    name = topic("marks", 2)
    more: dict[str, Any] = {}
    if transactional:
        more = {"transactional": True, "delay_topic": topic("wheel")}
    transactions(broker, name, "commit", "abort")
    with Consumer(
        name,
        f"{name}-g",
        bootstrap=broker.bootstrap,
        client=client,
        retry="1s",
        create_topics=True,
        **more,
    ) as consumer:
        taken: list[Any] = []
        while len(taken) < 4:
            taken += consumer.take(4 - len(taken), PATIENCE_S)
        consumer.done(*taken)
        until_no_lag(broker, f"{name}-g", name, consumer)
        transactions(broker, name, "abort", "abort")  # and where nothing comes
        until_no_lag(broker, f"{name}-g", name, consumer)
    broker.delete_topic(f"{name}-g-retry")

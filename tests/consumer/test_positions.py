"""Who is alone in its group gets each record once, from the first second on: positions go back only
by a rebalance with somebody else, or a seek. The group's first seconds are those of its rebalances;
nothing is answered meanwhile, so that a lost position begins again at the first record.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaProducer

from slotwheel.consumer import Consumer
from slotwheel.gateway.rest.instance import ConsumerInstance, InstanceSettings
from slotwheel.gateway.rest.kafka_cluster import KafkaCluster
from support.broker import Cluster, TopicFactory
from support.waiting import PATIENCE_S

SLOWLY_S = 1.5
Place = tuple[str, int, int]


@pytest.fixture
def topics(broker: Cluster, topic: TopicFactory) -> dict[Place, int]:
    """Topics of 1, 3 and 60 partitions, with 2 000 records each; every place once."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=20)
    with closing(producer):
        sent = [
            producer.send(name, b"%d" % number, partition=number % count)
            for count in (1, 3, 60)
            for name in [topic(f"of-{count}", count)]
            for number in range(2_000)
        ]
        made = [one.get(PATIENCE_S) for one in sent]
    return {(one.topic, one.partition, one.offset): 1 for one in made}


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_a_consumer(
    broker: Cluster,
    topic: TopicFactory,
    topics: dict[Place, int],
    client: str,
    transactional: bool,
) -> None:
    names = sorted({name for name, _, _ in topics})
    more: dict[str, Any] = {}
    if transactional:
        more = {"transactional": True, "delay_topic": topic("wheel")}
    began, found = time.monotonic(), Counter[Place]()
    with Consumer(
        names,
        names[0],
        bootstrap=broker.bootstrap,
        client=client,
        retry="1s",
        create_topics=True,
        **more,
    ) as consumer:
        while found.total() < len(topics) and time.monotonic() < began + PATIENCE_S:
            if time.monotonic() < began + SLOWLY_S:
                time.sleep(0.01)
            taken = consumer.take(20, 1.0)
            found.update((one.topic, one.partition, one.offset) for one in taken)
    assert found == topics
    broker.delete_topic(f"{names[0]}-retry")


def test_an_instance_of_the_rest_proxy(broker: Cluster, topics: dict[Place, int]) -> None:
    names = sorted({name for name, _, _ in topics})
    settings = InstanceSettings("one", None, False, False, 1, 1000)  # type: ignore[arg-type]
    began, found = time.monotonic(), Counter[Place]()
    with closing(KafkaCluster(broker.bootstrap, {})) as cluster:
        instance = ConsumerInstance(cluster, names[0], settings, 0.0)
        with closing(instance):
            instance.subscribe(names)
            while found.total() < len(topics) and time.monotonic() < began + PATIENCE_S:
                if time.monotonic() < began + SLOWLY_S:
                    time.sleep(0.005)
                instance.fetch(0.1)
                taken = instance.holdings.take(1 << 20, 20, first=True)
                instance.holdings.gave(taken)
                found.update((one.topic, one.partition, one.offset) for one in taken)
    assert found == topics

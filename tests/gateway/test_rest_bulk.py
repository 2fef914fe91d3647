"""What a request names many of is asked of Kafka at once: as many requests for 100 as for one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from cachetools import LRUCache
from kafka import KafkaAdminClient
from kafka.net.manager import KafkaConnectionManager

from slotwheel.consumer.message import SourcePartition
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.rest.instance import ConsumerInstance, InstanceSettings
from slotwheel.gateway.rest.kafka_cluster import KafkaCluster
from support.broker import Cluster, TopicFactory
from support.waiting import PATIENCE_S

MANY = 100


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests of each kind kafka-python has sent."""
    counted: Counter[str] = Counter()
    send = KafkaConnectionManager.send

    def counting(manager: Any, request: Any, *more: Any, **named: Any) -> Any:
        counted[type(request).__name__] += 1
        return send(manager, request, *more, **named)

    monkeypatch.setattr(KafkaConnectionManager, "send", counting)
    return counted


@pytest.fixture
def cluster(broker: Cluster) -> Iterator[KafkaCluster]:
    with closing(KafkaCluster(broker.bootstrap, {})) as made:
        made.topics()
        yield made


def until_led(cluster: KafkaCluster, partitions: list[SourcePartition]) -> None:
    """A busy broker names itself the leader of a partition before it is."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            cluster.extents(partitions)
        except HttpError:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        else:
            return


def test_partitions(cluster: KafkaCluster, topic: TopicFactory, sent: Counter[str]) -> None:
    name = topic("many", MANY)
    partitions = [SourcePartition(name, number) for number in range(MANY)]
    cluster.check_partitions([(one, "") for one in partitions])
    until_led(cluster, partitions)
    sent.clear()
    extents = cluster.extents(partitions)
    assert len(extents) == MANY
    assert sent["ListOffsetsRequest"] <= 2 * 3  # brokers that lead some of them
    with closing(
        ConsumerInstance(
            cluster,
            name,
            InstanceSettings("one", None, False, False, 1, 1000),  # type: ignore[arg-type]
            0.0,
        )
    ) as instance:
        instance.assign(partitions)
        instance.seek({one: extent.end_offset for one, extent in extents.items()})
        instance.commit(dict.fromkeys(partitions, 0))
        sent.clear()
        assert instance.positions_of(partitions) == dict.fromkeys(partitions, 0)
        assert sent["OffsetFetchRequest"] == 1


def test_topics(
    cluster: KafkaCluster, broker: Cluster, topic: TopicFactory, sent: Counter[str]
) -> None:
    names = [topic("one-of-many") for _ in range(10)]
    places = [(SourcePartition(name, 0), f"$[{at}]") for at, name in enumerate(names)]
    sent.clear()
    cluster.check_partitions(places)
    cluster.check_partitions(places)
    assert sent["MetadataRequest"] <= 3
    with pytest.raises(HttpError, match="not found"):
        cluster.check_partitions([*places, (SourcePartition("no-such-topic", 0), "$[10]")])
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        assert "no-such-topic" not in admin.list_topics()


def test_a_topic_that_is_forgotten_while_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks up what threads that ask Kafka note and forget."""
    cluster = KafkaCluster("127.0.0.1:1", {})
    there = {"a": 3}
    monkeypatch.setattr(cluster, "ask", lambda _question: dict(there))
    forgetting: list[threading.Thread] = []

    class Slow(LRUCache[str, tuple[float, int]]):
        def __contains__(self, topic: object) -> bool:
            found = super().__contains__(topic)
            if found and not there and not forgetting:
                forgetting.append(threading.Thread(target=cluster.ask_partitions, args=[["a"]]))
                forgetting[0].start()
                forgetting[0].join(0.2)
            return found

    cluster._known = Slow(9)
    assert cluster.ask_partitions(["a"]) == there
    assert cluster.known_partitions(["a"]) == there
    there.clear()
    assert cluster.known_partitions(["a"]) == {"a": 3}
    forgetting[0].join(60)
    assert cluster.known_partitions(["a"]) == {}

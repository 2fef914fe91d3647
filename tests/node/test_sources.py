"""The table of sources: whatever happens to a delay topic, each record is delivered or is named as
not read, and the node never calls itself ready while one stands unread.

Three delay topics, of 1, 3 and 100 partitions, are read by one node; each event happens to all of
them, while the node runs and while it stands.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from slotwheel import Client
from slotwheel.node.config import NodeConfig
from slotwheel.node.node import Node
from support.broker import Cluster
from support.waiting import eventually

CLIENTS = ["kafka-python", "confluent"]
SIZES = (1, 3, 100)
CODECS = ("gzip", "snappy", "lz4", "zstd")
_numbers = itertools.count()


class Delays:
    """Delay topics of some sizes, and what was produced to each partition of them."""

    def __init__(self, broker: Cluster, sizes: tuple[int, ...], prefix: str) -> None:
        self.broker = broker
        self.target = f"{prefix}target"
        self.sizes = {f"{prefix}of{size}": size for size in sizes}
        broker.create_topics([self.target])
        for name, size in self.sizes.items():
            broker.create_topics([name], size)
        self.produced = 0
        self.lost: Counter[str] = Counter()
        """Records that nobody can read, by topic."""

    def produce(self, each: int = 1, name: str | None = None, **settings: str) -> None:
        """Produce to all partitions of all topics, or of one."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **settings})
        if "transactional.id" in settings:
            producer.init_transactions()
            producer.begin_transaction()
        count = self._produce(producer, each, name)
        if "transactional.id" in settings:
            producer.commit_transaction()
            producer.begin_transaction()
            self._produce(producer, each, name)
            producer.abort_transaction()
        self.produced += count

    def _produce(self, producer: Producer, each: int, name: str | None) -> int:
        headers = [("slotwheel-topic", self.target.encode()), ("slotwheel-delay-ms", b"0")]
        count = 0
        for one in self.sizes if name is None else [name]:
            for partition in range(self.sizes[one]):
                for _ in range(each):
                    producer.produce(one, b"x" * 100, headers=headers, partition=partition)
                    count += 1
        assert producer.flush(30) == 0
        return count

    def add_partitions(self) -> None:
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            self.sizes = {name: size + 1 for name, size in self.sizes.items()}
            admin.create_partitions(dict(self.sizes))

    def delete_records(self) -> None:
        places = [
            TopicPartition(name, one) for name in self.sizes for one in range(self.sizes[name])
        ]
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_records(dict.fromkeys(places, -1))

    def delete(self) -> None:
        self.broker.delete_topic(*self.sizes)

    def make_anew(self) -> None:
        for name, size in self.sizes.items():
            eventually(lambda name=name, size=size: self._made(name, size), 20)

    def _made(self, name: str, size: int) -> bool:
        """A topic that was deleted just now is in the way for a moment."""
        try:
            self.broker.create_topics([name], size)
        except Exception:
            return False
        return True


@contextmanager
def node_of(
    data: Path, delays: Delays, client: str, settings: dict[str, str] | None = None, **more: Any
) -> Iterator[Node]:
    config = NodeConfig(
        data,
        "127.0.0.1:0",
        None,
        sink=client,
        bootstrap=more.pop("bootstrap", delays.broker.bootstrap),
        delay_topics=tuple(delays.sizes),
        kafka_settings=settings or {},
        **more,
    )
    node = Node(config)
    node.start()
    try:
        yield node
    finally:
        node.stop(5.0)


def delivered(node: Node) -> int:
    return node.wheel.status().delivered


def named(node: Node) -> tuple[int, set[str]]:
    """How many offsets are named as not read, and the topics of which their number is unknown."""
    rows = node._delay_topics()["delay_topics"]["not_read"]
    known = sum(row["last"] - row["first"] + 1 for row in rows if row.get("last") is not None)
    return known, {row["topic"] for row in rows if "last" in row and row["last"] is None}


def lags(node: Node) -> set[int | None]:
    sources = node._sources
    assert sources is not None
    return {one.lag for one in sources.states()}


def check_all_is_read(node: Node, delays: Delays) -> None:
    """All that can be read is delivered, the lag is nothing, and so much is named as is lost."""

    def whole() -> bool:
        return delivered(node) == delays.produced and not node.unready() and lags(node) == {0}

    try:
        eventually(whole, 40)
    except AssertionError:
        raise AssertionError(
            f"{delivered(node)} of {delays.produced}, lag {lags(node)}, {node.unready()}"
        ) from None
    # Nothing comes twice, either.
    assert delivered(node) == delays.produced


@pytest.mark.parametrize("client", CLIENTS)
def test_every_record_is_delivered_or_named(tmp_path: Path, broker: Cluster, client: str) -> None:
    delays = Delays(broker, SIZES, f"table{next(_numbers)}-{client}-")
    transaction = {"transactional.id": f"{delays.target}-t"}
    data = tmp_path / "data"

    # While the node runs
    with node_of(data, delays, client) as node:
        delays.produce(2)
        check_all_is_read(node, delays)
        delays.produce(**transaction)
        check_all_is_read(node, delays)
        for codec in CODECS:
            delays.produce(**{"compression.type": codec})
        check_all_is_read(node, delays)
        delays.add_partitions()
        delays.produce()
        check_all_is_read(node, delays)
        delays.delete_records()
        delays.produce()
        check_all_is_read(node, delays)
        assert named(node) == (0, set())
        delays.delete()
        eventually(lambda: all(name in str(node.unready()) for name in delays.sizes), 20)
        delays.make_anew()
        delays.produce()
        check_all_is_read(node, delays)
        assert named(node)[0] == 0

    # While it stands
    delays.produce(2)
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
    delays.produce(**transaction)
    for codec in CODECS:
        delays.produce(**{"compression.type": codec})
    delays.add_partitions()
    delays.produce()
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        with Client(node.listening) as asking:
            asking.acknowledge_unread()
            assert "delay_topics" in asking.status()
        assert named(node) == (0, set())
    before = delays.produced
    delays.produce(3)
    lost = delays.produced - before
    delays.delete_records()
    delays.produced = before
    delays.produce()
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        assert named(node) == (lost, set())
    before = delays.produced
    delays.produce(2)
    delays.delete()
    delays.produced = before
    delays.make_anew()
    delays.produce(9)  # more than were read of the old one
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        assert named(node) == (lost, set(delays.sizes))

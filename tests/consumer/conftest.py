"""A node that the tests of consumers share: it brings retries back, into Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.broker import Cluster, TopicFactory
from support.consuming import Group, Wheel
from support.nodeprocess import NodeProcess

POLICIES = """
[policies.quick]
levels = ["200ms", "300ms"]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, broker: Cluster) -> Iterator[Wheel]:
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "policies.toml").write_text(POLICIES)
    delays = broker.create_topic(f"delays-{folder.parent.name}-{folder.name}")
    letters = broker.create_topic(f"letters-{folder.parent.name}-{folder.name}")
    options = ("--sink", "kafka-python", "--bootstrap", broker.bootstrap, "--delay-topic", delays)
    policies = ("--policies", str(folder / "policies.toml"))
    dead = ("--dead-letter-topic", letters)
    with NodeProcess(folder / "data", *options, *policies, *dead) as node:
        yield Wheel(node.address, delays, letters)
        node.signal()
    broker.delete_topic(delays, letters)


@pytest.fixture
def group(topic: TopicFactory, broker: Cluster) -> Iterator[Callable[..., Group]]:
    made: list[str] = []

    def make(partitions: int = 2) -> Group:
        name = topic("work", partitions)
        made.append(broker.create_topic(f"{name}-group-retry", partitions))
        return Group(f"{name}-group", name, topic("dead"))

    yield make
    if made:
        broker.delete_topic(*made)

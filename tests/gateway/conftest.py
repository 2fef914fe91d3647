"""Nodes with gateways, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.broker import Cluster
from support.gatewayprocess import NodeWithGateway


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    """With embedded topics. Tests have topics of their own."""
    folder = tmp_path_factory.mktemp("gateway")
    with NodeWithGateway(folder / "data") as node:
        yield node
        node.signal()


@pytest.fixture(scope="session")
def with_kafka(
    tmp_path_factory: pytest.TempPathFactory, broker: Cluster
) -> Iterator[NodeWithGateway]:
    """Delivers into Kafka."""
    folder = tmp_path_factory.mktemp("gateway-kafka")
    sink = ("--sink", "kafka-python", "--bootstrap", broker.bootstrap)
    letters = broker.create_topic(f"letters-{folder.parent.name}-{folder.name}")
    with NodeWithGateway(folder / "data", *sink, "--dead-letter-topic", letters) as node:
        yield node
        node.signal()
    broker.delete_topic(letters)

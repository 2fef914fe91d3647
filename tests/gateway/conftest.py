"""Nodes with gateways, shared by the tests of this folder or of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker import Cluster
from support.gatewayprocess import GatewayProcess, NodeWithGateway
from support.nodeprocess import NodeProcess

POLICIES = """
levels = ["5s", "10m"]

[[routes.invoices]]
where = { header = "region", equals = "eu" }
to = ["invoices-eu", "audit"]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    policies = directory / "policies.toml"
    policies.write_text(POLICIES)
    with NodeProcess(directory / "data", "--policies", str(policies)) as one:
        yield one


@pytest.fixture(scope="module")
def gateway(node: NodeProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess(node) as one:
        yield one


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

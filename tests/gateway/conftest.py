"""A gateway before a node that all tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.gatewayprocess import GatewayProcess
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

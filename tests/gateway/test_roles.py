"""Requests that are made of the description, by each role: none is answered 5xx, and none 2xx
outside the role's rights.

What is allowed is read off the table of endpoints, which says the right of each, and off the role.
In what is sent, topics and ids are often those of messages that there are, of the role's own topic
and of another one: a made-up topic would be refused for its name.

In full: ``python -m pytest -m soak tests/gateway/test_roles.py``
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from slotwheel.gateway.description import describe
from slotwheel.gateway.table import ENDPOINTS
from slotwheel.security.rights import TOPIC_RIGHTS, Operation, Right
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.rightsfile import (
    ALL,
    EXPIRED,
    OTHER,
    OTHER_PREFIX,
    RIGHTS,
    TOPIC,
    bearer,
    write_rights,
)

PENDING_MS = 3_600_000
SECRET = "planted-for-"
ROLES: dict[str | None, set[Right]] = {
    None: {Right.PUBLIC},
    EXPIRED: {Right.PUBLIC},
    **{right.value: {Right.PUBLIC, Right.CONNECT, right} for right in RIGHTS},
    ALL: set(Right),
    OTHER_PREFIX: {Right.PUBLIC, Right.CONNECT, *TOPIC_RIGHTS},
    Right.GATEWAY.value: set(Right),
}
"""The rights of each token; None: without one."""
Case = tuple[Operation, dict[str, Any]]
"""An operation, and a request for it as ``requests`` takes it."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder: Path = tmp_path_factory.mktemp("roles")
    security = write_rights(folder / "security.toml")
    with (
        NodeProcess(folder / "data") as node,
        GatewayProcess(node, "--security", str(security)) as started,
    ):
        yield started


def made_cases(url: str, examples: int) -> list[Case]:
    """Requests for each endpoint, as its description allows them."""
    described = msgspec.json.decode(msgspec.json.encode(describe(ENDPOINTS, "1", narrow=False)))
    operations = {(one.method, re.sub(r":\w+}", "}", one.path)): one.operation for one in ENDPOINTS}
    cases: list[Case] = []
    every: Any = schemathesis.openapi.from_dict(described).get_all_operations()
    for found in every:
        endpoint = found.ok()
        operation = operations[endpoint.method.upper(), endpoint.path]
        cases += [
            (operation, case.as_transport_kwargs(base_url=url))
            for case in drawn(endpoint.as_strategy(), examples)
        ]
    return cases


def drawn(strategy: st.SearchStrategy[Any], examples: int) -> list[Any]:
    """The same examples each time."""
    found: list[Any] = []

    @seed(1)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def note(case: Any) -> None:
        found.append(case)

    note()
    return found


class Planted:
    """Pending messages of the role's topic and of the other one; ``within`` puts their ids and
    topics into a request."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._chance = random.Random(1)
        self._gateway = gateway
        self._number = 0
        self.ids = {TOPIC: self.send(TOPIC), OTHER: self.send(OTHER)}

    def send(self, topic: str) -> str:
        self._number += 1
        body = {"topic": topic, "value": SECRET + topic, "delay_ms": PENDING_MS}
        key = {"Idempotency-Key": f"planted-{self._number}"}
        headers = bearer(Right.GATEWAY.value) | key
        answer = self._gateway.request("POST", "/v1/messages", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def within(self, request: dict[str, Any]) -> dict[str, Any]:
        changed = {**request, "params": self._changed(request.get("params") or {})}
        if "json" in request:
            changed["json"] = self._changed(request["json"])
        head, version, tail = request["url"].partition("/v1/")
        parts = tail.split("/")
        if parts[0] in ("messages", "trace") and len(parts) > 1 and parts[1] not in _WORDS:
            parts[1] = self._chance.choice([*self.ids.values(), parts[1]])
        changed["url"] = head + version + "/".join(parts)
        return changed

    def _changed(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: self._changed(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._changed(inner, name) for inner in value]
        if isinstance(value, str) and name in ("topic", "for_topic", "to_topic"):
            return self._chance.choice([TOPIC, TOPIC, OTHER, "slotwheel-trace", value])
        if isinstance(value, str) and name in ("id", "ids"):
            return self._chance.choice([*self.ids.values(), value])
        return value


_WORDS = ("count", "latency", "anomalies")


def counts(gateway: GatewayProcess) -> dict[str, int]:
    """How many messages of each topic are pending."""
    answer = gateway.get("/v1/messages/count?by=topic", headers=bearer(Right.GATEWAY.value))
    return dict(answer["topics"])


@pytest.mark.parametrize(
    "examples", [1, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_each_role_gets_what_its_rights_are_and_nothing_else(
    gateway: GatewayProcess, examples: int, figure: Callable[[str], None]
) -> None:
    planted = Planted(gateway)
    cases = made_cases(gateway.url, examples)
    assert {operation for operation, _ in cases} == {one.operation for one in ENDPOINTS}
    refused = 0
    with requests.Session() as session:
        for role, granted in ROLES.items():
            before = counts(gateway)
            for operation, made in cases:
                request = planted.within(made)
                headers = {**request["headers"], **bearer(role)}
                answer = session.request(**{**request, "headers": headers}, timeout=60)
                verdict = role, operation, answer.status_code, answer.text[:500], request
                assert answer.status_code < 500, verdict
                if operation.right not in granted:
                    assert answer.status_code >= 400, verdict
                    refused += answer.status_code in (401, 403)
                else:
                    assert answer.status_code != 401, verdict
                if role not in (Right.GATEWAY.value, OTHER_PREFIX):
                    assert SECRET + OTHER not in answer.text, verdict
            if role is not None and role != Right.GATEWAY.value:
                own, strange = (OTHER, TOPIC) if role == OTHER_PREFIX else (TOPIC, OTHER)
                after = counts(gateway)
                assert after.keys() - {own} == before.keys() - {own}, role
                assert after[strange] == before[strange], role
            planted.ids = {topic: planted.send(topic) for topic in (TOPIC, OTHER)}
    figure(f"{len(cases) * len(ROLES)} requests by {len(ROLES)} roles, {refused} of them refused")
    assert refused > len(cases) * len(ROLES) / 3
    assert "a request failed" not in gateway.log_text()

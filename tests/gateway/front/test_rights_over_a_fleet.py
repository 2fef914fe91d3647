"""A caller may do through the gateway of a fleet what it may at each wheel, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwheel.gateway.authentication import TOPICS
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.security.rights import Right
from slotwheel.wheel.ids import MessageId
from support.deadlab import letter
from support.fleetofnodes import FleetOfNodes, FrontProcess, fleet_of_nodes
from support.rightsfile import ALL, OTHER, OTHER_PREFIX, TOPIC, bearer, token_of, write_rights
from support.securing import write_private
from support.waiting import eventually

WHEELS = ("north", "south")
HEADER = TOPICS.decode()


@dataclass(frozen=True, slots=True)
class Secured:
    """``ids``: of the messages of each topic."""

    fleet: FleetOfNodes
    log: Path
    ids: dict[str, list[str]]

    def front(self, name: str | None, **more: str) -> httpx.Client:
        return self._client(self.fleet.front.url, name, more)

    def wheel(self, wheel: str, name: str | None, **more: str) -> httpx.Client:
        return self._client(self.fleet.nodes[wheel].url, name, more)

    def _client(self, url: str, name: str | None, more: dict[str, str]) -> httpx.Client:
        return httpx.Client(base_url=url, headers={**bearer(name), **more}, timeout=60)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    token = write_private(folder / "gateway.token", token_of("gateway"))
    rights = write_rights(folder / "security.toml")
    options = ["--security", str(rights), "--token-file", str(token)]
    log = folder / "front.access.log"
    front = [*options, "--access-log", str(log)]
    with fleet_of_nodes(folder, WHEELS, *options, front=front) as fleet:
        secured = Secured(fleet, log, {})
        for name, topic in ((ALL, TOPIC), (OTHER_PREFIX, OTHER)):
            many = [
                {"topic": topic, "key": f"k{n}", "value": "x", "delay_ms": 900_000}
                for n in range(40)
            ]
            with secured.front(name) as http:
                answer = http.post("/v1/messages", json=many)
                assert answer.status_code == 200, answer.text
                secured.ids[topic] = answer.json()["ids"]
        yield secured


def page(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/v1/messages", params={"limit": 1000})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["complete"], found
    return found


@pytest.mark.parametrize(("name", "topic"), [(ALL, TOPIC), (OTHER_PREFIX, OTHER)])
def test_a_caller_sees_its_topics_as_at_the_wheels(secured: Secured, name: str, topic: str) -> None:
    seen: set[str] = set()
    for wheel in WHEELS:
        with secured.wheel(wheel, name) as http:
            seen |= {each["id"] for each in page(http)["messages"]}
    with secured.front(name) as http:
        found = page(http)
        counted = http.get("/v1/messages/count", params={"by": "topic"}).json()
    assert {each["id"] for each in found["messages"]} == seen == set(secured.ids[topic])
    assert found["limited_by_rights"]
    assert found["looked_through"] == 0, "the number of all messages is not for it"
    assert (counted["topics"], counted["limited_by_rights"]) == ({topic: 40}, True)


def test_who_may_everything_sees_all(secured: Secured) -> None:
    with secured.front("gateway") as http:
        found = page(http)
    assert len(found["messages"]) == 80
    assert not found["limited_by_rights"]


def test_a_message_of_another_topic_is_unknown(secured: Secured) -> None:
    with secured.front(ALL) as http:
        own = http.get(f"/v1/messages/{secured.ids[TOPIC][0]}").json()
        other = http.get(f"/v1/messages/{secured.ids[OTHER][0]}").json()
    assert (own["state"], other["state"]) == ("pending", "unknown")
    assert other["message"] is None


def test_who_may_not_read_or_cancel_is_refused_at_the_front(secured: Secured) -> None:
    where = {"where": {"topic": TOPIC}}
    with secured.front(Right.SCHEDULE.value) as http:
        assert http.get("/v1/messages").status_code == 403
        assert http.post("/v1/cancellations", json=where).status_code == 403
    with secured.front(Right.READ.value) as http:
        assert http.get("/v1/messages").status_code == 200
        assert http.post("/v1/cancellations", json=where).status_code == 403
    with secured.front(None) as http:
        assert http.get("/v1/messages").status_code == 401


def test_a_cancel_of_all_cancels_the_callers_topics_alone(secured: Secured) -> None:
    with secured.front("gateway") as http:
        extra = [
            {"topic": topic, "key": f"k{n}", "value": "x", "delay_ms": 1_800_000}
            for n in range(20)
            for topic in (TOPIC, OTHER)
        ]
        assert http.post("/v1/messages", json=extra).status_code == 200
    with secured.front(Right.CANCEL.value) as http:
        body = {"where": {"from_ms": 946_684_800_000, "key": [f"k{n}" for n in range(5, 20)]}}
        counted = http.post("/v1/cancellations?dry_run=true", json=body).json()
        assert (counted["messages"], counted["limited_by_rights"]) == (30, True)
        begun = http.post("/v1/cancellations", json=body)
        assert begun.status_code == 202, begun.text
        path = f"/v1/jobs/{begun.json()['id']}"
        eventually(lambda: http.get(path).json()["ended_ms"] is not None)
        job = http.get(path).json()
        assert (job["state"], job["summary"]["answers"]) == ("done", {"cancelled": 30})
    with secured.front(Right.READ.value) as http:
        assert http.get(path).status_code == 404, "it is another caller's"
    with secured.front("gateway") as http:
        counted = http.get("/v1/messages/count", params={"by": "topic"}).json()
    assert counted["topics"] == {TOPIC: 30, OTHER: 60}


def test_nobody_gains_rights_by_the_header(secured: Secured) -> None:
    wide = {HEADER: json.dumps(["*"])}
    for name in (ALL, Right.READ.value, OTHER_PREFIX, Right.ADMIN.value):
        for http in (secured.front(name, **wide), secured.wheel("north", name, **wide)):
            with http:
                answer = http.get("/v1/messages")
                assert (answer.status_code, "only a gateway" in answer.text) == (403, True)
    with secured.front(None, **wide) as http:
        assert http.get("/v1/messages").status_code == 401


def test_a_gateway_that_asks_for_a_caller_gets_what_this_one_may(secured: Secured) -> None:
    """Also a front before a front: what it is told is said anew to the wheels."""
    narrow = {HEADER: json.dumps([OTHER])}
    for http in (secured.front("gateway", **narrow), secured.wheel("north", "gateway", **narrow)):
        with http:
            found = page(http)
            assert {each["topic"] for each in found["messages"]} == {OTHER}
            assert http.get("/v1/status").status_code == 403
            refused = http.delete(f"/v1/messages/{secured.ids[TOPIC][1]}")
            assert refused.status_code == 404
    with secured.front(ALL) as http:
        assert http.get(f"/v1/messages/{secured.ids[TOPIC][1]}").json()["state"] == "pending"
    with secured.front("gateway", **{HEADER: "[]"}) as http:
        assert http.get("/v1/messages").status_code == 403, "it may read no topic"


def test_the_access_log_of_the_front_names_the_caller(secured: Secured) -> None:
    with secured.front(Right.READ.value) as http:
        page(http)

    def noted() -> bool:
        lines = [json.loads(line) for line in secured.log.read_text().splitlines()]
        return any(
            line.get("principal") == "token:read" and line.get("operation") == "search"
            for line in lines
        )

    eventually(noted, otherwise=secured.log.read_text)


def test_a_wheel_whose_gateway_refuses_the_front_is_named(secured: Secured, tmp_path: Path) -> None:
    """The front's token is that of nobody there."""
    token = write_private(tmp_path / "gateway.token", token_of(Right.READ.value))
    rights = write_rights(tmp_path / "security.toml")
    options = ["--security", str(rights), "--token-file", str(token)]
    with (
        FrontProcess(secured.fleet.file, secured.fleet.nodes["north"], *options) as front,
        httpx.Client(base_url=front.url, headers=bearer(ALL), timeout=60) as http,
    ):
        found = http.get("/v1/messages").json()
        assert (found["messages"], found["complete"]) == ([], False)
        assert all("403" in text for text in found["problems"])
        assert MessageId.parse(secured.ids[TOPIC][0]).group in " ".join(found["problems"])


def test_letters_are_seen_and_redriven_by_who_may_for_their_topics(secured: Secured) -> None:
    """Whoever may redrive need not be somebody who may read."""
    for wheel in WHEELS:
        with secured.wheel(wheel, "gateway") as http:
            for topic in (TOPIC, OTHER):
                buried = letter(topic, 1)
                headers = [[name, str(value, "ascii")] for name, value in buried.headers if value]
                body = {"topic": DEAD_LETTER_TOPIC, "value": "x", "headers": headers}
                answer = http.post("/v1/messages", json={**body, "delay_ms": 0})
                assert answer.status_code == 201, answer.text

    def listed(name: str) -> dict[str, int]:
        with secured.front(name) as http:
            found = http.get("/v1/dead").json()
        return {each["topic"]: each["letters"] for each in found["counts"]}

    eventually(lambda: listed("gateway") == {TOPIC: 2, OTHER: 2})
    assert listed(Right.READ.value) == {TOPIC: 2}
    redrive = Right.REDRIVE.value
    with secured.front(Right.READ.value) as http:
        assert http.post("/v1/dead/redrive", json={}).status_code == 403
    with secured.front(redrive) as http:
        dry = http.post("/v1/dead/redrive", params={"dry_run": True}, json={})
        assert dry.json()["topics"] == {TOPIC: 2}, dry.text
        begun = http.post("/v1/dead/redrive", json={})
        assert begun.status_code == 202, begun.text
        path = f"/v1/jobs/{begun.json()['id']}"
        eventually(lambda: http.get(path).json()["state"] == "done")
        assert http.get(path).json()["summary"]["sent"] == 2

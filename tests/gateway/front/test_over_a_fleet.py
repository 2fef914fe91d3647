"""A gateway over three wheels answers as the gateway of one wheel with the same messages."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client
from slotwheel.fleet.routing import Routing
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.ids import MessageId
from support.fakefleet import NAMES
from support.fleetofnodes import FleetOfNodes, fleet_of_nodes
from support.gatewayprocess import NodeWithGateway
from support.waiting import eventually, now_ms

DUE = now_ms() + 3_600_000


def message(number: int) -> dict[str, Any]:
    return {
        "topic": f"t{number % 3}",
        "value": f"v{number}",
        "due_ms": DUE + number // 4 * 500,
        "headers": {"number": str(number % 5)},
        **({"key": f"k{number % 11}"} if number % 4 else {}),
        **({"name": f"n{number}"} if number % 10 == 3 else {}),
    }


MESSAGES = [message(number) for number in range(240)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetOfNodes]:
    with fleet_of_nodes(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    with NodeWithGateway(tmp_path_factory.mktemp("alone") / "data") as node:
        yield node


@pytest.fixture(scope="module")
def both(fleet: FleetOfNodes, alone: NodeWithGateway) -> tuple[FleetOfNodes, NodeWithGateway]:
    """Both have the same messages, sent one by one, in lists, and in lines."""
    for base in (fleet.front.http, alone.http):
        for each in MESSAGES[:40]:
            assert base.post("/v1/messages", json=each).status_code == 201
        assert base.post("/v1/messages", json=MESSAGES[40:140]).status_code == 200
        lines = "\n".join(map(json.dumps, MESSAGES[140:]))
        headers = {"content-type": "application/x-ndjson"}
        answer = base.post("/v1/messages", content=lines, headers=headers)
        assert answer.status_code == 200, answer.text
    return fleet, alone


def shown(message: dict[str, Any]) -> tuple[Any, ...]:
    """A message without what a wheel gives it."""
    keys = ("topic", "value", "key", "due_ms")
    headers = json.dumps(message.get("headers", []))
    return (*(message.get(key) for key in keys), headers)


def pages(client: Any, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = client.get("/v1/messages", params=query).json()
        assert answer["complete"], answer
        found += answer["messages"]
        if answer["next"] is None:
            return found
        query["page"] = answer["next"]


QUESTIONS: list[dict[str, Any]] = [
    {},
    {"topic": "t1"},
    {"topic": ["t0", "t2"], "limit": 7},
    {"key": "k3"},
    {"header": "number:2", "limit": 3},
    {"name": ["n3", "n13"]},
    {"from_ms": DUE + 5_000, "to_ms": DUE + 11_000, "limit": 10},
]


@pytest.mark.parametrize("query", QUESTIONS)
def test_pages_and_counts_are_those_of_one_wheel(
    both: tuple[FleetOfNodes, NodeWithGateway], query: dict[str, Any]
) -> None:
    fleet, alone = both
    found, expected = pages(fleet.front.http, **query), pages(alone.http, **query)
    assert [each["due_ms"] for each in found] == [each["due_ms"] for each in expected]
    assert sorted(map(shown, found)) == sorted(map(shown, expected))
    condition = {name: value for name, value in query.items() if name != "limit"}
    for by in ({}, {"by": "slot"}, {"by": "topic"}):
        asked = {**condition, **by}
        one = alone.http.get("/v1/messages/count", params=asked).json()
        all_ = fleet.front.http.get("/v1/messages/count", params=asked).json()
        for key in ("messages", "complete", "slots", "topics", "problems"):
            assert all_.get(key) == one.get(key), key


def test_equal_keys_and_names_go_to_their_wheel(both: tuple[FleetOfNodes, NodeWithGateway]) -> None:
    fleet, _ = both
    routing = Routing(NAMES)
    found = pages(fleet.front.http)
    assert {MessageId.parse(each["id"]).group for each in found} == set(NAMES)
    for each in found:
        name = dict(each["headers"]).get("slotwheel-name")
        place = name or each.get("key")
        if place is not None:
            assert MessageId.parse(each["id"]).group == routing.wheel_of(place.encode())


def test_a_message_is_known_cancelled_and_moved_by_its_id(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    message = {"topic": "by-id", "value": "x", "delay_ms": 900_000}
    ids = [fleet.front.send(**message, key=f"a{n}") for n in range(9)]
    assert len({MessageId.parse(text).group for text in ids}) > 1
    for text in ids:
        known = http.get(f"/v1/messages/{text}").json()
        assert (known["id"], known["state"]) == (text, "pending")
    moved = http.post(f"/v1/messages/{ids[0]}/reschedule", json={"delay_ms": 800_000})
    assert moved.status_code == 200, moved.text
    assert http.delete(f"/v1/messages/{ids[1]}").json()["answer"] == "cancelled"
    answers = http.post("/v1/cancel", json={"ids": ids[2:]}).json()["answers"]
    assert {each["answer"] for each in answers} == {"cancelled"}
    gone = http.get(f"/v1/messages/{ids[1]}").json()
    assert gone["state"] == "cancelled"
    strange = http.get(f"/v1/messages/{'east.' + ids[0].partition('.')[2]}").json()
    assert (strange["state"], strange["why"]) == ("unknown", "the fleet has no wheel 'east'")


def test_a_name_is_found_and_cancelled(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    put = http.put("/v1/names/named/one", json={"value": "x", "delay_ms": 900_000})
    assert put.status_code in (200, 201), put.text
    assert http.get("/v1/names/named/one").json()["id"] == put.json()["id"]
    assert http.delete("/v1/names/named/one").json()["answer"] == "cancelled"


def test_many_are_cancelled_by_a_condition(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    bulk = {"topic": "bulk", "value": "x", "delay_ms": 900_000}
    many = [bulk | {"key": f"k{n}"} for n in range(300)]
    assert http.post("/v1/messages", json=many).status_code == 200
    body = {"where": {"topic": "bulk"}}
    counted = http.post("/v1/cancellations?dry_run=true", json=body).json()
    assert (counted["messages"], counted["complete"]) == (300, True)
    begun = http.post("/v1/cancellations", json=body)
    assert begun.status_code == 202, begun.text
    path = f"/v1/jobs/{begun.json()['id']}"
    eventually(lambda: http.get(path).json()["state"] != "running")
    job = http.get(path).json()
    assert (job["state"], job["done"], job["total"]) == ("done", 300, 300)
    assert job["summary"] == {
        "answers": {"cancelled": 300},
        "unanswered": 0,
        "complete": True,
        "problems": [],
    }
    assert http.get("/v1/messages/count", params={"topic": "bulk"}).json()["messages"] == 0


def test_a_request_that_is_repeated_is_stored_once(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    many = [
        {"topic": "again", "value": "x", "delay_ms": 900_000, **({"key": f"k{n}"} if n % 2 else {})}
        for n in range(50)
    ]
    headers = {"idempotency-key": "order-17"}
    ids = http.post("/v1/messages", json=many, headers=headers).json()["ids"]
    assert len({MessageId.parse(text).group for text in ids}) == 3
    assert http.post("/v1/messages", json=many, headers=headers).json()["ids"] == ids
    assert http.get("/v1/messages/count", params={"topic": "again"}).json()["messages"] == 50


def test_status_is_of_all_wheels(fleet: FleetOfNodes) -> None:
    found = fleet.front.get("/v1/status")
    assert found["complete"]
    assert {name: each["state"] for name, each in found["wheels"].items()} == dict.fromkeys(
        NAMES, "there"
    )
    text = fleet.front.request("GET", "/metrics").text
    assert 'slotwheel_fleet_wheel{state="there",wheel="south"} 1.0' in text
    assert fleet.front.get("/readyz") == {"ok": True, "reasons": []}


def test_a_wheel_that_is_away_or_stands_still_is_named_in_time(tmp_path: Path) -> None:
    with fleet_of_nodes(tmp_path) as fleet:
        http = fleet.front.http
        many = [
            {"topic": "t", "key": f"k{n}", "value": "x", "delay_ms": 900_000} for n in range(90)
        ]
        ids = http.post("/v1/messages", json=many).json()["ids"]
        rest = [text for text in ids if MessageId.parse(text).group != "south"]
        lost = next(text for text in ids if MessageId.parse(text).group == "south")
        south = fleet.nodes["south"]
        south.gateway.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        page = http.get("/v1/messages").json()
        assert time.monotonic() - began < 8
        south.gateway.send_signal(signal.SIGCONT)
        assert not page["complete"]
        assert "the wheel south is missing" in page["problems"][0]
        assert {each["id"] for each in page["messages"]} == set(rest)
        south.kill()
        began = time.monotonic()
        counted = http.get("/v1/messages/count").json()
        assert time.monotonic() - began < 8
        assert (counted["messages"], counted["complete"]) == (len(rest), False)
        known = http.get(f"/v1/messages/{lost}").json()
        assert known["state"] == "unknown"
        assert "south" in known["why"]
        assert http.get("/v1/status").json()["complete"] is False
        eventually(lambda: "the wheel south is away" in http.get("/readyz").text)
        assert http.get("/readyz").status_code == 200
        for n in range(6):  # without a key they go past it
            assert (
                http.post(
                    "/v1/messages", json={"topic": "t", "value": str(n), "delay_ms": 900_000}
                ).status_code
                == 201
            )
        south.start()


def test_a_client_of_one_wheel_is_told_to_be_one_of_a_fleet(fleet: FleetOfNodes) -> None:
    """Its receipts have one group, and a batch would have ids of three."""
    before = fleet.front.get("/v1/messages/count")["messages"]
    with Client(fleet.front.url, timeout_s=10) as client:
        with pytest.raises(InvalidConfiguration, match="a Client sends to one wheel") as refused:
            client.send("t", b"x", delay=600).result(10)
        assert not refused.value.uncertain
        assert client.cancel([f"north.{DUE}.999999.0123456789abcdef"]) == ["unknown"]
    assert fleet.front.get("/v1/messages/count")["messages"] == before


def test_nobody_gains_rights_by_the_header(alone: NodeWithGateway) -> None:
    """Without a security file everybody may everything, and the header takes some of it away."""
    headers = {"slotwheel-topics": json.dumps(["only-*"])}
    alone.http.post("/v1/messages", json={"topic": "only-a", "value": "x", "delay_ms": 900_000})
    found = alone.http.get("/v1/messages", headers=headers).json()
    assert {each["topic"] for each in found["messages"]} == {"only-a"}
    assert found["limited_by_rights"]
    assert alone.http.get("/v1/status", headers=headers).status_code == 403
    answer = alone.http.post(
        "/v1/messages", json={"topic": "other", "value": "x", "delay_ms": 1}, headers=headers
    )
    assert answer.status_code == 403
    bad = alone.http.get("/v1/messages", headers={"slotwheel-topics": "only"})
    assert bad.status_code == 400


def test_a_fleet_of_one_wheel_may_be_asked_for_it(tmp_path: Path) -> None:
    with fleet_of_nodes(tmp_path, ["north"]) as fleet:
        assert set(fleet.front.get("/v1/status")["wheels"]) == {"north"}
        assert fleet.front.get("/v1/status", params={"wheel": "north"})["pending"] == 0
        page = fleet.front.request("GET", "/console/pending?wheel=nope")
        assert page.status_code == 422
        assert "wheel=nope" not in page.text

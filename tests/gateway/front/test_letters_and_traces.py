"""Dead letters, redrives, events and chains over three wheels are those of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.policy.deadletters import BURIED, DEAD_LETTER_TOPIC, RETRIES_USED_UP
from slotwheel.trace.chains.lookup import STORE_DIRECTORY
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from slotwheel.wheel.ids import MessageId
from support.deadlab import Letter, letter
from support.fakefleet import NAMES
from support.fleetofnodes import FleetOfNodes, fleet_of_nodes
from support.nodeprocess import NodeProcess
from support.traced import Row, event, stored
from support.waiting import eventually, now_ms

LETTERS = [
    *(letter("a", n, BURIED, group="g") for n in range(30)),
    *(letter("b", n, RETRIES_USED_UP) for n in range(30, 40)),
    *(letter(None, n) for n in range(40, 42)),
]
_ABOUT = SegmentAbout(hour=1, topic="t", positions={0: 9})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetOfNodes]:
    with fleet_of_nodes(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


def bury(node: NodeProcess, letters: list[Letter]) -> None:
    with Client(node.address) as client:
        client.send_many(
            [
                Message(DEAD_LETTER_TOPIC, one.value, key=one.key, headers=one.headers, delay=0)
                for one in letters
            ]
        ).result(60)
    node.wait_for(DEAD_LETTER_TOPIC, len(letters))


def test_letters_are_counted_shown_and_redriven_once(fleet: FleetOfNodes) -> None:
    front = fleet.front
    assert front.get("/v1/dead")["counts"] == []
    for number, name in enumerate(NAMES):
        bury(fleet.nodes[name], LETTERS[number::3])
    found = front.get("/v1/dead", params={"limit": 100})
    assert found["damage"] == []
    assert found["counts"] == [
        {"reason": BURIED, "topic": None, "letters": 2, "redriven": 0},
        {"reason": BURIED, "topic": "a", "letters": 30, "redriven": 0},
        {"reason": RETRIES_USED_UP, "topic": "b", "letters": 10, "redriven": 0},
    ]
    assert {each["wheel"] for each in found["letters"]} == set(NAMES)
    assert sorted(int(each["value"]) for each in found["letters"]) == list(range(42))
    first = found["letters"][0]
    path = f"/v1/dead/{first['partition']}/{first['position']}"
    assert front.get(path, params={"wheel": first["wheel"]}) == first
    refused = front.request("GET", path)
    assert (refused.status_code, refused.json()["place"]) == (422, "query wheel")
    summary = front.request("POST", "/v1/dead/redrive?dry_run=true", json={}).json()
    assert (summary["letters"], summary["topics"]) == (40, {"a": 30, "b": 10})
    assert summary["not_sendable"] == 2
    assert redriven(fleet) == 40
    assert redriven(fleet) == 0, "each is sent once, however often it is asked for"
    counts = front.get("/v1/dead")["counts"]
    assert [each["redriven"] for each in counts] == [0, 30, 10]


def redriven(fleet: FleetOfNodes) -> int:
    begun = fleet.front.request("POST", "/v1/dead/redrive", json={})
    assert begun.status_code == 202, begun.text
    path = f"/v1/jobs/{begun.json()['id']}"
    eventually(lambda: fleet.front.get(path)["state"] != "running")
    job = fleet.front.get(path)
    assert job["state"] == "done", job
    assert job["summary"]["complete"], job
    return int(job["summary"]["sent"])


def plant(node: NodeProcess, rows: list[Row]) -> None:
    """Put events into the store beside a wheel's gateway."""
    root = node.data / STORE_DIRECTORY
    root.mkdir(exist_ok=True)
    number = len(list(root.glob("*.arrow")))
    in_order = sorted(rows, key=lambda row: (row["at"], row["sender"], row["number"]))
    write_segment(root, SegmentName(number, number), _ABOUT, stored(in_order))


def parts_of(text: str) -> dict[str, Any]:
    one = MessageId.parse(text)
    return {"group": one.group, "due": one.due, "offset": one.offset, "check": one.check}


def test_a_chain_is_that_of_a_wheel_with_all_its_events(fleet: FleetOfNodes) -> None:
    """The retry of a message went to another wheel, and so did its events."""
    front = fleet.front
    first = front.send(topic="chained", value="x", key="k", delay_ms=0)
    north = MessageId.parse(first).group
    south = next(name for name in NAMES if name != north)
    with Client(fleet.nodes[south].address) as client:
        second = client.store("chained", b"x", delay=0)
    paths = [f"/v1/messages/{text}" for text in (first, second)]
    eventually(lambda: {front.get(path)["state"] for path in paths} == {"delivered"})
    at = now_ms()
    place: dict[str, Any] = {"topic": "chained", "partition": 0, "key": b"\xff"}
    group: dict[str, Any] = {"group": "billing", "sender": "c", "client": "till", **place}
    one, two = parts_of(first), parts_of(second)
    begin = [
        event(0, one["due"] - 5, "s", id=one, took_us=1500, **place),
        event(0, at, kind="processed", id=one, took_us=70, attempt=1, error="no", **group),
        event(1, at + 1, kind="retried", id=one, attempt=1, **group),
    ]
    end = [event(2, at + 2, kind="processed", id=two, origin=one, attempt=2, **group)]
    plant(fleet.nodes[north], begin)
    plant(fleet.nodes[south], end)
    plant(fleet.nodes[south], begin[1:2])  # as of a trace topic that both have
    chain = front.get(f"/v1/trace/{first}")
    assert (chain["state"], chain["outcomes"]) == ("processed", {"billing": "processed"})
    assert [each["id"] for each in chain["messages"]] == [first, second]
    kinds = [each["kind"] for each in chain["steps"] if each["tier"] != "wheel"]
    assert kinds == ["produced", "processed", "retried", "processed"]
    assert "retry" in [each["kind"] for each in chain["anomalies"]]
    assert front.get(f"/v1/trace/{second}")["steps"] == chain["steps"]
    assert any("no store of events" in text for text in chain["missing"]), "of the third wheel"
    for node in fleet.nodes.values():
        plant(node, [*begin, *end])
    alone = fleet.nodes[north].http.get(f"/v1/trace/{first}").json()
    assert [each for each in alone["steps"] if each["id"] == first] == [
        each for each in chain["steps"] if each["id"] == first
    ]
    again = front.get(f"/v1/trace/{first}")
    assert again["steps"] == chain["steps"]
    assert not any("store" in text for text in again["missing"])


def test_pages_of_events_are_whole_and_each_is_there_once(fleet: FleetOfNodes) -> None:
    at = now_ms() + 100_000
    rows = [event(n, at + n // 3, f"sender-{n % 2}", topic="pages") for n in range(30)]
    for number, name in enumerate(NAMES):
        plant(
            fleet.nodes[name], [*rows[number::3], *(rows[n] for n in range(4) if n % 3 != number)]
        )
    found: list[tuple[str, int]] = []
    query: dict[str, Any] = {"topic": "pages", "limit": 4}
    while True:
        page = fleet.front.get("/v1/trace", params=query)
        assert page["problems"] == []
        found += [(each["sender"], each["number"]) for each in page["events"]]
        if page["next"] is None:
            break
        query["page"] = page["next"]
    ordered = sorted(rows, key=lambda row: (row["at"], row["sender"], row["number"]))
    assert found == [(row["sender"], row["number"]) for row in ordered]


@pytest.mark.parametrize("path", ["/v1/trace/latency", "/v1/trace/anomalies"])
def test_what_cannot_be_joined_is_answered_for_one_wheel(fleet: FleetOfNodes, path: str) -> None:
    refused = fleet.front.request("GET", path)
    assert (refused.status_code, refused.json()["place"]) == (422, "query wheel")
    assert refused.json()["limit"] == "north, south, west"
    theirs = fleet.nodes["south"].http.get(path)
    ours = fleet.front.request("GET", path, params={"wheel": "south"})
    assert ours.status_code == theirs.status_code
    strange = fleet.front.request("GET", path, params={"wheel": "east"})
    assert strange.status_code == 422
    assert "east" in strange.text


def test_a_question_may_be_about_one_wheel(fleet: FleetOfNodes) -> None:
    ids = [
        fleet.front.send(topic="narrow", value="x", key=f"k{n}", delay_ms=900_000)
        for n in range(20)
    ]
    ask = {"topic": "narrow", "wheel": "west"}
    found = fleet.front.get("/v1/messages", params=ask)["messages"]
    theirs = {text for text in ids if MessageId.parse(text).group == "west"}
    assert {each["id"] for each in found} == theirs
    assert fleet.front.get("/v1/messages/count", params=ask)["messages"] == len(theirs)
    twice = fleet.front.request("GET", "/v1/messages/count?wheel=west&wheel=north")
    assert (twice.status_code, twice.json()["place"]) == (422, "query wheel")
    theirs_status = fleet.nodes["west"].http.get("/v1/status").json()
    ours = fleet.front.get("/v1/status", params={"wheel": "west"})
    assert ours["accepted"] == theirs_status["accepted"]

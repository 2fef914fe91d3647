"""Dead letters over three wheels are those of one with the same letters, each redriven once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from slotwheel import Client, Message
from slotwheel.policy.deadletters import BURIED, DEAD_LETTER_TOPIC, RETRIES_USED_UP, notes_topic
from support.broker import Cluster, TopicFactory
from support.deadlab import Letter, letter
from support.fakefleet import NAMES
from support.fleetofnodes import FleetOfNodes, fleet_of_nodes
from support.gatewayprocess import NodeWithGateway
from support.kafkaread import read_all
from support.nodeprocess import topic_rows
from support.waiting import eventually

LETTERS = [
    *(letter("a", number, BURIED, group="g") for number in range(30)),
    *(letter("b", number, RETRIES_USED_UP) for number in range(30, 40)),
    *(letter(None, number) for number in range(40, 42)),
]
QUESTIONS: list[dict[str, Any]] = [
    {},
    {"for_topic": "a"},
    {"group": "g", "key": ["k1", "k2"]},
    {"reason": RETRIES_USED_UP},
    {"limit": 0},
]


def bury(node: NodeWithGateway, letters: Sequence[Letter]) -> None:
    with Client(node.address) as client:
        for each in letters:
            message = Message(
                DEAD_LETTER_TOPIC, each.value, key=each.key, headers=each.headers, delay=0
            )
            client.send(message)
    eventually(lambda: node.http.get("/v1/dead", params={"limit": 0}).json()["counts"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    with NodeWithGateway(tmp_path_factory.mktemp("alone") / "data") as node:
        bury(node, LETTERS)
        yield node


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetOfNodes]:
    with fleet_of_nodes(tmp_path) as fleet:
        for number, name in enumerate(NAMES):
            bury(fleet.nodes[name], LETTERS[number :: len(NAMES)])
        eventually(lambda: counted(fleet.front.http) == len(LETTERS))
        yield fleet


def counted(http: Any) -> int:
    counts = http.get("/v1/dead", params={"limit": 0}).json()["counts"]
    return sum(each["letters"] for each in counts)


def test_counts_and_letters_are_those_of_one_wheel(
    fleet: FleetOfNodes, alone: NodeWithGateway
) -> None:
    eventually(lambda: counted(alone.http) == len(LETTERS))
    for query in QUESTIONS:
        all_ = fleet.front.http.get("/v1/dead", params=query).json()
        one = alone.http.get("/v1/dead", params=query).json()
        for key in ("counts", "damage", "kept_by_node", "limited_by_rights", "in_kafka"):
            assert all_[key] == one[key], (query, key)
        assert sorted(map(shown, all_["letters"])) == sorted(map(shown, one["letters"]))
    few = fleet.front.http.get("/v1/dead", params={"limit": 5}).json()["letters"]
    assert len(few) == 5
    for each in few:
        path = f"/v1/dead/{each['partition']}/{each['position']}"
        assert fleet.front.http.get(path, params={"wheel": each["wheel"]}).json() == each
    page = fleet.front.http.get("/console/dead?whole=true")
    assert page.status_code == 200


def shown(letter: dict[str, Any]) -> tuple[Any, ...]:
    keys = ("reason", "error", "for_topic", "group", "key", "value", "redriven")
    return tuple(str(letter.get(key)) for key in keys)


def test_each_letter_is_sent_once_however_often_it_is_asked_for(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    dry = http.post("/v1/dead/redrive", params={"dry_run": True}, json={}).json()
    assert (dry["letters"], dry["not_sendable"], dry["topics"]) == (40, 2, {"a": 30, "b": 10})
    assert not dry["problems"]
    jobs = [http.post("/v1/dead/redrive", json={}) for _ in range(2)]
    assert [each.status_code for each in jobs] == [202, 202], [each.text for each in jobs]
    eventually(lambda: all(report(http, job)["state"] != "running" for job in jobs))
    # One of two that run at once may be refused by the other's turn; a third finds the rest.
    nobodys = http.post("/v1/dead/redrive", json={"topic": "nobodys"})
    assert (nobodys.status_code, nobodys.json()["place"]) == (404, "topic")
    last = http.post("/v1/dead/redrive", json={})
    eventually(lambda: report(http, last)["state"] == "done")
    again = http.post("/v1/dead/redrive", params={"dry_run": True}, json={}).json()
    assert (again["letters"], again["redriven_before"], again["not_sendable"]) == (0, 40, 2)

    def arrived() -> list[tuple[str, bytes]]:
        return sorted(
            (topic, row["value"])
            for node in fleet.nodes.values()
            for topic in ("a", "b")
            for row in topic_rows(node.data, topic)
        )

    wanted = sorted(
        ("a" if number < 30 else "b", each.value)
        for number, each in enumerate(LETTERS[:40])
        if each.value is not None
    )
    eventually(lambda: len(arrived()) >= len(wanted))
    assert arrived() == wanted


def report(http: Any, answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/jobs/{answer.json()['id']}").json()
    return found


def test_a_wheel_that_is_away_is_named_and_the_others_answer(fleet: FleetOfNodes) -> None:
    http = fleet.front.http
    fleet.nodes["south"].kill()
    began = time.monotonic()
    found = http.get("/v1/dead").json()
    assert time.monotonic() - began < 8
    assert len(found["letters"]) == len(LETTERS) - len(LETTERS[1::3])
    assert "the wheel south is missing" in found["damage"][0]
    job = http.post("/v1/dead/redrive", json={})
    assert job.status_code == 202, job.text
    eventually(lambda: report(http, job)["state"] == "done")
    summary = report(http, job)["summary"]
    assert summary["sent"] == 40 - len(LETTERS[1:40:3])
    assert not summary["complete"]
    assert "the wheel south is missing" in summary["problems"][0]
    fleet.nodes["south"].start()


@pytest.mark.parametrize("front_reads_kafka", [False, True])
def test_wheels_before_one_kafka_share_its_topic_and_each_letter_is_sent_once(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, front_reads_kafka: bool
) -> None:
    """Each of them has the whole topic before it: what they count is not summed, and only one of
    them sends, also where the fleet's gateway reads the topic itself."""
    dead, meant = topic("dead", 3), topic("meant")
    broker.create_topic(notes_topic(dead), 1)
    options = ("--sink", "confluent", "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(60):
        one = letter(meant, number)
        producer.produce(dead, one.value, one.key, headers=list(one.headers))
    assert producer.flush(60) == 0
    own = ["--dead-letter-topic", dead]
    if front_reads_kafka:
        own += ["--bootstrap", broker.bootstrap]
    with fleet_of_nodes(tmp_path, NAMES, *options, front=own) as fleet:
        http = fleet.front.http
        eventually(lambda: counted(http) == 60)
        found = http.get("/v1/dead").json()
        assert (found["in_kafka"], found["kept_by_node"], found["damage"]) == (True, 0, [])
        first = found["letters"][0]
        assert "wheel" not in first
        path = f"/v1/dead/{first['partition']}/{first['position']}"
        assert http.get(path).json() == first
        dry = http.post("/v1/dead/redrive", params={"dry_run": True}, json={}).json()
        assert (dry["letters"], dry["topics"], dry["problems"]) == (60, {meant: 60}, [])
        jobs = [http.post("/v1/dead/redrive", json={}) for _ in range(2)]
        eventually(lambda: all(report(http, job)["state"] != "running" for job in jobs))
        last = http.post("/v1/dead/redrive", json={})
        eventually(lambda: report(http, last)["state"] == "done")
        assert report(http, last)["summary"]["sent"] == 0
        sent = read_all(broker.bootstrap, [meant], 60)
        assert sorted(int(each.value or b"") for each in sent) == list(range(60))
        [lead] = [name for name in NAMES if accepted(fleet.nodes[name])]
        fleet.nodes[lead].kill()
        refused = http.post("/v1/dead/redrive", json={})
        if not front_reads_kafka:  # it asks that wheel; else its job finds nothing to be sent
            assert refused.status_code == 503, "through another wheel it might be sent twice"
            assert f"the wheel {lead} is missing" in refused.json()["message"]
        found = http.get("/v1/dead", params={"limit": 0}).json()
        assert f"the wheel {lead} is missing" in found["damage"][0]
        assert counted(http) == 60
        fleet.nodes[lead].start()
    broker.delete_topic(notes_topic(dead))


def accepted(node: NodeWithGateway) -> int:
    with Client(node.address) as client:
        return int(client.status()["accepted"])

"""Dead letters over HTTP: counted, shown, and redriven by a job, each of them once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.gateway.v1.dead import FOREIGN_MAX
from slotwheel.policy.deadletters import BURIED, RETRIES_USED_UP
from support.broker import Cluster, TopicFactory
from support.deadlab import EmbeddedLab, letter
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import run_cli
from support.waiting import eventually


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    directory: Path = tmp_path_factory.mktemp("letters")
    with EmbeddedLab(directory) as made:
        yield made


@pytest.fixture(scope="module")
def dead(lab: EmbeddedLab) -> Iterator[GatewayProcess]:
    """A gateway before letters for three topics, one of which none names."""
    with GatewayProcess(lab.node) as one:
        assert one.get("/v1/dead") == {
            "counts": [],
            "letters": [],
            "damage": [],
            "kept_by_node": 0,
            "limited_by_rights": False,
            "in_kafka": False,
        }
        lab.bury([letter("a", n, BURIED, group="g") for n in range(30)])
        lab.bury([letter("b", n, RETRIES_USED_UP) for n in range(30, 40)])
        lab.bury([letter(None, n) for n in range(40, 42)])
        yield one


def test_letters_are_counted_and_shown(dead: GatewayProcess) -> None:
    found = dead.get("/v1/dead", params={"limit": 5})
    assert found["counts"] == [
        {"reason": BURIED, "topic": None, "letters": 2, "redriven": 0},
        {"reason": BURIED, "topic": "a", "letters": 30, "redriven": 0},
        {"reason": RETRIES_USED_UP, "topic": "b", "letters": 10, "redriven": 0},
    ]
    assert len(found["letters"]) == 5
    third = found["letters"][2]
    assert (third["for_topic"], third["error"], third["value"]) == ("a", "why 2", "2")
    assert ["own", "2"] in third["headers"]
    assert dead.get(f"/v1/dead/{third['partition']}/{third['position']}") == third
    of_group = dead.get("/v1/dead", params={"group": "g", "key": ["k1", "k2"], "limit": 0})
    assert [one["letters"] for one in of_group["counts"]] == [6]
    assert of_group["letters"] == []


@pytest.mark.parametrize("path", ["/0/999999", f"/0/{1 << 70}", "/0/-1", "/x/y", "?topic=nobodys"])
def test_what_is_not_there_is_named(dead: GatewayProcess, path: str) -> None:
    answer = dead.request("GET", f"/v1/dead{path}")
    assert (answer.status_code, answer.json()["error_code"]) == (404, 404), answer.text


def test_a_topic_without_dead_letters_is_not_read_through(
    dead: GatewayProcess, lab: EmbeddedLab
) -> None:
    with Client(lab.node.address) as client:
        messages = (Message("orders", b"%d" % n, delay=0) for n in range(FOREIGN_MAX + 1))
        client.send_many(messages).result(60)
        client.send(Message("few", b"x", delay=0)).result(60)
    lab.node.wait_for("orders", FOREIGN_MAX + 1)
    lab.node.wait_for("few", 1)
    looks = [
        dead.request("GET", "/v1/dead?topic=orders"),
        dead.request("GET", "/v1/dead?topic=orders&from_ms=4102444800000"),
        dead.request("POST", "/v1/dead/redrive?dry_run=true", json={"topic": "orders"}),
    ]
    for answer in looks:
        assert (answer.status_code, answer.json()["got"]) == (422, "orders"), answer.text
        assert "no topic of dead letters" in answer.json()["message"]
    few = dead.get("/v1/dead", params={"topic": "few"})
    assert [(one["reason"], one["letters"]) for one in few["counts"]] == [("unknown", 1)]


def test_what_takes_long_ends_and_says_how_far_it_came(
    dead: GatewayProcess, lab: EmbeddedLab
) -> None:
    with GatewayProcess(lab.node, letters_s=0.0) as hasty:
        found = hasty.get("/v1/dead")
        counted = sum(one["letters"] for one in found["counts"])
        assert 0 < counted < 42
        (said,) = found["damage"]
        assert f"behind its first {counted} records" in said
        page = hasty.request("GET", "/console/dead?whole=true")
        assert "This is not everything" in page.text
        whole = hasty.request("POST", "/v1/dead/redrive?dry_run=true", json={}).json()
        assert sum(whole[name] for name in ("letters", "redriven_before", "not_sendable")) == 42
        last = hasty.get("/v1/dead/0/41")
        assert (last["position"], last["value"]) == (41, "41")
    assert dead.get("/v1/dead")["damage"] == []


def redriven(dead: GatewayProcess, **body: Any) -> dict[str, Any]:
    """The report of a redrive that has ended."""
    answer = dead.request("POST", "/v1/dead/redrive", json=body)
    assert answer.status_code == 202, answer.text
    path = f"/v1/jobs/{answer.json()['id']}"
    eventually(lambda: dead.get(path)["state"] != "running")
    return dict(dead.get(path))


def test_a_redrive_sends_each_letter_once(dead: GatewayProcess, lab: EmbeddedLab) -> None:
    body = {"for_topic": ["a"]}
    counted = dead.request("POST", "/v1/dead/redrive?dry_run=true", json=body)
    assert counted.status_code == 200
    assert (counted.json()["letters"], counted.json()["topics"]) == (30, {"a": 30})
    report = redriven(dead, **body)
    assert (report["state"], report["done"], report["total"]) == ("done", 30, 30), report
    assert report["summary"]["sent"] == 30
    assert report["summary"]["complete"]
    assert len(lab.node.wait_for("a", 30)) == 30
    again = redriven(dead, **body)
    assert (again["state"], again["total"]) == ("done", 0)
    assert again["summary"]["redriven_before"] == 30
    rest = redriven(dead, to_topic="elsewhere", reason=[BURIED])
    assert rest["summary"]["topics"] == {"elsewhere": 2}
    assert len(lab.node.wait_for("elsewhere", 2)) == 2
    counts = {one["topic"]: one["redriven"] for one in dead.get("/v1/dead")["counts"]}
    assert counts == {None: 2, "a": 30, "b": 0}


@pytest.mark.parametrize(
    "body",
    [
        {"rate": 1e-6, "reason": [RETRIES_USED_UP]},
        {"to_topic": "../x"},
        {"to_topic": "slotwheel-dead-letters"},
        {"reason": "buried"},
        {"yes": True},
    ],
)
def test_a_redrive_that_cannot_be_done_does_nothing(
    dead: GatewayProcess, body: dict[str, Any]
) -> None:
    answer = dead.request("POST", "/v1/dead/redrive", json=body)
    if answer.status_code == 202:
        path = f"/v1/jobs/{answer.json()['id']}"
        eventually(lambda: dead.get(path)["state"] != "running")
        report = dead.get(path)
        assert (report["state"], report["error"]["error_code"]) == ("failed", 422)
        assert report["summary"]["sent"] == 0
        error = report["error"]
    else:
        assert answer.status_code == 422, answer.text
        error = answer.json()
    assert "--" not in str(error)  # a caller over HTTP has no command line


def test_letters_that_kafka_did_not_take_are_counted(
    tmp_path: Path, broker: Cluster, topic: TopicFactory
) -> None:
    name = f"dead-{tmp_path.name.lower()}"
    with EmbeddedLab(tmp_path) as lab:
        options = ("--bootstrap", broker.bootstrap, "--dead-letter-topic", name)
        with GatewayProcess(lab.node, *options) as before:
            found = before.get("/v1/dead")
            assert (found["counts"], found["kept_by_node"]) == ([], 0)
            assert "no such topic in Kafka" in found["damage"][0]
            assert "There are no dead letters" not in page(before)
            lab.topic = name
            lab.bury([letter("a", n, BURIED, group="g") for n in range(3)])
            assert before.get("/v1/dead?group=g")["kept_by_node"] == 3
            assert before.get("/v1/dead?group=h")["kept_by_node"] == 0
            eventually(lambda: "3 letters lie with the node" in page(before))
        there = topic("dead")
        lab.topic, lab.buried = there, 0
        lab.bury([letter("a", 4)])
        options = ("--bootstrap", broker.bootstrap, "--dead-letter-topic", there)
        with GatewayProcess(lab.node, *options) as before:
            found = before.get("/v1/dead")
            assert (found["counts"], found["letters"], found["damage"]) == ([], [], [])
            assert found["kept_by_node"] == 1
            assert "No dead letters were found in the topic" in page(before)
    for asked, code in ((there, 0), (name, 1)):
        listed = run_cli("dead", "list", "--bootstrap", broker.bootstrap, "--topic", asked)
        assert listed.returncode == code, listed.stderr
        assert "kept in the data directory of the node" in listed.stderr


def page(gateway: GatewayProcess) -> str:
    return gateway.request("GET", "/console/dead?whole=true").text

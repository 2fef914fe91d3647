"""Dead letters are purged without taking the mark of exactly-once, and those that a node keeps in
its own directory are letters like any other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from slotwheel import Client, Message
from slotwheel.policy.deadletters import notes_topic
from support.broker import Cluster, TopicFactory
from support.kafkaread import read_all
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually

SINKS: list[tuple[str, tuple[str, ...]]] = [("kafka-python", ("--kafka", "client_id=purge"))]
if importlib.util.find_spec("confluent_kafka"):
    SINKS.append(("confluent", ()))
ACCEPT = ("--unknown-topics", "accept")


def send(node: NodeProcess, topic: str, value: str) -> None:
    with Client(node.address) as client:
        client.send(Message(topic, value, delay=0)).result(60)


@pytest.mark.parametrize(("sink", "settings"), SINKS)
def test_exactly_once_goes_on_when_the_letters_are_purged_or_their_topic_is_made_anew(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, sink: str, settings: tuple[str, ...]
) -> None:
    target, dead = topic("target"), topic("dead")
    options = ("--sink", sink, "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    node = NodeProcess(tmp_path / "data", *options, *ACCEPT, "--delivery", "exactly-once")
    with node:
        send(node, "no-such-topic", "letter")
        send(node, target, "1")
        assert len(read_all(broker.bootstrap, [dead, target], 2)) == 2
        purge = ("dead", "purge", "--bootstrap", broker.bootstrap, "--topic", dead, *settings)
        assert run_cli(*purge, "--yes").returncode == 0
        assert run_cli("dead", "list", *purge[2:], "--json").stdout == ""
        node.kill()
        node.start()  # it finds its mark
        send(node, target, "2")
        assert len(read_all(broker.bootstrap, [target], 2)) == 2
        for value in ("3", "4"):  # while it runs, and while it does not
            if value == "4":
                node.signal()
            broker.delete_topic(dead)
            eventually(lambda: _made(broker, dead))
            if value == "4":
                node.start()
            send(node, target, value)
            assert len(read_all(broker.bootstrap, [target], int(value))) == int(value)
    values = [one.value for one in read_all(broker.bootstrap, [target], 4)]
    assert values == [b"1", b"2", b"3", b"4"], "nothing was repeated"


def _made(broker: Cluster, topic: str) -> bool:
    try:
        broker.create_topic(topic)
    except Exception:  # its deletion has not ended
        return False
    return True


def test_letters_in_a_nodes_own_directory_are_counted_listed_redriven_and_purged(
    tmp_path: Path, broker: Cluster, topic: TopicFactory
) -> None:
    target = f"{topic('there')}-later"
    dead = f"{target}-dead"  # there is no such topic either
    notes = broker.create_topic(notes_topic(dead))
    where = ("--data", str(tmp_path / "data"), "--bootstrap", broker.bootstrap, "--topic", dead)
    options = ("--sink", SINKS[-1][0], "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    with NodeProcess(tmp_path / "data", *options, *ACCEPT) as node:
        send(node, target, "letter")
        with Client(node.address) as client:
            eventually(lambda: client.status()["own_dead_letters"] == 1)
        broker.create_topic(target)
        (counted,) = run_cli("dead", "list", *where, "--json").stdout.splitlines()
        assert json.loads(counted) == {
            "reason": "refused",
            "topic": target,
            "letters": 1,
            "redriven": 0,
        }
        assert f"for_topic: {target}" in run_cli("dead", "show", "own/0", *where).stdout
        redrive = ("dead", "redrive", *where, "--yes", "--node", node.address)
        for sent in (1, 0):
            done = run_cli(*redrive, "--json")
            assert json.loads(done.stdout)["sent"] == sent, done.stderr
        assert [one.value for one in read_all(broker.bootstrap, [target], 1)] == [b"letter"]
        purge = ("dead", "purge", "--data", str(node.data), "--topic", dead, "--yes")
        assert "in use" in run_cli(*purge).stderr
    assert run_cli(*purge).returncode == 0
    assert not (node.data / "topics" / dead).exists()
    broker.delete_topic(target, notes)


def test_an_embedded_topic_keeps_what_exactly_once_reads(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, "--delivery", "exactly-once") as node:
        send(node, "slotwheel-dead-letters", "letter")
        node.wait_for("slotwheel-dead-letters", 1)
        node.kill()
        purge = ("dead", "purge", "--data", str(data), "--yes")
        kept = run_cli(*purge)
        assert kept.returncode == 1
        assert "newest letters" in kept.stdout
        node.start()
        assert len(node.delivered("slotwheel-dead-letters")) == 1, "it is not delivered again"

"""Spark reads what a real node delivered to a real Kafka, and proves it; with a record missing, it
says which message is lost.

The node is killed while it delivers, and started again; it keeps what is delivered in its archive.
Some messages are cancelled, some are for a topic that does not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from slotwheel import Client
from slotwheel.replay.facts import kafka_topics
from slotwheel.replay.facts.kafka_topics import KafkaTopics
from slotwheel.wheel.errors import InvalidConfiguration
from support import kafkaload
from support.broker import Cluster
from support.connector import connector_jars
from support.deliveries import Sent
from support.kafkaread import Reader, held, read_all
from support.nodeprocess import NodeProcess, run_cli, run_process
from support.ports import free_address
from support.scenario import SMALL
from support.spark import Replay
from support.waiting import PATIENCE_S, now_ms

COUNT, DEAD, CANCELLED = 20_000, 7, 30
PARTITIONS = 2
FIRST_MS, LAST_MS = 3_000, 9_000
"""Due times, from the start of sending on."""
PROOF_S = 400


@dataclass(frozen=True)
class Run:
    """What is left of it."""

    data: Path
    bootstrap: str
    topics: list[str]
    dead_letters: str
    nowhere: str
    """A topic that does not exist."""

    def arguments(self, *options: str | Path) -> tuple[str | Path, ...]:
        """Those of ``slotwheel replay``."""
        kafka = ("--kafka", self.bootstrap, "--kafka-jars", connector_jars())
        return (self.data, *kafka, "--dead-letter-topic", self.dead_letters, "--json", *options)


@pytest.fixture(scope="module")
def run(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    data = tmp_path_factory.mktemp("kafka") / "data"
    name = f"replayed-{time.time_ns()}"
    topics = [broker.create_topic(f"{name}-{n}", PARTITIONS) for n in range(2)]
    dead = broker.create_topic(f"{name}-dead")
    found = Run(data, broker.bootstrap, topics, dead, f"{name}-nowhere")
    _deliver(found)
    yield found
    for topic in (*topics, dead):
        broker.delete_topic(topic)


def _deliver(run: Run) -> None:
    """Send, cancel, kill the node while it delivers, and wait until all has arrived."""
    begin = now_ms()

    def due(rng: Random) -> int:
        return begin + rng.randrange(FIRST_MS, LAST_MS)

    sent = kafkaload.make(COUNT, run.topics, PARTITIONS, due, 5)
    sent += [Sent(run.nowhere, b"%d" % n, due=begin + FIRST_MS) for n in range(DEAD)]
    late = [Sent(run.topics[0], b"taken back", due=begin + LAST_MS) for _ in range(CANCELLED)]
    kafka = ("--sink", "confluent", "--bootstrap", run.bootstrap, "--unknown-topics", "accept")
    options = ("--listen", free_address(), "--dead-letter-topic", run.dead_letters)
    with NodeProcess(run.data, *kafka, *options, *SMALL, "--retain", "24h") as node:
        kafkaload.send_by_client(node.address, sent)
        ids = kafkaload.send_by_client(node.address, late)
        with Client(node.address) as client:
            assert set(client.cancel(ids)) == {"cancelled"}
        while held(run.bootstrap, run.topics) < COUNT // 3:
            time.sleep(0.05)
        node.kill()
        node.start()
        with closing(Reader(run.bootstrap, [*run.topics, run.dead_letters])) as reader:
            arrived: set[str] = set()  # the kill makes some arrive twice
            deadline = time.monotonic() + PATIENCE_S
            while len(arrived) < COUNT + DEAD:
                assert time.monotonic() < deadline, f"{len(arrived)} have arrived"
                arrived.update(one.id for one in reader.new())
                time.sleep(0.1)
        node.signal()


def test_a_run_with_a_kill_is_proven(run: Run, tmp_path: Path) -> None:
    """By the command in a process of its own, with a Spark that finds the connector's jars."""
    spark = ("--master", "local[2]", "--driver-memory", "1g")
    arguments = run.arguments("--report", tmp_path, *spark)
    done = run_process("replay", *arguments, timeout_s=PROOF_S)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["proven"]
    counts = verdict["counts"]
    assert counts["accepted"] == COUNT + DEAD + CANCELLED
    assert counts["delivered"] == COUNT
    assert (counts["dead"], counts["cancelled"], counts["lost"]) == (DEAD, CANCELLED, 0)
    assert set(verdict["problem_counts"]) <= {"repeated"}
    assert f"Kafka has no topic {run.nowhere}" in verdict["notes"]
    kinds = {one["kind"]: one["rows"] for one in verdict["inputs"]}
    assert kinds["archived journal"] > 0
    assert kinds["Kafka"] == held(run.bootstrap, [*run.topics, run.dead_letters])
    assert {one["topic"] for one in verdict["lateness"]} == {"", *run.topics}
    assert json.loads((tmp_path / "report.json").read_text())["proven"]


def test_a_message_whose_record_is_gone_is_lost(run: Run, replay: Replay) -> None:
    """The first record of a partition is deleted, in which nobody repeated anything so early."""
    part = TopicPartition(run.topics[1], 0)
    arrived = read_all(run.bootstrap, [part.topic], 1)
    first = next(one for one in arrived if one.partition == part.partition)
    assert sum(one.id == first.id for one in arrived) == 1
    with KafkaAdminClient(bootstrap_servers=run.bootstrap) as admin:
        admin.delete_records({part: 1})
    topics = ("--topic", run.topics[0], "--topic", run.topics[1])
    code, out, err = replay(*run.arguments(*topics))
    assert code == 1, out + err
    verdict = json.loads(out)
    assert verdict["reasons"] == ["lost: 1"]
    assert [one["id"] for one in _problems(verdict, "lost")] == [first.id]
    assert f"Kafka has deleted the records of {part.topic}-0 before 1:" in str(verdict["notes"])


def _problems(verdict: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in verdict["problems"] if one["kind"] == kind]


def test_a_topic_that_does_not_exist(run: Run) -> None:
    started = time.monotonic()
    done = run_cli("replay", *run.arguments("--topic", run.nowhere))
    assert done.returncode == 1
    assert run.nowhere in json.loads(done.stderr)["error"]["message"]
    assert time.monotonic() - started < 20


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    started = time.monotonic()
    done = run_process("replay", tmp_path, "--kafka", free_address())
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kafka", "nowhere"), "is not HOST:PORT"),
        (("--topic", "orders"), "--kafka"),
        (("--kafka", "127.0.0.1:1", "--kafka-jars", "/nowhere"), "does not exist"),
    ],
)
def test_usage(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = run_cli("replay", tmp_path, *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_spark_without_the_connector(
    run: Run, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' Spark has it. Of its other connectors, it misses Avro's in the same way."""
    monkeypatch.setattr(kafka_topics, "FORMAT", "avro")
    topics = KafkaTopics(run.bootstrap, run.topics)
    with pytest.raises(InvalidConfiguration, match="has no Kafka connector"):
        topics.records(spark, None)


def test_topics_that_are_too_many_must_be_named(spark: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="too many topics"):
        KafkaTopics(free_address()).records(spark, None)

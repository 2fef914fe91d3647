"""SIGKILL under load: real processes, real files, real brokers.

A client sends all the time; the node is killed at random moments and started again. Whatever got a
receipt arrives, none early, under the id and due time it had, and what comes twice is only what no
mark on disk had covered when the node died. The figures are printed.

The whole run of 50 kills: ``python -m pytest -m soak tests/test_kill.py``
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schema import times
from support.broker import Cluster, TopicFactory
from support.killing import Arrival, Killing, Report
from support.nodeprocess import run_cli

UNMARKED_MAX_MS = 1_500
"""The mark's interval (100 ms), a chunk and a sync; the rest is for a machine with much to do."""


class EmbeddedTopics:
    """What has arrived in embedded topics, read on from where the last look ended."""

    def __init__(self, data: Path, topics: list[str]) -> None:
        self._files = OsFiles(data)
        self._readers = [TopicReader(self._files, topic) for topic in topics]
        self._found: list[Arrival] = []

    def __call__(self) -> list[Arrival]:
        for reader in self._readers:
            for batch in reader.batches():
                columns = (times(batch, name).tolist() for name in ("due", "offset", "delivered"))
                values = map(int, batch.column("value").to_pylist())
                self._found += map(Arrival, values, *columns)
        return self._found

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._files.close()


class KafkaTopics:
    """The same for topics of a broker; their records carry the time of their arrival."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        self._parts = [TopicPartition(topic, 0) for topic in topics]
        self._consumer.assign(self._parts)
        self._consumer.seek_to_beginning(*self._parts)
        self._found: list[Arrival] = []

    def __call__(self) -> list[Arrival]:
        while polled := self._consumer.poll(timeout_ms=200, max_records=20_000):
            for record in (one for records in polled.values() for one in records):
                said = MessageId.parse(dict(record.headers)["slotwheel-id"].decode())
                self._found.append(
                    Arrival(int(record.value), said.due, said.offset, record.timestamp)
                )
        return self._found

    def close(self) -> None:
        self._consumer.close()


def check(report: Report, say: Callable[[str], None]) -> None:
    say(report.line())
    assert report.lost == 0
    assert report.early == 0
    assert report.strangers == 0
    assert report.renamed == 0
    assert report.repeated_marked == 0
    assert report.longest_unmarked_ms <= UNMARKED_MAX_MS


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def write(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end=" ")

    return write


def kill_with_embedded_topics(
    path: Path, kills: int, seed: int, say: Callable[[str], None]
) -> None:
    topics = ["one", "two", "three"]
    data = path / "data"
    killing = Killing(data, topics, seed)
    arrived = EmbeddedTopics(data, topics)
    try:
        report = killing.run(kills, arrived)
    finally:
        arrived.close()
    check(report, lambda text: say(f"embedded topics, {text}"))
    assert report.repeated_in_one_life == 0, f"{report}\n{killing.node.log_text()}"
    verified = run_cli("verify", data)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def kill_with_kafka(
    path: Path,
    bootstrap: str,
    topics: list[str],
    kills: int,
    seed: int,
    say: Callable[[str], None],
) -> None:
    options = ("--sink", "kafka-python", "--bootstrap", bootstrap)
    killing = Killing(path / "data", topics, seed, *options)
    arrived = KafkaTopics(bootstrap, topics)
    try:
        report = killing.run(kills, arrived)
    finally:
        arrived.close()
    check(report, lambda text: say(f"Kafka, {text}"))


def test_kills_with_embedded_topics(tmp_path: Path, say: Callable[[str], None]) -> None:
    kill_with_embedded_topics(tmp_path, 8, 1, say)


def test_kills_with_kafka(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, say: Callable[[str], None]
) -> None:
    kill_with_kafka(tmp_path, broker.bootstrap, [topic("a"), topic("b")], 3, 2, say)


@pytest.mark.soak
def test_fifty_kills_with_embedded_topics(tmp_path: Path, say: Callable[[str], None]) -> None:
    kill_with_embedded_topics(tmp_path, 50, 3, say)


@pytest.mark.soak
def test_fifteen_kills_with_kafka(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, say: Callable[[str], None]
) -> None:
    kill_with_kafka(tmp_path, broker.bootstrap, [topic("a"), topic("b")], 15, 4, say)

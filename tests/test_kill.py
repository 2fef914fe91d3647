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

from support.arrivals import EmbeddedArrivals, KafkaArrivals
from support.broker import Cluster, TopicFactory
from support.killing import Killing, Report
from support.nodeprocess import run_cli

UNMARKED_MAX_MS = 1_500
"""The mark's interval (100 ms), a chunk and a sync; the rest is for a machine with much to do."""


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


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_kills_with_embedded_topics(tmp_path: Path, kills: int, say: Callable[[str], None]) -> None:
    topics = ["one", "two", "three"]
    data = tmp_path / "data"
    killing = Killing(data, topics, kills)
    with EmbeddedArrivals([data], topics) as arrived:
        report = killing.run(kills, arrived.look)
    check(report, lambda text: say(f"embedded topics, {text}"))
    assert report.repeated_in_one_life == 0, f"{report}\n{killing.node.log_text()}"
    verified = run_cli("verify", data)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_kills_under_exactly_once_with_embedded_topics(
    tmp_path: Path, kills: int, say: Callable[[str], None]
) -> None:
    topics = ["one", "two", "three"]
    data = tmp_path / "data"
    killing = Killing(data, topics, kills, "--delivery", "exactly-once")
    with EmbeddedArrivals([data], topics) as arrived:
        report = killing.run(kills, arrived.look)
    check(report, lambda text: say(f"exactly once, embedded topics, {text}"))
    assert report.repeated == 0


def test_kills_under_at_most_once(tmp_path: Path, say: Callable[[str], None]) -> None:
    """What is lost is what was leaving when the node died; nothing is repeated."""
    topics = ["one", "two"]
    data = tmp_path / "data"
    killing = Killing(data, topics, 1, "--delivery", "at-most-once")
    with EmbeddedArrivals([data], topics) as arrived:
        report = killing.run(2, arrived.look, wait_s=3.0)
    say(f"at most once, {report.line()}")
    assert (report.repeated, report.early, report.strangers) == (0, 0, 0)
    assert report.lost < report.sent / 10


@pytest.mark.parametrize(
    ("sink", "kills"),
    [
        ("confluent", 3),
        pytest.param("confluent", 50, marks=pytest.mark.soak),
        pytest.param("kafka-python", 50, marks=pytest.mark.soak),
    ],
)
def test_kills_under_exactly_once_with_kafka(
    tmp_path: Path,
    broker: Cluster,
    topic: TopicFactory,
    sink: str,
    kills: int,
    say: Callable[[str], None],
) -> None:
    topics = [topic("a"), topic("b")]
    options = ["--sink", sink, "--bootstrap", broker.bootstrap, "--delivery", "exactly-once"]
    options += ["--group", tmp_path.name, "--dead-letter-topic", topic("dead")]
    killing = Killing(tmp_path / "data", topics, kills, *options)
    with KafkaArrivals(broker.bootstrap, topics) as arrived:
        report = killing.run(kills, arrived.look)
    check(report, lambda text: say(f"exactly once, {sink}, {text}"))
    assert report.repeated == 0, f"{report}\n{killing.node.log_text()}"


@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.soak)])
def test_kills_with_kafka(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, kills: int, say: Callable[[str], None]
) -> None:
    topics = [topic("a"), topic("b")]
    options = ("--sink", "kafka-python", "--bootstrap", broker.bootstrap)
    killing = Killing(tmp_path / "data", topics, kills, *options)
    with KafkaArrivals(broker.bootstrap, topics) as arrived:
        report = killing.run(kills, arrived.look)
    check(report, lambda text: say(f"Kafka, {text}"))

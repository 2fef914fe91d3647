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


def kill_with_embedded_topics(
    path: Path, kills: int, seed: int, say: Callable[[str], None]
) -> None:
    topics = ["one", "two", "three"]
    data = path / "data"
    killing = Killing(data, topics, seed)
    with EmbeddedArrivals([data], topics) as arrived:
        report = killing.run(kills, arrived.look)
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
    with KafkaArrivals(bootstrap, topics) as arrived:
        report = killing.run(kills, arrived.look)
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

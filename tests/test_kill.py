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

from support.broker import Cluster, TopicFactory
from support.promises import Account
from support.scenario import Scenario
from support.waiting import eventually

TOPICS = ["one", "two", "three"]
ONCE, LEAST = "exactly-once", "at-least-once"
Figure = Callable[[str], None]


def killed(scene: Scenario, kills: int, figure: Figure, what: str) -> Account:
    """What came of a load under so many kills; the node ends well then."""
    scene.send()
    scene.kill_alone(kills)
    found = scene.finish()
    furthest_ms = min(fault.from_ms for fault in scene.faults.done)
    figure(f"{what}, {kills} kills: {found.line()}; at most {-furthest_ms} ms before the kill")
    scene.check_agreement()
    return found


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("semantics", [LEAST, ONCE])
def test_kills_with_embedded_topics(
    tmp_path: Path, figure: Figure, semantics: str, kills: int
) -> None:
    with Scenario(tmp_path, TOPICS, seed=kills, semantics=semantics) as scene:
        found = killed(scene, kills, figure, f"{semantics}, embedded topics")
    assert found.violations() == {}, scene.node.log_text()
    assert found.repeated == 0 or semantics == LEAST


def test_kills_under_at_most_once(tmp_path: Path, figure: Figure) -> None:
    """What is lost is what was leaving when the node died; nothing is repeated."""
    with Scenario(tmp_path, TOPICS[:2], seed=1, semantics="at-most-once") as scene:
        scene.send()
        scene.kill_alone(2)
        scene.stop_sending()
        eventually(lambda: scene.node.metric("slotwheel_pending") == 0)
        found = scene.finish(within_s=0.5)  # what was lost does not come
    figure(f"at most once, {found.line()}")
    assert (found.violations("lost"), found.repeated) == ({}, 0)
    assert len(found.lost) < found.promised / 10


@pytest.mark.parametrize(
    ("semantics", "sink", "kills"),
    [
        (LEAST, "kafka-python", 2),
        pytest.param(LEAST, "kafka-python", 15, marks=pytest.mark.soak),
        (ONCE, "confluent", 3),
        pytest.param(ONCE, "confluent", 50, marks=pytest.mark.soak),
        pytest.param(ONCE, "kafka-python", 50, marks=pytest.mark.soak),
    ],
)
def test_kills_with_kafka(
    tmp_path: Path,
    broker: Cluster,
    topic: TopicFactory,
    figure: Figure,
    semantics: str,
    sink: str,
    kills: int,
) -> None:
    topics, dead = [topic("a"), topic("b")], topic("dead")
    with Scenario(
        tmp_path,
        topics,
        seed=kills,
        broker=broker,
        sink=sink,
        semantics=semantics,
        dead_topic=dead,
    ) as scene:
        found = killed(scene, kills, figure, f"{semantics}, {sink}")
    assert found.violations() == {}, scene.node.log_text()
    assert found.repeated == 0 or semantics == LEAST

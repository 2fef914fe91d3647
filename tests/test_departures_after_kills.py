"""SIGKILL at random moments: what is said of a message is true or unknown, never false.

Real nodes with ``--trace-retain``; messages, and cancels of most of them, without a pause. The node
keeps no archive, and nothing of the topics is looked at: they are taken away, or are Kafka's. So
there is nothing to know it by but the departures. What arrived is what the answers are held
against.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwheel.reading.departures import DepartureReader
from slotwheel.reading.search.fate import MessageFate, MessageState, find
from slotwheel.reading.search.pending import PendingReader
from slotwheel.wheel.ids import MessageId
from support.broker import Cluster, TopicFactory
from support.load import NEARLY_ALL
from support.promises import Promised
from support.scenario import Scenario

Figure = Callable[[str], None]
Sent = tuple[int, int]
"""Due time and offset of an id."""
KEPT = ("--trace-retain", "1h")
BY_THE_MARK = "nothing ever became a dead letter"
"""In the reason of a fate that is known though its departure was not kept, so it has no times."""


def run(scene: Scenario, kills: int) -> tuple[Promised, Counter[Sent]]:
    """What was promised, and how often each id arrived, once the node has ended."""
    with scene:
        scene.send(rate=1000, ahead_ms=4_000, cancels=NEARLY_ALL)
        scene.kill_alone(kills, (0.3, 2.0))
        promised = scene.stop_sending()
        found = scene.finish()
        assert found.violations("repeats without a fault") == {}
        scene.check_agreement()
    return promised, Counter((one.due, one.offset) for one in scene.arrivals.all)


def fates(data: Path, promised: Promised) -> dict[Sent, MessageFate]:
    with PendingReader(data) as reader:
        mint = reader.view().mint
        ids = mint.many(promised.due, promised.offset)
        found = find(reader, ids)
    keys = (MessageId.parse(one) for one in ids)
    return {(key.due, key.offset): fate for key, fate in zip(keys, found, strict=True)}


def check(
    known: dict[Sent, MessageFate], arrived: Counter[Sent], promised: Promised
) -> Counter[MessageState]:
    """No answer is false. How many there are of each."""
    for key, fate in known.items():
        if fate.state is MessageState.DELIVERED:
            assert arrived[key], fate
            if fate.created_ms is None or fate.left_ms is None:
                assert BY_THE_MARK in fate.why, fate
            else:
                assert fate.created_ms <= fate.left_ms >= key[0]
        elif fate.state is MessageState.CANCELLED:
            assert not arrived[key], fate
        else:
            assert fate.state is MessageState.UNKNOWN, fate
    assert len(known) == len(promised.due)
    without_times = sum(
        one.state is MessageState.DELIVERED and one.left_ms is None for one in known.values()
    )
    assert without_times <= len(known) / 10
    return Counter(fate.state for fate in known.values())


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_every_fate_is_known_where_the_topics_are_elsewhere(
    tmp_path: Path, kills: int, figure: Figure
) -> None:
    scene = Scenario(tmp_path, ["one", "two"], *KEPT, seed=kills)
    promised, arrived = run(scene, kills)
    data = scene.node.data
    shutil.rmtree(data / "topics")
    known = fates(data, promised)
    counts = check(known, arrived, promised)
    repeated = [key for key, times in arrived.items() if times > 1]
    figure(f"{kills} kills: {dict(counts)}, {len(repeated)} repeated")
    assert counts[MessageState.UNKNOWN] == 0
    assert not any(BY_THE_MARK in fate.why for fate in known.values())
    assert counts[MessageState.CANCELLED] > 100
    # A kill between a sink's answer and its departure leaves that departure out.
    for key, found in DepartureReader(data).find(set(known)).items():
        assert sum(one.state == "delivered" for one in found) <= arrived[key]
    assert len(list((data / "departures").iterdir())) == kills + 1


@pytest.mark.parametrize("semantics", ["at-least-once", "exactly-once"])
def test_every_fate_is_true_with_kafka(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, semantics: str, figure: Figure
) -> None:
    """In a transaction, rows leave and the mark moves at once: those of the last one before a kill
    are known by the mark alone, or unknown."""
    topics = [topic("a"), topic("b")]
    scene = Scenario(
        tmp_path,
        topics,
        *KEPT,
        seed=4,
        broker=broker,
        semantics=semantics,
        dead_topic=topic("dead"),
    )
    promised, arrived = run(scene, 4)
    counts = check(fates(scene.node.data, promised), arrived, promised)
    figure(f"Kafka, {semantics}: {dict(counts)}")
    unknown_max = 0 if semantics == "at-least-once" else len(promised.due) / 10
    assert counts[MessageState.UNKNOWN] <= unknown_max

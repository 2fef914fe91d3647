"""SIGKILL at random moments: what is said of a message is true or unknown, never false.

Real nodes with ``--trace-retain``; messages, and cancels of most of them, without a pause. The node
keeps no archive, and nothing of the topics is looked at: they are taken away, or are Kafka's. So
there is nothing to know it by but the departures. What arrived is what the answers are held
against.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from slotwheel.reading.departures import DepartureReader
from slotwheel.search.fate import MessageFate, MessageState, find
from slotwheel.search.pending import PendingReader
from slotwheel.wheel.ids import MessageId
from support.arrivals import Arrivals, EmbeddedArrivals, KafkaArrivals
from support.broker import Cluster, TopicFactory
from support.cancelload import AHEAD_MS, CancelLoad
from support.killing import SMALL
from support.load import Promised
from support.nodeprocess import NodeProcess
from support.ports import free_address

Figure = Callable[[str], None]
Sent = tuple[int, int]
"""Due time and offset of an id."""
BY_THE_MARK = "nothing ever became a dead letter"
"""In the reason of a fate that is known though its departure was not kept, so it has no times."""


def run(
    node: NodeProcess, topics: list[str], arrivals: Arrivals, kills: int
) -> tuple[CancelLoad, Promised]:
    rng = Random(kills)
    with node:
        load = CancelLoad(node.address, topics, rng, 1000)
        for _ in range(kills):
            time.sleep(rng.uniform(0.3, 2.0))
            node.kill()
            node.start()
        time.sleep(1.0)
        promised = load.stop()
        arrivals.wait_for(load.wanted(), AHEAD_MS / 1000 + 60)
        time.sleep(1.0)
        node.signal()
    return load, promised


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
    topics, data = ["one", "two"], tmp_path / "data"
    options = ("--listen", free_address(), *SMALL, "--trace-retain", "1h")
    with closing(EmbeddedArrivals([data], topics)) as arrivals:
        _, promised = run(NodeProcess(data, *options), topics, arrivals, kills)
        arrived = Counter((one.due, one.offset) for one in arrivals.look())
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


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_every_fate_is_true_with_kafka(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, delivery: str, figure: Figure
) -> None:
    """In a transaction, rows leave and the mark moves at once: those of the last one before a kill
    are known by the mark alone, or unknown."""
    topics, data = [topic("a"), topic("b")], tmp_path / "data"
    options = ["--listen", free_address(), *SMALL, "--trace-retain", "1h"]
    options += ["--sink", "confluent", "--bootstrap", broker.bootstrap, "--delivery", delivery]
    options += ["--group", tmp_path.name, "--dead-letter-topic", topic("dead")]
    with closing(KafkaArrivals(broker.bootstrap, topics)) as arrivals:
        _, promised = run(NodeProcess(data, *options), topics, arrivals, 4)
        arrived = Counter((one.due, one.offset) for one in arrivals.look())
    counts = check(fates(data, promised), arrived, promised)
    figure(f"Kafka, {delivery}: {dict(counts)}")
    unknown_max = 0 if delivery == "at-least-once" else len(promised.due) / 10
    assert counts[MessageState.UNKNOWN] <= unknown_max

"""Three peers that deliver exactly once into Kafka: the master is killed, and stopped for longer
than its lease, under load. Nothing is lost, nothing is read twice, and delivery goes on.

The long run: ``python -m pytest -m soak tests/test_peers_exactly_once.py``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.broker import Cluster, TopicFactory
from support.peers import PEERS
from support.scenario import Scenario

SILENCE_MS = 5_000
"""So soon after a master was lost the next one delivers."""
FENCED = 'reason="fenced: '
"""What the log of a master says when another one has taken its transactional ids."""

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("sink", "rounds"),
    [
        ("confluent", 1),
        pytest.param("confluent", 7, marks=pytest.mark.soak),
        pytest.param("kafka-python", 3, marks=pytest.mark.soak),
    ],
)
def test_masters_killed_and_paused(
    tmp_path: Path,
    broker: Cluster,
    topic: TopicFactory,
    figure: Callable[[str], None],
    sink: str,
    rounds: int,
) -> None:
    """Each round: a kill, a pause and a kill."""
    topics, dead = [topic("one", 2), topic("two", 2)], topic("dead")
    with Scenario(
        tmp_path,
        topics,
        seed=11,
        names=PEERS,
        broker=broker,
        sink=sink,
        semantics="exactly-once",
        dead_topic=dead,
    ) as scene:
        peers, faults = scene.peers, scene.faults
        scene.send_steadily()
        scene.wait_for_arrivals(100)
        paused: list[str] = []

        def pause_master() -> None:
            paused.append(peers.master())
            faults.pause_master()

        def fenced() -> int:
            return sum(peers[name].log_text().count(FENCED) for name in {*paused})

        def steps() -> Iterator[Callable[[], None]]:
            for _ in range(rounds):
                yield from (faults.kill_master, pause_master, faults.kill_master)
            while not fenced() and len(paused) < rounds + 12:  # it was between two transactions
                yield pause_master

        faults.run(steps())
        found = scene.finish()
        silence_ms = max(fault.silence_ms for fault in faults.done)
        figure(
            f"exactly once, three peers, {sink}, {len(faults.done)} masters lost: {found.line()};"
            f" delivery stood still for at most {silence_ms} ms; {fenced()} of {len(paused)} that"
            " were paused found themselves fenced"
        )
        assert any(FENCED in peers[name].log_text() for name in paused), "nobody was fenced"
    assert found.violations() == {}
    assert found.repeated == 0
    assert silence_ms <= SILENCE_MS

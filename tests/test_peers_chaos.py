"""Peers in trouble: real processes in network namespaces, under load, with a real Kafka as sink.

A client sends all the time, cancels and reschedules, while peers are killed, paused, wiped, run out
of disk, and their links are cut, also in one direction. Then all is mended, and what arrived in
Kafka is held against what the client was told: nothing lost, nothing early, nothing that was never
sent, nothing that was cancelled; what came twice lies around a fault. The peers agree, and what
was delivered is gone from every disk.

Ten minutes of random faults: ``python -m pytest -m soak tests/test_peers_chaos.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from support.broker import Broker
from support.chaosfaults import Faults
from support.peers import PEERS, lab_of
from support.promises import table
from support.scenario import Scenario

TOPICS = 4
DISK_BYTES = 256 << 20
JOURNAL = ("--disk-reserve", "1M", "--peer-journal", "1M")
"""So that wiped peers need a snapshot."""
Steps = Iterable[Callable[[], None]]
Figure = Callable[[str], None]

pytestmark = pytest.mark.kafka


def rounds(faults: Faults) -> list[Callable[[], None]]:
    """Each kind of fault that one machine can have, and two at once."""
    return [
        faults.kill_master,
        faults.pause_master,
        faults.mute_master,
        faults.fill_disk,
        faults.kill_two,
        faults.wipe_standby,
        faults.cut_master_off,
        faults.deafen_master,
    ]


def anything(faults: Faults, rng: Random, seconds: float) -> Iterator[Callable[[], None]]:
    """Each once, and then by chance, until the time is over."""
    kinds = [
        *rounds(faults),
        *(faults.kill_standby, faults.pause_standby, faults.cut_one_link, faults.kill_all),
        *(faults.part_standbys, faults.slow_link, faults.cut_from_the_test),
    ]
    end = time.monotonic() + seconds
    yield from rng.sample(kinds, len(kinds))
    while time.monotonic() < end:
        yield rng.choice(kinds)


def chaos(
    path: Path,
    figure: Figure,
    steps: Callable[[Scenario], Steps],
    *,
    seed: int,
    rate: float,
    ahead_ms: int,
) -> None:
    """Errors: ``AssertionError`` for whatever does not hold."""
    topics = [f"target-{number}" for number in range(TOPICS)]
    lab = lab_of(PEERS)
    with lab, Broker(host=lab.host) as broker:
        for topic in topics:
            broker.create_topic(topic)
        with Scenario(
            path,
            topics,
            *JOURNAL,
            seed=seed,
            names=PEERS,
            broker=broker,
            lab=lab,
            small_disk=("c", DISK_BYTES),
        ) as scene:
            scene.send(rate=rate, rows=100, ahead_ms=ahead_ms, late_share=0.02, cancels=6)
            scene.wait_for_arrivals(250)
            scene.faults.run(steps(scene))
            found = scene.finish()
            done = scene.faults.done
            figure(f"peers in trouble ({lab.kind}), {len(done)} faults: {found.line()}")
            for line in table(done):
                figure(line)
            assert found.violations() == {}
            assert found.cancelled > 0
            assert found.moved > 0
            peers = scene.peers
            peers.wait_until_whole()
            peers.wait("cleaned", lambda: not any(peers[name].slot_files() for name in PEERS))
            scene.check_agreement()


def test_each_fault_once(tmp_path: Path, figure: Figure) -> None:
    chaos(tmp_path, figure, lambda scene: rounds(scene.faults), seed=31, rate=250, ahead_ms=5_000)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [600.0])
def test_ten_minutes_of_anything(tmp_path: Path, figure: Figure, seconds: float) -> None:
    seed = time.time_ns() % 1_000_000
    figure(f"seed {seed}")

    def steps(scene: Scenario) -> Steps:
        return anything(scene.faults, scene.rng, seconds)

    chaos(tmp_path, figure, steps, seed=seed, rate=1500, ahead_ms=30_000)

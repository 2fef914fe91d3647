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
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from support.arrivals import KafkaArrivals
from support.broker import Broker
from support.chaosaccount import Account, account, table
from support.chaosfaults import Faults
from support.chaosload import ChaosLoad
from support.load import Promised
from support.peers import Peers, lab_of
from support.waiting import PATIENCE_S

NAMES = ("a", "b", "c")
TOPICS = 4
SMALL = (
    *("--segment-bytes", "1M", "--tail-age", "1500ms", "--tail-keep", "500ms"),
    *("--disk-reserve", "1M", "--peer-journal", "1M"),
)
"""So that spilling, cleaning and dropping segments happen all the time, and wiped peers need a
snapshot."""
DISK_BYTES = 256 << 20
LATE_S = 40.0
"""How long the last messages may take after they are due: the group gets back on its feet."""

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


class Chaos:
    """The group, its broker and its load, from start to end."""

    def __init__(
        self,
        path: Path,
        rng: Random,
        figure: Callable[[str], None],
        *,
        rate: float,
        ahead_ms: int,
    ) -> None:
        self.path = path
        self.figure = figure
        self.rng = rng
        self.rate = rate
        self.ahead_ms = ahead_ms

    def run(
        self, steps: Callable[[Faults], Iterator[Callable[[], None]] | list[Callable[[], None]]]
    ) -> None:
        """Errors: ``AssertionError`` for whatever does not hold."""
        topics = [f"target-{number}" for number in range(TOPICS)]
        lab = lab_of(NAMES)
        with lab, Broker(host=lab.host) as broker:
            for topic in topics:
                broker.create_topic(topic)
            sink = ("--sink", "confluent", "--bootstrap", broker.bootstrap)
            small = ("c", DISK_BYTES)
            with Peers(self.path, *SMALL, *sink, names=NAMES, small_disk=small, lab=lab) as peers:
                peers.wait_until_whole()
                arrived = KafkaArrivals(broker.bootstrap, topics)
                faults = Faults(peers, self.rng)
                load = ChaosLoad(
                    peers.addresses, topics, self.rng, rate=self.rate, ahead_ms=self.ahead_ms
                )
                peers.wait("delivering", lambda: len(arrived.look()) > 250, 30)
                faults.run(steps(faults))
                promised = load.stop()
                found = self._drain(promised, arrived, faults, peers)
                arrived.close()
                check(found, faults, lab.kind, self.figure)
                self._after(peers)

    def _drain(
        self, promised: Promised, arrived: KafkaArrivals, faults: Faults, peers: Peers
    ) -> Account:
        """Until all that must come has come, and a moment more for what must not."""
        arrived.wait_for(promised.wanted(), self.ahead_ms / 1000 + LATE_S)
        time.sleep(1.0)
        return account(promised, arrived.look(), faults.done, peers.turns())

    @staticmethod
    def _after(peers: Peers) -> None:
        """Cleaned everywhere, and the same everywhere."""
        peers.wait_until_whole()
        deadline = time.monotonic() + PATIENCE_S
        while left := {name: files for name in NAMES if (files := peers[name].slot_files())}:
            assert time.monotonic() < deadline, f"slot files are left: {left}\n{peers.log_ends()}"
            time.sleep(0.1)
        peers.stop()
        assert peers.disagreements() == []


def check(found: Account, faults: Faults, lab: str, figure: Callable[[str], None]) -> None:
    figure(f"peers in trouble ({lab}), {len(faults.done)} faults: {found.line()}")
    for line in table(faults.done):
        figure(line)
    assert found.violations() == {}
    assert found.cancelled > 0
    assert found.moved > 0


def test_each_fault_once(tmp_path: Path, figure: Callable[[str], None]) -> None:
    Chaos(tmp_path, Random(31), figure, rate=250, ahead_ms=5_000).run(rounds)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [600.0])
def test_ten_minutes_of_anything(
    tmp_path: Path, figure: Callable[[str], None], seconds: float
) -> None:
    seed = time.time_ns() % 1_000_000
    figure(f"seed {seed}")
    rng = Random(seed)
    chaos = Chaos(tmp_path, rng, figure, rate=1500, ahead_ms=30_000)
    chaos.run(lambda faults: anything(faults, rng, seconds))

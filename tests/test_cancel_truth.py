"""Whoever is told *cancelled* is never sent the message: real processes, whatever the clocks do.

A client cancels nearly all that another one sends, while nodes are killed with SIGKILL, their
clocks step, masters change, and the broker stands still. In the end every answer is held against
what arrived.

A million cancels: ``python -m pytest -m soak tests/test_cancel_truth.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from support.arrivals import Arrivals, EmbeddedArrivals, KafkaArrivals
from support.broker import Broker
from support.cancelload import AHEAD_MS, CancelLoad
from support.killing import SMALL
from support.nodeprocess import GIVES_UP_SOON, NodeProcess
from support.peers import Peers
from support.ports import free_address
from support.wallclock import WallClock

TOPICS = ["one", "two", "three"]
SOAK = 250_000
"""Cancels of each long run; there are four."""
Figure = Callable[[str], None]


def finish(load: CancelLoad, arrivals: Arrivals, figure: Figure, what: str) -> None:
    """Until all that must come has come, and a moment more for what must not."""
    load.stop()
    arrivals.wait_for(load.wanted(), AHEAD_MS / 1000 + 60)
    time.sleep(1.0)
    truth = load.truth(arrivals.look())
    figure(f"{what}: {truth.line()}")
    truth.check()


@pytest.mark.parametrize(
    ("asked", "step_ms"), [(6_000, 3_000), pytest.param(SOAK, 10_000, marks=pytest.mark.soak)]
)
def test_a_node_that_is_killed_and_wakes_up_in_the_past(
    tmp_path: Path, figure: Figure, asked: int, step_ms: int
) -> None:
    rng, rate = Random(asked), 4000 if asked >= SOAK else 2000
    clock = WallClock(tmp_path / "clock")
    node = NodeProcess(tmp_path / "data", "--listen", free_address(), *SMALL, **clock.variables)
    with node:
        load = CancelLoad(node.address, TOPICS, rng, rate)
        arrivals = EmbeddedArrivals([node.data], TOPICS)
        while load.asked < asked:
            time.sleep(rng.uniform(0.5, 2.5))
            if rng.random() < 0.4:
                clock.set(rng.randint(0, step_ms))
                continue
            node.kill()
            clock.set(clock.offset_ms - rng.randint(0, step_ms))
            node.start()
        clock.set(0)
        finish(load, arrivals, figure, f"killed, clock steps of {step_ms / 1000:g} s")
        arrivals.close()


@pytest.mark.parametrize(
    ("asked", "skew_ms"), [(4_000, 3_000), pytest.param(SOAK, 10_000, marks=pytest.mark.soak)]
)
def test_masters_whose_clocks_differ(
    tmp_path: Path, figure: Figure, asked: int, skew_ms: int
) -> None:
    rng, rate = Random(asked), 4000 if asked >= SOAK else 2000
    clocks = {
        name: WallClock(tmp_path / f"clock-{name}", offset_ms)
        for name, offset_ms in (("a", 0), ("b", -skew_ms), ("c", skew_ms // 2))
    }
    variables = {name: clock.variables for name, clock in clocks.items()}
    with Peers(tmp_path, *SMALL, variables=variables) as peers:
        peers.wait_until_whole()
        load = CancelLoad(peers.addresses, TOPICS, rng, rate)
        arrivals = EmbeddedArrivals([node.data for node in peers.nodes.values()], TOPICS)
        while load.asked < asked:
            time.sleep(rng.uniform(0.5, 2.5))
            master = peers.master()
            if rng.random() < 0.6:
                peers[master].kill()
                peers.master(other_than=master)
                peers[master].start()
            else:
                peers[master].pause()
                peers.master(other_than=master)
                peers[master].resume()
            if rng.random() < 0.3:
                rng.choice(list(clocks.values())).set(rng.randint(-skew_ms, skew_ms))
            peers.wait_until_whole()
        for clock in clocks.values():
            clock.set(0)
        finish(load, arrivals, figure, f"masters change, clocks {skew_ms / 1000:g} s apart")
        arrivals.close()


@pytest.mark.kafka
@pytest.mark.parametrize(
    "sink", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(
    ("asked", "pause_s", "step_ms"),
    [(6_000, 5.0, 3_000), pytest.param(SOAK, 16.0, 10_000, marks=pytest.mark.soak)],
)
def test_a_broker_that_stands_still(
    own_broker: Broker,
    tmp_path: Path,
    figure: Figure,
    sink: str,
    asked: int,
    pause_s: float,
    step_ms: int,
) -> None:
    broker = own_broker
    rng, rate = Random(asked), 4000 if asked >= SOAK else 2000
    topics = [broker.create_topic(f"cancels-{sink}-{asked}-{name}", 2) for name in TOPICS]
    clock = WallClock(tmp_path / "clock")
    options = ["--listen", free_address(), "--sink", sink, "--bootstrap", broker.bootstrap, *SMALL]
    options += GIVES_UP_SOON[sink]
    node = NodeProcess(tmp_path / "data", *options, **clock.variables)
    with node:
        load = CancelLoad(node.address, topics, rng, rate)
        while load.asked < asked:
            time.sleep(rng.uniform(0.5, 2.0))
            broker.pause()
            time.sleep(rng.uniform(0.5, 1.0) * pause_s)
            if rng.random() < 0.3:
                node.kill()
                clock.set(rng.randint(-step_ms, step_ms))
                node.start()
            broker.resume()
        clock.set(0)
        arrivals = KafkaArrivals(broker.bootstrap, topics)
        finish(load, arrivals, figure, f"{sink}, broker paused for up to {pause_s:g} s")
        arrivals.close()

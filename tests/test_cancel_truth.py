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

import pytest

from support.broker import Broker
from support.load import NEARLY_ALL
from support.nodeprocess import GIVES_UP_SOON
from support.peers import PEERS
from support.scenario import ALONE, Scenario
from support.wallclock import WallClock

TOPICS = ["one", "two", "three"]
SOAK = 250_000
"""Cancels of each long run; there are four."""
Figure = Callable[[str], None]


def clocks_of(path: Path, **offsets_ms: int) -> dict[str, WallClock]:
    """The clock of each node, by its name."""
    return {name: WallClock(path / f"clock-{name}", ms) for name, ms in offsets_ms.items()}


def check(
    scene: Scenario,
    clocks: dict[str, WallClock],
    asked: int,
    step: Callable[[], None],
    figure: Figure,
    what: str,
) -> None:
    """Do ``step`` until so much was asked for. Then every answer was true."""
    scene.send(rate=4000 if asked >= SOAK else 2000, ahead_ms=4_000, cancels=NEARLY_ALL)
    scene.until_asked(asked, step)
    for clock in clocks.values():
        clock.set(0)
    found = scene.finish()
    figure(f"{what}: {dict(scene.counts)}; {found.line()}")
    # By clocks that step nobody can say what is early, or what was sent again too long after.
    assert found.violations("early", "repeats without a fault") == {}
    # A node that says unknown to everything would pass as well.
    assert scene.counts["cancelled"] > scene.counts.total() / 100


@pytest.mark.parametrize(
    ("asked", "step_ms"), [(6_000, 3_000), pytest.param(SOAK, 10_000, marks=pytest.mark.soak)]
)
def test_a_node_that_is_killed_and_wakes_up_in_the_past(
    tmp_path: Path, figure: Figure, asked: int, step_ms: int
) -> None:
    clocks = clocks_of(tmp_path, node=0)
    clock = clocks[ALONE[0]]
    with Scenario(tmp_path, TOPICS, seed=asked, clocks=clocks) as scene:

        def step() -> None:
            if scene.rng.random() < 0.4:
                clock.set(scene.rng.randint(0, step_ms))
                return
            scene.node.kill()
            clock.set(clock.offset_ms - scene.rng.randint(0, step_ms))
            scene.node.start()

        check(scene, clocks, asked, step, figure, f"killed, clock steps of {step_ms / 1000:g} s")


@pytest.mark.parametrize(
    ("asked", "skew_ms"), [(4_000, 3_000), pytest.param(SOAK, 10_000, marks=pytest.mark.soak)]
)
def test_masters_whose_clocks_differ(
    tmp_path: Path, figure: Figure, asked: int, skew_ms: int
) -> None:
    clocks = clocks_of(tmp_path, a=0, b=-skew_ms, c=skew_ms // 2)
    with Scenario(tmp_path, TOPICS, seed=asked, names=PEERS, links=True, clocks=clocks) as scene:

        def step() -> None:
            rng = scene.rng
            scene.faults.fail_over(pause=rng.random() >= 0.6)
            if rng.random() < 0.3:
                rng.choice(list(clocks.values())).set(rng.randint(-skew_ms, skew_ms))
            scene.peers.wait_until_whole()

        what = f"masters change, clocks {skew_ms / 1000:g} s apart"
        check(scene, clocks, asked, step, figure, what)


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
    broker, clocks = own_broker, clocks_of(tmp_path, node=0)
    topics = [broker.create_topic(f"cancels-{sink}-{asked}-{name}", 2) for name in TOPICS]
    options = GIVES_UP_SOON[sink]
    with Scenario(
        tmp_path, topics, *options, seed=asked, broker=broker, sink=sink, clocks=clocks
    ) as scene:

        def step() -> None:
            broker.pause()
            time.sleep(scene.rng.uniform(0.5, 1.0) * pause_s)
            if scene.rng.random() < 0.3:
                scene.node.kill()
                clocks["node"].set(scene.rng.randint(-step_ms, step_ms))
                scene.node.start()
            broker.resume()

        what = f"{sink}, broker paused for up to {pause_s:g} s"
        check(scene, clocks, asked, step, figure, what)

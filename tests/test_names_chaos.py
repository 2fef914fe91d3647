"""Eight callers use the same names at once, in each of the three ways, while the node, or the
master of three, is killed or steps down. A model that reads only their answers says what must
arrive, and at no moment two messages of one name were pending.

Half a million operations: ``python -m pytest -m soak tests/test_names_chaos.py``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.broker import Broker
from support.namecallers import NameCallers
from support.peers import PEERS
from support.scenario import ALONE, Scenario

TOPIC = "t"
FEW, MANY = 1_000, 125_000
"""Operations of each run; there are four long ones."""
Figure = Callable[[str], None]


def check(
    scene: Scenario, topic: str, operations: int, step: Callable[[], None], figure: Figure
) -> None:
    """Do ``step`` again and again, twice at least, until so many operations have an answer."""
    many = operations >= MANY
    callers = NameCallers(
        scene.peers.addresses,
        topic,
        names=5_000 if many else 200,
        ahead_ms=20_000 if many else 3_000,
        rows=100 if many else 20,
        seed=operations,
    )
    steps = 0
    try:
        while callers.operations < operations or steps < 2:
            scene.repeat(1, step, (0.5, 2.0))
            steps += 1
    finally:
        promised = callers.stop()
    account = scene.finish(promised)
    figure(f"names, {steps} faults: {dict(callers.answers)}; {account.line()}")
    assert account.violations("repeats without a fault") == {}
    assert callers.false_answers(scene.arrivals.numbers) == []
    for what in ("stored", "replaced", "kept", "refused", "cancel: cancelled"):
        assert callers.answers[what], f"nobody was told {what}"


SIZES = [FEW, pytest.param(MANY, marks=pytest.mark.soak)]


@pytest.mark.parametrize("operations", SIZES)
@pytest.mark.parametrize("names", [ALONE, PEERS], ids=["alone", "peers"])
def test_names_while_masters_are_killed(
    tmp_path: Path, figure: Figure, names: Sequence[str], operations: int
) -> None:
    alone = names is ALONE
    with Scenario(tmp_path, [TOPIC], seed=operations, names=names, links=not alone) as scene:
        step = scene.faults.kill_alone if alone else scene.faults.fail_over
        check(scene, TOPIC, operations, step, figure)


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["at-least-once", "exactly-once"])
def test_names_with_kafka_while_the_node_is_killed(
    tmp_path: Path, figure: Figure, broker: Broker, topic: str, semantics: str
) -> None:
    with Scenario(tmp_path, [topic], seed=7, broker=broker, semantics=semantics) as scene:
        check(scene, topic, MANY, scene.faults.kill_alone, figure)

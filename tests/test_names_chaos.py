"""Eight callers use the same names at once, in each of the three ways, while the node, or the
master of three, is killed. A model that reads only their answers says what must arrive, and a
reader of the whole log that at no moment two messages of one name were pending.

Half a million operations: ``python -m pytest -m soak tests/test_names_chaos.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.broker import Broker
from support.namecallers import NameCallers
from support.namedlog import NamedLog
from support.peers import PEERS
from support.promises import account
from support.scenario import ALONE, Scenario
from support.waiting import PATIENCE_S, now_ms

TOPIC = "t"
FEW, MANY = 1_000, 125_000
"""Operations of each run; there are four long ones."""
KEEP_ALL = ("--retain", "1h")
Figure = Callable[[str], None]
ANSWERS = [
    *("stored", "replaced", "kept", "already delivered", "refused"),
    *("cancel: cancelled", "moved: cancelled"),
]


def check(scene: Scenario, topic: str, operations: int, figure: Figure) -> None:
    """Kill the node, or the master, again and again, twice at least, until so many operations have
    an answer."""
    many = operations >= MANY
    alone = len(scene.peers.names) == 1
    step = scene.faults.kill_alone if alone else scene.faults.fail_over
    callers = NameCallers(
        scene.peers.addresses,
        topic,
        names=5_000 if many else 200,
        ahead_ms=20_000 if many else 3_000,
        rows=100 if many else 20,
        seed=operations,
    )
    try:
        while callers.operations < operations or len(scene.faults.done) < 2:
            scene.repeat(1, step, (0.5, 2.0))
            scene.peers.wait_until_whole()
    finally:
        promised = callers.stop()
    last_s = max(0, int(promised.due.max()) - now_ms()) / 1000
    scene.arrivals.wait_for(callers.numbers_of(promised.wanted()), last_s + PATIENCE_S)
    time.sleep(1.0)  # for what must not come
    scene.check_agreement()
    arrivals = callers.numbered(scene.arrivals.look(), promised)
    found = account(promised, arrivals, scene.faults.done, scene.peers.turns())
    figure(f"names, {len(scene.faults.done)} faults: {dict(callers.answers)}; {found.line()}")
    strange = [callers.history(each.number) for each in found.strangers[:1]]
    assert found.violations("repeats without a fault") == {}, "\n".join(strange)
    arrived: dict[int, int] = {}
    for arrival in arrivals:
        arrived[arrival.offset] = min(arrival.at_ms, arrived.get(arrival.offset, arrival.at_ms))
    assert callers.false_answers(arrived) == []
    log = NamedLog.of(whole_log(scene))
    left = len(log.successions)
    figure(f"the log: {len(log.taken)} rows with names, {left} of them behind one that had left")
    assert [*log.violations(arrived, callers.answered_ms)] == []
    assert log.taken | log.cancelled >= {row.offset for row in callers.rows if row.offset >= 0}
    for what in ANSWERS:
        assert callers.answers[what], f"nobody was told {what}"


def whole_log(scene: Scenario) -> Path:
    """The directory of a peer that got no snapshot, and so has the log from its first entry on."""
    for node in scene.peers.nodes.values():
        names = [path.name for path in node.data.glob("archive/*/journal/*")]
        if min([*names, node.oldest_segment()]).startswith(f"{1:020}"):
            return node.data
    raise AssertionError("every peer got a snapshot")


SIZES = [FEW, pytest.param(MANY, marks=pytest.mark.soak)]


@pytest.mark.parametrize("operations", SIZES)
@pytest.mark.parametrize("names", [ALONE, PEERS], ids=["alone", "peers"])
def test_names_while_masters_are_killed(
    tmp_path: Path, figure: Figure, names: Sequence[str], operations: int
) -> None:
    with Scenario(tmp_path, [TOPIC], *KEEP_ALL, seed=operations, names=names) as scene:
        check(scene, TOPIC, operations, figure)


@pytest.mark.parametrize("operations", SIZES)
@pytest.mark.parametrize(
    ("names", "semantics"),
    [(ALONE, "exactly-once"), (PEERS, "at-least-once")],
    ids=["alone", "peers"],
)
def test_names_with_kafka_while_masters_are_killed(
    tmp_path: Path,
    figure: Figure,
    broker: Broker,
    topic: Callable[[str], str],
    names: Sequence[str],
    semantics: str,
    operations: int,
) -> None:
    named = topic("named")
    with Scenario(
        *(tmp_path, [named], *KEEP_ALL),
        seed=operations,
        names=names,
        broker=broker,
        semantics=semantics,
        dead_topic=topic("dead"),
    ) as scene:
        check(scene, named, operations, figure)

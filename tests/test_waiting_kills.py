"""Callers that wait for each message, by all ways, while the node, or the master of three, is
killed again and again. All are due at one moment behind the last kill; then each value that has an
id arrives once, under that id, and what had no answer at most once.

The whole run of 100 kills: ``python -m pytest -m soak tests/test_waiting_kills.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.callers import TOPIC, WAYS, Callers
from support.gatewayprocess import GatewayProcess
from support.peers import PEERS
from support.scenario import ALONE, Scenario
from support.waiting import now_ms
from support.wallclock import WallClock

KILL_EVERY_S = 1.2


@pytest.mark.parametrize(
    ("names", "kills"),
    [
        pytest.param(names, kills, marks=marks, id=f"{kills} kills of {len(names)}")
        for names, some in ((ALONE, 4), (PEERS, 2))
        for kills, marks in ((some, ()), (50, pytest.mark.soak))
    ],
)
def test_masters_are_killed_under_callers_that_wait(
    tmp_path: Path, figure: Callable[[str], None], names: Sequence[str], kills: int
) -> None:
    alone = names is ALONE
    due_ms = now_ms() + 60_000 + kills * 12_000
    clocks = {name: WallClock(tmp_path / f"clock-{name}") for name in names}
    with Scenario(
        tmp_path, [TOPIC], seed=kills, names=names, links=not alone, clocks=clocks
    ) as scene:
        peers = scene.peers
        node = peers[peers.master()]
        others = () if alone else ("--node", peers.addresses)
        with GatewayProcess(node, *others, beside=False) as gateway:
            ways = (*WAYS, "http")
            addresses = peers.addresses.split(",")
            callers = Callers(addresses, lambda: due_ms, gateways=[gateway.url], ways=ways)
            try:
                step = scene.faults.kill_alone if alone else scene.faults.fail_over
                scene.repeat(kills, step, (0.1, KILL_EVERY_S) if alone else (0.5, 2.4))
                time.sleep(1.0 if alone else 2.0)
            finally:
                promised = callers.stop()
            assert now_ms() < due_ms
            # Nobody waits for the moment: the nodes' machines sleep until then.
            for clock in clocks.values():
                clock.sleep(due_ms - now_ms())
            found = scene.finish(promised)
        figure(f"{kills} kills of {len(names)}: {len(callers.open)} open, {found.line()}")
        assert found.violations() == {}
        assert not callers.refused
        accepted = peers[peers.master()].status()["accepted"]
        assert len(callers.ids) <= accepted <= len(callers.ids) + len(callers.open)
        scene.check_agreement()

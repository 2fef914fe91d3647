"""SIGKILL under callers that wait: an id is a promise, and a repeat has the first time's answer.

Real processes. Callers of all ways send single messages while the node, or the master of three, is
killed again and again. All are due at one moment behind the last kill; then each value that has an
id arrives once, under that id, and what had no answer at most once.

The whole run of 100 kills: ``python -m pytest -m soak tests/test_waiting_kills.py``
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from slotwheel.wheel.ids import MessageId
from support.arrivals import EmbeddedArrivals
from support.gatewayprocess import GatewayProcess
from support.killing import SMALL
from support.nodeprocess import NodeProcess
from support.peers import Peers
from support.ports import free_address
from support.waiters import TOPIC, Waiters
from support.waiting import now_ms

Figure = Callable[[str], None]
KILL_EVERY_S = 1.2


def check(
    callers: Waiters, arrived: EmbeddedArrivals, due_ms: int, figure: Figure, what: str
) -> None:
    """What arrived is what was promised."""
    arrived.wait_for(set(callers.ids), max(0, due_ms - now_ms()) / 1000 + 60)
    time.sleep(1.0)
    found = arrived.look()
    offsets: dict[int, set[int]] = {}
    for one in found:
        offsets.setdefault(one.number, set()).add(one.offset)
    twice = [value for value, all_of_it in offsets.items() if len(all_of_it) > 1]
    lost = [value for value in callers.ids if value not in offsets]
    others = [value for value in offsets if value not in callers.ids and value not in callers.open]
    wrong = [v for v, own in callers.ids.items() if MessageId.parse(own).offset not in offsets[v]]
    figure(
        f"{what}: {len(callers.ids)} ids, {len(callers.open)} without an answer,"
        f" {len(lost)} lost, {len(twice)} stored twice, {len(wrong)} under another id"
    )
    assert (lost, twice, others, wrong) == ([], [], [], [])
    assert not callers.refused
    assert max(Counter(callers.ids.values()).values()) == 1


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_a_node_is_killed_under_callers_that_wait(
    tmp_path: Path, kills: int, figure: Figure
) -> None:
    rng = Random(kills)
    address = free_address()
    due_ms = now_ms() + 10_000 + int(2 * kills * KILL_EVERY_S * 1000)
    with (
        NodeProcess(tmp_path / "data", "--listen", address, *SMALL) as node,
        GatewayProcess(node, beside=False) as gateway,
    ):
        callers = Waiters(address, lambda: due_ms, gateway=gateway.url)
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.1, KILL_EVERY_S))
                node.kill()
                node.start()
            time.sleep(1.0)
        finally:
            callers.stop()
        assert now_ms() < due_ms
        with EmbeddedArrivals([node.data], [TOPIC]) as arrived:
            check(callers, arrived, due_ms, figure, f"{kills} kills of a node")


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_masters_are_killed_under_callers_that_wait(
    tmp_path: Path, kills: int, figure: Figure
) -> None:
    rng = Random(kills)
    due_ms = now_ms() + 20_000 + kills * 6_000
    with Peers(tmp_path, *SMALL) as peers, ExitStack() as stack:
        nodes = [peers.lab.address(name) for name in peers.names]
        all_of_them = "--node", ",".join(nodes)
        master = peers[peers.master()]
        gateway = stack.enter_context(GatewayProcess(master, *all_of_them, beside=False))
        callers = Waiters(nodes, lambda: due_ms, gateway=gateway.url)
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.5, 2 * KILL_EVERY_S))
                name = peers.master()
                peers[name].kill()
                peers.master(other_than=name)
                peers[name].start()
            time.sleep(2.0)
        finally:
            callers.stop()
        assert now_ms() < due_ms
        with EmbeddedArrivals([peers[name].data for name in peers.names], [TOPIC]) as arrived:
            check(callers, arrived, due_ms, figure, f"{kills} kills of masters")

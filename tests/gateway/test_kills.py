"""Gateways, nodes and masters are killed under load; callers repeat until they have an answer.

Three peers, each with a gateway. Nothing that was answered 2xx is lost, nothing is stored twice,
nothing is stored that was answered 4xx, and a request that comes again after all kills has the ids
of the first time.

40 kills: ``python -m pytest -m soak tests/gateway/test_kills.py``
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from slotwheel.reading.search.pending import PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.wheel.ids import MessageId
from support.callers import TOPIC, Callers
from support.peers import PEERS
from support.ports import free_port
from support.promises import Arrival, account
from support.scenario import Scenario
from support.waiting import eventually, now_ms

HOST = "127.0.0.1"
CALLERS = 12
AHEAD_MS = 3_600_000


def pending(data: Path) -> Iterator[Arrival]:
    """Each message that is stored, as it would arrive at its due time."""
    with PendingReader(data) as reader:
        after = None
        while True:
            page = reader.page(Query(), after, limit=5_000)
            assert page.complete
            for value, text in zip(page.rows.column("value").to_pylist(), page.ids, strict=True):
                id_ = MessageId.parse(text)
                yield Arrival(int(value), id_.due, id_.offset, id_.due, TOPIC)
            after = page.next
            if after is None:
                return


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_stored_once_under_the_ids_that_were_answered(
    tmp_path: Path, kills: int, figure: Callable[[str], None]
) -> None:
    gateways = {name: f"{HOST}:{free_port()}" for name in PEERS}
    own = {name: ("--http", address) for name, address in gateways.items()}
    with Scenario(tmp_path, [TOPIC], seed=kills, names=PEERS, own=own) as scene:
        peers, rng, faults = scene.peers, scene.rng, scene.faults

        def kill_gateway() -> None:
            node = peers[rng.choice(PEERS)]
            for child in psutil.Process(node.running.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

        callers = Callers(
            peers.addresses,
            lambda: now_ms() + AHEAD_MS,
            gateways=[f"http://{address}" for address in gateways.values()],
            ways=["keyed"],
            each=CALLERS,
            seed=kills,
        )
        kinds = [kill_gateway, faults.kill_master, faults.kill_any]
        kinds = kinds if kills < 10 else [rng.choice(kinds) for _ in range(kills)]
        try:
            eventually(lambda: len(callers.ids) > 50, otherwise=peers.log_ends)
            for kind in kinds:
                scene.repeat(1, kind, (0.2, 0.8))
                peers.wait_until_whole()
        finally:
            promised = callers.stop()
        master = peers.wait_until_whole()
        stored = list(pending(peers[master].data))
        accepted = peers[master].status()["accepted"]
        scene.check_agreement()
    found = account(promised, stored, [])
    figure(f"{kills} kills, {found.line()}; answers {dict(callers.answers)}")
    assert not callers.problems
    assert found.violations() == {}
    assert found.repeated == 0
    assert accepted == len(stored) == len(callers.ids)
    assert callers.refused

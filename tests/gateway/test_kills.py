"""Gateways, nodes and masters are killed under load; callers repeat until they have an answer.

Three peers, each with a gateway. Nothing that was answered 2xx is lost, nothing is stored twice,
nothing is stored that was answered 4xx.

40 kills: ``python -m pytest -m soak tests/gateway/test_kills.py``
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import pytest

from slotwheel.search.pending import PendingReader
from slotwheel.search.query import Query
from support.keyedcallers import KeyedCallers
from support.peers import Peers
from support.ports import free_port
from support.proxylab import Loopback
from support.waiting import eventually

NAMES = ("a", "b", "c")
HOST = "127.0.0.1"
CALLERS = 12
SMALL = ("--segment-bytes", "1M", "--tail-age", "1500ms", "--tail-keep", "500ms")


class Group:
    """Three peers with gateways."""

    def __init__(self, path: Path, rng: Random) -> None:
        self.ports = {name: free_port() for name in NAMES}
        own = {name: ("--http", f"{HOST}:{port}") for name, port in self.ports.items()}
        self.peers = Peers(path, *SMALL, names=NAMES, lab=Loopback(NAMES), own=own)
        self.done: Counter[str] = Counter()
        self._rng = rng

    def kill_gateway(self) -> None:
        node = self.peers[self._rng.choice(NAMES)]
        for child in psutil.Process(node.running.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def kill_node(self) -> None:
        self._kill(self._rng.choice(NAMES))

    def kill_master(self) -> None:
        self._kill(self.peers.master())

    def _kill(self, name: str) -> None:
        self.peers[name].kill()
        time.sleep(self._rng.uniform(0.2, 0.8))
        self.peers[name].start()
        self.peers.wait_until_whole()

    def trouble(self, kills: int) -> None:
        kinds: list[Callable[[], None]] = [self.kill_gateway, self.kill_master, self.kill_node]
        for number in range(kills):
            time.sleep(self._rng.uniform(0.2, 0.8))
            kind = kinds[number % 3] if kills < 10 else self._rng.choice(kinds)
            kind()
            self.done[kind.__name__.replace("_", " ")] += 1


def pending(data: Path) -> Iterator[tuple[str, str]]:
    """Value and id of each pending message."""
    with PendingReader(data) as reader:
        after = None
        while True:
            page = reader.page(Query(), after, limit=5_000)
            assert page.complete
            values = page.rows.column("value").to_pylist()
            yield from zip((value.decode() for value in values), page.ids, strict=True)
            after = page.next
            if after is None:
                return


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.soak)])
def test_stored_once_under_the_ids_that_were_answered(
    tmp_path: Path, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = Random(kills)
    group = Group(tmp_path, rng)
    with group.peers as peers:
        peers.wait_until_whole()
        callers = KeyedCallers([(HOST, port) for port in group.ports.values()], CALLERS, kills)
        try:
            eventually(lambda: callers.count > 50, otherwise=peers.log_ends)
            group.trouble(kills)
        finally:
            told = callers.stop()
        master = peers.wait_until_whole()
        found = list(pending(peers[master].data))
        accepted = peers[master].status()["accepted"]
        peers.stop()
        assert peers.disagreements() == []
    stored = dict(found)
    with capsys.disabled():
        done = ", ".join(f"{count} x {what}" for what, count in group.done.items())
        print(f"\n{done}: {len(told.stored)} stored; answers {dict(told.answers)}", end=" ")
    assert not told.problems
    assert told.stored.items() - stored.items() == set(), "lost, or under another id"
    assert len(found) == len(stored), "stored twice"
    assert not stored.keys() & told.refused, "stored, though it was answered 4xx"
    assert stored.keys() == told.stored.keys(), "stored, and nobody was told so"
    assert accepted == len(stored)
    assert told.refused

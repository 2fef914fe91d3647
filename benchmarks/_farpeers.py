"""How long a group of three cannot be written to when its master is killed, by what is pending."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.client import Client
from slotwheel.wheel.errors import SlotwheelError

from ._load import Clients, Load
from ._peers import BenchPeers
from .harness import Report

_DAY_MS = 86_400_000
_KILLS = 3
_LONGEST_S = 30.0


def failover(report: Report, directory: Path, chosen: Any) -> None:
    """From the kill of the master until a message is stored, three times, with ``--peer-rows`` far
    messages and without any."""
    medians = {}
    for name, rows in (("without far messages", 0), ("with far messages", chosen.peer_rows)):
        waits = []
        place = directory / str(rows)
        place.mkdir()
        with BenchPeers(place, "--horizon", "365d") as peers:
            if rows:
                span_ms = 364 * _DAY_MS
                clients = Clients(Load(peers.address, total=rows // 2, span_ms=span_ms), 2)
                clients.go()
                clients.results(600)
            for _ in range(1 if chosen.quick else _KILLS):
                waits.append(_kill_master(peers))
        medians[name] = float(np.median(waits))
        text = f"{medians[name]:.2f} ({min(waits):.2f} to {max(waits):.2f})"
        report.figure(f"failover {name}, s", medians[name], text)
    more = medians["with far messages"] - medians["without far messages"]
    report.figure("failover takes longer by, s", more, f"{more:+.2f}", "<= 0.5")


def _kill_master(peers: BenchPeers) -> float:
    peers.wait_until_whole()
    name = peers.master
    node = peers.nodes[name]
    node.kill()
    killed = time.perf_counter()
    while True:
        try:
            with Client(peers.address, timeout_s=1) as client:
                client.store("orders", b"x", delay=3600)
            break
        except SlotwheelError:
            if time.perf_counter() - killed > _LONGEST_S:
                raise
    took_s = time.perf_counter() - killed
    node.__enter__()
    return took_s

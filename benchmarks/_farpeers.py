"""How long a group of three cannot be written to when its master is killed, by what is pending."""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.client import Client
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.segment import STORE_ID_BYTES, SegmentHeader
from slotwheel.wheel.journal.writer import SegmentWriter
from slotwheel.wheel.state import LmdbState, StateUpdate

from ._farstore import Wave, batches, spill
from ._peers import BenchPeers
from .harness import Report, with_tests_support

_DAY_MS = 86_400_000
_SPAN_MS = 364 * _DAY_MS
_KILLS = 3
_LONGEST_S = 30.0
_NAMES = ("a", "b", "c")


def failover(report: Report, directory: Path, chosen: Any) -> None:
    """From the kill of the master until a message is stored, three times, with ``--peer-rows`` far
    messages and without any."""
    medians = {}
    for name, rows in (("without far messages", 0), ("with far messages", chosen.peer_rows)):
        waits = []
        place = directory / str(rows)
        place.mkdir()
        if rows:
            now_ms = time.time_ns() // 1_000_000
            _stores(place, now_ms, Wave(rows, now_ms, _SPAN_MS, ["orders"], chosen.value_bytes))
        with BenchPeers(place, "--horizon", "365d") as peers:
            for _ in range(1 if chosen.quick else _KILLS):
                waits.append(_kill_master(peers))
            if rows:
                peers.wait_until_whole()
                with Client(peers.address, timeout_s=30) as client:
                    pending = client.status()["pending"]
                report.figure("far messages behind these", pending, f"{pending:,}")
        medians[name] = float(np.median(waits))
        text = f"{medians[name]:.2f} ({min(waits):.2f} to {max(waits):.2f})"
        report.figure(f"failover {name}, s", medians[name], text)
    more = medians["with far messages"] - medians["without far messages"]
    report.figure("failover takes longer by, s", more, f"{more:+.2f}", "<= 0.5")


def _stores(place: Path, now_ms: int, wave: Wave) -> None:
    """Directories of three peers whose slot files have the messages of ``wave``: written for one
    peer, and copied for the others with stores and journals of their own."""
    with_tests_support()
    from support.handpeer import Peer

    config = WheelConfig(far_horizon_ms=_SPAN_MS + _DAY_MS, disk_reserve_bytes=0)
    first, *others = _NAMES
    with closing(Peer(place, first, config, now_ms)) as peer:
        stores = {name: secrets.token_bytes(STORE_ID_BYTES) for name in others}
        peer.lead(1, {first: peer.wheel.store_id, **stores})
        for batch in batches([wave]):
            peer.wheel.append(batch, now_ms)
            peer.commit()
            if peer.wheel.spill_needed(now_ms):
                spill(peer.wheel, now_ms)
        spill(peer.wheel, now_ms)
    for name in others:
        shutil.copytree(place / first, place / name, ignore=shutil.ignore_patterns("*.journal"))
        with closing(LmdbState(place / name)) as state, closing(OsFiles(place / name)) as files:
            state.commit(StateUpdate(store_id=stores[name], vote=""))
            checkpoint = state.load().checkpoint
            header = SegmentHeader(checkpoint.index + 1, checkpoint.epoch, stores[name])
            SegmentWriter.create(files, header).close()


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

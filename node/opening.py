"""Opens the data directory of a node, and logs the findings of recovery.

A damaged directory stops a node without peers. Among peers it is set aside, and the node begins
with an empty one: the messages come from the other peers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..wheel.errors import Damaged
from ..wheel.files import Files
from ..wheel.state import LmdbState
from ..wheel.switch import set_aside
from ..wheel.wheel import Wheel
from .clock import NodeClock
from .config import NodeConfig
from .logs import event
from .metrics import Metrics

log = logging.getLogger("slotwheel.node")


def open_wheel(
    config: NodeConfig, files: Files, clock: Callable[[], int], metrics: Metrics
) -> Wheel:
    """Open the wheel of a node. Errors: ``Damaged`` (without peers), ``UnsupportedVersion``,
    ``InvalidConfiguration``, ``OSError``."""
    started = time.perf_counter()
    try:
        wheel = _open(config, files, clock)
    except Damaged as error:
        if not config.peers:
            raise
        aside = set_aside(files)
        event(
            log,
            logging.CRITICAL,
            f"{error.message}. The data directory's content is set aside; this node begins with an"
            " empty store and copies from its peers",
            aside=aside,
        )
        wheel = _open(config, files, clock)
    seconds = time.perf_counter() - started
    metrics.recovery.set(seconds)
    _log_recovery(wheel, seconds, clock())
    return wheel


def _open(config: NodeConfig, files: Files, clock: Callable[[], int]) -> Wheel:
    kind = Wheel
    if config.peers:
        from ..wheel.peers.peer import PeerWheel

        kind = PeerWheel
    state = LmdbState(config.data)
    try:
        if isinstance(clock, NodeClock):
            clock.begin(state, state.load(whole=False).clock)
        wheel = kind.open(files, state, config.wheel, clock(), node_id=config.node_id)
        if isinstance(clock, NodeClock):
            clock.follow(lambda: wheel.mark_ms)
            wheel.doubts = clock.doubts
        return wheel
    except BaseException:
        state.close()
        raise


def _log_recovery(wheel: Wheel, seconds: float, now_ms: int) -> None:
    report, status = wheel.recovery, wheel.status()
    event(
        log,
        logging.INFO,
        "recovered",
        seconds=round(seconds, 3),
        epoch=status.epoch,
        pending=status.pending,
        journal_entries=report.entries,
        torn_bytes=report.torn_bytes,
        mended=len(wheel.mended),
    )
    for line in wheel.mended:
        event(log, logging.DEBUG, "mended", file=line)
    if report.torn_path is not None:
        event(
            log,
            logging.WARNING,
            "cut a torn end of the journal: it was never acknowledged",
            path=report.torn_path,
            position=report.torn_position,
            bytes=report.torn_bytes,
        )
    away_ms, long_ms = now_ms - status.mark_c, wheel.config.short_horizon_ms
    if status.pending and status.mark_c > 0 and away_ms > long_ms:
        event(
            log,
            logging.WARNING,
            "down for long: what was due meanwhile leaves now",
            seconds=away_ms // 1000,
            long_s=long_ms // 1000,
        )

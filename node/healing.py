"""Damaged slot files of a peer, made anew from the rows of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Set

from ..replication.driver import Driver
from ..wheel.errors import Damaged, DamagedThere, SlotwheelError
from ..wheel.peers.heal import SlotRows
from ..wheel.peers.peer import PeerWheel
from ..wheel.slots.slot import path_of
from ..wheel.state import SlotInfo
from .logs import event

log = logging.getLogger("slotwheel.node")

AGAIN_S = 5.0
"""A slot that no peer has sound now is tried again after this time, s."""


class Healing:
    """Asks the peers ``others`` in turn, until one has all rows of the slot. Rows that a repair
    gave up on one peer are lost only when each of the others has answered: a peer that is away for
    a minute may have them."""

    def __init__(self, wheel: PeerWheel, driver: Driver, others: Iterable[str]) -> None:
        self._wheel = wheel
        self._driver = driver
        self._others = tuple(others)
        self._not_before: dict[int, float] = {}

    def turn(self, reported: Set[str]) -> None:
        """Try to repair one damaged slot whose path is in ``reported``: the first in due order that
        is not waiting for its next try.

        Errors: ``OSError``, ``SyncFailed``.
        """
        now, damaged = time.monotonic(), self._wheel.damaged_slots()
        waiting = {second: at for second, at in self._not_before.items() if second in damaged}
        self._not_before = waiting
        for second, (upto, info) in damaged.items():
            if path_of(second) in reported and waiting.get(second, now) <= now:
                if not self._heal(second, upto, info):
                    waiting[second] = now + AGAIN_S
                return

    def _heal(self, second: int, upto: int, info: SlotInfo) -> bool:
        incomplete: dict[str, SlotRows] = {}
        silent = False
        for peer in self._others:
            try:
                rows = self._driver.fetch_slot(peer, second, upto)
            except SlotwheelError as error:
                silent = silent or not isinstance(error, DamagedThere)
                _log_failure(peer, second, error)
                continue
            if rows.losses:
                incomplete[peer] = rows
            elif self._mend(peer, rows, upto, info):
                return True
        if silent:
            return False
        return any(self._mend(peer, rows, upto, info) for peer, rows in incomplete.items())

    def _mend(self, peer: str, rows: SlotRows, upto: int, info: SlotInfo) -> bool:
        try:
            done = self._wheel.heal(rows, upto, info)
        except Damaged as error:
            _log_failure(peer, rows.second, error)
            return False
        if done:
            event(log, logging.INFO, "slot file mended", second=rows.second, rows_of=peer)
        return done


def _log_failure(peer: str, second: int, error: SlotwheelError) -> None:
    event(log, logging.WARNING, "no sound slot", second=second, peer=peer, error=str(error))

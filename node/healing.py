"""Damaged slot files of a peer, made anew from what the others have."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Set

from ..replication.driver import Driver
from ..wheel.errors import SlotwheelError, SyncFailed
from ..wheel.peer import PeerWheel
from ..wheel.slotfile import path_of
from .logs import event

log = logging.getLogger("slotwheel.node")

AGAIN_S = 5.0
"""How long a slot waits that no peer has sound now."""


class Healing:
    """Asks the ``others`` one after the other, until one has all rows of the slot."""

    def __init__(self, wheel: PeerWheel, driver: Driver, others: Iterable[str]) -> None:
        self._wheel = wheel
        self._driver = driver
        self._others = tuple(others)
        self._not_before: dict[int, float] = {}

    def turn(self, told: Set[str]) -> None:
        """Try one damaged slot of those whose paths are in ``told``, the first in due order that
        does not wait.

        Errors: ``OSError``, ``SyncFailed``.
        """
        now, damaged = time.monotonic(), self._wheel.damaged_slots()
        waiting = {second: at for second, at in self._not_before.items() if second in damaged}
        self._not_before = waiting
        for second, upto in damaged.items():
            if path_of(second) in told and waiting.get(second, now) <= now:
                if not self._heal(second, upto):
                    waiting[second] = now + AGAIN_S
                return

    def _heal(self, second: int, upto: int) -> bool:
        for peer in self._others:
            try:
                rows = self._driver.fetch_slot(peer, second, upto)
                if self._wheel.heal(rows, upto):
                    event(log, logging.INFO, "slot file mended", second=second, rows_of=peer)
                return True  # or it has grown meanwhile: it is asked for anew
            except SyncFailed:
                raise
            except SlotwheelError as error:
                text = str(error)
                event(log, logging.WARNING, "no sound slot", second=second, peer=peer, error=text)
        return False

"""Damaged slot files of a peer, made anew from what the others have; for a loop."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..replication.driver import Driver
from ..wheel.errors import SlotwheelError, SyncFailed
from ..wheel.peer import PeerWheel
from .logs import event

log = logging.getLogger("slotwheel.node")

LOOK_EVERY_S = 0.25
AGAIN_S = 5.0


class Healing:
    """Asks the ``others`` one after the other, until one has all rows of the slot."""

    def __init__(self, wheel: PeerWheel, driver: Driver, others: Iterable[str]) -> None:
        self._wheel = wheel
        self._driver = driver
        self._others = tuple(others)

    def turn(self) -> float:
        """Errors: ``OSError``, ``SyncFailed``."""
        damaged = self._wheel.damaged_slots()
        healed = [self._heal(second, upto) for second, upto in damaged.items()]
        return LOOK_EVERY_S if all(healed) else AGAIN_S

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

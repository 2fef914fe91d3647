"""Refused newcomers in the log: each reason once in a while, however often it comes.

A stranger that connects again and again would else fill the log, and hide what others are refused
for. The count of those that were not logged stands in the next line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...wheel.errors import SlotwheelError
from .ports import IntakeEvents

EVERY_S = 30.0
"""A reason is logged again after so long, s."""
REASONS_MAX = 64
"""So many reasons are told apart; a stranger may have part in their texts."""


class Refusals:
    """Call it with the host of a newcomer and the reason for which it was refused. ``name``: of the
    event. Thread-safe."""

    def __init__(
        self, name: str, events: IntakeEvents, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._events = events
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[str, float] = {}
        self._unlogged = 0

    def __call__(self, host: str, error: SlotwheelError) -> None:
        now = self._clock()
        reason = error.message
        with self._lock:
            self._logged = {text: at for text, at in self._logged.items() if now - at < EVERY_S}
            if reason in self._logged or len(self._logged) >= REASONS_MAX:
                self._unlogged += 1
                return
            self._logged[reason] = now
            unlogged, self._unlogged = self._unlogged, 0
        self._events.event(self._name, host=host, error=str(error), others_before=unlogged)

"""Sends batches to a target from a thread of its own.

Rules
- A batch is sent until the target has it. If only its answer was lost it is there twice, which
  readers see by its sender and number.
- At ``close`` batches may leave until a time limit, and are dropped then: else a program could not
  end while its brokers are away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..wheel.backoff import Backoff

_log = logging.getLogger("slotwheel.trace")

_BACKOFF_S, _BACKOFF_MAX_S = 0.1, 2.0


class TraceTarget(Protocol):
    """A place for batches, such as a topic. Belongs to one thread."""

    def send(self, value: bytes) -> None:
        """Send a batch, and wait until it is stored. After any error it is sent again."""

    def close(self) -> None: ...


class BatchSender:
    """Calls ``work(False)`` from its thread every ``every_s`` and at each ``wake``, and
    ``work(True)`` at ``close``. ``work`` calls ``stored`` with each batch."""

    def __init__(
        self, target: TraceTarget, work: Callable[[bool], None], *, every_s: float, name: str
    ) -> None:
        self._target, self._work, self._every_s = target, work, every_s
        self._lock = threading.Lock()
        self._closing, self._woken = threading.Event(), threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Call ``work`` a last time; it has ``timeout_s``. May be called again."""
        with self._lock:
            if not self._closing.is_set():
                self._deadline = time.monotonic() + timeout_s
                self._closing.set()
                self._woken.set()
        self._thread.join(timeout_s + 1.0)

    def wake(self) -> None:
        """Call ``work`` now. Never waits."""
        self._woken.set()

    def stored(self, value: bytes) -> bool:
        """Send a batch until the target has it; false if it is dropped. For ``work`` alone."""
        backoff = Backoff(_BACKOFF_S, _BACKOFF_MAX_S)
        while not (self._closing.is_set() and time.monotonic() > self._deadline):
            try:
                self._target.send(value)
            except Exception as error:
                pause_s = backoff.failed()
                _log.warning("slotwheel trace: not sent, next try in %.1f s: %s", pause_s, error)
                if self._closing.wait(pause_s):
                    time.sleep(min(pause_s, 0.05))
            else:
                return True
        return False

    def _run(self) -> None:
        closing = False
        while not closing:
            self._woken.wait(self._every_s)
            self._woken.clear()
            closing = self._closing.is_set()
            self._work(closing)
        self._target.close()

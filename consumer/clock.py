"""The clock of the node, by which messages are delivered, as far as a consumer knows it.

Theory: when a message expires is a time of the node's clock, or of a producer's beside it. This
machine's clock may be a minute ahead, and then nothing that lives for half a minute is ever seen.
So the node is asked what time it is, when that is first needed and every ``FRESH_S`` after that;
between the answers time is counted by the monotonic clock, which nobody sets.

Rules: nobody waits for a node that is away, but for ``WAIT_S`` the first time. Until there is an
answer, ``known_ms`` is None and ``now_ms`` is this machine's clock.
"""

from __future__ import annotations

import threading
import time

from ..client import Client
from ..client.message import clock_ms
from ..wheel.errors import SlotwheelError

FRESH_S = 10.0
WAIT_S = 1.0


class RemoteClock:
    """``client``: of a node or a group. None: there is no node to ask. Thread-safe."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._ahead_ms: float | None = None
        """Of the node's clock, before the monotonic one."""
        self._answered = threading.Event()

    def known_ms(self) -> int | None:
        """The node's clock, ms since the epoch; None: not known."""
        if self._client is None:
            return None
        with self._lock:
            asks = time.monotonic() - self._asked_s > FRESH_S
            if asks:
                self._asked_s = time.monotonic()
        if asks:
            threading.Thread(target=self._ask, name="slotwheel-clock", daemon=True).start()
            if self._ahead_ms is None:
                self._answered.wait(WAIT_S)
        ahead_ms = self._ahead_ms
        return None if ahead_ms is None else int(time.monotonic() * 1000 + ahead_ms)

    def now_ms(self) -> int:
        """The node's clock, or, if it is not known, this machine's."""
        known_ms = self.known_ms()
        return clock_ms() if known_ms is None else known_ms

    def _ask(self) -> None:
        assert self._client is not None
        try:
            began_s = time.monotonic()
            node_ms = self._client.clock_of_master(WAIT_S)
            self._ahead_ms = node_ms - (began_s + time.monotonic()) * 500
        except SlotwheelError:  # it is away, or only to be had over HTTP
            pass
        finally:
            self._answered.set()

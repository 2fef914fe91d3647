"""The clock of the node, by which messages are delivered, as far as a consumer knows it.

Theory: a message expires by the node's clock, or by a producer's beside it. This machine's clock
may be a minute ahead, and then no message that lives for half a minute would ever be seen. So the
node is asked for its time, when that is first needed and then every ``FRESH_S``; between the
answers time is counted by the monotonic clock, which nobody sets.

Rules: nobody waits for a node that is away, except for ``WAIT_S`` the first time. Until there is an
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
    """The clock of the node that ``client`` reaches; None: there is no node to ask. Thread-safe."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._ahead_ms: float | None = None
        """The node's clock less the monotonic one, ms."""
        self._answered = threading.Event()

    def known_ms(self) -> int | None:
        """The node's time, ms since the epoch; None: not known."""
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
        """The node's time, ms since the epoch; this machine's, if that is not known."""
        known_ms = self.known_ms()
        return clock_ms() if known_ms is None else known_ms

    def _ask(self) -> None:
        assert self._client is not None
        try:
            began_s = time.monotonic()
            node_ms = int(self._client.hello(WAIT_S)["now_ms"])
            self._ahead_ms = node_ms - (began_s + time.monotonic()) * 500
        except SlotwheelError:  # the node is away, or is reached over HTTP only
            pass
        finally:
            self._answered.set()

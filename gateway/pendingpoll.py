"""How much is pending, as the node counts it, for the quotas of a gateway's callers.

A node sees the rows of all callers of a gateway as the gateway's, so it holds none of them against
a quota of what is pending, and the gateway does. It counts nothing itself: once a second, and only
if its security file limits what is pending, it asks the node for its counts, and adds what its own
callers send until it has asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..security.pending import PendingLedger
from ..wheel.errors import SlotwheelError

log = logging.getLogger("slotwheel.gateway")
EVERY_S = 1.0


class PendingPoll:
    """Asks in a thread of its own until ``close``. ``status``: of the master. Counts of prefixes
    that the node's security file does not have stay as they were."""

    def __init__(self, ledger: PendingLedger, status: Callable[[], dict[str, Any]]) -> None:
        self._ledger = ledger
        self._status = status
        self._end = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="pending-poll", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            if self._ledger.patterns:
                self.poll()

    def poll(self) -> None:
        """Ask once. What was offered before counts as seen: it is at the node, or on its way."""
        patterns, began_s = self._ledger.patterns, time.monotonic()
        try:
            counts = self._status().get("pending_by_prefix", {"prefixes": ()})
            known = {row["prefix"]: (row["rows"], row["bytes"]) for row in counts["prefixes"]}
        except SlotwheelError as error:
            if not self._failing:
                log.warning("how much is pending is not known: %s", error)
            self._failing = True
            return
        self._failing = False
        missing = [pattern for pattern in patterns if pattern not in known]
        if missing:
            log.warning("the node does not count what is pending for %s", ", ".join(missing))
        amounts = [known.get(pattern, (0, 0)) for pattern in patterns]
        self._ledger.counted(patterns, amounts, began_s)

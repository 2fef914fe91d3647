"""Whether what a node was told to do is being done.

Theory: a thread that fails goes on, and tries again; so a node whose spills fail takes messages
until its memory is full, and looks well. Each duty reports its failures here, and a node of which
one fails is not ready.
"""

from __future__ import annotations

import time

STEADY_S = 3.0
"""A duty that failed is done again once it has gone well for so long, s: a process that is started
again, or the file after a damaged one, goes well for a moment before the next failure."""
FAILURES_MIN = 2
"""So many failures without a steady time between them are reported: one alone is tried again."""
STALE_S = 120.0
"""A failure so long ago, s, with no other since, says nothing about now."""


class Duty:
    """Something that a node has to do again and again. ``name``: as in "X fails". Reported by one
    thread; others may ask for ``failing``."""

    def __init__(self, name: str, stale_s: float = STALE_S) -> None:
        self._name = name
        self._stale_s = stale_s
        self._failures = 0
        self._reason = ""
        self._failed_s = 0.0

    def failed(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
        self._failed_s = time.monotonic()

    def worked(self) -> None:
        if self._failures and time.monotonic() - self._failed_s >= STEADY_S:
            self._failures = 0

    @property
    def failing(self) -> str | None:
        """What fails, how often, and why; None if it is being done, as far as is known."""
        if self._failures < FAILURES_MIN or time.monotonic() - self._failed_s > self._stale_s:
            return None
        return f"{self._name} fails and is tried again, {self._failures} times: {self._reason}"

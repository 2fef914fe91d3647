"""The duties of a node, and which of them fail again and again.

Theory: a thread that fails goes on, and tries again; so a node whose spills fail would look well,
and accept messages until its memory is full. Each duty counts its failures here, and a node with a
duty that fails is not ready.
"""

from __future__ import annotations

import time

STEADY_S = 3.0
"""A duty that failed counts as well once it has worked for so long, s: a process that is started
again, or the file after a damaged one, goes well for a moment before the next failure."""
FAILURES_MIN = 2
"""So many failures without a steady time between them are reported; a single one is not."""
STALE_S = 120.0
"""The last failure is forgotten after so long, s."""


class Duty:
    """Work that a node has to do again and again. ``name`` is the subject of "… fails". One thread
    reports; any thread may ask for ``failing``."""

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
        """The duty, its number of failures and the last reason; None while it does not fail."""
        if self._failures < FAILURES_MIN or time.monotonic() - self._failed_s > self._stale_s:
            return None
        return f"{self._name} fails and is tried again, {self._failures} times: {self._reason}"

"""Bytes of entries that were received from the master and are not in the journal yet.

Entries wait in two places: in the driver's inbox, and in the wheel's queue for the syncer.
Back-pressure on the master is measured by their bytes.
"""

from __future__ import annotations

import threading
from collections import deque

BACKLOG_BYTES_MAX = 32 << 20


class Backlog:
    """``received`` and ``nbytes``: from any thread; the other methods: from the driver's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._gone = 0
        self._queued: deque[tuple[int, int]] = deque()  # (last index, bytes) in the wheel's queue

    @property
    def nbytes(self) -> int:
        return self._received - self._gone

    def received(self, nbytes: int) -> None:
        """Count entries that were put into the inbox."""
        with self._lock:
            self._received += nbytes

    def dropped(self, nbytes: int) -> None:
        """Take off entries that left the inbox and were not queued."""
        self._gone += nbytes

    def queued(self, last: int, nbytes: int) -> None:
        """Note that entries up to index ``last`` went from the inbox into the wheel's queue."""
        self._queued.append((last, nbytes))

    def update(self, written: int, placed: int) -> None:
        """Take off entries up to index ``written``, and those behind ``placed``, which are lost."""
        while self._queued and self._queued[0][0] <= written:
            self._gone += self._queued.popleft()[1]
        while self._queued and self._queued[-1][0] > placed:
            self._gone += self._queued.pop()[1]

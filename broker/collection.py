"""Reads many records of confluent-kafka while Python's collector of reference cycles is off."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    """The process's collector. Blocks of several threads may overlap: the last turns it on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._enabled = False
        """True if it was on before the first block."""

    @contextmanager
    def off(self) -> Iterator[None]:
        """Turn the collector off for a block. Records become millions of objects without a cycle
        among them, and looking for one would take as long as reading. It is off for the whole
        process, so the block must take no more than milliseconds."""
        with self._lock:
            if not self._blocks:
                self._enabled = gc.isenabled()
                gc.disable()
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if self._enabled and not self._blocks:
                    gc.enable()


without_collection = _Collector().off

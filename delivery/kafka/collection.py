"""Reading many records of confluent-kafka without the collector of circles in the way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Collector:
    """The process's collector, which may be off for several threads at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._off_for = 0
        self._enabled = False
        """Whether it was on before the first of them."""

    @contextmanager
    def off(self) -> Iterator[None]:
        """Records become millions of objects, none of which refers back to another: looking for
        circles among them would take as long as all else. Only for what takes milliseconds: it is
        off for the whole process."""
        with self._lock:
            if not self._off_for:
                self._enabled = gc.isenabled()
                gc.disable()
            self._off_for += 1
        try:
            yield
        finally:
            with self._lock:
                self._off_for -= 1
                if self._enabled and not self._off_for:
                    gc.enable()


without_collection = _Collector().off

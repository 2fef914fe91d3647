"""A few threads that carry out calls, and hold up nobody when the process ends.

A call may hang: an action on a disk that stands still, a name server that does not answer. The
standard library's pool lets the interpreter wait for such a thread at its exit; these are daemons.

Nothing is bounded here but the threads: whoever submits bounds what it submits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_Call = tuple[Callable[..., object], tuple[Any, ...]]


class Pool:
    """At most ``threads_max`` threads, each started when a call finds none idle. Thread-safe."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._counting = threading.Lock()
        self._under_way = 0  # calls that wait for a thread, or have one
        self.started = 0
        self._closed = False

    def submit(self, call: Callable[..., object], *given: Any) -> None:
        """Carry a call out soon; it must not raise. Errors: ``RuntimeError``: no thread can be
        started, or the pool is closed; the call is not carried out then."""
        if self._closed:
            raise RuntimeError("the pool is closed")
        with self._counting:
            if self.started <= self._under_way and self.started < self._threads_max:
                self._start()
            self._under_way += 1
        self._calls.put((call, given))

    def _start(self) -> None:
        name = f"{self._name}-{self.started}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            if not self.started:  # else one of the others will come to it
                raise
        else:
            self.started += 1

    def close(self) -> None:
        """Take no further calls: those that are carried out go on, those that wait are dropped."""
        self._closed = True
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            self._calls.put(None)

    def _run(self) -> None:
        while (got := self._calls.get()) is not None:
            call, given = got
            call(*given)
            del got, call, given  # an idle thread keeps nothing alive
            with self._counting:
                self._under_way -= 1
        self._calls.put(None)  # for the next thread

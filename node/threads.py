"""All threads of a node: started by name, watched, and stopped in order.

Two kinds: a ``Loop`` is turned here; other threads bring their own loop, as the hand and the delay
topic do, and end when the event that they were started with is set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..wheel.errors import SyncFailed
from .loops import Loop

SILENT_MAX_S = 300.0
"""A thread without a turn for so long, s, is reported as unhealthy. A spill into thousands of files
on a slow disk takes a minute, and so does a chunk for a sink that uses up every limit."""
JOIN_MIN_S = 0.2
"""The least time, s, that each thread gets to end, also when the deadline has passed."""


class Threads:
    """``alarm`` and ``on_fatal``: as for ``Loop``."""

    def __init__(
        self,
        alarm: Callable[[str, Exception], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._alarm = alarm
        self._on_fatal = on_fatal
        self._threads: dict[str, threading.Thread] = {}
        self._stops: dict[str, threading.Event] = {}
        self._silent_s: dict[str, Callable[[], float]] = {}

    def loop(
        self,
        name: str,
        turn: Callable[[], float],
        fatal: tuple[type[BaseException], ...] = (SyncFailed,),
    ) -> None:
        """Start a loop."""
        loop = Loop(name, turn, alarm=self._alarm, on_fatal=self._on_fatal, fatal=fatal)
        self._silent_s[name] = lambda: loop.silent_s
        self._add(name, loop.thread, loop.stop)

    def run(
        self,
        name: str,
        target: Callable[[threading.Event], None],
        silent_s: Callable[[], float] | None = None,
    ) -> None:
        """Start a thread that ends when its event is set. ``silent_s``: since its last turn."""
        if silent_s is not None:
            self._silent_s[name] = silent_s
        stop = threading.Event()
        thread = threading.Thread(target=target, args=(stop,), name=name, daemon=True)
        self._add(name, thread, stop)

    def _add(self, name: str, thread: threading.Thread, stop: threading.Event) -> None:
        self._stops[name] = stop
        self._threads[name] = thread
        thread.start()

    def unhealthy(self) -> list[str]:
        """Reasons: threads that ended without a request, and loops that do not turn."""
        reasons = []
        for name, thread in list(self._threads.items()):
            silent_s = self._silent_s.get(name, float)()
            if self._stops[name].is_set():
                continue
            if not thread.is_alive():
                reasons.append(f"thread {name} has ended")
            elif silent_s > SILENT_MAX_S:
                reasons.append(f"thread {name} has not turned for {silent_s:.0f} s")
        return reasons

    def request_stop(self, *names: str) -> None:
        """Ask threads to end, without waiting."""
        for name in names:
            if name in self._stops:
                self._stops[name].set()

    def stop(self, deadline: float, last: str) -> list[str]:
        """Stop all threads, ``last`` after the others, until ``deadline`` on the monotonic clock.
        Returns the names of those that did not end."""
        others = [name for name in self._threads if name != last]
        self.request_stop(*others)
        for name in others:
            self._join(name, deadline)
        if last in self._threads:
            self.request_stop(last)
            self._join(last, deadline)
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def _join(self, name: str, deadline: float) -> None:
        self._threads[name].join(max(JOIN_MIN_S, deadline - time.monotonic()))

"""All threads of a node: started by name, watched, and stopped in order.

Two kinds: a ``Loop`` is turned here; other threads bring their own loop, as the hand and the delay
topic do, and end when the event that they were started with is set.

Rules of a loop
- After an exception, which is logged with its traceback and counted as an alarm, the loop waits,
  and the next turn follows. Waiting times double up to a few seconds and start over after a turn
  that went well.
- A duty that fails again and again makes the node not ready (``failing``), whatever thread it is: a
  node whose spills fail would look well, and accept messages until its memory is full.
- ``SyncFailed`` ends the process, through ``on_fatal``: the page cache can no longer be trusted. A
  loop may have further fatal exceptions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..wheel.backoff import Backoff
from ..wheel.errors import SyncFailed
from .duty import Duty

ERROR_WAIT_S, ERROR_WAIT_MAX_S = 0.05, 5.0
SILENT_MAX_S = 300.0
"""A thread without a turn for so long, s, is reported as unhealthy. A spill into thousands of files
on a slow disk takes a minute, and so does a chunk for a sink that uses up every limit."""
JOIN_MIN_S = 0.2
"""The least time, s, that each thread gets to end, also when the deadline has passed."""


class Loop:
    """Calls ``turn`` again and again until it is stopped.

    ``turn`` returns the pause before the next one, s, and blocks for a moment at most. ``alarm``
    gets a kind and the error of each exception; ``on_fatal`` gets an error of a type in ``fatal``,
    which ends the loop.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        alarm: Callable[[str, Exception], None],
        on_fatal: Callable[[BaseException], None],
        fatal: tuple[type[BaseException], ...],
    ) -> None:
        self._name = name
        self._turn = turn
        self._alarm = alarm
        self._on_fatal = on_fatal
        self._fatal = fatal
        self._backoff = Backoff(ERROR_WAIT_S, ERROR_WAIT_MAX_S)
        self._turned_s = time.monotonic()
        self.duty = Duty(name)

    @property
    def silent_s(self) -> float:
        """The seconds since the last turn began."""
        return time.monotonic() - self._turned_s

    def run(self, stop: threading.Event) -> None:
        """Turn until ``stop`` is set: the target of a thread."""
        try:
            while not stop.is_set():
                wait_s = self._once()
                if wait_s > 0:
                    stop.wait(wait_s)
        except BaseException as error:
            self._on_fatal(error)

    def _once(self) -> float:
        self._turned_s = time.monotonic()
        try:
            wait_s = self._turn()
        except self._fatal:
            raise
        except Exception as error:
            self.duty.failed(f"{type(error).__name__}: {error}")
            self._alarm(f"{self._name}-failed", error)
            return self._backoff.failed()
        self.duty.worked()
        self._backoff.worked()
        return wait_s


class Threads:
    """The threads of a node. ``alarm`` and ``on_fatal``: as for ``Loop``."""

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
        self._failing: list[Callable[[], str | None]] = []

    def watch(self, failing: Callable[[], str | None]) -> None:
        """Watch work that is no loop's turn: that of a thread with a loop of its own, or a part of
        a turn whose failure must not end the turn. ``failing`` returns a text, or None while the
        work does not fail."""
        self._failing.append(failing)

    def failing(self) -> list[str]:
        """A text for each duty that fails again and again."""
        return [reason for ask in list(self._failing) if (reason := ask()) is not None]

    def loop(
        self,
        name: str,
        turn: Callable[[], float],
        fatal: tuple[type[BaseException], ...] = (SyncFailed,),
    ) -> None:
        """Start a loop."""
        loop = Loop(name, turn, self._alarm, self._on_fatal, fatal)
        self.watch(lambda: loop.duty.failing)
        self.run(name, loop.run, lambda: loop.silent_s)

    def run(
        self,
        name: str,
        target: Callable[[threading.Event], None],
        silent_s: Callable[[], float] | None = None,
    ) -> None:
        """Start a thread that ends on its event. ``silent_s``: the seconds since its last turn."""
        if silent_s is not None:
            self._silent_s[name] = silent_s
        stop = self._stops[name] = threading.Event()
        thread = threading.Thread(target=target, args=(stop,), name=name, daemon=True)
        thread.start()
        self._threads[name] = thread  # sooner, ``unhealthy`` would report it as ended

    def unhealthy(self) -> list[str]:
        """A reason for each thread that ended without a request, or does not turn."""
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
        early = [name for name in self._threads if name != last]
        self.request_stop(*early)
        for name in early:
            self._join(name, deadline)
        if last in self._threads:
            self.request_stop(last)
            self._join(last, deadline)
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def _join(self, name: str, deadline: float) -> None:
        self._threads[name].join(max(JOIN_MIN_S, deadline - time.monotonic()))

"""Threads that do not die: one loop each, and a measure of when it last turned.

Rules
- After an exception, which is logged with its traceback and counted as an alarm, the loop waits,
  and the next turn follows. Waiting times double up to a few seconds and start over after a turn
  that went well.
- ``SyncFailed`` ends the process, through ``on_fatal``: the page cache can no longer be trusted. A
  loop may have further fatal exceptions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..wheel.backoff import Backoff
from ..wheel.errors import SyncFailed

ERROR_WAIT_S = (0.05, 5.0)


class Loop:
    """Calls ``turn`` again and again in a thread of its own until ``stop`` is set.

    ``turn`` returns how long to wait before the next one, in seconds, and does not block for much
    longer than that. ``alarm(kind, error)`` is called for each exception.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        alarm: Callable[[str, Exception], None],
        on_fatal: Callable[[BaseException], None],
        fatal: tuple[type[BaseException], ...] = (SyncFailed,),
    ) -> None:
        self.name = name
        self.stop = threading.Event()
        self._turn = turn
        self._alarm = alarm
        self._on_fatal = on_fatal
        self._fatal = fatal
        self._backoff = Backoff(*ERROR_WAIT_S)
        self._turned_s = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last turned."""
        return time.monotonic() - self._turned_s

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                wait_s = self._once()
                if wait_s > 0:
                    self.stop.wait(wait_s)
        except BaseException as error:
            self._on_fatal(error)

    def _once(self) -> float:
        self._turned_s = time.monotonic()
        try:
            wait_s = self._turn()
        except self._fatal:
            raise
        except Exception as error:
            self._alarm(f"{self.name}-failed", error)
            return self._backoff.failed()
        self._backoff.worked()
        return wait_s

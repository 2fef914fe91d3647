"""A process that calls a handler, one message after the other.

It is started afresh (``spawn``): a copy of a process with threads, as the application is one, may
hang in any of their locks. So the handler must be importable.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

from ..delivery.kafka.limits import within
from ..wheel.errors import InvalidConfiguration
from .failing import Cause
from .message import Received

_START_S = 60.0


class HandlerFailed(Exception):
    """What a handler in a process raised, by its text; or how its process ended."""

    def __str__(self) -> str:
        return str(self.args[0])


class HandlerProcess:
    """Started with its first message, and again after it was killed. For one thread at a time."""

    def __init__(self, handler: Callable[[Received], object]) -> None:
        """Errors: ``InvalidConfiguration`` for a handler that no other process can import."""
        try:
            pickle.dumps(handler)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidConfiguration(
                f"the handler cannot be used in a process: {error}",
                got=repr(handler),
                limit="a function of a module",
                remedy="Define it with def at the top of a module, or leave processes out",
            ) from None
        self._handler = handler
        self._process: multiprocessing.process.BaseProcess | None = None
        self._line: Connection | None = None
        self._ended = threading.Event()

    def call(self, message: Received, limit_s: float) -> None:
        """Errors: ``HandlerFailed``."""
        line = self._started()
        try:
            # A process that stands still takes nothing in.
            if not (within(limit_s, partial(line.send, message)) and line.poll(limit_s)):
                self._kill(at_once=True)
                raise HandlerFailed(f"the handler took longer than {limit_s:g} s")
            error = line.recv()
        except (EOFError, OSError):
            raise HandlerFailed(f"the handler's process ended: {self._kill()}") from None
        if error is not None:
            raise HandlerFailed(error)

    def kill(self) -> None:
        """For good; from any thread."""
        self._ended.set()
        process = self._process
        if process is not None:
            process.kill()

    def _started(self) -> Connection:
        if self._ended.is_set():
            raise HandlerFailed("the consumer is closed")
        if self._process is not None and self._line is not None:
            if self._process.is_alive():
                return self._line
            self._kill()
        context = multiprocessing.get_context("spawn")
        line, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, self._handler), daemon=True)
        process.start()
        other.close()
        self._process, self._line = process, line
        if self._ended.is_set():  # ``kill`` came while there was none yet
            process.kill()
        # Its start is not the handler's time.
        try:
            if not line.poll(_START_S) or line.recv() is not None:
                raise EOFError
        except (EOFError, OSError):
            why = self._kill()
            raise HandlerFailed(f"the handler's process did not start: {why}") from None
        return line

    def _kill(self, *, at_once: bool = False) -> str:
        """Returns how it ended."""
        process, line = self._process, self._line
        self._process = self._line = None
        if line is not None:
            line.close()
        if process is None:
            return "closed"
        if at_once:
            process.kill()
        process.join(0.5)
        if process.exitcode is None:
            process.kill()
            process.join(5)
        code = process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(line: Connection, handler: Callable[[Received], object]) -> None:
    # Ctrl-C is for the application, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        line.send(None)
        while True:
            message = line.recv()
            error = None
            try:
                handler(message)
            except Exception as raised:
                error = Cause.of(raised).error
            line.send(error)

"""A process that calls a handler, one message after the other.

It is a new program, so the handler must be importable: a fork of an application with threads may
hang in a lock that one of them had.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from ..aside.process import Aside, AsideEnded
from ..broker.limits import within
from ..wheel.errors import InvalidConfiguration, NotRunning
from .failing import Cause
from .message import Received

_START_S = 60.0


class HandlerFailed(Exception):
    """A handler in a process raised, or its process ended; the text says which error."""

    def __str__(self) -> str:
        return str(self.args[0])


class HandlerProcess:
    """A process, started by the first message, and again once killed. One thread calls it."""

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
        self._aside = Aside("the handler's process", _serve, handler, nice=0, program=True)

    @property
    def pid(self) -> int | None:
        return self._aside.pid

    def call(self, message: Received, limit_s: float) -> None:
        """Let the handler process a message, for ``limit_s`` at most. Errors: ``HandlerFailed``."""
        aside = self._aside
        try:
            # The start of the process does not count as the handler's time.
            if aside.begin() and aside.receive(_START_S) is None:
                aside.kill()
                raise HandlerFailed(f"the handler's process did not start within {_START_S:g} s")
            # Sending to a process that stands still would wait for ever.
            answer = (
                aside.receive(limit_s) if within(limit_s, partial(aside.send, message)) else None
            )
        except AsideEnded as error:
            raise HandlerFailed(f"the handler's process ended: {error.how}") from None
        except NotRunning as error:
            raise HandlerFailed(str(error)) from None
        if answer is None:
            aside.kill()
            raise HandlerFailed(f"the handler took longer than {limit_s:g} s")
        if answer:
            raise HandlerFailed(answer)

    def kill(self) -> None:
        """End the process for good; from any thread."""
        self._aside.close(0)


def _serve(line: Connection, handler: Callable[[Received], object]) -> None:
    """In the process: answers each message with the handler's error as text, or ""."""
    line.send("")
    while True:
        message = line.recv()
        error = ""
        try:
            handler(message)
        except Exception as raised:
            error = Cause.of(raised).error
        line.send(error)

"""A process beside this one, started when it is needed, and again when it has ended.

Theory: it is a new program and no fork, in which locks of other threads would stay locked. A socket
is its standard input, and all that it is told comes that way: others can see the arguments and the
environment of a process, and settings have passwords in them.

Rules
- It ends with this process, also where this one is killed: the socket's end is a SIGTERM to it.
- One that ended is started again by the next call, after a pause that doubles until it sends
  something. What it was asked meanwhile fails, and is not asked again here.
- It has a low priority unless it is told otherwise, so that who started it does not feel it. Of the
  lowest one it would not, on a busy machine, come to its end.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from threading import Event, Lock
from typing import Any

from ..wheel.backoff import Backoff
from ..wheel.errors import NotRunning

NICE = 10
"""How much lower the priority is: beside one busy process it gets a tenth of a core."""
END_S = 2.0
_BEGIN = Path(__file__).with_name("begin.py")
preparing = False
"""Whether this is such a process, and the program of its parent is being imported."""


class AsideEnded(NotRunning):
    """The process has ended by itself, or was killed. ``how``: an exit code, or a signal."""

    how = ""


@dataclass(frozen=True, slots=True)
class _Logged:
    logger: str
    level: int
    text: str


class Aside:
    """A process that calls ``function(line, *given)``, which sends and receives by its line.

    One thread at a time sends and receives here; any may call ``close`` and ``kill``. ``name``: in
    errors. ``again_s``: the first and the longest pause. ``program``: import this process's own
    program there, too, as the function or a message may be of it; else it does without pandas.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        *given: object,
        nice: int = NICE,
        again_s: tuple[float, float] = (0.0, 0.0),
        program: bool = False,
    ) -> None:
        self._name = name
        self._job = function, given
        self._nice = nice
        self._program = program
        self._backoff = Backoff(*again_s)
        self._pause_s = 0.0
        self._lock = Lock()
        self._closed = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self.starts = 0

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def begin(self) -> bool:
        """Start it unless it runs; returns whether it was started. Errors: ``NotRunning``."""
        process, before = self._process, self._line
        if process is not None and before is not None:
            if process.poll() is None:
                return False
            self._ended(before)
        self._closed.wait(self._pause_s)
        with self._lock:
            if self._closed.is_set():
                raise NotRunning(f"{self._name} was closed")
            line = self._line = self._start()
        program = None
        if self._program:
            program = get_preparation_data(self._name)
            program["authkey"] = bytes(program["authkey"])  # goes to no file, and so may be pickled
        with suppress(OSError):  # it has ended, which the next call finds
            line.send((sys.path, self._nice, program))
            line.send(self._job)
        return True

    def send(self, message: object) -> None:
        """Errors: ``NotRunning``, of which ``AsideEnded``; those of a message that is no value."""
        self.begin()
        line = self._line
        assert line is not None
        try:
            line.send(message)
        except OSError:
            raise self._ended(line) from None

    def receive(self, wait_s: float | None = None) -> Any:
        """What it sends next; None: nothing came within ``wait_s``. What it logs is logged here.
        Errors: ``NotRunning``, of which ``AsideEnded``."""
        if self._line is None:
            self.begin()
        line = self._line
        assert line is not None
        while True:
            try:
                if wait_s is not None and not line.poll(wait_s):
                    return None
                message = line.recv()
            except (EOFError, OSError):
                raise self._ended(line) from None
            if not isinstance(message, _Logged):
                self._backoff.worked()
                return message
            logging.getLogger(message.logger).log(message.level, "%s", message.text)

    def messages(self) -> Iterator[Any]:
        """All that it sends until ``close``, and a ``NotRunning`` each time that it does not run;
        then it is started again."""
        while not self._closed.is_set():
            try:
                yield self.receive()
            except NotRunning as error:
                if not self._closed.is_set():
                    yield error

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
            _wait(process, END_S)

    def close(self, within_s: float = END_S) -> None:
        """End it for good: by SIGTERM, and by force if it has not ended ``within_s``."""
        self._closed.set()
        with self._lock:
            process, line = self._process, self._line
            if process is None or line is None:
                return
            # Another thread may wait for it, which a closed descriptor would not tell.
            with suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
        _wait(process, within_s)

    def _start(self) -> Connection:
        if preparing:
            raise RuntimeError(
                "a program that starts a process beside it is imported there once more, and must"
                ' not start another one then: begin it with `if __name__ == "__main__":`'
            )
        near, far = socket.socketpair()
        with near, far:
            try:
                command = [sys.executable, "-P", str(_BEGIN), self._name]
                self._process = subprocess.Popen(command, stdin=far.fileno())
            except OSError as error:
                self._pause_s = self._backoff.failed()
                raise NotRunning(
                    f"{self._name} cannot be started",
                    got=error.strerror or str(error),
                    remedy="Give this machine room for one more process, or end others",
                ) from None
            self.starts += 1
            return Connection(near.detach())

    def _ended(self, line: Connection) -> AsideEnded:
        """Of the process at the other end of ``line``, which runs no more, or hears nobody."""
        with self._lock:
            process = self._process
            if process is None or line is not self._line:  # another call has come to it
                return AsideEnded(f"{self._name} has ended")
            self._process = self._line = None
            line.close()
        code = _wait(process, 0.5)
        self._pause_s = self._backoff.failed()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._pause_s:
            error = AsideEnded(f"{self._name} ended with {how}, next try in {self._pause_s:.1f} s")
        else:
            error = AsideEnded(f"{self._name} ended with {how}", remedy="Ask again in a moment")
        error.how = how
        return error


def log_to(line: Connection, name: str) -> None:
    """In the process: have the parent log what the logger of that name logs here."""
    logger = logging.getLogger(name)
    logger.addHandler(_ToParent(line))
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _ToParent(logging.Handler):
    def __init__(self, line: Connection) -> None:
        super().__init__(logging.INFO)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.send(_Logged(record.name, record.levelno, record.getMessage()))


def _wait(process: subprocess.Popen[bytes], within_s: float) -> int:
    """Until it has ended, by force if it takes longer."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel does not let it go
            process.wait(END_S)
        return process.returncode or 0

"""A process beside this one, started when it is needed, and again when it has ended.

Theory: it is a new program and no fork, in which locks of other threads would stay locked. A socket
is its standard input, and its settings come that way: others can see the arguments and the
environment of a process, and settings have passwords in them.

Rules
- It ends with this process, also where this one is killed: the socket's end is a SIGTERM to it.
- A process that ended is started again by the next call, after a pause that doubles until it sends
  a message. A call that it did not answer fails, and is not repeated here.
- It has a low priority by default, so that its parent is not late because of it; not the lowest
  one, with which it would never finish on a busy machine.
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
"""The default niceness: beside one busy process it gets a tenth of a core."""
END_S = 2.0
_BEGIN = Path(__file__).with_name("begin.py")
preparing = False
"""True while such a process imports the program of its parent."""


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

    One thread at a time sends and receives here; any may call ``close`` and ``kill``. ``name``
    stands in errors. ``again_s``: the first and the longest pause before it is started again.
    ``program``: it also imports the program of this process, of which the function or a message may
    be; without that it does without pandas.
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
        """Start the process unless it runs. Returns True if it did. Errors: ``NotRunning``."""
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
            program["authkey"] = bytes(program["authkey"])  # it may be pickled, as no file gets it
        with suppress(OSError):  # it has ended, which the next call finds
            line.send((sys.path, self._nice, program))
            line.send(self._job)
        return True

    def send(self, message: object) -> None:
        """Send a message, and start the process before that, if need be. Errors: ``NotRunning``, of
        which ``AsideEnded``; pickle's."""
        self.begin()
        line = self._line
        assert line is not None
        try:
            line.send(message)
        except OSError:
            raise self._ended(line) from None

    def receive(self, wait_s: float | None = None) -> Any:
        """The next message of the process; None: none came within ``wait_s``. Log records of the
        process are logged here. Errors: ``NotRunning``, of which ``AsideEnded``."""
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
        """Yields the messages of the process until ``close``, and a ``NotRunning`` each time that
        it ended or cannot be started, before it is started again."""
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
        """End the process for good: by SIGTERM, and by force if it has not ended ``within_s``."""
        self._closed.set()
        with self._lock:
            process, line = self._process, self._line
            if process is None or line is None:
                return
            # Another thread may be reading: closing the descriptor would not wake it.
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
        """The error for the process at the other end of ``line``, which has ended, or is ended here
        as it does not read any more."""
        with self._lock:
            process = self._process
            if process is None or line is not self._line:  # another thread was here first
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
    """Let the parent log the records of the logger ``name``. Call it in the process."""
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
    """Wait for a process's end; by force after ``within_s``. Returns its exit code."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel does not let it go
            process.wait(END_S)
        return process.returncode or 0

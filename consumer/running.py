"""``Consumer.run``: calls a handler for each message, in threads or in processes.

Rules
- A handler that raises, hangs or dies costs its message an attempt; all other messages go on.
- A thread cannot be stopped. One that hangs is left behind, another takes its place, and its late
  answer is ignored: the message has had its answer, and comes again.
- A process that hangs is killed.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from ..wheel.errors import InvalidConfiguration
from .message import Received
from .process import HandlerProcess

_log = logging.getLogger("slotwheel.consumer")
_LOOK_EVERY_S = 0.02
_END_S = 1.0
_TAKE_S = 0.1


class Answering(Protocol):
    """The methods of a ``Consumer`` that workers call."""

    @property
    def closed(self) -> bool: ...

    def take(self, count: int, timeout_s: float | None = None) -> list[Received]: ...

    def handling(self, message: Received) -> None: ...

    def done(self, *messages: Received) -> None: ...

    def retry(self, message: Received, error: BaseException | str = "") -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


def run(
    consumer: Answering,
    handler: Callable[[Received], object],
    *,
    workers: int,
    limit_s: float,
    processes: bool,
) -> None:
    """Run workers until the consumer is closed. Arguments and errors: as of ``Consumer.run``."""
    if workers < 1 or not limit_s > 0:
        raise InvalidConfiguration(
            "no usable workers or limit",
            got=f"workers={workers}, limit_s={limit_s}",
            limit="at least 1 worker, more than 0 s",
            remedy="Raise it",
        )
    make = ProcessWorker if processes else ThreadWorker
    crew = [make(consumer, handler, limit_s) for _ in range(workers)]
    with _Terminated() as terminated:
        try:
            while not (consumer.closed or terminated.is_set()):
                crew = [worker.looked_after() for worker in crew]
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            pass  # it is the usual end of a program that runs until then
        finally:
            for worker in crew:
                worker.stop()
            deadline = time.monotonic() + _END_S
            while any(worker.busy for worker in crew) and time.monotonic() < deadline:
                time.sleep(0.005)
            for worker in crew:
                worker.abandon()
            consumer.close()
    consumer.check()


class ThreadWorker:
    """A thread that takes messages and calls the handler."""

    def __init__(
        self, consumer: Answering, handler: Callable[[Received], object], limit_s: float
    ) -> None:
        self.consumer, self.handler, self.limit_s = consumer, handler, limit_s
        self._stopping = self._abandoned = False
        self._lock = threading.Lock()
        self._message: Received | None = None
        self._began_s = 0.0
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="slotwheel-worker", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._message is not None

    def stop(self) -> None:
        """Take no further message."""
        self._stopping = True

    def abandon(self) -> None:
        """Leave the worker behind: its message comes again, and this was no attempt."""
        self._abandoned = True

    def looked_after(self) -> ThreadWorker:
        """Returns this worker, or a new one if it hangs. Errors: the one that ended its thread."""
        self.check()
        with self._lock:
            message = self._message
            if message is None or time.monotonic() - self._began_s <= self.limit_s:
                return self
            self._stopping = True
        _log.warning("slotwheel consumer: a handler hangs with %s", _name(message))
        self.consumer.retry(message, f"the handler took longer than {self.limit_s:g} s")
        return ThreadWorker(self.consumer, self.handler, self.limit_s)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not (self._stopping or self.consumer.closed):
                for message in self.consumer.take(1, _TAKE_S):
                    self.handle(message)
        except BaseException as error:  # ``run`` raises it
            self._error = error

    def handle(self, message: Received) -> None:
        with self._lock:
            self._message, self._began_s = message, time.monotonic()
        try:
            self.consumer.handling(message)
            self.call(message)
        except BaseException as error:
            if not self._abandoned:
                self.consumer.retry(message, error)
        else:
            self.consumer.done(message)
        finally:
            with self._lock:
                self._message = None

    def call(self, message: Received) -> None:
        self.handler(message)


class ProcessWorker(ThreadWorker):
    """A thread that has the handler called in a process of its own."""

    def __init__(
        self, consumer: Answering, handler: Callable[[Received], object], limit_s: float
    ) -> None:
        self._process = HandlerProcess(handler)
        super().__init__(consumer, handler, limit_s)

    def looked_after(self) -> ThreadWorker:
        self.check()
        return self  # the process is killed instead

    def call(self, message: Received) -> None:
        self._process.call(message, self.limit_s)

    def abandon(self) -> None:
        super().abandon()
        self._process.kill()


class _Terminated:
    """Sets an event when SIGTERM comes while it is entered; only in the main thread."""

    def __enter__(self) -> threading.Event:
        terminated = threading.Event()
        self._before: Any = None
        self._in_main = threading.current_thread() is threading.main_thread()

        def note(_number: int, _frame: FrameType | None) -> None:
            terminated.set()

        if self._in_main:
            self._before = signal.signal(signal.SIGTERM, note)
        return terminated

    def __exit__(self, *_: object) -> None:
        if self._in_main:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)


def _name(message: Received) -> str:
    return f"{message.topic}/{message.partition}/{message.offset}"

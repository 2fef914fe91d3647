"""Questions to a process beside this one.

Theory: looking through files takes the processor. In a process of low priority it gives way
whenever a node or an event loop has work, so that neither is late. And a read error in a mapped
file ends that process, and not the one that asks.

Rules
- One question at a time; those behind it wait in order.
- When the process ends, or cannot be started, the question that it had fails, and the next question
  starts another: a program that has other work than questions goes on with that.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ..wheel.errors import NotRunning
from .process import NICE, Aside

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
_Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class AskedAside(Generic[S]):
    """Asks an object that ``make(*given)`` returns in the process, where it is kept. Thread-safe.

    An answer is a future; its errors are those of ``make`` and of the question, and ``NotRunning``
    when the process ended meanwhile, or cannot be started."""

    def __init__(self, name: str, make: Callable[..., S], *given: object, nice: int = NICE) -> None:
        self._aside = Aside(name, _answer, make, given, nice=nice)
        self._lock = Lock()
        self._closed = False
        self._questions: SimpleQueue[tuple[Future[Any], _Call] | None] = SimpleQueue()
        Thread(target=self._run, name=name, daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._aside.pid

    def ask(
        self, question: Callable[Concatenate[S, P], T], *args: P.args, **named: P.kwargs
    ) -> Future[T]:
        """Call ``question``, a method of the object or a function of a module, on the object.
        Errors: ``NotRunning`` after ``close``."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise NotRunning("no more questions are answered")
            self._questions.put((future, (question, args, named)))
        return future

    def close(self) -> None:
        """End the process. Its question fails, those that wait are cancelled."""
        with self._lock:
            self._closed = True
        while not self._questions.empty():
            if (waiting := self._questions.get()) is not None:
                waiting[0].cancel()
        self._questions.put(None)
        self._aside.close()

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            self._settle(*question)
            del question  # its future has the answer, which may be large

    def _settle(self, future: Future[Any], call: _Call) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            self._aside.send(call)
            result, error = self._aside.receive()
        except Exception as failed:
            result, error = None, failed
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _answer(line: Connection, make: Callable[..., Any], given: tuple[object, ...]) -> None:
    asked = None
    while True:
        question, args, named = line.recv()
        try:
            if asked is None:
                asked = make(*given)
            answer = ForkingPickler.dumps((question(asked, *args, **named), None))
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = ForkingPickler.dumps((None, error))
        line.send_bytes(answer)

"""Search in a process of its own, for programs that do other things meanwhile.

Theory: a search is processor time and reading of files. In a process of low priority it gives way
whenever a node or an event loop has something to do, so that neither feels it; of the lowest one it
would not, on a busy machine, come to its end. And a file that cannot be mapped any more ends that
process, and not the one that asks.

Rules
- One question at a time; those behind it wait in order.
- The process ends with the one that asks, also where that is killed.
- A process that ended fails the questions it had; the next question starts another one. So does
  one that could not be started, as the machine had no room for its semaphores (``/dev/shm``), say:
  whoever has other work than questions goes on with that.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock, Thread
from typing import ParamSpec, TypeVar

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.errors import NotRunning
from ..wheel.mark import RowKey
from ..wheel.withoutpandas import hide_pandas
from .fate import MessageFate, find
from .pending import LIMIT, ROWS_MAX, PendingCount, PendingPage, PendingReader
from .query import Query

NICE = 10
"""How much lower the priority of a search is: beside one busy process it gets a tenth of a core."""
P = ParamSpec("P")
T = TypeVar("T")


class AskedProcess:
    """Questions that another process answers. Thread-safe. ``nice``: how much lower its priority
    is, 0 to 19. An answer is a future; its errors are those of the question, ``BrokenProcessPool``
    when the process ended meanwhile, and ``RuntimeError`` after ``close``."""

    def __init__(self, nice: int = NICE) -> None:
        self._nice = nice
        self._lock = Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False
        with suppress(NotRunning):
            self._pool = self._started()

    def ask(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """``function``: of a module; it is called there. Errors: ``NotRunning``: there is no
        process, and none can be started."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the process was closed")
            try:
                if self._pool is not None:
                    return self._pool.submit(function, *args, **named)
            except BrokenProcessPool:
                pass
            self._pool = self._started()
            return self._pool.submit(function, *args, **named)

    def close(self) -> None:
        """End the process after the question it has; those that wait are cancelled."""
        with self._lock:
            self._closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        """Errors: ``NotRunning``."""
        # Not a fork: locks of other threads would stay locked in it.
        context = multiprocessing.get_context("spawn")
        try:
            return ProcessPoolExecutor(1, context, initializer=begin_aside, initargs=(self._nice,))
        except OSError as error:
            raise NotRunning(
                "the process that looks through files cannot be started",
                got=error.strerror or str(error),
                remedy="Free room in /dev/shm and in the temporary folder",
            ) from None


class SearchProcess(AskedProcess):
    """Questions about one data directory."""

    def __init__(
        self, root: Path | str, *, nice: int = NICE, dead_letter_topic: str = DEAD_LETTER_TOPIC
    ) -> None:
        super().__init__(nice)
        self._root = str(root)
        self._dead_letter_topic = dead_letter_topic

    def count(
        self, query: Query | None = None, *, by_second: bool = False, by_topic: bool = False
    ) -> Future[PendingCount]:
        return self.ask(_count, self._root, query, by_second, by_topic)

    def page(
        self,
        query: Query | None = None,
        after: RowKey | None = None,
        *,
        limit: int = LIMIT,
        rows_max: int = ROWS_MAX,
        content: bool = True,
    ) -> Future[PendingPage]:
        return self.ask(_page, self._root, query, after, limit, rows_max, content)

    def find(self, ids: Sequence[str]) -> Future[list[MessageFate]]:
        return self.ask(_find, self._root, list(ids), self._dead_letter_topic)


def begin_aside(nice: int) -> None:
    """In the process: lower its priority, and end with the one that asks, however that ends."""
    hide_pandas()
    os.nice(nice)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the whole group; it ends behind us
    parent = multiprocessing.parent_process()
    assert parent is not None
    Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)


class WaitingFinder:
    """A ``Finder`` that waits for the answers of a search process."""

    def __init__(self, search: SearchProcess) -> None:
        self._search = search

    def count(
        self, query: Query | None = None, *, by_second: bool = False, by_topic: bool = False
    ) -> PendingCount:
        return self._search.count(query, by_second=by_second, by_topic=by_topic).result()

    def page(
        self,
        query: Query | None = None,
        after: RowKey | None = None,
        *,
        limit: int = LIMIT,
        rows_max: int = ROWS_MAX,
        content: bool = True,
    ) -> PendingPage:
        asked = self._search.page(query, after, limit=limit, rows_max=rows_max, content=content)
        return asked.result()


@cache
def _reader(root: str) -> PendingReader:
    return PendingReader(root)


def _count(root: str, query: Query | None, by_second: bool, by_topic: bool) -> PendingCount:
    return _reader(root).count(query, by_second=by_second, by_topic=by_topic)


def _page(
    root: str, query: Query | None, after: RowKey | None, limit: int, rows_max: int, content: bool
) -> PendingPage:
    return _reader(root).page(query, after, limit=limit, rows_max=rows_max, content=content)


def _find(root: str, ids: list[str], dead_letter_topic: str) -> list[MessageFate]:
    return find(_reader(root), ids, dead_letter_topic)

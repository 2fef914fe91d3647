"""Search in a process of its own: its errors are the question's, and another one follows it."""

from __future__ import annotations

import os
import signal
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NoReturn

import pytest

from slotwheel.search.followup import Cancellation
from slotwheel.search.query import Query
from slotwheel.search.worker import NICE, SearchProcess, WaitingFinder
from slotwheel.wheel.errors import InvalidConfiguration, NotRunning
from support.datadirs import START_MS, SinkNode, messages

LATER = [START_MS + 60_000 + row for row in range(30)]


def pid_of(search: SearchProcess) -> int:
    assert search._pool is not None
    [pid] = search._pool._processes
    return pid


def test_a_process_that_was_killed_is_started_again(tmp_path: Path) -> None:
    node = SinkNode(tmp_path)
    ids = node.append(messages(LATER))
    search = SearchProcess(tmp_path)
    assert search.count().result().total == len(LATER)
    assert os.getpriority(os.PRIO_PROCESS, pid_of(search)) == min(
        19, os.getpriority(os.PRIO_PROCESS, 0) + NICE
    )
    os.kill(pid_of(search), signal.SIGSTOP)
    waiting = search.count()
    os.kill(pid_of(search), signal.SIGKILL)
    with pytest.raises(BrokenProcessPool):
        waiting.result()
    assert search.page(limit=1000).result().ids == ids
    bulk = Cancellation(WaitingFinder(search), lambda some: ["cancelled"] * len(some), Query())
    bulk.run()
    assert bulk.answers == {"cancelled": len(LATER)}
    search.close()
    with pytest.raises(RuntimeError):
        search.count()
    node.close()


def test_errors_are_those_of_the_question(tmp_path: Path) -> None:
    search = SearchProcess(tmp_path, nice=0)
    for _ in range(2):
        with pytest.raises(InvalidConfiguration, match="not a data directory"):
            search.count().result()
    SinkNode(tmp_path).close()
    assert search.count().result().total == 0
    search.close()


def test_none_is_started_once_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may ask while a gateway ends."""

    def no_room(_: object) -> NoReturn:
        raise NotRunning("no room")

    with monkeypatch.context() as at_the_start:
        at_the_start.setattr(SearchProcess, "_started", no_room)
        search = SearchProcess(tmp_path, nice=0)
    search.close()
    with pytest.raises(RuntimeError):
        search.count()
    assert search._pool is None

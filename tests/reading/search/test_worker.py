"""Search in a process of its own: its errors are the question's, and another one follows it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event

import pytest

from slotwheel.aside.process import NICE, Aside, AsideEnded
from slotwheel.reading.search.followup import Cancellation
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.worker import SearchProcess, WaitingFinder
from slotwheel.wheel.errors import InvalidConfiguration, NotRunning
from support.datadirs import START_MS, SinkNode, messages
from support.waiting import eventually

LATER = [START_MS + 60_000 + row for row in range(30)]


def pid_of(search: SearchProcess) -> int:
    assert search.pid is not None
    return search.pid


def test_a_process_that_was_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Event()
    send = Aside.send

    def noted(aside: Aside, question: object) -> None:
        send(aside, question)
        sent.set()

    monkeypatch.setattr(Aside, "send", noted)
    node = SinkNode(tmp_path)
    ids = node.append(messages(LATER))
    search = SearchProcess(tmp_path)
    assert search.count().result().total == len(LATER)
    assert os.getpriority(os.PRIO_PROCESS, pid_of(search)) == min(
        19, os.getpriority(os.PRIO_PROCESS, 0) + NICE
    )
    os.kill(pid_of(search), signal.SIGSTOP)
    status = Path(f"/proc/{pid_of(search)}/status")
    eventually(lambda: "State:\tT" in status.read_text("ascii"))
    sent.clear()
    waiting = search.count()
    assert sent.wait(60)
    os.kill(pid_of(search), signal.SIGKILL)
    with pytest.raises(AsideEnded, match="signal 9"):
        waiting.result()
    assert search.page(limit=1000).result().ids == ids
    bulk = Cancellation(WaitingFinder(search), lambda some: ["cancelled"] * len(some), Query())
    bulk.run()
    assert bulk.answers == {"cancelled": len(LATER)}
    search.close()
    with pytest.raises(NotRunning):
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

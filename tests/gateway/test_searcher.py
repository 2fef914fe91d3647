"""Questions to the process that searches: few wait, none looks through too much, and an answer that
has not seen what the master has acknowledged says so."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from slotwheel.aside.process import AsideEnded
from slotwheel.gateway import searcher
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.searcher import Searcher
from slotwheel.reading.search.pending import PendingCount
from slotwheel.reading.search.query import Query
from slotwheel.reading.search.view import AnswerPoint
from slotwheel.wheel.errors import NodeUnreachable, NotRunning, Overloaded

POOL = ThreadPoolExecutor(1)
POINT = AnswerPoint(0, 0, -1, -1, -1, 0)


class Process:
    """Answers counts. ``index``: of the last entry that was read, which grows with each answer."""

    def __init__(self, total: int = 0, index: int = 0, broken: int = 0) -> None:
        self.total, self.index, self.broken = total, index, broken
        self.asked: list[Query] = []
        self.held: list[Future[PendingCount]] | None = None

    def count(self, query: Query, **_: bool) -> Future[PendingCount]:
        self.asked.append(query)
        future: Future[PendingCount] = Future()
        if self.held is not None:
            self.held.append(future)
        elif self.broken:
            self.broken -= 1
            future.set_exception(AsideEnded("ended"))
        else:
            self.index += 1
            future.set_result(PendingCount(self.total, replace(POINT, index=self.index)))
        return future


class Group:
    """A client of a group; ``committed``: what its master says, or an error."""

    def __init__(self, nodes: int = 1, committed: int | Exception = 0) -> None:
        self.addresses = ["127.0.0.1:1"] * nodes
        self.committed = committed

    def status(self) -> dict[str, Any]:
        if isinstance(self.committed, Exception):
            raise self.committed
        return {"replication": {"role": "master", "commit": self.committed}}


def made(process: Process, group: Group | None = None, **limits: int) -> Searcher:
    fake_process: Any = process
    fake_client: Any = group or Group()
    return Searcher(fake_process, fake_client, POOL, **limits)


def test_a_question_about_content_is_bounded_by_what_is_pending_in_that_time() -> None:
    process = Process(total=11)
    asked = made(process, rows_max=10)
    query = Query(keys=(b"k",), from_ms=5, to_ms=9)
    with pytest.raises(HttpError) as refused:
        asyncio.run(asked.count(query))
    assert refused.value.status == 422
    assert refused.value.got == "11 pending messages in that time"
    assert process.asked == [Query(from_ms=5, to_ms=9)]
    assert asyncio.run(asked.count(Query(from_ms=5))).total == 11
    process.total = 10
    assert asyncio.run(asked.count(query)).total == 10


def test_few_questions_wait() -> None:
    async def run() -> None:
        process = Process()
        process.held = []
        asked = made(process, waiting_max=2)
        waiting = [asyncio.create_task(asked.count(Query())) for _ in range(2)]
        while len(process.held) < 2:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await asked.count(Query())
        for one in process.held:
            one.set_result(PendingCount(0, POINT))
        await asyncio.gather(*waiting)
        process.held = None
        await asked.count(Query())

    asyncio.run(run())


def test_a_process_that_ends_twice_is_unavailable() -> None:
    assert asyncio.run(made(Process(broken=1)).count(Query())).complete
    with pytest.raises(NotRunning):
        asyncio.run(made(Process(broken=2)).count(Query()))


def test_an_answer_waits_for_what_the_master_has_committed() -> None:
    process = Process(index=6)
    answer = asyncio.run(made(process, Group(3, committed=9)).count(Query()))
    assert (answer.point.index, answer.complete) == (9, True)


@pytest.mark.parametrize("committed", [1_000_000, NodeUnreachable("no node")])
def test_an_answer_that_is_behind_says_so(
    committed: int | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "_BEHIND_S", 0.1)
    answer = asyncio.run(made(Process(), Group(3, committed)).count(Query()))
    assert not answer.complete
    assert [one.kind for one in answer.problems] == ["behind"]

"""Questions about what is pending, to the process that searches the data directory beside us.

Theory: searches wait for each other, in one process of the lowest priority. So few may wait, and
what one may look through is bounded before it begins.

With peers, what was acknowledged is known to the master, and the directory beside us may be a
moment behind. So the master is asked first how far the log is committed, and the answer has to have
seen that; one that has not after a while says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from copy import copy
from dataclasses import replace
from typing import TypeVar

from ..client import Client
from ..client.groupstatus import REPLICATION, group_status
from ..reading.problems import INTEGRITY, Problem
from ..reading.search.fate import MessageFate, MessageState, visible_fate
from ..reading.search.pending import PendingCount, PendingPage
from ..reading.search.query import Query
from ..reading.search.worker import SearchProcess
from ..reading.visible import MayTopic
from ..wheel.errors import SlotwheelError
from ..wheel.mark import RowKey
from .asking import WAITING_MAX, Questions
from .errors import HttpError

ROWS_MAX = 20_000_000
_STATUS_S = 2.0
_BEHIND_S = 1.0
_LOOK_AGAIN_S = 0.05
_BEHIND = "behind"
_NOTHING = Query(from_ms=0, to_ms=1)
"""A question that reads the log, and nothing else."""

Answered = TypeVar("Answered", PendingCount, PendingPage)


class Searcher:
    """Belongs to one event loop. ``client``: of the group, which is asked on ``pool``.
    ``rows_max``: as many rows as a question may look through."""

    def __init__(
        self,
        process: SearchProcess,
        client: Client,
        pool: Executor,
        *,
        rows_max: int = ROWS_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self.process = process
        self._client = client
        self._pool = pool
        self._rows_max = rows_max
        self._questions = Questions(waiting_max)
        self.may: MayTopic | None = None

    @property
    def is_limited(self) -> bool:
        """True when it sees some topics alone."""
        return self.may is not None

    def limited_to(self, may: MayTopic | None) -> Searcher:
        """The same searcher, for a caller who may see those topics of which ``may`` says so; None:
        all."""
        limited = copy(self)
        limited.may = may
        return limited

    async def count(
        self, query: Query, *, by_slot: bool = False, by_topic: bool = False
    ) -> PendingCount:
        """Errors: ``HttpError`` 422: it would look through too much; ``Overloaded``."""
        await self._check(query, by_topic)
        return await self._seen(
            lambda: self.process.count(query, by_slot=by_slot, by_topic=by_topic, may=self.may)
        )

    async def page(self, query: Query, after: RowKey | None, limit: int) -> PendingPage:
        """Errors: as of ``count``."""
        await self._check(query)
        return await self._seen(lambda: self.process.page(query, after, limit=limit, may=self.may))

    async def find(self, ids: Sequence[str]) -> list[MessageFate]:
        """What became of messages; what may have changed behind the log that was seen is unknown.
        Errors: ``Overloaded``."""
        behind: Problem | None = None
        if len(self._client.addresses) > 1:
            seen = await self._seen(lambda: self.process.count(_NOTHING))
            behind = next((one for one in seen.problems if one.kind == _BEHIND), None)
        fates = await self._questions.ask(lambda: self.process.find(ids))
        fates = [visible_fate(fate, self.may) for fate in fates]
        if behind is None:
            return fates
        return [
            replace(one, state=MessageState.UNKNOWN, why=behind.text)
            if one.state is MessageState.PENDING
            else one
            for one in fates
        ]

    async def _check(self, query: Query, by_topic: bool = False) -> None:
        if query.ids or not (query.columns or by_topic or self.is_limited):
            return
        times = Query(from_ms=query.from_ms, to_ms=query.to_ms)
        pending = (await self._questions.ask(lambda: self.process.count(times))).total
        if pending > self._rows_max:
            raise HttpError(
                422,
                "the question would look through too many messages",
                place="query",
                # The number of all messages is not for who may read some of them.
                got=None if self.is_limited else f"{pending} pending messages in that time",
                limit=f"{self._rows_max} messages",
                remedy="Give from_ms and to_ms, and ask for one part of the time after the other",
            )

    async def _seen(self, question: Callable[[], Future[Answered]]) -> Answered:
        """An answer that has seen what was acknowledged before the question, or says that it has
        not."""
        if len(self._client.addresses) == 1:
            return await self._questions.ask(question)
        committed = await self._committed()
        end = asyncio.get_running_loop().time() + _BEHIND_S
        while True:
            answer = await self._questions.ask(question)
            if committed is not None and answer.point.index >= committed:
                return answer
            if committed is None or asyncio.get_running_loop().time() > end:
                return _incomplete(answer, committed)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _committed(self) -> int | None:
        """Up to which entry the group's log is committed; None: nobody answers."""
        loop = asyncio.get_running_loop()
        status = loop.run_in_executor(self._pool, group_status, self._client)
        try:
            found = await asyncio.wait_for(status, _STATUS_S)
            return int(found[REPLICATION]["commit"])
        except (TimeoutError, KeyError, SlotwheelError):
            return None


def _incomplete(answer: Answered, committed: int | None) -> Answered:
    text = "expected to hear from the master how far the log is, found that it does not answer"
    if committed is not None:
        text = f"expected entry {committed}, found that this node's log ends with "
        text += str(answer.point.index)
    behind = Problem(INTEGRITY, _BEHIND, text)
    return replace(answer, problems=(*answer.problems, behind))

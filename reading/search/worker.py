"""Search in a process of its own, so that it takes no processor time of an event loop or a node."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ...aside.asked import AskedAside
from ...aside.process import NICE
from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...wheel.mark import RowKey
from ..visible import MayTopic
from .fate import MessageFate, find
from .pending import ROWS_MAX, PendingCount, PendingPage, PendingReader
from .query import LIMIT, Query


class SearchProcess(AskedAside[PendingReader]):
    """A process that answers questions about one data directory."""

    def __init__(
        self, root: Path | str, *, nice: int = NICE, dead_letter_topic: str = DEAD_LETTER_TOPIC
    ) -> None:
        super().__init__("the process that searches", PendingReader, str(root), nice=nice)
        self._dead_letter_topic = dead_letter_topic

    def count(
        self,
        query: Query | None = None,
        *,
        by_slot: bool = False,
        by_topic: bool = False,
        may: MayTopic | None = None,
    ) -> Future[PendingCount]:
        return self.ask(PendingReader.count, query, by_slot=by_slot, by_topic=by_topic, may=may)

    def page(
        self,
        query: Query | None = None,
        after: RowKey | None = None,
        *,
        limit: int = LIMIT,
        rows_max: int = ROWS_MAX,
        content: bool = True,
        may: MayTopic | None = None,
    ) -> Future[PendingPage]:
        return self.ask(
            PendingReader.page,
            query,
            after,
            limit=limit,
            rows_max=rows_max,
            content=content,
            may=may,
        )

    def find(self, ids: Sequence[str]) -> Future[list[MessageFate]]:
        return self.ask(find, list(ids), self._dead_letter_topic)


class WaitingFinder:
    """A ``Finder`` that waits for the answers of a search process, of the topics that ``may`` be
    seen; None: of all."""

    def __init__(self, search: SearchProcess, may: MayTopic | None = None) -> None:
        self._search = search
        self._may = may

    def count(self, *given: Any, **named: Any) -> PendingCount:
        return self._search.count(*given, **named, may=self._may).result()

    def page(self, *given: Any, **named: Any) -> PendingPage:
        return self._search.page(*given, **named, may=self._may).result()

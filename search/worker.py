"""Search in a process of its own, for programs that do other things meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

from ..aside.asked import AskedAside
from ..aside.process import NICE
from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.mark import RowKey
from .fate import MessageFate, find
from .pending import LIMIT, ROWS_MAX, PendingCount, PendingPage, PendingReader
from .query import Query


class SearchProcess(AskedAside):
    """Questions about one data directory."""

    def __init__(
        self, root: Path | str, *, nice: int = NICE, dead_letter_topic: str = DEAD_LETTER_TOPIC
    ) -> None:
        super().__init__("the process that searches", nice)
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

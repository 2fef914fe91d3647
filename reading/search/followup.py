"""Cancels all pending messages that fulfil a query, and counts the answers.

Theory: a page names messages, and a node decides on each. So an answer is the node's, and as true
as one about a single message: a message that left between the page and the cancel is *already
delivered*. The pages go on in due order, so the messages that are due first are cancelled first,
and none is cancelled twice.

Rules
- It cancels messages that were acknowledged when a page was read; others may be sent behind it.
  With ``before`` it cancels only messages that existed when they were counted.
- Whatever stops it, the counts stay true: messages whose answer was not received are
  ``unanswered``, and running it again does no harm.
- Pages are small beside the horizon, so that a page's messages do not leave before the cancel.
- The next page is looked for while the node cancels one: each of the two is half of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from ...wheel.mark import RowKey
from ...wheel.schema import times
from ..problems import Problem
from .pending import ROWS_MAX, PendingCount, PendingPage
from .query import Query

AT_ONCE = 10_000
"""The most messages of a page, which is also the most ids in a request to a node."""

CancelIds = Callable[[list[str]], list[str]]
"""Cancels messages by their ids, and returns the answer to each."""


class Finder(Protocol):
    """A source of pages, such as a ``PendingReader``."""

    def count(
        self, query: Query | None = None, *, by_slot: bool = False, by_topic: bool = False
    ) -> PendingCount: ...

    def page(
        self,
        query: Query | None = None,
        after: RowKey | None = None,
        *,
        limit: int = AT_ONCE,
        rows_max: int = ROWS_MAX,
        content: bool = True,
    ) -> PendingPage: ...


@dataclass(slots=True)
class Cancellation:
    """A bulk cancel, and its progress."""

    finder: Finder
    cancel: CancelIds
    query: Query
    before: int | None = None
    """Only lower offsets are cancelled, such as below the ``next_offset`` of a count; None: all."""
    answers: Counter[str] = field(default_factory=Counter)
    """The number of messages with each answer."""
    asked: int = 0
    """The number of messages that the node was asked to cancel."""
    ended: bool = False
    """True when every page was cancelled."""
    problems: dict[Problem, None] = field(default_factory=dict)
    """The problems for which matches may be missing, each once."""

    @property
    def unanswered(self) -> int:
        """The number of messages whose cancel was sent and whose answer is not known."""
        return self.asked - self.answers.total()

    @property
    def complete(self) -> bool:
        """True when the node has answered for every match."""
        return self.ended and not self.problems and not self.unanswered

    def count(self) -> PendingCount:
        """Count the matching messages now. Errors: as of ``PendingReader.view``."""
        return self.finder.count(self.query)

    def run(
        self,
        progress: Callable[[int], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Cancel page after page. ``progress`` is called with the number of messages that have an
        answer since its last call; ``stopped`` is asked between two pages. ``cancel`` runs in a
        thread of its own.

        Errors: those of the finder and of ``cancel``. It can be called again then, and begins with
        the messages that are still pending.
        """
        after: RowKey | None = None
        at_end = False
        with ThreadPoolExecutor(1, "slotwheel-cancel") as node:
            asked: Future[list[str]] | None = None
            try:
                while not (at_end or stopped()):
                    page = self.finder.page(self.query, after, limit=AT_ONCE, content=False)
                    self.problems.update(dict.fromkeys(page.problems))
                    asked, before = None, asked
                    self._take(before, progress)
                    if ids := self._ids(page):
                        self.asked += len(ids)
                        asked = node.submit(self.cancel, ids)
                    after = page.next
                    at_end = after is None
            finally:
                self._take(asked, progress)
        self.ended = at_end

    def _ids(self, page: PendingPage) -> list[str]:
        if self.before is None:
            return page.ids
        offsets = times(page.rows, "offset").tolist()
        return [id_ for id_, offset in zip(page.ids, offsets, strict=True) if offset < self.before]

    def _take(self, asked: Future[list[str]] | None, progress: Callable[[int], None]) -> None:
        """Wait for the answers to a page, if it was sent. Errors: those of ``cancel``."""
        if asked is not None:
            answers = asked.result()
            self.answers.update(answers)
            progress(len(answers))

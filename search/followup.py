"""Cancels all pending messages that fulfil a query, and counts what each answer was.

Theory: a page names messages, a node decides about each. So an answer is the node's, and as true as
one about a single message; what left between the page and the cancel is *already delivered*. The
pages go on in due order, so what is due first is cancelled first, and no message is asked about
twice.

Rules
- It is about the messages that were acknowledged when a page was read; others may come behind it.
  With ``before`` it is about those that were there when they were counted, and no others.
- Whatever stops it, the counts stay true: those whose answer was not received are ``unanswered``,
  and running it again does no harm.
- Pages are small beside the horizon, so that a page's messages do not leave while it is worked on.
- The next page is looked for while the node cancels one: each of the two is half of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from ..reading.problems import Problem
from ..wheel.mark import RowKey
from ..wheel.schema import times
from .pending import ROWS_MAX, PendingCount, PendingPage
from .query import Query

AT_ONCE = 10_000
"""Messages of a page, and ids of one request to a node: the most that it takes."""

CancelIds = Callable[[list[str]], list[str]]
"""Cancels messages by their ids; the answer to each."""


class Finder(Protocol):
    """What pages come from, such as a ``PendingReader``."""

    def count(
        self, query: Query | None = None, *, by_second: bool = False, by_topic: bool = False
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
    """A bulk cancel, and how far it has come."""

    finder: Finder
    cancel: CancelIds
    query: Query
    before: int | None = None
    """Only messages with a lower offset, such as the ``next_offset`` of a count; None: all."""
    answers: Counter[str] = field(default_factory=Counter)
    """How many messages had each answer."""
    asked: int = 0
    """Messages that the node was asked to cancel."""
    ended: bool = False
    """Every page was worked on."""
    problems: dict[Problem, None] = field(default_factory=dict)
    """Why matches may be missing, each once."""

    @property
    def unanswered(self) -> int:
        """Messages whose cancel was sent and whose answer is not known."""
        return self.asked - self.answers.total()

    @property
    def complete(self) -> bool:
        """Whether the node has answered for every match."""
        return self.ended and not self.problems and not self.unanswered

    def count(self) -> PendingCount:
        """How many messages it is about by now. Errors: as of ``PendingReader.view``."""
        return self.finder.count(self.query)

    def run(
        self,
        progress: Callable[[int], None] = lambda _: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Cancel page after page. ``progress`` is called with how many more have an answer;
        ``stopped`` is asked between two pages. ``cancel`` runs in a thread of its own.

        Errors: those of the finder and of ``cancel``. It can be called again then, and begins with
        what is still pending.
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
                    if ids := self._wanted(page):
                        self.asked += len(ids)
                        asked = node.submit(self.cancel, ids)
                    after = page.next
                    at_end = after is None
            finally:
                self._take(asked, progress)
        self.ended = at_end

    def _wanted(self, page: PendingPage) -> list[str]:
        if self.before is None:
            return page.ids
        offsets = times(page.rows, "offset").tolist()
        return [one for one, at in zip(page.ids, offsets, strict=True) if at < self.before]

    def _take(self, asked: Future[list[str]] | None, progress: Callable[[int], None]) -> None:
        """Wait for the answers about a page, if it was asked. Errors: those of ``cancel``."""
        if asked is not None:
            answers = asked.result()
            self.answers.update(answers)
            progress(len(answers))

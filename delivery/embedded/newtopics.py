"""Makes new embedded topics ahead of their first row, on a thread of its own.

Theory: a new topic is a folder and two files, which take longer to make than the row to write. Of
2 000 new ones in a chunk the hand would make all, and whatever is due meanwhile would wait for
them. So they are made when the slot that holds their rows is read ahead, or, as rows may be due at
once, when a batch with many of them comes: it waits at the door.

Rules
- Nothing is synced here: of a segment without a row nothing counts as durable (``topiclog.py``).
- Nothing depends on it. A topic that could not be made is made with its first row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

log = logging.getLogger(__name__)

FEW = 32
"""A batch with no more new topics than these does not wait for them."""
WAIT_S = 5.0
"""A batch waits no longer, s, for its topics to be made; then the rest is made with their rows."""


class NewTopics:
    """The topics of a data directory. ``make``: makes a new one. Thread-safe; nothing blocks."""

    rows_let_in: ClassVar[int] = FEW
    """A batch of so few rows has no more topics."""

    def __init__(self, make: Callable[[str], None]) -> None:
        self._make = make
        self._there: set[str] = set()
        self._coming: set[str] = set()
        self._lock = threading.Lock()  # guards _coming and _closed
        self._closed = False
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="new-topics")

    @property
    def coming(self) -> int:
        """How many topics are being made, or will be."""
        return len(self._coming)

    def found(self, topics: Iterable[str]) -> None:
        """These topics are there."""
        self._there.update(topics)

    def expect(self, topics: Collection[str]) -> None:
        """Make those of these topics that are not there."""
        with self._lock:
            new = [topic for topic in self._new(topics) if topic not in self._coming]
            if new and not self._closed:
                self._coming.update(new)
                self._maker.submit(self._make_all, new)

    def knows(self, topics: Collection[str]) -> bool:
        """Whether a batch with these topics need not wait."""
        return len(topics) <= FEW or len(self._new(topics)) <= FEW

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """No topic is absent, but None says that many of them are being made. ``waited_s``: for so
        long the caller has waited."""
        del settled
        if waited_s > WAIT_S or self.knows(topics):
            return []
        self.expect(topics)
        return None

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._maker.shutdown(wait=True, cancel_futures=True)

    def _new(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if topic not in self._there]

    def _make_all(self, topics: list[str]) -> None:
        try:
            for topic in topics:
                if self._closed:
                    return
                if topic not in self._there:
                    self._make(topic)
                    self._there.add(topic)
        except OSError as error:
            log.debug("no new topic is made ahead: %s", error)
        finally:
            with self._lock:
                self._coming.difference_update(topics)

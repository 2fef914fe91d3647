"""Makes new embedded topics ahead of their first row, on a thread of its own.

Theory: a new topic is a folder and two files, which take longer to make than the row to write. A
chunk with 2 000 new topics would keep the hand busy making them, and every other message due
meanwhile would be late. So topics are made when the slot that holds their rows is read ahead; and
when a batch with many new topics comes, whose rows may be due at once, it waits at the door.

Rules
- Nothing is synced here: a segment without a row need not be durable (``topiclog.py``).
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
"""The longest time, s, that a batch waits for topics; later ones are made with their rows."""


class NewTopics:
    """A data directory's topics; ``make`` makes one. Thread-safe; only ``close`` blocks."""

    rows_let_in: ClassVar[int] = FEW
    """A batch with no more rows than these cannot have more new topics."""

    def __init__(self, make: Callable[[str], None]) -> None:
        self._make = make
        self._known: set[str] = set()
        self._coming: set[str] = set()
        self._lock = threading.Lock()  # guards _coming and _closed
        self._closed = False
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="new-topics")

    @property
    def coming(self) -> int:
        """The number of topics in batches that are not wholly made yet."""
        return len(self._coming)

    def found(self, topics: Iterable[str]) -> None:
        """Note that these topics exist."""
        self._known.update(topics)

    def expect(self, topics: Collection[str]) -> None:
        """Begin to make those of these topics that do not exist."""
        with self._lock:
            new = [topic for topic in self._new(topics) if topic not in self._coming]
            if new and not self._closed:
                self._coming.update(new)
                self._maker.submit(self._make_all, new)

    def knows(self, topics: Collection[str]) -> bool:
        """Returns True when a batch with these topics need not wait."""
        return len(topics) <= FEW or len(self._new(topics)) <= FEW

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """Returns an empty list, as no topic is ever absent, or None: many of them are being made,
        so the caller, which has waited for ``waited_s``, should ask again."""
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
        return [topic for topic in topics if topic not in self._known]

    def _make_all(self, topics: list[str]) -> None:
        try:
            for topic in topics:
                if self._closed:
                    return
                if topic not in self._known:
                    self._make(topic)
                    self._known.add(topic)
        except OSError as error:
            log.debug("no new topic is made ahead: %s", error)
        finally:
            with self._lock:
                self._coming.difference_update(topics)

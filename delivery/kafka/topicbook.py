"""A cache of target topics: their partitions, or that there is no such topic.

Theory: a Kafka client that gets an unknown topic asks the broker and waits, up to a minute, and
everything queued behind it waits too. So a sink asks first. A message must not be refused for good
because its topic was created only a moment ago: only an answer of the broker counts, and only one
that has been the same for ``unknown_after_s``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import TTLCache

TOPICS_REMEMBERED = 100_000
TOPIC_LIMIT = "max.message.bytes"
"""The topic's configuration that is ``TopicInfo.bytes_max``."""
FRESH_S = 60.0
"""After this time, s, a known topic is asked for again: it may have more partitions."""
ASK_AGAIN_S = 1.0
"""A missing topic is asked for at most this often, s."""


class Unreachable(Exception):
    """No broker answered in time."""


class NotYet(Exception):
    """The broker answered, but the topic cannot be used now (no leader, or not sure it exists)."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """``count``: number of partitions, of which ``leaderless`` have no leader now. ``bytes_max``:
    the largest batch the topic accepts, None if that is not known."""

    count: int
    leaderless: int = 0
    bytes_max: int | None = None


@dataclass(slots=True)
class _Missing:
    since: float
    asked: float


class TopicBook:
    """A cache of topics. Thread-safe. ``fetch(topic)`` asks the broker: None when there is no such
    topic, else its partitions; raises ``NotYet`` or ``Unreachable``, within its own time limit."""

    def __init__(
        self,
        fetch: Callable[[str], TopicInfo | None],
        unknown_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._unknown_after_s = unknown_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: TTLCache[str, TopicInfo] = TTLCache(TOPICS_REMEMBERED, FRESH_S, clock)
        self._missing: TTLCache[str, _Missing] = TTLCache(TOPICS_REMEMBERED, FRESH_S, clock)

    def lookup(self, topic: str, *, fresh: bool = False) -> TopicInfo | None:
        """The topic's partitions; None: it certainly does not exist.

        ``fresh``: ask the broker in any case. Errors: ``NotYet``, ``Unreachable``.
        """
        with self._lock:
            known = self._known.get(topic)
            if known is not None and not fresh:
                return known
            missing = self._missing.get(topic)
            asked_now = missing is not None and self._clock() - missing.asked < ASK_AGAIN_S
            if missing is not None and asked_now and not fresh and self._sure(missing):
                return None
        found = self._fetch(topic)
        with self._lock:
            if found is not None:
                self._missing.pop(topic, None)
                if found.leaderless:
                    # Sending to it would block until the time limit.
                    self._known.pop(topic, None)
                    raise NotYet(f"topic {topic}: {found.leaderless} partitions without a leader")
                self._known[topic] = found
                return found
            now = self._clock()
            self._known.pop(topic, None)
            missing = _Missing(missing.since if missing else now, now)
            self._missing[topic] = missing
            if self._sure(missing):
                return None
        raise NotYet(f"topic {topic} does not exist (asking again to be sure)")

    def forget(self, topic: str) -> None:
        """A send to the topic failed: ask the broker before the next try."""
        with self._lock:
            self._known.pop(topic, None)

    def _sure(self, missing: _Missing) -> bool:
        return missing.asked - missing.since >= self._unknown_after_s

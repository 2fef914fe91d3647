"""Topics that refuse records because two clocks differ: the node's, and the broker's.

Theory: a sink gives each record the time of the node's clock, and a broker refuses one that is too
far from its own (``message.timestamp.after.max.ms``, an hour by default). So a refused time says
nothing of the message: every message would be refused until somebody sets a clock right.

A broker does not tell its time. But how far off a time may be is in the topic's configuration. With
the range of times that the broker names to some clients, that is its clock; without it, it is known
at least which side of a moment the broker's clock is on.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable

from cachetools import TTLCache

from ...wheel.texts import time_text
from .topicbook import TOPICS_REMEMBERED, TopicInfo

_RANGE = re.compile(r"should be within \[-?\d+, (\d+)\]")
"""How a broker names the times that it takes."""
_AGAIN_S = 60.0
_FORGOTTEN_S = 600.0
"""A topic that nothing was sent to for so long, s, is no problem any more."""


class ClockAlarms:
    """Topics whose broker refused a time; ``alarm``: gets a text about both clocks, once a minute
    while that lasts. Called by several threads."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.alarm: Callable[[str], None] = lambda _text: None
        self._lock = threading.Lock()
        self._topics: TTLCache[str, str] = TTLCache(TOPICS_REMEMBERED, _FORGOTTEN_S)
        self._now_ms = now_ms
        self._next_alarm_s = 0.0

    @property
    def problems(self) -> dict[str, str]:
        """The text about each topic."""
        with self._lock:
            return dict(self._topics)

    def refused(self, topic: str, info: TopicInfo | None, said: str = "") -> str:
        """A record for the topic was refused for its time. ``said``: the client's text. Returns a
        text about both clocks."""
        text = about_clocks(self._now_ms(), info, said)
        with self._lock:
            self._topics[topic] = text
            tell = time.monotonic() >= self._next_alarm_s
            if tell:
                self._next_alarm_s = time.monotonic() + _AGAIN_S
        if tell:
            self.alarm(f"{text} Until then topic {topic}, and others like it, take nothing")
        return text

    def taken(self, topics: Iterable[str]) -> None:
        """These topics took records."""
        with self._lock:  # even its length: a cache that forgets changes when it is looked at
            if not self._topics:
                return
            for topic in topics:
                self._topics.pop(topic, None)
            if not self._topics:
                self._next_alarm_s = 0.0


def about_clocks(now_ms: int, info: TopicInfo | None, said: str = "") -> str:
    """``now_ms``: by the node's clock. ``info``: what is known of the topic. ``said``: by the
    client about the record."""
    ahead_ms = None if info is None else info.ahead_max_ms
    behind_ms = None if info is None else info.behind_max_ms
    broker = []
    if ahead_ms is not None and ahead_ms <= now_ms:
        broker.append(f"before {time_text(now_ms - ahead_ms)}")
    if behind_ms is not None and behind_ms <= now_ms:
        broker.append(f"after {time_text(now_ms + behind_ms)}")
    named = _RANGE.search(said)
    if named is not None and ahead_ms is not None:
        broker = [time_text(int(named[1]) - ahead_ms)]
    theirs = " or ".join(broker) or "another time"
    return (
        f"clocks differ: the node's clock says {time_text(now_ms)}, the broker's clock"
        f" {theirs}, by what the broker refuses. Set the wrong one right."
    )

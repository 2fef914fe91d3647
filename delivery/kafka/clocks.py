"""Topics that refuse records because two clocks differ: the node's, and the broker's.

Theory: a sink gives each record the time of the node's clock, and a broker refuses one that is too
far from its own (``message.timestamp.after.max.ms``, an hour by default). So a refused time says
nothing of the message: every message would be refused until somebody sets a clock right.

A broker does not tell its time, but the topic's configuration says how far off a time may be. Where
the broker's error names the latest time that it takes, its clock is that time less the limit. Else
only bounds are known: with an hour as both limits, a record of 12:00 that is refused shows that the
broker's clock is before 11:00 or after 13:00.
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
"""The range of times that a broker takes, in the text of its error."""
_AGAIN_S = 60.0
_FORGOTTEN_S = 600.0
"""A topic without a record for so long, s, is no problem any more."""


class ClockAlarms:
    """Topics whose broker refuses the time of records. ``alarm`` gets a text about both clocks,
    once a minute while that lasts. Thread-safe."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.alarm: Callable[[str], None] = lambda _text: None
        self._lock = threading.Lock()
        self._topics: TTLCache[str, str] = TTLCache(TOPICS_REMEMBERED, _FORGOTTEN_S)
        self._now_ms = now_ms
        self._next_alarm_s = 0.0

    @property
    def problems(self) -> dict[str, str]:
        """Each topic that takes nothing, with the text about both clocks."""
        with self._lock:
            return dict(self._topics)

    def refused(self, topic: str, info: TopicInfo | None, said: str = "") -> str:
        """Note that a record for the topic was refused for its time; ``said`` is the client's text.
        Returns a text about both clocks."""
        text = about_clocks(self._now_ms(), info, said)
        with self._lock:
            self._topics[topic] = text
            is_time = time.monotonic() >= self._next_alarm_s
            if is_time:
                self._next_alarm_s = time.monotonic() + _AGAIN_S
        if is_time:
            self.alarm(f"{text} Until then topic {topic}, and others like it, take nothing")
        return text

    def taken(self, topics: Iterable[str]) -> None:
        """Note that these topics took records."""
        with self._lock:  # asking for the length of a cache that forgets changes it
            if not self._topics:
                return
            for topic in topics:
                self._topics.pop(topic, None)
            if not self._topics:
                self._next_alarm_s = 0.0


def about_clocks(now_ms: int, info: TopicInfo | None, said: str = "") -> str:
    """A text that compares the node's clock, ``now_ms``, with the broker's, as far as the topic's
    limits (``info``) and the client's text about the record (``said``) show it."""
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
    broker_time = " or ".join(broker) or "another time"
    return (
        f"clocks differ: the node's clock says {time_text(now_ms)}, the broker's clock"
        f" {broker_time}, by what the broker refuses. Set the wrong one right."
    )

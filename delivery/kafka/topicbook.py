"""A cache of target topics: their partitions, or that there is no such topic.

Theory: a Kafka client that gets an unknown topic asks the broker and waits, up to a minute, and
everything queued behind it waits too. So a sink asks first: for many topics in one request, and
ahead of their time, on a thread of its own (``turn``). One request a topic would make a chunk of
2 000 topics wait for 2 000 answers.

A message must not be refused for good because its topic was created only a moment ago. So a topic
counts as missing only when the broker has said so for ``unknown_after_s``; until then it is held
back. But the wheel can hold back only a few dozen topics: while more than ``UNSURE_MAX`` are
missing at a time, ``CROWDED_AFTER_S`` is enough. Otherwise a misconfigured tenant who sends each
message to a topic of its own would hold up the messages of all others. For the same reason a batch
with so many unknown topics waits at the door until Kafka has answered for them: its messages may be
due at once, and then all others would wait for the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cachetools import TTLCache

TOPICS_REMEMBERED = 100_000
TOPIC_LIMIT, TIME_AHEAD, TIME_BEHIND = TOPIC_CONFIGS = (
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
)
"""The topic's configurations that ``TopicInfo`` has."""
KEPT_S = 600.0
"""A topic that is not asked for again is forgotten after this time, s."""
FRESH_S = 30.0
"""A topic in use is asked for again after this time, s: it may have more partitions."""
ASK_AGAIN_S = 1.0
"""Each of many missing topics is asked for at most this often, s."""
CROWD_KNOWN_S = 3.0
"""The answer that a topic is missing counts for so long, s, where many are: they are asked for
ahead of their time, a thousand in a request, and the hand must not wait for that again."""
LOOK_AGAIN_S = 0.05
"""The same, where few topics are missing, and for one that may not be missing."""
UNSURE_MAX = 16
CROWDED_AFTER_S = 0.1
TOPICS_A_REQUEST = 1_000
DOOR_WAIT_S = 2.0
"""A batch waits for Kafka's answer about its topics for so long, s; then it is accepted."""
_CREATED_S = 0.5
"""A broker may know of a topic so much later, s, than its creator."""
SETTLED_S = 10.0
"""A topic that has been missing for so long, s, is gone. One that is missing for less and was in
use may only be forgotten by a broker that restarts."""


class Unreachable(Exception):
    """No broker answered in time."""


class NotYet(Exception):
    """The broker answered, but the topic cannot be used now (no leader, or not sure it exists)."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic of ``count`` partitions, of which ``leaderless`` have no leader now. The other fields
    are None where they are not known. ``bytes_max``: the largest batch the topic accepts. A
    record's time may be ahead of the broker's clock by ``ahead_max_ms`` and behind it by
    ``behind_max_ms``; None also where the broker itself sets the times."""

    count: int
    leaderless: int = 0
    bytes_max: int | None = None
    ahead_max_ms: int | None = None
    behind_max_ms: int | None = None

    @classmethod
    def described(
        cls, count: int, leaderless: int, config: Mapping[str, str | None], *, compressed: bool
    ) -> TopicInfo:
        """A topic by its configuration, which is empty where the node may not read it.
        ``compressed``: the broker measures the compressed batch, so ``bytes_max`` is not known."""
        limit, ahead, behind = (_number(config.get(name)) for name in TOPIC_CONFIGS)
        return cls(count, leaderless, None if compressed else limit, ahead, behind)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


Found = TopicInfo | None | NotYet
"""The broker's answer for a topic; None: it does not exist."""


@dataclass(slots=True)
class _Missing:
    since: float
    asked: float
    """The time at which the request of the last answer began."""
    existed: bool = False
    """The topic was there before: a broker may have forgotten it for a moment."""


class TopicBook:
    """A cache of topics. Thread-safe. ``fetch(topics)`` returns the broker's answer for each topic,
    or raises ``Unreachable``, within its own time limit."""

    rows_let_in: ClassVar[int] = 0
    """No batch is so small that its topics cannot be missing."""

    def __init__(
        self,
        fetch: Callable[[Sequence[str]], Mapping[str, Found]],
        unknown_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._unknown_after_s = unknown_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._known: TTLCache[str, TopicInfo] = TTLCache(TOPICS_REMEMBERED, KEPT_S, clock)
        self._missing: TTLCache[str, _Missing] = TTLCache(TOPICS_REMEMBERED, KEPT_S, clock)
        self._unsure: dict[str, _Missing] = {}
        """Topics that the broker has missed for less than ``unknown_after_s``."""
        self._present: set[str] = set()
        """Topics that exist, usable or not; for ``knows``, which takes no lock."""
        self._used: set[str] = set()
        """Topics that were looked up since ``turn`` last asked for those in use."""
        self._ahead: dict[str, None] = {}
        """Topics that ``turn`` has to ask for."""
        self._refresh_at_s = clock() + FRESH_S
        self._away = False
        """True when the last request had no answer."""

    def lookup(self, topic: str, *, fresh: bool = False) -> TopicInfo | None:
        """The topic's partitions; None: it certainly does not exist.

        ``fresh``: ask the broker in any case. Errors: ``NotYet``, ``Unreachable``.
        """
        answer = self.ask(topic) if fresh else self.lookup_all([topic])[topic]
        if isinstance(answer, NotYet):
            raise answer
        return answer

    def lookup_all(self, topics: Iterable[str]) -> dict[str, Found]:
        """The answer for each topic: from the cache, or from the broker in one request.

        Errors: ``Unreachable``."""
        answers: dict[str, Found] = {}
        unknown, gone = list[str](), list[str]()
        with self._lock:
            now = self._clock()
            for topic in topics:
                known = self._known.get(topic) if topic in self._present else None
                if known is not None:
                    self._used.add(topic)
                    answers[topic] = known
                    continue
                missing = self._missing.get(topic)
                if missing is not None and self._is_sure(topic, missing):
                    if now - missing.asked < CROWD_KNOWN_S:
                        gone.append(topic)
                        continue
                elif missing is not None and now - missing.asked < LOOK_AGAIN_S:
                    answers[topic] = _not_sure(topic)
                    continue
                unknown.append(topic)
            answers |= dict.fromkeys(gone)
            if len(gone) <= UNSURE_MAX:  # one of them may have been created a moment ago
                unknown += [
                    topic for topic in gone if now - self._missing[topic].asked >= LOOK_AGAIN_S
                ]
        return answers | self._ask(unknown) if unknown else answers

    def ask(self, topic: str) -> Found:
        """Ask the broker for a topic now. Errors: ``Unreachable``."""
        return self._ask([topic])[topic]

    def forget(self, topic: str) -> None:
        """A send to the topic failed: ask the broker before the next try."""
        with self._lock:
            self._drop(topic)

    # Ahead of the time

    def ask_ahead(self, topics: Collection[str]) -> None:
        """Let ``turn`` ask for topics that will be looked up soon. Never blocks."""
        with self._lock:
            now = self._clock()
            for topic in topics:
                missing = self._missing.get(topic)
                if topic not in self._known and (
                    missing is None or now - missing.asked >= ASK_AGAIN_S
                ):
                    self._ahead[topic] = None
            if self._ahead:
                self._wanted.notify()

    def knows(self, topics: Collection[str]) -> bool:
        """Returns True when all these topics are known to exist. Takes no lock."""
        self._used.update(topics)
        return self._present.issuperset(topics)

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """Those of ``topics`` that Kafka called missing, for a caller that has waited for
        ``waited_s``; None: some are not known yet, so ask again. Never blocks.

        Only requests that began ``_CREATED_S`` or more after the caller came count, so a topic that
        was created before it came is never absent. Nor is one that a restarting broker may have
        forgotten for a moment: the sink decides when the message is due. After ``DOOR_WAIT_S``
        without an answer the rest count as present, or nobody could send while Kafka is away.
        ``settled``: for a topic that has been missing for ``SETTLED_S`` an answer younger than
        ``ASK_AGAIN_S`` is enough, so that a caller with many batches waits once for all of them.
        """
        with self._lock:
            unknown = [topic for topic in topics if topic not in self._present]
            if not unknown:
                return []
            now, absent, waits = self._clock(), list[str](), False
            since_s = now - waited_s
            for topic in unknown:
                missing = self._missing.get(topic)
                if missing is not None and (
                    (settled and self._is_settled(missing) and now - missing.asked < ASK_AGAIN_S)
                    or self._is_absent(topic, missing, since_s)
                ):
                    absent.append(topic)
                else:
                    waits = True
                    self._ahead[topic] = None
            if not waits:
                return absent
            self._wanted.notify()
            return absent if self._away or waited_s > DOOR_WAIT_S else None

    def is_asking(self, topics: Collection[str], waited_s: float) -> bool:
        """Returns True while a batch has to wait at the door, and lets ``turn`` ask: more than
        ``UNSURE_MAX`` of ``topics`` have no sure answer. False once the caller has waited for
        longer than ``DOOR_WAIT_S``, or while Kafka is away, or nobody could send. Never blocks."""
        with self._lock:
            undecided = []
            for topic in topics:
                missing = self._missing.get(topic)
                if topic not in self._present and not (missing and self._is_sure(topic, missing)):
                    undecided.append(topic)
            if len(undecided) <= UNSURE_MAX or self._away or waited_s > DOOR_WAIT_S:
                return False
            self._ahead |= dict.fromkeys(undecided)
            self._wanted.notify()
            return True

    def turn(self) -> float:
        """Ask for topics that will be looked up soon, and again for those in use; waits a moment
        for a topic to ask for. Returns the pause before the next turn, s."""
        with self._lock:
            if not self._ahead:
                self._wanted.wait(LOOK_AGAIN_S if self._unsure else ASK_AGAIN_S / 4)
            topics, self._ahead = list(self._ahead), {}
            now = self._clock()
            topics += [
                name
                for name, missing in self._unsure.items()
                if now - missing.asked >= LOOK_AGAIN_S and not self._is_sure(name, missing)
            ]
            if now >= self._refresh_at_s:
                self._refresh_at_s = now + FRESH_S
                used, self._used = self._used, set()
                topics += used
                self._present = set(self._known)
            topics = list(dict.fromkeys(topics))
        try:
            for at in range(0, len(topics), TOPICS_A_REQUEST):
                self._ask(topics[at : at + TOPICS_A_REQUEST])
        except Unreachable:
            with self._lock:  # the next turn asks again, which shows when Kafka is back
                self._ahead = dict.fromkeys(topics[:TOPICS_A_REQUEST]) | self._ahead
            return ASK_AGAIN_S
        return 0.0

    # Inside

    def _ask(self, topics: Sequence[str]) -> dict[str, Found]:
        asked = self._clock()
        try:
            answers = self._fetch(topics)
        except Unreachable:
            self._away = True
            raise
        usable: dict[str, Found] = {}
        with self._lock:
            self._away = False
            for topic in topics:
                usable[topic] = answer = self._usable(topic, answers[topic])
                if answer is None:
                    self._note_missing(topic, asked)
                    continue
                self._missing.pop(topic, None)
                self._unsure.pop(topic, None)
                self._present.add(topic)
                if isinstance(answer, TopicInfo):
                    self._known[topic] = answer
                else:
                    self._known.pop(topic, None)
            for topic in [name for name, answer in usable.items() if answer is None]:
                if not self._is_sure(topic, self._missing[topic]):
                    usable[topic] = _not_sure(topic)
        return usable

    def _drop(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._present.discard(topic)

    @staticmethod
    def _usable(topic: str, answer: Found) -> Found:
        if isinstance(answer, TopicInfo) and answer.leaderless:
            # Sending to it would block until the time limit.
            return NotYet(f"topic {topic}: {answer.leaderless} partitions without a leader")
        return answer

    def _note_missing(self, topic: str, asked: float) -> None:
        before = self._missing.get(topic)
        existed = topic in self._known or topic in self._present
        existed |= before is not None and before.existed
        self._drop(topic)
        since = before.since if before else asked
        self._missing[topic] = missing = _Missing(since, asked, existed)
        if missing.asked - missing.since < self._unknown_after_s:
            self._unsure[topic] = missing
        else:
            self._unsure.pop(topic, None)

    def _is_absent(self, topic: str, missing: _Missing, since_s: float) -> bool:
        if missing.existed and not self._is_settled(missing):
            return False
        return self._is_sure(topic, missing) and missing.asked >= since_s + _CREATED_S

    @staticmethod
    def _is_settled(missing: _Missing) -> bool:
        return missing.asked - missing.since >= SETTLED_S

    def _is_sure(self, topic: str, missing: _Missing) -> bool:
        crowded = len(self._unsure) > UNSURE_MAX and not missing.existed
        return topic not in self._unsure or (
            crowded and missing.asked - missing.since >= CROWDED_AFTER_S
        )


class AnyTopic:
    """The topics of a node that accepts messages also to those that Kafka does not have."""

    rows_let_in: ClassVar[int] = UNSURE_MAX
    """A batch with no more rows than these cannot have more topics."""

    def __init__(self, book: TopicBook) -> None:
        self._book = book

    def knows(self, topics: Collection[str]) -> bool:
        """Returns True when a batch with these topics need not wait."""
        return len(topics) <= UNSURE_MAX or self._book.knows(topics)

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """Returns an empty list, as no topic is refused, or None while many are being looked up."""
        del settled
        return None if self._book.is_asking(topics, waited_s) else []


def _not_sure(topic: str) -> NotYet:
    return NotYet(f"topic {topic} does not exist (asking again to be sure)")

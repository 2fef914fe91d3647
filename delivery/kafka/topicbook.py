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
with so many unknown topics waits at the door until it is known what they are: its messages may be
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
"""How long, s, a topic that is not asked for again is known."""
FRESH_S = 30.0
"""After this time, s, a topic in use is asked for again: it may have more partitions."""
ASK_AGAIN_S = 1.0
"""Each of many missing topics is asked for at most this often, s."""
CROWD_KNOWN_S = 3.0
"""So long, s, the answer counts that many topics are missing: they are asked for ahead of their
time, a thousand in a request, and who delivers must not wait for that again."""
LOOK_AGAIN_S = 0.05
"""So often, s, while they are few, or it is not sure that they are missing."""
UNSURE_MAX = 16
CROWDED_AFTER_S = 0.1
TOPICS_A_REQUEST = 1_000
DOOR_WAIT_S = 2.0
"""How long, s, a batch waits for Kafka's answer about its topics; then it is accepted."""
_CREATED_S = 0.5
"""A broker may know of a topic so much later, s, than whoever created it."""
SETTLED_S = 10.0
"""A topic that has been missing for so long, s, stays so. Before, one that was in use may only be
forgotten by a broker that restarts."""


class Unreachable(Exception):
    """No broker answered in time."""


class NotYet(Exception):
    """The broker answered, but the topic cannot be used now (no leader, or not sure it exists)."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """``count``: number of partitions, of which ``leaderless`` have no leader now. The other fields
    are None where they are not known. ``bytes_max``: the largest batch the topic accepts.
    ``ahead_max_ms``, ``behind_max_ms``: by how much a record's time may differ from the broker's
    clock; None also where the broker itself sets the times."""

    count: int
    leaderless: int = 0
    bytes_max: int | None = None
    ahead_max_ms: int | None = None
    behind_max_ms: int | None = None

    @classmethod
    def described(
        cls, count: int, leaderless: int, config: Mapping[str, str | None], *, compressed: bool
    ) -> TopicInfo:
        """By its configuration, empty where that may not be read. ``compressed``: the broker
        measures the compressed batch, so no size is known."""
        limit, ahead, behind = (_number(config.get(name)) for name in TOPIC_CONFIGS)
        return cls(count, leaderless, None if compressed else limit, ahead, behind)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


Found = TopicInfo | None | NotYet
"""What is known of a topic; None: it does not exist."""


@dataclass(slots=True)
class _Missing:
    since: float
    asked: float
    """When the request began whose answer came last."""
    existed: bool = False
    """It was there before: a broker may have forgotten it for a moment."""


class TopicBook:
    """A cache of topics. Thread-safe. ``fetch(topics)`` asks the broker: what it says of each;
    raises ``Unreachable``, within its own time limit."""

    rows_let_in: ClassVar[int] = 0
    """The topic of a single row may be missing."""

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
        """Topics that seem to be missing, and it is not sure."""
        self._present: set[str] = set()
        """Topics that are there, usable or not; for ``knows``, which takes no lock."""
        self._used: set[str] = set()
        """Topics that were looked up since those in use were last asked for."""
        self._ahead: dict[str, None] = {}
        """Topics that are to be asked for by ``turn``."""
        self._refresh_at_s = clock() + FRESH_S
        self._away = False
        """Whether the last request had no answer."""

    def lookup(self, topic: str, *, fresh: bool = False) -> TopicInfo | None:
        """The topic's partitions; None: it certainly does not exist.

        ``fresh``: ask the broker in any case. Errors: ``NotYet``, ``Unreachable``.
        """
        found = self.ask(topic) if fresh else self.lookup_all([topic])[topic]
        if isinstance(found, NotYet):
            raise found
        return found

    def lookup_all(self, topics: Iterable[str]) -> dict[str, Found]:
        """What is known of each topic; the broker is asked for all others at once. Errors:
        ``Unreachable``."""
        found: dict[str, Found] = {}
        unknown, gone = list[str](), list[str]()
        with self._lock:
            now = self._clock()
            for topic in topics:
                known = self._known.get(topic) if topic in self._present else None
                if known is not None:
                    self._used.add(topic)
                    found[topic] = known
                    continue
                missing = self._missing.get(topic)
                if missing is not None and self._is_sure(topic, missing):
                    if now - missing.asked < CROWD_KNOWN_S:
                        gone.append(topic)
                        continue
                elif missing is not None and now - missing.asked < LOOK_AGAIN_S:
                    found[topic] = _not_sure(topic)
                    continue
                unknown.append(topic)
            found |= dict.fromkeys(gone)
            if len(gone) <= UNSURE_MAX:  # one of them may have been created a moment ago
                unknown += [one for one in gone if now - self._missing[one].asked >= LOOK_AGAIN_S]
        return found | self._ask(unknown) if unknown else found

    def ask(self, topic: str) -> Found:
        """What the broker says of a topic now. Errors: ``Unreachable``."""
        return self._ask([topic])[topic]

    def forget(self, topic: str) -> None:
        """A send to the topic failed: ask the broker before the next try."""
        with self._lock:
            self._drop(topic)

    # Ahead of the time

    def ask_ahead(self, topics: Collection[str]) -> None:
        """Topics that will be looked up soon; ``turn`` asks for them. Never blocks."""
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
        """Whether all these topics are known to exist. Costs next to nothing."""
        self._used.update(topics)
        return self._present.issuperset(topics)

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """Those of ``topics`` that do not exist, for a caller that has waited for ``waited_s``.
        Only what Kafka was asked since then counts, so a topic that was created before is never
        among them; nor is one that may only be forgotten for a moment, by a broker that restarts:
        the sink decides, when the message is due. ``settled``: for a topic that has been missing
        for ``SETTLED_S`` an answer that is younger than ``ASK_AGAIN_S`` is enough, so that a caller
        in a row waits once for many batches. None: the answer is on its way. Never blocks; while
        Kafka does not answer, no topic is absent."""
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
        """Whether it is not known yet of many of ``topics`` if they exist, and Kafka is asked, for
        a caller that has waited for ``waited_s``. Never blocks."""
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
        """Ask for what will be looked up soon, and again for what is in use; waits a moment for
        something to ask for. Returns how long to wait before the next turn, s."""
        with self._lock:
            if not self._ahead:
                self._wanted.wait(LOOK_AGAIN_S if self._unsure else ASK_AGAIN_S / 4)
            topics, self._ahead = list(self._ahead), {}
            now = self._clock()
            topics += [
                name
                for name, one in self._unsure.items()
                if now - one.asked >= LOOK_AGAIN_S and not self._is_sure(name, one)
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
            with self._lock:  # so that it is known when Kafka is back
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
        found: dict[str, Found] = {}
        with self._lock:
            self._away = False
            for topic in topics:
                found[topic] = answer = self._usable(topic, answers[topic])
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
            for topic in [name for name, answer in found.items() if answer is None]:
                if not self._is_sure(topic, self._missing[topic]):
                    found[topic] = _not_sure(topic)
        return found

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
    """A batch of so few rows has no more topics."""

    def __init__(self, book: TopicBook) -> None:
        self._book = book

    def knows(self, topics: Collection[str]) -> bool:
        """Whether a batch with these topics need not wait."""
        return len(topics) <= UNSURE_MAX or self._book.knows(topics)

    def absent(
        self, topics: Collection[str], waited_s: float, *, settled: bool = False
    ) -> list[str] | None:
        """No topic is refused, but None says that many of them are being looked up."""
        del settled
        return None if self._book.is_asking(topics, waited_s) else []


def _not_sure(topic: str) -> NotYet:
    return NotYet(f"topic {topic} does not exist (asking again to be sure)")

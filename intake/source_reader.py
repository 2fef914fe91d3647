"""What reads sources from Kafka: the protocol that both clients' readers implement."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from .records import ConsumerRecords
from .sources import Place, StoredOffset

RECORDS_MAX = 5000
TIMEOUT_S = 3.0
"""The longest that a call of a reader takes, s, while Kafka does not answer."""
_AGAIN_S = 0.1

EARLIEST_AT, END_AT = -2, -1
NO_LEADER = -1
T = TypeVar("T")


class SourceUnreachable(Exception):
    """Kafka did not answer; it may later."""


class SourceUnreadable(Exception):
    """A source cannot be read now; the text says why."""


class SourceOutOfRange(SourceUnreadable):
    """The position is not in the partition any more, or not yet."""


class DescribedTopic(NamedTuple):
    """A topic as Kafka describes it. ``topic_id``: as Kafka's tools write it; empty if the broker
    tells none. ``led``: whether each partition has a leader."""

    topic_id: str
    led: Sequence[bool]


class Polled(NamedTuple):
    """Records by source, and what is wrong with sources. A source with an error is not read any
    further."""

    records: Mapping[Place, ConsumerRecords]
    errors: Mapping[Place, SourceUnreadable]


class SourceReader(Protocol):
    """A client of one Kafka that reads partitions, read-committed and without group membership.

    Every call is bounded in time. Errors of all methods: ``SourceUnreachable``.
    """

    cluster: str
    """The cluster's id."""

    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic | SourceUnreadable]: ...
    def offsets(self, places: Collection[Place], at: int) -> dict[Place, int]:
        """By partition, its first offset at or after the time ``at``, ms since the epoch;
        ``EARLIEST_AT``: its first one; ``END_AT``: the one behind the last record that can be read.
        A partition is left out if its leader does not say, or if it has no record so young. The
        topics were described before."""

    def every_topic(self) -> list[str]:
        """The names of all topics that may be seen."""

    def stored(self, places: Collection[Place]) -> dict[Place, StoredOffset]:
        """What the group has stored. Errors: ``SourceUnreadable`` for want of rights."""

    def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
        """Store offsets for the group. ``wait`` False: a failure may be raised by the next call.
        Errors: ``SourceUnreadable``; the offsets of other sources may be stored all the same."""

    def read(self, offsets: Mapping[Place, int]) -> None:
        """Begin to read these partitions, too, each from its offset."""

    def leave(self, places: Collection[Place]) -> None: ...
    def poll(self, timeout_s: float) -> Polled: ...
    def positions(self) -> dict[Place, int]:
        """An offset for each partition that is read: ``poll`` has returned every record below it.
        Without partitions for which Kafka has not answered yet."""

    def close(self) -> None: ...


def ask_leaders(
    places: Iterable[Place],
    leaders: Mapping[Place, int],
    ask: Callable[[list[Place]], Mapping[Place, int]],
) -> dict[Place, int]:
    """What ``ask`` finds out from the brokers that lead ``places``, as far as they answer. Each is
    asked for one topic at a time: a broker that does not answer, or a topic that may not be read,
    would fail the request for all other partitions in it."""
    groups: dict[tuple[int, str], list[Place]] = {}
    for place in sorted(places):
        groups.setdefault((leaders.get(place, NO_LEADER), place.topic), []).append(place)
    found: dict[Place, int] = {}
    passed = {NO_LEADER}
    for (leader, _), group in groups.items():
        if leader in passed:
            continue
        try:
            found |= ask(group)
        except SourceUnreachable:
            passed.add(leader)
        except SourceUnreadable:
            continue
    return found


def until_answered(call: Callable[[], T], retriable: Callable[[Exception], bool]) -> T:
    """Call again for some time while the error is one that passes, as that of a group's coordinator
    that is only starting."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except Exception as error:
            if not retriable(error) or time.monotonic() >= end:
                raise
        time.sleep(_AGAIN_S)

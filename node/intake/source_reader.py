"""The protocol of a reader of sources, which both clients' readers implement."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ...broker.sources import Place, StoredOffset
from .records import ConsumerRecords

RECORDS_MAX = 5000
TIMEOUT_S = 3.0
"""The longest time, s, that a call of a reader takes while Kafka does not answer."""
_AGAIN_S = 0.1

EARLIEST_AT, END_AT = -2, -1
NO_LEADER = -1
T = TypeVar("T")


class SourceUnreachable(Exception):
    """Kafka did not answer; it may answer later."""


class SourceUnreadable(Exception):
    """A source cannot be read now; the text says why."""


class SourceOutOfRange(SourceUnreadable):
    """The position is not in the partition any more, or not yet."""


class DescribedTopic(NamedTuple):
    """A topic as Kafka describes it. ``topic_id``: as Kafka's tools write it; empty if the broker
    tells none. ``led``: True for each partition that has a leader."""

    topic_id: str
    led: Sequence[bool]


class Polled(NamedTuple):
    """Records by source, and errors by source. The reader has left each source with an error."""

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
        """The first offset of each partition at or after the time ``at``, ms since the epoch. With
        ``EARLIEST_AT`` it is the first offset, with ``END_AT`` the one behind the last readable
        record. A partition is left out if its leader does not answer, or if it has no record so
        young. Call ``describe`` before: it finds the leaders."""

    def every_topic(self) -> list[str]:
        """The names of all topics that the user may see."""

    def stored(self, places: Collection[Place]) -> dict[Place, StoredOffset]:
        """The offsets that the group has stored. Errors: ``SourceUnreadable`` without rights."""

    def store(self, offsets: Mapping[Place, StoredOffset], *, wait: bool = True) -> None:
        """Store offsets for the group. ``wait`` False: a failure may be raised by the next call.
        Errors: ``SourceUnreadable``; the offsets of other sources may be stored all the same."""

    def read(self, offsets: Mapping[Place, int]) -> None:
        """Begin to read these partitions, each from its offset, besides those that are read."""

    def leave(self, places: Collection[Place]) -> None: ...
    def poll(self, timeout_s: float) -> Polled: ...
    def positions(self) -> dict[Place, int]:
        """An offset for each partition that is read: ``poll`` has returned every record below it.
        A partition for which Kafka has not answered yet is left out."""

    def close(self) -> None: ...


def ask_leaders(
    places: Iterable[Place],
    leaders: Mapping[Place, int],
    ask: Callable[[list[Place]], Mapping[Place, int]],
) -> dict[Place, int]:
    """Ask the leaders of ``places``, by ``ask``, and return the answers of those that answer. Each
    is asked for one topic at a time: otherwise a broker that does not answer, or a topic that the
    user may not read, would fail the request for all other partitions in it."""
    groups: dict[tuple[int, str], list[Place]] = {}
    for place in sorted(places):
        groups.setdefault((leaders.get(place, NO_LEADER), place.topic), []).append(place)
    answers: dict[Place, int] = {}
    silent = {NO_LEADER}
    for (leader, _), group in groups.items():
        if leader in silent:
            continue
        try:
            answers |= ask(group)
        except SourceUnreachable:
            silent.add(leader)
        except SourceUnreadable:
            continue
    return answers


def until_answered(call: Callable[[], T], retriable: Callable[[Exception], bool]) -> T:
    """Call again, for ``TIMEOUT_S`` at most, while the error is ``retriable``, as that of a group's
    coordinator that is only starting. Errors: those of ``call``."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except Exception as error:
            if not retriable(error) or time.monotonic() >= end:
                raise
        time.sleep(_AGAIN_S)

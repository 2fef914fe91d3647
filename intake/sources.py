"""Sources of messages: what identifies one, where its reading begins, and what was not read.

Theory: a *source* is one partition of one topic of one Kafka. Offsets mean something only within
it: a topic that was deleted and made anew begins at 0 again, under the same name, with another
topic id. So a source is found by cluster id, topic id and partition, and the wheel's log keeps a
position for each. What the group knows of its sources besides positions is one value that is
committed like its policies, ``SourceTable``; a source is read only once it is in there, with the
offset at which its reading began.

    in the table      -> go on behind the log's position
    topic made anew   -> from its first record; what the old one had left is named as not read
    partition added   -> from its first record, for it began after the others were read
    never seen        -> ``begin_of``

Rules
- Where to begin is never guessed. A record read twice is delivered twice, and one passed over is
  lost; where neither can be ruled out, the source is not read, and the reason says which option
  decides.
- The position that an earlier version kept by the partition's number alone is taken over only if
  the group has stored nothing for that partition of another topic. Else it may be the other's, and
  what lies between the stored offset and it would be skipped. Begun at the stored offset, nothing
  is lost; what was taken within 5 s before a kill, and not stored, comes twice.
- Brokers older than Kafka 2.8 tell no topic ids: there the topic's name stands in, and a topic made
  anew is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Self

STORED, EARLIEST, LATEST = CHOICES = ("stored", "earliest", "latest")
OFFSETS_KEPT_MS = 7 * 24 * 3_600_000
"""How long Kafka keeps the offsets of a group without members, unless it is configured otherwise
(``offsets.retention.minutes``), ms."""
MISSED = "delay-topic-records-missed"
MADE_ANEW = "delay-topic-made-anew"
_NUMBERED = 1 << 61
"""Bit of a source's number; clear in those of earlier versions, which are partition numbers."""
_NOTES_MAX = 100
_UNREAD_MAX = 2000
_RETIRED_MAX = 16


class Place(NamedTuple):
    """A partition by its name, whatever stands behind the name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class NotKnown(Exception):
    """Where to begin cannot be known; the text says why, and what decides."""


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic of which something is read. ``topic_id``: empty if the broker tells none.
    ``partitions``: those from this number on are new, for they were not seen, or had no leader yet.
    ``begins``: the offset from which each partition was read. ``retired``: ids of topics of that
    name that are gone."""

    cluster: str
    topic: str
    topic_id: str
    partitions: int = 0
    begins: Mapping[int, int] = field(default_factory=dict)
    named: bool = False
    """Whether the name stands in for the id in the sources' numbers."""
    retired: tuple[str, ...] = ()

    def number(self, partition: int) -> int:
        """The source's number in the wheel, by which the journal keeps its position."""
        of = f"name {self.topic}" if self.named else self.topic_id
        text = "\n".join((self.cluster, of, str(partition)))
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
        return _NUMBERED | digest & (_NUMBERED - 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "id": self.topic_id,
            "partitions": self.partitions,
            "begins": {str(one): offset for one, offset in sorted(self.begins.items())},
            "named": self.named,
            "retired": list(self.retired),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            fields["cluster"],
            fields["topic"],
            fields["id"],
            fields["partitions"],
            {int(one): offset for one, offset in fields["begins"].items()},
            fields["named"],
            tuple(fields["retired"]),
        )


class Unread(NamedTuple):
    """Offsets of a partition that were not read and cannot be: ``first`` to ``last``; None: the
    last one is not known."""

    partition: int
    first: int
    last: int | None

    def contains(self, other: Unread) -> bool:
        if self.partition != other.partition or self.first > other.first:
            return False
        return self.last is None or (other.last is not None and self.last >= other.last)


@dataclass(frozen=True, slots=True)
class Note:
    """Something of a topic that was not read, kept until somebody has acknowledged it."""

    what: str
    at_ms: int
    topic: str
    topic_id: str
    unread: tuple[Unread, ...]

    @property
    def about(self) -> tuple[str, str, str]:
        return self.what, self.topic, self.topic_id

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "at_ms": self.at_ms,
            "topic": self.topic,
            "id": self.topic_id,
            "unread": [list(one) for one in self.unread],
        }

    def rows(self) -> list[dict[str, Any]]:
        """As the status shows it: one for each partition, or one for the topic."""
        of = {
            "what": self.what,
            "at_ms": self.at_ms,
            "topic": self.topic,
            "topic_id": self.topic_id,
        }
        return [of | one._asdict() for one in self.unread] or [of]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        unread = tuple(Unread(*one) for one in fields["unread"])
        return cls(fields["what"], fields["at_ms"], fields["topic"], fields["id"], unread)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """What the group knows of its sources. ``claimed``: partitions of which the position of an
    earlier version, kept under the partition's number alone, belongs to one of ``topics``.
    ``dropped``: how many gaps there was no room for."""

    topics: tuple[KnownTopic, ...] = ()
    claimed: frozenset[int] = frozenset()
    notes: tuple[Note, ...] = ()
    dropped: int = 0

    def find(self, cluster: str, topic: str) -> KnownTopic | None:
        same = (one for one in self.topics if (one.cluster, one.topic) == (cluster, topic))
        return next(same, None)

    def elsewhere(self, cluster: str, topic: str) -> bool:
        """Whether a topic of that name was read from another cluster."""
        return any(one.topic == topic and one.cluster != cluster for one in self.topics)

    def with_topic(self, known: KnownTopic) -> Self:
        """The table with this topic in the place of the one that had its name."""
        name = (known.cluster, known.topic)
        others = (one for one in self.topics if (one.cluster, one.topic) != name)
        return replace(self, topics=(*others, known))

    def with_note(self, note: Note) -> Self:
        """The table with one note more. If the same has happened to the topic before, its note gets
        longer instead: a topic that loses records each minute would push out all others' notes."""
        alike, others = list[Note](), list[Note]()
        for one in self.notes:
            (alike if one.about == note.about else others).append(one)
        unread = (*(gap for one in alike for gap in one.unread), *note.unread)
        notes = (*others, replace(note, unread=unread[-_UNREAD_MAX:]))
        dropped = max(0, len(unread) - _UNREAD_MAX)
        dropped += sum(len(one.unread) for one in notes[:-_NOTES_MAX])
        return replace(self, notes=notes[-_NOTES_MAX:], dropped=self.dropped + dropped)

    def acknowledged(self) -> Self:
        """The table without notes."""
        return replace(self, notes=(), dropped=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "topics": [one.to_dict() for one in self.topics],
            "claimed": sorted(self.claimed),
            "notes": [one.to_dict() for one in self.notes],
            "dropped": self.dropped,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        if not fields:
            return cls()
        return cls(
            tuple(map(KnownTopic.from_dict, fields["topics"])),
            frozenset(fields["claimed"]),
            tuple(map(Note.from_dict, fields["notes"])),
            fields["dropped"],
        )


def as_seen(
    known: KnownTopic | None, cluster: str, topic: str, topic_id: str
) -> tuple[KnownTopic, bool]:
    """The topic that has this name now, and whether it was made anew; how many partitions it has is
    not brought up to date. ``known``: the table's topic of that name. Errors: ``NotKnown`` when the
    broker's answer is older than the table."""
    if known is None:
        return KnownTopic(cluster, topic, topic_id, named=not topic_id), False
    if known.topic_id == topic_id or not topic_id:
        return known, False
    if not known.topic_id:  # the broker was too old to tell one
        return replace(known, topic_id=topic_id), False
    if topic_id in known.retired:
        raise NotKnown(
            f"Kafka names the topic id {topic_id}, which was replaced by {known.topic_id} before:"
            " its metadata is not up to date"
        )
    retired = (*known.retired, known.topic_id)[-_RETIRED_MAX:]
    return KnownTopic(cluster, topic, topic_id, retired=retired), True


class StoredOffset(NamedTuple):
    """What the wheel's group has stored in Kafka for a partition. ``topic_id``: the topic it was
    stored for; empty: not said, as by earlier versions and by Kafka's own tools."""

    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What there is to know of a source that is not in the table yet.

    ``earliest`` and ``end``: its range of offsets. ``stored``: by the group for the partition.
    ``old_position``: of an earlier version for the partition's number, whatever topic it was of;
    -1: none. ``rival``: the furthest offset up to it that the group has stored for that partition
    of another topic, -1: none. ``others_stored``: whether it has one for another partition of this
    topic. ``elsewhere``: whether a topic of that name was read from another cluster. ``young``: the
    first offset whose record is younger than ``OFFSETS_KEPT_MS``; None: there is none.
    """

    earliest: int
    end: int
    stored: StoredOffset | None = None
    old_position: int = -1
    rival: int = -1
    others_stored: bool = False
    elsewhere: bool = False
    young: int | None = None


class Begin(NamedTuple):
    """Where reading begins, and why. ``claims``: the position of an earlier version is this
    source's."""

    offset: int
    why: str
    claims: bool = False


def begin_of(facts: SourceFacts, choice: str | None) -> Begin:
    """Where the reading of a source begins that was never read under this table. ``choice``: one of
    ``CHOICES``; None: what is certain. Errors: ``NotKnown``."""
    stored = facts.stored
    if facts.old_position >= 0 and facts.end > facts.old_position:
        behind = facts.old_position + 1
        why = "the position of an earlier version"
        if facts.rival < 0:
            if stored is not None and not stored.topic_id and stored.offset <= behind:
                return Begin(behind, why, claims=True)
            if stored is None and choice == STORED:
                return Begin(behind, f"{why}, by --delay-from", claims=True)
        if stored is None and choice is None:
            raise NotKnown(
                f"an earlier version left the position {facts.old_position} for a partition of that"
                " number without the topic's name, and Kafka has no offset of the group that tells"
                " whether it was this topic's: give --delay-from stored if it was, else"
                " --delay-from earliest or latest"
            )
    if choice == EARLIEST:
        return Begin(facts.earliest, "by --delay-from")
    if choice == LATEST:
        return Begin(facts.end, "by --delay-from")
    if stored is not None:
        if stored.offset <= facts.end:
            return Begin(stored.offset, "stored in Kafka")
        raise NotKnown(
            f"the offset {stored.offset} that the group has stored in Kafka is behind the end of"
            f" the partition, {facts.end}: give --delay-from earliest or latest"
        )
    if choice == STORED:
        raise NotKnown(
            "the group has no offset stored in Kafka: give --delay-from earliest or latest"
        )
    if facts.others_stored:
        return Begin(facts.earliest, "the group has read other partitions only")
    if facts.earliest == facts.end:
        return Begin(facts.earliest, "it is empty")
    if facts.elsewhere:
        raise NotKnown(
            "this directory has read a topic of that name from another Kafka, and whether these"
            " are copies of its records is not known: give --delay-from earliest or latest"
        )
    if facts.young is not None and facts.young <= facts.earliest:
        return Begin(facts.earliest, "the group has never read it")
    days = OFFSETS_KEPT_MS // 86_400_000
    raise NotKnown(
        f"there are records older than {days} days, as long as Kafka keeps a group's offsets, and"
        " none is stored: whether another directory of the group has read them is not known: give"
        " --delay-from earliest or latest"
    )


PARTITIONS_MAX = 100_000


def parse_partitions(text: str) -> tuple[int, ...]:
    """The partitions of ``0,3-5``. Errors: ``ValueError``."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < PARTITIONS_MAX:
            raise ValueError(part)
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def ranges(numbers: Iterable[int]) -> str:
    """Partitions as text that ``parse_partitions`` reads: ``0,3-5``."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and runs[-1][1] == one - 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def selected(chosen: Sequence[int] | None, count: int) -> tuple[list[int], list[int]]:
    """Which partitions of a topic with ``count`` partitions are to be read, and which of the
    ``chosen`` it does not have. ``chosen`` None: all."""
    if chosen is None:
        return list(range(count)), []
    return [one for one in chosen if one < count], [one for one in chosen if one >= count]

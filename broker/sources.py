"""Sources of messages: their identity, where reading begins, and gaps in it.

Theory: a *source* is one partition of one topic of one Kafka. Offsets mean something only within
it: a topic that was deleted and made anew begins at 0 again, under the same name, with another
topic id. So a source is found by cluster id, topic id and partition, and the wheel's log keeps a
position for each. ``SourceTable`` has the rest: one value, which is committed like the group's
policies. A source is read only once it is in the table, with the offset at which its reading began.

    in the table      -> go on behind the log's position
    topic made anew   -> from its first record; what the old one had left is named as not read
    partition added   -> from its first record, for it began after the others were read
    never seen        -> ``begin_of``

Rules
- Where to begin is never guessed. A record read twice is delivered twice, and one passed over is
  lost; where neither can be ruled out, the source is not read, and the reason says which option
  decides.
- The position that an earlier version kept by the partition's number alone is taken over only if
  the group has stored nothing for that partition of another topic. Else it may be the other
  topic's, and records between the stored offset and it would be skipped. From the stored offset on,
  none is lost; those that were read within 5 s before a kill, and whose offset was not stored, come
  twice.
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
"""Kafka keeps the offsets of a group without members for so long, ms, unless
``offsets.retention.minutes`` is set otherwise."""
MISSED = "delay-topic-records-missed"
MADE_ANEW = "delay-topic-made-anew"
_NUMBERED = 1 << 61
"""A bit of each source's number; earlier versions used partitions' numbers, which lack it."""
_NOTES_MAX = 100
_UNREAD_MAX = 2000
_RETIRED_MAX = 16


class Place(NamedTuple):
    """A partition by its name, which may stand for another topic later."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class NotKnown(Exception):
    """Where reading begins is not known; the text says why, and which option helps, if any."""


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic of which partitions are read. ``topic_id``: empty if the broker tells none.
    Partitions from number ``partitions`` on are new: they were not seen, or had no leader yet.
    ``begins``: the offset from which each partition was read. ``retired``: ids of former topics of
    that name."""

    cluster: str
    topic: str
    topic_id: str
    partitions: int = 0
    begins: Mapping[int, int] = field(default_factory=dict)
    named: bool = False
    """True: the name stands in for the id in the sources' numbers."""
    retired: tuple[str, ...] = ()

    def number(self, partition: int) -> int:
        """The source's number in the wheel, by which the journal keeps its position."""
        identity = f"name {self.topic}" if self.named else self.topic_id
        text = "\n".join((self.cluster, identity, str(partition)))
        digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
        return _NUMBERED | digest & (_NUMBERED - 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "topic": self.topic,
            "id": self.topic_id,
            "partitions": self.partitions,
            "begins": {str(number): offset for number, offset in sorted(self.begins.items())},
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
            {int(number): offset for number, offset in fields["begins"].items()},
            fields["named"],
            tuple(fields["retired"]),
        )


class Unread(NamedTuple):
    """Offsets that were not read and cannot be: ``first`` to ``last``; None: the last one is
    unknown."""

    partition: int
    first: int
    last: int | None

    def contains(self, other: Unread) -> bool:
        if self.partition != other.partition or self.first > other.first:
            return False
        return self.last is None or (other.last is not None and self.last >= other.last)


@dataclass(frozen=True, slots=True)
class Note:
    """Gaps in the reading of a topic, kept until an operator has acknowledged them."""

    what: str
    at_ms: int
    topic: str
    topic_id: str
    unread: tuple[Unread, ...]

    @property
    def subject(self) -> tuple[str, str, str]:
        return self.what, self.topic, self.topic_id

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "at_ms": self.at_ms,
            "topic": self.topic,
            "id": self.topic_id,
            "unread": [list(gap) for gap in self.unread],
        }

    def rows(self) -> list[dict[str, Any]]:
        """The note's rows in the status: one for each gap, or one for the topic."""
        common = {
            "what": self.what,
            "at_ms": self.at_ms,
            "topic": self.topic,
            "topic_id": self.topic_id,
        }
        return [common | gap._asdict() for gap in self.unread] or [common]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        unread = tuple(Unread(*gap) for gap in fields["unread"])
        return cls(fields["what"], fields["at_ms"], fields["topic"], fields["id"], unread)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The sources of a group. ``claimed``: numbers of partitions whose position of an earlier
    version, kept under the number alone, belongs to one of ``topics``. ``dropped``: the number of
    gaps for which ``notes`` had no room. ``identity``: a random text that tells this wheel from
    another one of the same name in its fleet; empty: it was never in one."""

    topics: tuple[KnownTopic, ...] = ()
    claimed: frozenset[int] = frozenset()
    notes: tuple[Note, ...] = ()
    dropped: int = 0
    identity: str = ""

    def find(self, cluster: str, topic: str) -> KnownTopic | None:
        matches = (
            known for known in self.topics if (known.cluster, known.topic) == (cluster, topic)
        )
        return next(matches, None)

    def elsewhere(self, cluster: str, topic: str) -> bool:
        """Returns True when a topic of that name was read from another cluster."""
        return any(known.topic == topic and known.cluster != cluster for known in self.topics)

    def with_topic(self, known: KnownTopic) -> Self:
        """The table with this topic in the place of the one that had its name."""
        name = (known.cluster, known.topic)
        others = (topic for topic in self.topics if (topic.cluster, topic.topic) != name)
        return replace(self, topics=(*others, known))

    def with_note(self, note: Note) -> Self:
        """The table with a further note. If the same has happened to the topic before, its note
        gets longer instead: otherwise a topic that loses records each minute would push out the
        notes of all other topics."""
        alike, others = list[Note](), list[Note]()
        for earlier in self.notes:
            (alike if earlier.subject == note.subject else others).append(earlier)
        unread = (*(gap for earlier in alike for gap in earlier.unread), *note.unread)
        notes = (*others, replace(note, unread=unread[-_UNREAD_MAX:]))
        dropped = max(0, len(unread) - _UNREAD_MAX)
        dropped += sum(len(oldest.unread) for oldest in notes[:-_NOTES_MAX])
        return replace(self, notes=notes[-_NOTES_MAX:], dropped=self.dropped + dropped)

    def acknowledged(self) -> Self:
        return replace(self, notes=(), dropped=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "topics": [topic.to_dict() for topic in self.topics],
            "claimed": sorted(self.claimed),
            "notes": [note.to_dict() for note in self.notes],
            "dropped": self.dropped,
        } | ({"identity": self.identity} if self.identity else {})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        if not fields:
            return cls()
        return cls(
            tuple(map(KnownTopic.from_dict, fields["topics"])),
            frozenset(fields["claimed"]),
            tuple(map(Note.from_dict, fields["notes"])),
            fields["dropped"],
            fields.get("identity", ""),
        )


def as_seen(
    known: KnownTopic | None, cluster: str, topic: str, topic_id: str
) -> tuple[KnownTopic, bool]:
    """The topic that has this name now, and True if it was made anew since ``known``, the table's
    topic of that name. Its partitions and begins are those of ``known``; one made anew has none.
    Errors: ``NotKnown`` when the broker's answer is older than the table."""
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
    """An offset that the wheel's group has stored in Kafka for a partition. ``topic_id``: the topic
    it was stored for; empty if earlier versions or Kafka's own tools have stored it."""

    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The facts about a source that is not in the table yet, by which ``begin_of`` decides.

    ``earliest`` and ``end``: its range of offsets. ``stored``: the group's offset for the
    partition. ``old_position``: the last offset that an earlier version read of a partition of that
    number, of whatever topic; -1: none. ``rival``: the highest offset, at most one above
    ``old_position``, that the group has stored for that partition of another topic; -1: none.
    ``others_stored``: the group has one for another partition of this topic. ``elsewhere``: a topic
    of that name was read from another cluster. ``young``: the first offset whose record is younger
    than ``OFFSETS_KEPT_MS``; None: there is none.
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
    """The offset at which reading begins, and the reason. ``claims``: the position of an earlier
    version is this source's."""

    offset: int
    why: str
    claims: bool = False


def begin_of(facts: SourceFacts, choice: str | None) -> Begin:
    """Decide where the reading of a source begins that was never read under this table. ``choice``:
    one of ``CHOICES``; None: only where it is certain. Errors: ``NotKnown``."""
    stored = facts.stored
    if facts.old_position >= 0 and facts.end > facts.old_position:
        next_offset = facts.old_position + 1
        reason = "the position of an earlier version"
        if facts.rival < 0:
            if stored is not None and not stored.topic_id and stored.offset <= next_offset:
                return Begin(next_offset, reason, claims=True)
            if stored is None and choice == STORED:
                return Begin(next_offset, f"{reason}, by --delay-from", claims=True)
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


def begin_in_fleet(
    facts: SourceFacts, choice: str | None, topic_id: str, next_offset: int | None, *, new: bool
) -> Begin:
    """Decide where a wheel of a fleet begins in a partition that was given to it. ``next_offset``:
    the offset behind its own position; None: it never read the partition. ``new``: the partition
    was added after the wheel had read others. ``choice``: as of ``begin_of``.

    Wheels store their position after each append, for the ``topic_id``. So nobody has read what is
    behind the further of both: after a clean hand-over from A, which stored 120, B begins at 120
    although it has read itself up to 80; and A, killed between its append up to 130 and the store,
    goes on at 130 if it comes back first. Errors: ``NotKnown``."""
    stored, low = facts.stored, next_offset or 0
    if stored is not None and stored.topic_id == topic_id:
        if stored.offset > low:
            return Begin(stored.offset, "stored by a wheel of the fleet")
        return Begin(low, "this wheel has read it last")
    if stored is not None and choice is None:
        raise NotKnown(
            f"the offset {stored.offset} that Kafka has stored for it is of no wheel of the fleet,"
            " and has taken the place of theirs: give --delay-from stored, earliest or latest"
        )
    if stored is None and next_offset is not None:
        # Whoever had read a younger record would have stored that within the time for which Kafka
        # keeps offsets.
        young = facts.young is not None and facts.young <= next_offset
        if choice == STORED or young or next_offset >= facts.end:
            return Begin(next_offset, "this wheel alone has read it")
        if choice is None:
            raise NotKnown(
                f"this wheel has read it below {next_offset}, and Kafka has no offset of the fleet"
                " any more: whether another wheel has read it since is not known: give --delay-from"
                " stored if none has, else --delay-from earliest or latest"
            )
    if stored is None and new:
        return Begin(facts.earliest, "it is new")
    begin = begin_of(facts, choice)
    return begin if begin.offset >= low else Begin(low, "this wheel has read all below it")


PARTITIONS_MAX = 100_000


def parse_partitions(text: str) -> tuple[int, ...]:
    """The partitions of ``0,3-5``. Errors: ``ValueError``."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < PARTITIONS_MAX:
            raise ValueError(part)
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def ranges(numbers: Iterable[int]) -> str:
    """Partitions as text that ``parse_partitions`` reads: ``0,3-5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def selected(chosen: Sequence[int] | None, count: int) -> tuple[list[int], list[int]]:
    """Split the ``chosen`` partitions into those that a topic of ``count`` partitions has and those
    that it has not. ``chosen`` None: all."""
    if chosen is None:
        return list(range(count)), []
    return [number for number in chosen if number < count], [
        number for number in chosen if number >= count
    ]

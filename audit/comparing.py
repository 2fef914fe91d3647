"""What the sums of two tiers that follow each other say. Pure: values in, values out.

    produced ──client to wheel──> accepted ──wheel to topic──> delivered ──topic to consumer──> ...

Theory: each tier is compared with the one before it alone. So a message that is lost on its way is
missing behind one boundary only, and no other one is blamed for it. What was cancelled is taken off
what was accepted; what has expired or is a dead letter counts beside what was delivered.

Rules
- A bucket is open until it has ended and the grace has passed; sums that come later open it again,
  for as long.
- Between wheel and topic it is open while the wheel's mark has not passed it; between topic and
  consumer while the group's position has not: who is behind has lost nothing.
- Where something is known to be missing in the sums themselves, a difference is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..wheel.mark import RowKey
from .sums import IdSum


class AuditVerdict(StrEnum):
    """What becomes of a comparison, the worst first."""

    LOST = "lost"
    REPEATED = "repeated"
    DIFFERS = "differs"
    """As many, but not the same."""
    UNKNOWN = "unknown"
    LATE = "late"
    OPEN = "open"
    EQUAL = "equal"


FAULTS = frozenset({AuditVerdict.LOST, AuditVerdict.REPEATED, AuditVerdict.DIFFERS})
_RANK = {verdict: rank for rank, verdict in enumerate(AuditVerdict)}


class Boundary(StrEnum):
    """Where messages pass from one tier to the next."""

    CLIENT_WHEEL = "client to wheel"
    WHEEL_TOPIC = "wheel to topic"
    TOPIC_CONSUMER = "topic to consumer"


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """``interval_ms``: of a bucket; ``grace_ms``: how long behind it sums may still come;
    ``late_ms``: what takes longer at a boundary is late; ``others``: topics that are also sent to
    by programs without an auditor."""

    interval_ms: int
    grace_ms: int
    late_ms: int
    others: Collection[str] = ()


@dataclass(slots=True)
class Side:
    """A boundary of one bucket, as far as it is known."""

    before: IdSum
    after: IdSum
    changed_ms: int = 0
    """When the later of the two sums has changed last."""
    passed_ms: int | None = None
    """Since when everything before it should be behind it; None: not yet."""
    waiting: str = ""
    """Where it waits, if it does."""
    spare: int = 0
    """So many more behind it are no fault."""
    any_more: bool = False
    """Nor is any number."""
    hints: frozenset[str] = frozenset()
    """What is known to be missing in the sums."""
    untold: frozenset[str] = frozenset()
    """What is known to be missing before it alone: more behind it is no fault then, and less is."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One boundary of a bucket. ``group``: of consumers; ``count``: so many are lost or repeated;
    ``late_ms``: how late the latest was; ``before``, ``after``: messages on each side."""

    topic: str
    bucket_ms: int
    boundary: Boundary
    group: str
    verdict: AuditVerdict
    count: int = 0
    late_ms: int = 0
    before: int = 0
    after: int = 0
    why: str = ""

    @property
    def fault(self) -> bool:
        return self.verdict in FAULTS


def compare(
    topic: str,
    bucket_ms: int,
    sides: Mapping[tuple[Boundary, str], Side],
    seen_ms: int,
    limits: AuditLimits,
) -> list[Comparison]:
    """Every boundary of a bucket; ``sides``: by boundary and group. ``seen_ms``: what came until
    then is in them."""
    found = []
    for (boundary, group), side in sides.items():
        verdict, count, why = _judged(bucket_ms, side, seen_ms, limits)
        after = side.after
        found.append(
            Comparison(
                topic,
                bucket_ms,
                boundary,
                group,
                verdict,
                count=count,
                late_ms=after.late_max_ms,
                before=side.before.count,
                after=after.count,
                why=why,
            )
        )
    return found


def _judged(
    bucket_ms: int, side: Side, seen_ms: int, limits: AuditLimits
) -> tuple[AuditVerdict, int, str]:
    since = bucket_ms + limits.interval_ms
    if side.changed_ms > since + limits.grace_ms:
        since = side.changed_ms
    if side.passed_ms is None:
        return AuditVerdict.OPEN, 0, side.waiting
    if seen_ms < max(since, side.passed_ms) + limits.grace_ms:
        return AuditVerdict.OPEN, 0, ""
    verdict, count = _difference(side)
    hints = side.hints if verdict is AuditVerdict.LOST else side.hints | side.untold
    if verdict in FAULTS and hints:
        return AuditVerdict.UNKNOWN, count, "; ".join(sorted(hints))
    if verdict is AuditVerdict.UNKNOWN:
        return verdict, count, "some are counted that may be there twice: they may hide a loss"
    if verdict is AuditVerdict.EQUAL and side.after.late_max_ms > limits.late_ms:
        return AuditVerdict.LATE, 0, ""
    return verdict, count, ""


def _difference(side: Side) -> tuple[AuditVerdict, int]:
    more = side.after.count - side.before.count
    if more < 0:
        return AuditVerdict.LOST, -more
    if more > side.spare and not side.any_more:
        return AuditVerdict.REPEATED, more - side.spare
    if more and not side.any_more:
        return AuditVerdict.UNKNOWN, more
    if not more and side.after.hash != side.before.hash:
        return AuditVerdict.DIFFERS, 0
    return AuditVerdict.EQUAL, 0


def worst(comparisons: Collection[Comparison]) -> AuditVerdict:
    """The verdict about a bucket."""
    found = (one.verdict for one in comparisons)
    return min(found, key=lambda one: _RANK[one], default=AuditVerdict.EQUAL)


@dataclass(slots=True)
class AuditCell:
    """The sums of a topic's bucket in each tier."""

    produced: IdSum = field(default_factory=IdSum)
    accepted: IdSum = field(default_factory=IdSum)
    cancelled: IdSum = field(default_factory=IdSum)
    delivered: IdSum = field(default_factory=IdSum)
    expired: IdSum = field(default_factory=IdSum)
    dead: IdSum = field(default_factory=IdSum)
    consumed: dict[str, IdSum] = field(default_factory=dict)
    """By group."""
    left_out: dict[str, IdSum] = field(default_factory=dict)
    changed_ms: dict[str, int] = field(default_factory=dict)
    """When the sum of each tier has changed last; of consumers, tier and group."""
    highest: int = -1
    """The highest offset that was accepted."""
    last: RowKey = (-1, -1)
    """Due time and offset of the last one that was accepted."""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The first and the last position in each partition of the topic."""
    passed_ms: int | None = None
    """When the wheel's mark was seen to have passed it."""
    group_passed_ms: dict[str, int] = field(default_factory=dict)

    def client_to_wheel(
        self, limits: AuditLimits, topic: str, hints: frozenset[str], *, heard: bool
    ) -> Side:
        """Where clients with an auditor send to the topic. ``heard``: all were, behind it."""
        produced, changed = self.produced, max(map(self._changed, ("produced", "accepted")))
        after = replace(self.accepted, late_max_ms=produced.late_max_ms, late_ms=produced.late_ms)
        any_more = topic in limits.others
        passed, waiting = 0 if heard else None, "sums of a client are still to come"
        spare = produced.unsure
        return Side(produced, after, changed, passed, waiting, spare, any_more, hints)

    def wheel_to_topic(self, hints: frozenset[str]) -> Side:
        due, left = replace(self.accepted), replace(self.delivered)
        due.take_off(self.cancelled)
        left.add(self.expired)
        left.add(self.dead)
        names = "accepted", "cancelled", "delivered", "expired", "dead"
        changed = max(map(self._changed, names))
        waiting = "waits in the wheel"
        return Side(due, left, changed, self.passed_ms, waiting, hints=hints)

    def topic_to_consumer(self, group: str, hints: frozenset[str]) -> Side:
        none = IdSum()
        after = replace(self.consumed.get(group, none))
        left_out = self.left_out.get(group, none)
        after.add(left_out)
        names = "delivered", f"consumed {group}", f"left out {group}"
        passed, waiting = self.group_passed_ms.get(group), "the group is catching up"
        # What a rule leaves out may be read, and left out, again.
        changed, spare = max(map(self._changed, names)), left_out.count
        return Side(self.delivered, after, changed, passed, waiting, spare, hints=hints)

    def _changed(self, name: str) -> int:
        return self.changed_ms.get(name, 0)

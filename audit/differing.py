"""Where messages were lost or repeated since an audit began, for longer than buckets are kept.

Theory: buckets are forgotten, and what was wrong with them must not be. Of each boundary of a topic
a few numbers stay: the first and the last bucket that differed, how many did, how many messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from ..account.vocabulary import AuditVerdict, Boundary
from ..wheel.texts import time_text
from .comparing import Comparison

BOUNDARIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Differing:
    """A boundary of a topic at which buckets differed. ``group``: of consumers; ``since_ms``,
    ``last_ms``: the first and the last of these buckets; ``buckets``: how many there are; ``lost``,
    ``repeated``: so many messages were."""

    topic: str
    boundary: Boundary
    group: str
    since_ms: int
    last_ms: int
    buckets: int = 1
    lost: int = 0
    repeated: int = 0

    @property
    def place(self) -> tuple[str, str, str]:
        return self.topic, self.boundary, self.group

    def joined(self, other: Self) -> Differing:
        """With other buckets of the same boundary."""
        return Differing(
            topic=self.topic,
            boundary=self.boundary,
            group=self.group,
            since_ms=min(self.since_ms, other.since_ms),
            last_ms=max(self.last_ms, other.last_ms),
            buckets=self.buckets + other.buckets,
            lost=self.lost + other.lost,
            repeated=self.repeated + other.repeated,
        )


def differing_of(comparisons: Iterable[Comparison]) -> list[Differing]:
    """One for each that is a fault."""
    return [
        Differing(
            topic=one.topic,
            boundary=one.boundary,
            group=one.group,
            since_ms=one.bucket_ms,
            last_ms=one.bucket_ms,
            lost=one.count if one.verdict is AuditVerdict.LOST else 0,
            repeated=one.count if one.verdict is AuditVerdict.REPEATED else 0,
        )
        for one in comparisons
        if one.fault
    ]


def join_differing(*parts: Iterable[Differing]) -> list[Differing]:
    """One for each boundary. The first ``BOUNDARIES_MAX`` boundaries are kept."""
    found: dict[tuple[str, str, str], Differing] = {}
    for part in parts:
        for one in part:
            known = found.get(one.place)
            if known is not None:
                found[one.place] = known.joined(one)
            elif len(found) < BOUNDARIES_MAX:
                found[one.place] = one
    return list(found.values())


def differing_text(one: Differing) -> str:
    """In one line."""
    counts = {"lost": one.lost, "repeated": one.repeated}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    group = f" {one.group}" if one.group else ""
    buckets = "1 bucket differs" if one.buckets == 1 else f"{one.buckets} buckets differ"
    return (
        f"{said or 'not the same'} {one.boundary}{group}, topic {one.topic}:"
        f" {buckets}, due from {time_text(one.since_ms)} to {time_text(one.last_ms)}"
    )

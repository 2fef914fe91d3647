"""Where messages were lost or repeated since an audit began, for longer than buckets are kept.

Theory: buckets are forgotten, and a loss must not be forgotten with them. Of each boundary of a
topic a few numbers stay: the first and the last bucket that differed, the number of such buckets,
and of their messages.
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
    ``last_ms``: begin of the first and the last of these; ``buckets``: their number; ``lost``,
    ``repeated``: numbers of messages."""

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
        """The sum with other buckets of the same boundary."""
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
    """A ``Differing`` of one bucket for each comparison that is a fault."""
    return [
        Differing(
            topic=comparison.topic,
            boundary=comparison.boundary,
            group=comparison.group,
            since_ms=comparison.bucket_ms,
            last_ms=comparison.bucket_ms,
            lost=comparison.count if comparison.verdict is AuditVerdict.LOST else 0,
            repeated=comparison.count if comparison.verdict is AuditVerdict.REPEATED else 0,
        )
        for comparison in comparisons
        if comparison.fault
    ]


def join_differing(*parts: Iterable[Differing]) -> list[Differing]:
    """One ``Differing`` for each boundary; boundaries beyond ``BOUNDARIES_MAX`` are dropped."""
    by_place: dict[tuple[str, str, str], Differing] = {}
    for part in parts:
        for differing in part:
            known = by_place.get(differing.place)
            if known is not None:
                by_place[differing.place] = known.joined(differing)
            elif len(by_place) < BOUNDARIES_MAX:
                by_place[differing.place] = differing
    return list(by_place.values())


def differing_text(differing: Differing) -> str:
    counts = {"lost": differing.lost, "repeated": differing.repeated}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    group = f" {differing.group}" if differing.group else ""
    buckets = (
        "1 bucket differs" if differing.buckets == 1 else f"{differing.buckets} buckets differ"
    )
    return (
        f"{said or 'not the same'} {differing.boundary}{group}, topic {differing.topic}:"
        f" {buckets}, due from {time_text(differing.since_ms)} to {time_text(differing.last_ms)}"
    )

"""The result of a proof, small whatever the number of messages: counts, percentiles, some
problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ...reading.problems import OpenPoint, Problem

CLASSES = ("delivered", "pending", "cancelled", "dead", "expired", "lost", "undecided")
"""The classes of messages; each committed message is in exactly one of them."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Percentiles of lateness, ms: from the accepted due time to the first arrival. ``topic``
    empty: all topics; ``bucket_ms`` -1: all times, else the bucket's begin (inclusive)."""

    topic: str
    bucket_ms: int
    count: int
    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of a topic, or of a time bucket (``bucket_ms``: its begin); the other is empty or -1.
    ``counts``: accepted, the ``CLASSES``, overdue, repeated and, if asked for, late."""

    topic: str
    bucket_ms: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Agreement of two peers: rows equal on both; rows that differ or that one of them lacks."""

    left: str
    right: str
    equal: int
    different: int


@dataclass(frozen=True, slots=True)
class Input:
    """Files, bytes and rows that were read, of one kind of file."""

    kind: str
    files: int
    nbytes: int
    rows: int


class Outcome(StrEnum):
    PROVEN = "proven"
    IN_PART = "proven in part"
    """Nothing is wrong as far as could be seen, and something could not be decided."""
    NOT_PROVEN = "not proven"


@dataclass(frozen=True, slots=True)
class Verdict:
    reasons: Sequence[str]
    """Why the proof fails: one line for each kind of problem that fails it."""
    open_points: Sequence[OpenPoint]
    """Points that could not be decided; also listed beside reasons, as they may explain some."""
    counts: Mapping[str, int]
    """accepted, the ``CLASSES``, and of the pending ones overdue. Besides: repeated (arrivals
    beyond the first; in a proof of exactly once it is there even when 0), unaccounted (records
    whose acceptance lies outside the journals that were given), newer (records of messages that
    were accepted after the proof began), in doubt (messages not known to be committed)."""
    problem_counts: Mapping[str, int]
    """Numbers of problems by kind, listed or not."""
    problems: Sequence[Problem]
    truncated: bool
    """True if ``problems`` lists only a part of them."""
    lateness: Sequence[Lateness]
    """All topics and times first, then by topic, then by time (all topics)."""
    agreement: Sequence[PairAgreement]
    inputs: Sequence[Input]
    interval_ms: int
    """Width of a time bucket; the end is exclusive."""
    notes: Sequence[str] = ()
    seconds: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    by_topic: Sequence[GroupCounts] = ()
    """Counts by topic: those that lost most are first, then those with the most messages; not all
    if there are many."""
    by_bucket: Sequence[GroupCounts] = ()
    """Counts by time bucket, in the order of time."""

    @property
    def outcome(self) -> Outcome:
        if self.reasons:
            return Outcome.NOT_PROVEN
        return Outcome.IN_PART if self.open_points else Outcome.PROVEN

    @property
    def proven(self) -> bool:
        """True if all is proven, and nothing is open."""
        return self.outcome is Outcome.PROVEN

    @property
    def exactly_once(self) -> bool:
        """True if a message that arrived several times fails this proof."""
        return bool(self.options.get("exactly_once"))

    def to_dict(self) -> dict[str, Any]:
        return {"outcome": str(self.outcome), "proven": self.proven, **asdict(self)}

"""Hints that sums are incomplete: a difference there is unknown, and no fault.

Rules
- Hints of the same kind are one, over all their buckets. When there is no room for another one,
  the oldest is widened to all topics and groups: that makes more unknown than need be, but if it
  were dropped, what it excuses would be called lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..account.vocabulary import Boundary

HINTS_MAX = 1_000
_FOLDED = "more is missing in the sums than can be kept apart"


class AuditHint(NamedTuple):
    """Messages are missing in the sums at these boundaries, in buckets that begin before
    ``until_ms`` and end behind ``from_ms``. ``topics``, ``groups``: those that it is about, None:
    all; ``groups`` is its sender's own set, which may grow. ``of_sums``: a sender's sums did not
    come; false: a file or a topic could not be read."""

    text: str
    boundaries: frozenset[Boundary]
    from_ms: int
    until_ms: int
    topics: frozenset[str] | None
    groups: Collection[str] | None
    of_sums: bool

    def is_like(self, other: AuditHint) -> bool:
        """True if both may be joined to one, over the buckets of both."""
        return (
            (self.text, self.boundaries, self.topics, self.of_sums)
            == (other.text, other.boundaries, other.topics, other.of_sums)
            and self.groups is other.groups
            and self.from_ms <= other.until_ms
            and other.from_ms <= self.until_ms
        )

    def joined(self, other: AuditHint) -> AuditHint:
        """This hint, over the boundaries and buckets of both."""
        return self._replace(
            boundaries=self.boundaries | other.boundaries,
            from_ms=min(self.from_ms, other.from_ms),
            until_ms=max(self.until_ms, other.until_ms),
        )


class AuditHints:
    """At most ``HINTS_MAX`` hints, and two that stand for those that were widened."""

    def __init__(self) -> None:
        self._hints: list[AuditHint] = []
        self._folded: dict[bool, AuditHint] = {}
        """The widened hints, joined, by ``of_sums``."""

    def add(
        self,
        text: str,
        boundaries: Iterable[Boundary],
        from_ms: int,
        until_ms: int,
        *,
        topics: Iterable[str] | None = None,
        groups: Collection[str] | None = None,
        of_sums: bool = False,
    ) -> None:
        """Add a hint, or widen one like it; the arguments are the fields of ``AuditHint``."""
        named = None if topics is None else frozenset(topics)
        made = AuditHint(text, frozenset(boundaries), from_ms, until_ms, named, groups, of_sums)
        for place, known in enumerate(self._hints):
            if known.is_like(made):
                self._hints[place] = known.joined(made)
                return
        self._hints.append(made)
        if len(self._hints) > HINTS_MAX:
            oldest = self._hints.pop(0)
            plain = oldest._replace(text=_FOLDED, topics=None, groups=None)
            known = self._folded.get(oldest.of_sums, plain)
            self._folded[oldest.of_sums] = known.joined(plain)

    def forget(self, before_ms: int) -> None:
        """Drop hints about buckets of which each begins before ``before_ms``."""
        self._hints = [hint for hint in self._hints if hint.until_ms > before_ms]
        folded = self._folded.items()
        self._folded = {kind: hint for kind, hint in folded if hint.until_ms > before_ms}

    def find(
        self, boundary: Boundary, topic: str, group: str, begin_ms: int, end_ms: int
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Texts of the hints about a bucket: those of files and topics that could not be read, and
        those of senders' sums that did not come."""
        reasons: tuple[set[str], set[str]] = set(), set()
        for hint in (*self._hints, *self._folded.values()):
            if (
                boundary in hint.boundaries
                and begin_ms < hint.until_ms
                and end_ms > hint.from_ms
                and (hint.topics is None or topic in hint.topics)
                and (hint.groups is None or group in hint.groups)
            ):
                reasons[hint.of_sums].add(hint.text)
        return frozenset(reasons[0]), frozenset(reasons[1])

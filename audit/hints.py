"""Hints that sums themselves are incomplete: a difference there is unknown, and no fault.

Rules
- Hints of the same kind are one, over all their buckets. When there is no room for another one,
  the oldest is widened to all topics and groups. To drop it would call a difference a loss that is
  none; widened, it only makes more unknown than need be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..account.vocabulary import Boundary

HINTS_MAX = 1_000
_FOLDED = "more is missing in the sums than can be kept apart"


class AuditHint(NamedTuple):
    """Something is missing at these boundaries, in buckets that begin before ``until_ms`` and end
    behind ``from_ms``. ``topics``, ``groups``: of these, which may become more; None: of all.
    ``of_sums``: senders' sums are missing, and not what was read of the wheel and its topics."""

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
        """This one, over the boundaries and buckets of both."""
        return self._replace(
            boundaries=self.boundaries | other.boundaries,
            from_ms=min(self.from_ms, other.from_ms),
            until_ms=max(self.until_ms, other.until_ms),
        )


class AuditHints:
    def __init__(self) -> None:
        self._hints: list[AuditHint] = []
        self._folded: dict[bool, AuditHint] = {}
        """Those that found no room, by ``of_sums``."""

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
        """As of ``AuditHint``."""
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
        """Those that are about buckets before that time alone."""
        self._hints = [one for one in self._hints if one.until_ms > before_ms]
        folded = self._folded.items()
        self._folded = {kind: one for kind, one in folded if one.until_ms > before_ms}

    def find(
        self, boundary: Boundary, topic: str, group: str, begin_ms: int, end_ms: int
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Why a bucket is incomplete, a line each: by what was not read, and by senders' sums that
        did not come."""
        found: tuple[set[str], set[str]] = set(), set()
        for one in (*self._hints, *self._folded.values()):
            if (
                boundary in one.boundaries
                and begin_ms < one.until_ms
                and end_ms > one.from_ms
                and (one.topics is None or topic in one.topics)
                and (one.groups is None or group in one.groups)
            ):
                found[one.of_sums].add(one.text)
        return frozenset(found[0]), frozenset(found[1])

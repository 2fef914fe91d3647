"""Quotas of what is pending: how much may wait at once for the topics of a prefix.

Theory: what is pending is counted somewhere else, a few times a second, by somebody who sees the
rows. Between two counts more is offered, and must not slip through: what is offered counts from the
instant in which it is let in until a count has it, or until it is known that it was not stored.

    pending = last count + offered since     (rows of one prefix, whoever sent them)

*Example.* ``orders-*`` may have 1 000 rows, and the last count found 900. A batch of 60 is let in
and makes 960; the next one, of 60, is refused, also if it comes before the first one is on disk.

Rules
- A *position* says what a count has seen: a number that grows. The node's is the offset behind the
  last row that was counted. An offer is settled with the position behind its rows, and is dropped
  as soon as a count has come so far. Without it, rows would count twice for a moment, and a batch
  that fits would be refused.
- All rows are offered, also those of callers without a limit: the limit of another one is for all
  rows of its prefix.
- An offer that nobody settles, as its connection is gone, is forgotten after ``OFFER_S``. By then a
  count has its rows, or nobody stored them; kept for ever, it would shrink the quota.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..wheel.errors import NOTHING_STORED, OverQuota
from .rights import TopicList

PREFIXES_MAX = 256
"""The most prefixes that the quotas of one security file may name together."""
OFFER_S = 60.0
RETRY_AFTER_MS = 1_000
"""After so long a refused batch is tried again: what has left since counts as gone by then."""
_TOPICS_REMEMBERED_MAX = 10_000

Amount = tuple[int, int]
"""Rows, and bytes of their keys, values and headers."""
Amounts = Mapping[str, Amount]
"""By topic."""


@dataclass(frozen=True, slots=True)
class PendingLimit:
    """How much may be pending for the topics of one prefix; None: there is no limit."""

    rows: int | None = None
    nbytes: int | None = None


NO_LIMITS: Mapping[str, PendingLimit] = {}


class Prefixes:
    """Topics' names, or begins of names with one ``*`` as in ``TopicList``, and which of them a
    topic has. One thread asks at a time."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns: tuple[str, ...] = tuple(dict.fromkeys(patterns))
        self._lists = [TopicList([pattern]) for pattern in self.patterns]
        self._known: dict[str, tuple[int, ...]] = {}

    def of(self, topic: str) -> tuple[int, ...]:
        """The places in ``patterns`` of those that a topic has."""
        places = self._known.get(topic)
        if places is None:
            lists = enumerate(self._lists)
            places = tuple(place for place, topics in lists if topics.pattern_of(topic) is not None)
            if len(self._known) >= _TOPICS_REMEMBERED_MAX:
                self._known.clear()
            self._known[topic] = places
        return places


class PendingOffer:
    """Rows that were let in and are in no count yet. ``amounts``: by the place of their prefix."""

    __slots__ = ("_ledger", "amounts", "at_s", "position")

    def __init__(self, ledger: PendingLedger, amounts: Mapping[int, Amount], at_s: float) -> None:
        self._ledger = ledger
        self.amounts = amounts
        self.at_s = at_s
        self.position: float | None = None
        """A count that has come so far has its rows; None: it is not settled."""

    def settle(self, position: float) -> None:
        """Note behind which position its rows stand; -1: they were not stored."""
        if self.amounts:
            self._ledger.settle(self, position)


class PendingLedger:
    """What is pending by prefix: the last count, and what was offered since. Thread-safe.
    ``clock``: monotonic, s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._offers: deque[PendingOffer] = deque()
        self._position = -1.0
        self._prefixes = Prefixes()
        self._counted: list[Amount] = []
        self._offered: list[list[int]] = []

    def change(self, patterns: Sequence[str]) -> None:
        """Keep the books of these prefixes from now on. What the last count had of those that stay
        holds until the next one."""
        with self._lock:
            known = dict(zip(self.patterns, self._counted, strict=True))
            self._prefixes = Prefixes(patterns)
            self._counted = [known.get(name, (0, 0)) for name in patterns]
            self._offered = [[0, 0] for _ in patterns]
            for offer in self._offers:
                offer.amounts = {}  # their places are those of the prefixes before
            self._offers.clear()

    @property
    def patterns(self) -> tuple[str, ...]:
        return self._prefixes.patterns

    def counted(self, patterns: Sequence[str], amounts: Sequence[Amount], position: float) -> None:
        """Take a count. It has all rows that were settled with a position up to ``position``.
        ``amounts``: of each of the ``patterns``; a count of other ones comes too late and is
        nothing."""
        with self._lock:
            if tuple(patterns) != self.patterns:
                return
            self._counted = list(amounts)
            self._position = position
            self._drop()

    def offer(
        self, principal: str, limits: Mapping[str, PendingLimit], amounts: Amounts
    ) -> PendingOffer:
        """Let rows in. ``amounts``: of these rows, which are stored together or not at all;
        ``limits``: of their sender. Errors: ``OverQuota``, and nothing counts."""
        with self._lock:
            added: dict[int, Amount] = {}
            for topic, (rows, nbytes) in amounts.items():
                for place in self._prefixes.of(topic):
                    more = added.get(place, (0, 0))
                    added[place] = more[0] + rows, more[1] + nbytes
            if limits:
                for place, amount in added.items():
                    limit = limits.get(self.patterns[place])
                    if limit is not None:
                        self._check(principal, place, limit, amount)
            offer = PendingOffer(self, added, self._clock())
            if added:
                self._offers.append(offer)
                for place, (rows, nbytes) in added.items():
                    self._offered[place][0] += rows
                    self._offered[place][1] += nbytes
            return offer

    def settle(self, offer: PendingOffer, position: float) -> None:
        """As ``PendingOffer.settle``."""
        with self._lock:
            offer.position = position
            if position <= self._position:
                self._forget(offer)

    def pending(self) -> dict[str, Amount]:
        """What is pending, by prefix."""
        with self._lock:
            return {name: self._now(place) for place, name in enumerate(self.patterns)}

    def _now(self, place: int) -> Amount:
        (rows, nbytes), (more_rows, more_bytes) = self._counted[place], self._offered[place]
        return rows + more_rows, nbytes + more_bytes

    def _check(self, principal: str, place: int, limit: PendingLimit, amount: Amount) -> None:
        for unit, most, now, more in zip(
            ("rows", "bytes"), (limit.rows, limit.nbytes), self._now(place), amount, strict=True
        ):
            if most is None or now + more <= most:
                continue
            remedy = "Send again when messages have left, cancel some, or ask for a larger quota"
            if more > most:
                remedy = "Send fewer at a time: these alone are more"
            raise OverQuota(
                f"{principal} is over its quota of pending {unit} for {self.patterns[place]!r}",
                got=f"{now} pending, and {more} in this batch",
                limit=f"{most} {unit}",
                remedy=f"{NOTHING_STORED} {remedy}",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _drop(self) -> None:
        """Drop the offers that the last count has, and those that nobody will settle."""
        oldest_s = self._clock() - OFFER_S
        kept: deque[PendingOffer] = deque()
        for offer in self._offers:
            settled = offer.position is not None and offer.position <= self._position
            if not settled and offer.at_s > oldest_s:
                kept.append(offer)
            else:
                self._forget(offer)
        self._offers = kept

    def _forget(self, offer: PendingOffer) -> None:
        for place, (rows, nbytes) in offer.amounts.items():
            self._offered[place][0] -= rows
            self._offered[place][1] -= nbytes
        offer.amounts = {}

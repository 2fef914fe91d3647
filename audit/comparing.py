"""Compares the sums of the tiers, bucket by bucket. Pure: values in, values out.

Theory: at each boundary a bucket has two sums, one in front of it and one behind it, each made of
sums of the tiers; ``account.judging`` says what they mean. For example, between wheel and topic
*accepted* less *cancelled* is held against *delivered*, *expired* and *dead* together.

Rules
- A bucket is open until it has ended and the grace has passed; sums that come later open it again,
  for as long.
- Clients say what they sent when they send it, and that is kept for as long as the audit looks
  ahead. What was accepted longer before it was due is *far*: the sum of its client may not be there
  any more. Client and wheel are compared without it if that makes both sides equal; else so many
  more in the wheel are no fault. Otherwise each message that was sent yesterday would be called
  repeated today. Behind the wheel far messages are compared as all others.
- Between wheel and topic it is open while the wheel's mark has not passed it; between topic and
  consumer while the group's position has not: a group that is behind has lost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..account.judging import ANY_NUMBER, Crossings, judge
from ..account.limits import NEVER_MS, AccountLimits
from ..account.vocabulary import FAULTS, AuditVerdict, Boundary
from ..wheel.mark import RowKey
from ..wheel.schema import Int64s
from .sums import IdSum


@dataclass(slots=True)
class Side:
    """A boundary of one bucket, as far as it is known: ``before`` and ``after`` are the sums in
    front of it and behind it. ``group``: of consumers, else empty."""

    topic: str
    bucket_ms: int
    boundary: Boundary
    group: str
    before: IdSum
    after: IdSum
    changed_ms: int = 0
    """When one of the two sums changed last."""
    passed_ms: int = NEVER_MS
    """Since when all messages of ``before`` should be in ``after``; ``NEVER_MS``: they may wait
    still."""
    waiting: str = ""
    """Where they wait then."""
    spare: int = 0
    """So many messages more in ``after`` are no fault."""
    hints: frozenset[str] = frozenset()
    """Why sums on either side are known to be incomplete, a line each."""
    untold: frozenset[str] = frozenset()
    """Why ``before`` alone is known to be incomplete: then more messages in ``after`` are no fault,
    and fewer still are."""
    note: str = ""
    """What is to be known of the sums whatever the verdict is: which messages are left out, or are
    in ``spare``."""


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


def compare(sides: Sequence[Side], seen_ms: int, limits: AccountLimits) -> list[Comparison]:
    """A comparison for each side, in their order. ``seen_ms``: all that came until then is in the
    sums."""
    befores, afters = [side.before for side in sides], [side.after for side in sides]
    rows = Crossings(
        before=_column([id_sum.count for id_sum in befores]),
        after=_column([id_sum.count for id_sum in afters]),
        spare=_column([side.spare for side in sides]),
        settled=limits.settled(_settles_ms(sides, limits), seen_ms),
        unseen_before=np.array([bool(side.hints or side.untold) for side in sides], np.bool_),
        unseen_after=np.array([bool(side.hints) for side in sides], np.bool_),
        late_ms=_column([id_sum.late_max_ms for id_sum in afters]),
        other=np.array([side.before.hash != side.after.hash for side in sides], np.bool_),
    )
    verdicts = [AuditVerdict.EQUAL] * len(sides)
    for verdict, given in judge(rows, limits).items():
        if verdict is not AuditVerdict.EQUAL:
            for place in np.flatnonzero(given).tolist():
                verdicts[place] = verdict
    return [_compared(side, verdict) for side, verdict in zip(sides, verdicts, strict=True)]


def _settles_ms(sides: Sequence[Side], limits: AccountLimits) -> Int64s:
    """The time from which the grace of each side runs, ms, shape (sides,): the end of its bucket,
    or, if later, when its sums changed or its boundary was passed."""
    end_ms = _column([side.bucket_ms for side in sides]) + limits.interval_ms
    changed_ms = _column([side.changed_ms for side in sides])
    # What comes within the grace is expected, and does not make it longer.
    since_ms = np.where(changed_ms > end_ms + limits.grace_ms, changed_ms, end_ms)
    return np.maximum(since_ms, _column([side.passed_ms for side in sides]))


def _column(numbers: list[int]) -> Int64s:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:  # anybody may send sums that add up to more than a column has room for
        return np.array([min(number, ANY_NUMBER) for number in numbers], np.int64)


def _compared(side: Side, verdict: AuditVerdict) -> Comparison:
    before, after = side.before.count, side.after
    more, count, why = after.count - before, 0, ""
    if verdict is AuditVerdict.OPEN:
        why = side.waiting if side.passed_ms == NEVER_MS else ""
    elif verdict in FAULTS or verdict is AuditVerdict.UNKNOWN:
        count = -more if more < 0 else more - side.spare if more > side.spare else more
    if verdict is AuditVerdict.UNKNOWN:
        if 0 < more <= side.spare and not side.note:
            why = "some are counted that may be there twice: they may hide a loss"
        else:
            why = "; ".join(sorted(side.hints if more < 0 else side.hints | side.untold))
    return Comparison(
        side.topic,
        side.bucket_ms,
        side.boundary,
        side.group,
        verdict,
        count,
        late_ms=after.late_max_ms,
        before=before,
        after=after.count,
        why="; ".join(filter(None, [why, side.note])),
    )


_NONE = IdSum()


@dataclass(slots=True)
class AuditCell:
    """The sums of a topic's bucket in each tier."""

    produced: IdSum = field(default_factory=IdSum)
    accepted: IdSum = field(default_factory=IdSum)
    far: IdSum = field(default_factory=IdSum)
    """Those of ``accepted`` that were accepted so long before they were due that their clients'
    sums may not be there any more."""
    cancelled: IdSum = field(default_factory=IdSum)
    delivered: IdSum = field(default_factory=IdSum)
    expired: IdSum = field(default_factory=IdSum)
    dead: IdSum = field(default_factory=IdSum)
    consumed: dict[str, IdSum] = field(default_factory=dict)
    """By group."""
    left_out: dict[str, IdSum] = field(default_factory=dict)
    changed_ms: dict[str, int] = field(default_factory=dict)
    """When the sum of each tier changed last; of consumers by tier and group."""
    highest: int = -1
    """The highest offset that was accepted."""
    last: RowKey = (-1, -1)
    """Due time and offset of the last message that was accepted."""
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The first and the last position in each partition of the topic."""
    passed_ms: int = NEVER_MS
    """When the wheel's mark was seen to have passed it."""
    group_passed_ms: dict[str, int] = field(default_factory=dict)

    def client_to_wheel(
        self, topic: str, bucket_ms: int, hints: frozenset[str], *, heard: bool, others: bool
    ) -> Side:
        """``heard``: every client with an auditor has sent sums since the bucket ended; ``others``:
        programs without an auditor send to the topic, too, so more may be accepted than the sums
        say."""
        produced, accepted, spare, note = self.produced, self.accepted, self.produced.unsure, ""
        if self.far.count:
            near = IdSum(accepted.count, accepted.hash)
            near.take_off(self.far)
            if (near.count, near.hash) == (produced.count, produced.hash):
                accepted, note = near, f"without {self.far.count} that were sent long before"
            else:
                spare += self.far.count
                note = f"{self.far.count} were sent long before, and may be in no sum of a client"
        return Side(
            topic,
            bucket_ms,
            Boundary.CLIENT_WHEEL,
            group="",
            before=produced,
            after=IdSum(accepted.count, accepted.hash, produced.late_max_ms, produced.late_ms),
            changed_ms=self._changed("produced", "accepted"),
            passed_ms=0 if heard else NEVER_MS,
            waiting="sums of a client are still to come",
            spare=ANY_NUMBER if others else spare,
            hints=hints,
            note=note,
        )

    def wheel_to_topic(self, topic: str, bucket_ms: int, hints: frozenset[str]) -> Side:
        due, left = IdSum(), IdSum()
        due.add(self.accepted)
        due.take_off(self.cancelled)
        for away in (self.delivered, self.expired, self.dead):
            left.add(away)
        return Side(
            topic,
            bucket_ms,
            Boundary.WHEEL_TOPIC,
            group="",
            before=due,
            after=left,
            changed_ms=self._changed("accepted", "cancelled", "delivered", "expired", "dead"),
            passed_ms=self.passed_ms,
            waiting="waits in the wheel",
            hints=hints,
        )

    def topic_to_consumer(
        self, topic: str, bucket_ms: int, group: str, hints: frozenset[str]
    ) -> Side:
        after, left_out = IdSum(), self.left_out.get(group, _NONE)
        after.add(self.consumed.get(group, _NONE))
        after.add(left_out)
        return Side(
            topic,
            bucket_ms,
            Boundary.TOPIC_CONSUMER,
            group,
            before=self.delivered,
            after=after,
            changed_ms=self._changed("delivered", f"consumed {group}", f"left out {group}"),
            passed_ms=self.group_passed_ms.get(group, NEVER_MS),
            waiting="the group is catching up",
            # What a rule leaves out may be read, and left out, again.
            spare=left_out.count,
            hints=hints,
        )

    def _changed(self, *names: str) -> int:
        return max([self.changed_ms.get(name, 0) for name in names])

"""The book of promises: what callers were told of each message, held against what arrived.

Arithmetic only, so that a test can plant each violation. A message is known by its number, which is
its value; offset and due time of its id must be those that a caller was told, and it must stand in
the topic that it was sent to.

Repeats are explained, not only counted. A message may arrive twice only because the mark over its
first arrival was not on disk (of a majority) when the node that delivered it was lost. So its first
arrival lies in the last moments before a fault, or in the moments after it in which the old master
still had its lease and what it had handed to its sink was still under way; and the second arrival
lies behind that. Whatever is paused and resumed may also send then what it had in hand when it was
paused. On a machine with too much to do a master may lose its majority without any fault of ours;
its log says so, and such a change explains repeats as a fault does (``turns``).

After the death of a node without peers more is known: its arrivals were counted, and its last mark
was read from its disk, before the next process began (``Death``). A repeat then lies across a
death, and is of a row that the mark does not cover. For example, a row that arrived 300 ms before
the kill may come again if the mark ends before it; one that arrived 1 600 ms before may not, for a
mark is written every 100 ms.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from slotwheel.wheel.mark import Marks
from slotwheel.wheel.schema import Int64s

UNMARKED_MS = 1_500
"""Before a fault: the mark's interval (100 ms), a chunk, a sync and a majority's answer; the rest
is for a machine with much to do."""
RUN_ON_MS = 2_000
"""After it: the lease (600 ms) and the chunk in hand."""


class Fate(Enum):
    CANCELLED = "its cancel was confirmed: it must not arrive"
    REFUSED = "it was refused for certain: it must not arrive"
    UNCERTAIN = "its cancel got no certain answer: it may arrive"
    MOVED = "rescheduled: it must arrive under its new id, and not under the old one"
    MAYBE_MOVED = "no answer: it must arrive under one of the two"


@dataclass(frozen=True)
class Meddled:
    """``due`` and ``offset``: of the new id, if it was rescheduled; offset -1 if not known."""

    fate: Fate
    due: int = -1
    offset: int = -1


@dataclass(frozen=True)
class Promised:
    """By number, shape (messages,). ``offset`` -1: no receipt, so nothing was promised. Number n
    belongs to ``topics[n % len(topics)]``, but for those in ``buried``, which that topic does not
    take: they belong to ``dead_topic``."""

    due: Int64s
    offset: Int64s
    meddled: dict[int, Meddled] = field(default_factory=dict)
    topics: Sequence[str] = ("",)
    buried: frozenset[int] = frozenset()
    dead_topic: str = ""

    @property
    def refused(self) -> int:
        return int(np.count_nonzero(self.offset < 0))

    def count(self, fate: Fate) -> int:
        return sum(meddled.fate is fate for meddled in self.meddled.values())

    def wanted(self) -> set[int]:
        """Numbers that have to arrive, under one id or another."""
        wanted = set(np.flatnonzero(self.offset >= 0).tolist())
        for number, meddled in self.meddled.items():
            if meddled.fate is Fate.MOVED:
                wanted.add(number)
            elif meddled.fate is not Fate.MAYBE_MOVED:
                wanted.discard(number)
        return wanted

    def topic_of(self, number: int) -> str:
        return self.dead_topic if number in self.buried else self.topics[number % len(self.topics)]


class Arrival(NamedTuple):
    """A row at its target; ``at_ms`` is the target's clock."""

    number: int
    due: int
    offset: int
    at_ms: int
    topic: str = ""


@dataclass(frozen=True)
class Death:
    """A look at a node without peers between its end and its next start. ``arrivals``: how many
    rows had arrived by then, in all lives so far; ``exact``: no row that it had sent can arrive
    later, as it can where a broker has it still in hand."""

    arrivals: int
    marks: Marks
    exact: bool


@dataclass
class Fault:
    """Something that was done to the group, from ``begin_ms`` on, and undone at ``end_ms``."""

    what: str
    begin_ms: int
    end_ms: int
    held: bool = False
    """A process was paused: what it had in hand may leave when it is resumed."""
    death: Death | None = None
    repeats: int = 0
    from_ms: int = 0
    to_ms: int = 0
    """First arrivals of what was repeated were within these, counted from its begin."""
    silence_ms: int = 0
    """The longest time without any arrival that fell into it, up to the next fault."""

    def explains(self, first: Arrival, later: Arrival) -> bool:
        """Whether such a repeat may come from it, by the times of the two arrivals."""
        if later.at_ms < self.begin_ms or (self.death is not None and self.death.exact):
            return False
        sent_late = self.held and self.end_ms <= later.at_ms <= self.end_ms + RUN_ON_MS
        return sent_late or self._is_near(first)

    def count(self, first: Arrival) -> None:
        self.repeats += 1
        if self._is_near(first):
            self.from_ms = min(self.from_ms, first.at_ms - self.begin_ms)
            self.to_ms = max(self.to_ms, first.at_ms - self.begin_ms)

    def _is_near(self, first: Arrival) -> bool:
        return self.begin_ms - UNMARKED_MS <= first.at_ms <= self.begin_ms + RUN_ON_MS


@dataclass
class Account:
    promised: int
    wanted: int
    arrivals: int
    refused: int
    cancelled: int
    moved: int
    buried: int
    """Arrived in the dead-letter topic."""
    lost: list[int] = field(default_factory=list)
    early: list[Arrival] = field(default_factory=list)
    strangers: list[Arrival] = field(default_factory=list)
    """Never sent, or under another id or due time than the caller was told, under a second id, or
    in another topic."""
    cancelled_but_delivered: list[Arrival] = field(default_factory=list)
    moved_and_not: list[int] = field(default_factory=list)
    """Arrived under the old id and the new one."""
    repeated: int = 0
    by_turns: int = 0
    """Of them: by changes of the master that were none of our faults."""
    unexplained: list[tuple[Arrival, Arrival]] = field(default_factory=list)

    def violations(self, *allowed: str) -> dict[str, object]:
        """What must be empty but for what is ``allowed``, with a few examples of each."""
        all_kinds: dict[str, list[Any]] = {
            "lost": self.lost,
            "early": self.early,
            "strangers": self.strangers,
            "cancelled but delivered": self.cancelled_but_delivered,
            "moved and not moved": self.moved_and_not,
            "repeats without a fault": self.unexplained,
        }
        return {
            name: (len(many), many[:5])
            for name, many in all_kinds.items()
            if many and name not in allowed
        }

    def line(self) -> str:
        return (
            f"{self.promised} with a receipt, {self.refused} refused, {self.cancelled} cancelled,"
            f" {self.moved} rescheduled: {len(self.lost)} lost, {len(self.early)} early,"
            f" {len(self.strangers)} never sent, {self.buried} dead letters,"
            f" {len(self.cancelled_but_delivered)} delivered although cancelled;"
            f" {self.repeated} repeated, {self.by_turns} of them by a change of master that was no"
            f" fault of ours, {len(self.unexplained)} without a reason"
        )


def account(
    promised: Promised,
    arrivals: Sequence[Arrival],
    faults: Sequence[Fault],
    turns: Sequence[Fault] = (),
) -> Account:
    """Hold ``arrivals`` against the promises; their order counts only where there are deaths.
    Fills in the faults' figures."""
    wanted = promised.wanted()
    found = Account(
        promised=len(promised.due) - promised.refused,
        wanted=len(wanted),
        arrivals=len(arrivals),
        refused=promised.refused,
        cancelled=promised.count(Fate.CANCELLED),
        moved=promised.count(Fate.MOVED),
        buried=len({one.number for one in arrivals if one.topic == promised.dead_topic != ""}),
    )
    faults = sorted(faults, key=lambda fault: fault.begin_ms)
    for fault in faults:
        fault.repeats = fault.from_ms = fault.to_ms = 0
    deaths = [(fault, fault.death) for fault in faults if fault.death is not None]
    ends = [death.arrivals for _, death in deaths]
    came: dict[int, list[tuple[Arrival, int]]] = defaultdict(list)
    for place, arrival in sorted(enumerate(arrivals), key=lambda placed: placed[1].at_ms):
        if arrival.at_ms < arrival.due:
            found.early.append(arrival)
        if not 0 <= arrival.number < len(promised.due):
            found.strangers.append(arrival)
        else:
            came[arrival.number].append((arrival, bisect.bisect_right(ends, place)))
    for number in range(len(promised.due)):
        rows = [arrival for arrival, _ in came.get(number, [])]
        _judge(number, rows, promised, number in wanted, found)
    for many in came.values():
        for (first, life), (later, next_life) in itertools.pairwise(many):
            found.repeated += 1
            if life < next_life:
                fault, (_, last) = deaths[life][0], deaths[next_life - 1]
                unmarked = not last.marks.main.covers(later.due, later.offset)
                if unmarked and fault.begin_ms - first.at_ms <= UNMARKED_MS:
                    fault.count(first)
                else:
                    found.unexplained.append((first, later))
            elif by := [fault for fault in faults if fault.explains(first, later)]:
                by[-1].count(first)
            elif any(turn.explains(first, later) for turn in turns):
                found.by_turns += 1
            else:
                found.unexplained.append((first, later))
    _silences(arrivals, faults)
    return found


def _judge(
    number: int, came: list[Arrival], promised: Promised, wanted: bool, found: Account
) -> None:
    old = int(promised.due[number]), int(promised.offset[number])
    meddled = promised.meddled.get(number)
    fate = None if meddled is None else meddled.fate
    as_old: list[Arrival] = []
    as_new: list[Arrival] = []
    for one in came:
        if one.topic != promised.topic_of(number):
            found.strangers.append(one)
        elif meddled is not None and one.due == meddled.due and meddled.offset in (-1, one.offset):
            # One that was moved to its old due time is told by the offset, if that is known.
            (as_old if (one.due, one.offset) == old else as_new).append(one)
        elif one.due == old[0] and old[1] in (-1, one.offset):
            as_old.append(one)
        else:
            found.strangers.append(one)
    for group in (as_old, as_new):
        # Where no receipt says under which id, it is one all the same.
        found.strangers += [one for one in group if one.offset != group[0].offset]
    if fate in (Fate.CANCELLED, Fate.REFUSED, Fate.MOVED):
        found.cancelled_but_delivered += as_old
    if as_old and as_new:
        found.moved_and_not.append(number)
    there = as_new if fate is Fate.MOVED else as_old or as_new
    if wanted and not there:
        found.lost.append(number)


def _silences(arrivals: Sequence[Arrival], faults: Sequence[Fault]) -> None:
    """Each silence belongs to the fault in whose time its middle lies."""
    begins = [fault.begin_ms for fault in faults]
    for fault in faults:
        fault.silence_ms = 0
    for one, later in itertools.pairwise(sorted(one.at_ms for one in arrivals)):
        at = bisect.bisect_right(begins, (one + later) // 2) - 1
        if at >= 0:
            faults[at].silence_ms = max(faults[at].silence_ms, later - one)


def table(faults: Sequence[Fault]) -> list[str]:
    """For people: a line a fault."""
    if not faults:
        return []
    start = min(fault.begin_ms for fault in faults)
    rows = [("fault", "at", "for", "silence", "repeats (first arrived)")]
    for fault in faults:
        far = f" ({fault.from_ms:+} to {fault.to_ms:+} ms)" if fault.repeats else ""
        rows.append(
            (
                fault.what,
                f"{(fault.begin_ms - start) / 1000:.1f} s",
                f"{(fault.end_ms - fault.begin_ms) / 1000:.1f} s",
                f"{fault.silence_ms} ms",
                f"{fault.repeats}{far}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]

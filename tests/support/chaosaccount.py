"""The account of a time of trouble: what was promised against what arrived.

Arithmetic only, so that a test can plant each violation. A message is known by its number, which is
its value; offset and due time of its id must be those that the client was told.

Repeats are explained, not only counted. A message may arrive twice only because the mark over its
first arrival was not on a majority's disks when its master was lost. So its first arrival lies in
the last moments before a fault, or in the moments after it in which the old master still had its
lease and what it had handed to its sink was still under way; and the second arrival lies behind
that. Whatever is paused and resumed may also send then what it had in hand when it was paused.
On a machine with too much to do a master may lose its majority without any fault of ours; its log
says so, and such a change explains repeats as a fault does (``turns``).
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.load import Fate, Promised

UNMARKED_MS = 1_500
"""Before a fault: the mark's interval (100 ms), a chunk, a sync and a majority's answer; the rest
is for a machine with much to do."""
RUN_ON_MS = 2_000
"""After it: the lease (600 ms) and the chunk in hand."""


class Arrival(NamedTuple):
    """A row at its target; ``at_ms`` is the target's clock."""

    number: int
    due: int
    offset: int
    at_ms: int


@dataclass
class Fault:
    """Something that was done to the group, from ``begin_ms`` on, and undone at ``end_ms``."""

    what: str
    begin_ms: int
    end_ms: int
    held: bool = False
    """A process was paused: what it had in hand may leave when it is resumed."""
    repeats: int = 0
    from_ms: int = 0
    to_ms: int = 0
    """First arrivals of what was repeated were within these, counted from its begin."""
    silence_ms: int = 0
    """The longest time without any arrival that fell into it, up to the next fault."""


@dataclass
class Account:
    promised: int
    wanted: int
    arrivals: int
    refused: int
    cancelled: int
    moved: int
    lost: list[int] = field(default_factory=list)
    early: list[Arrival] = field(default_factory=list)
    strangers: list[Arrival] = field(default_factory=list)
    """Never sent, or under another id or due time than the client was told."""
    cancelled_but_delivered: list[Arrival] = field(default_factory=list)
    moved_and_not: list[int] = field(default_factory=list)
    """Arrived under the old id and the new one."""
    repeated: int = 0
    by_turns: int = 0
    """Of them: by changes of the master that were none of our faults."""
    unexplained: list[tuple[Arrival, Arrival]] = field(default_factory=list)

    def violations(self) -> dict[str, object]:
        """What must be empty, with a few examples of each."""
        found: dict[str, list[Any]] = {
            "lost": self.lost,
            "early": self.early,
            "strangers": self.strangers,
            "cancelled but delivered": self.cancelled_but_delivered,
            "moved and not moved": self.moved_and_not,
            "repeats without a fault": self.unexplained,
        }
        return {name: (len(many), many[:5]) for name, many in found.items() if many}

    def line(self) -> str:
        return (
            f"{self.promised} with a receipt, {self.refused} refused, {self.cancelled} cancelled,"
            f" {self.moved} rescheduled: {len(self.lost)} lost, {len(self.early)} early,"
            f" {len(self.strangers)} never sent,"
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
    """Hold ``arrivals`` (in any order) against the promises. Fills in the faults' figures."""
    wanted = promised.wanted()
    found = Account(
        promised=len(promised.due) - promised.refused,
        wanted=len(wanted),
        arrivals=len(arrivals),
        refused=promised.refused,
        cancelled=promised.count(Fate.CANCELLED),
        moved=promised.count(Fate.MOVED),
    )
    faults = sorted(faults, key=lambda fault: fault.begin_ms)
    for fault in faults:
        fault.repeats = fault.from_ms = fault.to_ms = 0
    came: dict[int, list[Arrival]] = defaultdict(list)
    for one in sorted(arrivals, key=lambda one: one.at_ms):
        if one.at_ms < one.due:
            found.early.append(one)
        if not 0 <= one.number < len(promised.due):
            found.strangers.append(one)
        else:
            came[one.number].append(one)
    for number in range(len(promised.due)):
        _judge(number, came.get(number, []), promised, number in wanted, found)
    for many in came.values():
        for first, later in itertools.pairwise(many):
            found.repeated += 1
            if _explain(first, later, faults):
                continue
            if _explain(first, later, turns):
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
        if meddled is not None and one.due == meddled.due and meddled.offset in (-1, one.offset):
            # One that was moved to its old due time is told by the offset, if that is known.
            (as_old if (one.due, one.offset) == old else as_new).append(one)
        elif one.due == old[0] and old[1] in (-1, one.offset):
            as_old.append(one)
        else:
            found.strangers.append(one)
    if fate in (Fate.CANCELLED, Fate.MOVED):
        found.cancelled_but_delivered += as_old
    if as_old and as_new:
        found.moved_and_not.append(number)
    there = as_new if fate is Fate.MOVED else as_old or as_new
    if wanted and not there:
        found.lost.append(number)


def _explain(first: Arrival, later: Arrival, faults: Sequence[Fault]) -> bool:
    """Find the fault that a repeat comes from, the latest one possible, and count it there."""
    for fault in reversed(faults):
        if later.at_ms < fault.begin_ms:
            continue
        before = fault.begin_ms - UNMARKED_MS <= first.at_ms <= fault.begin_ms + RUN_ON_MS
        sent_late = fault.held and fault.end_ms <= later.at_ms <= fault.end_ms + RUN_ON_MS
        if before or sent_late:
            fault.repeats += 1
            if before:
                fault.from_ms = min(fault.from_ms, first.at_ms - fault.begin_ms)
                fault.to_ms = max(fault.to_ms, first.at_ms - fault.begin_ms)
            return True
    return False


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

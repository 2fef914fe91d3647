"""All facts of a range of offsets, side by side: one place for each message, one column each for
what is known of it.

Theory: facts are sorted by offset, so that those of a message stand together; the messages are then
numbered, and every question is a mask over these numbers. What one believes of a message is its
*reference*: the row that most peers' journals hold, or else what its producer's receipt says.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...reading.files import NO_PEER
from ...wheel.schema import Int64s, Mask
from ..facts.fact import FORGED, Facts, Seen
from .context import Context, covered

CONTENT = ("digest", "due", "created", "partition", "topic")
"""What must be equal for two rows to be the same."""


class FactColumns:
    """Facts in an order, field by field, each of which is taken once and then lies close."""

    def __init__(self, facts: Facts, order: Int64s) -> None:
        self._facts = facts
        self._order = order
        self._taken: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        found = self._taken.get(name)
        if found is None:
            found = np.ascontiguousarray(self._facts[name])[self._order]
            self._taken[name] = found
        return found

    def rows(self, numbers: Int64s) -> Facts:
        """Whole facts, for a few of them."""
        return self._facts[self._order[numbers]]


class Board:
    """``n`` messages (and cancel rows), by offset; arrays below have shape (n,) unless said."""

    def __init__(self, facts: Facts, context: Context) -> None:
        self.context = context
        if context.strange_files:
            strange = np.array(sorted(context.strange_files), np.uint32)
            facts = facts[~np.isin(facts["file"], strange)]
        self.facts = FactColumns(facts, np.argsort(facts["offset"], kind="stable"))
        offset = self.facts["offset"]
        new = np.ones(len(offset), np.bool_)
        new[1:] = offset[1:] != offset[:-1]
        self.place: Int64s = np.cumsum(new) - 1
        """Of each fact: the number of its message; shape (facts,)."""
        self.offset: Int64s = offset[new]
        self.n = len(self.offset)
        self.seen = self.facts["seen"]
        self.peer = self.facts["peer"]
        self._reference()

    def of(self, *seen: Seen, peer: int | None = None) -> Int64s:
        """Numbers of the facts of some kinds, of one peer; shape (found,)."""
        mask = self.seen == seen[0]
        for kind in seen[1:]:
            mask |= self.seen == kind
        if peer is not None:
            mask &= self.peer == peer
        return np.flatnonzero(mask)

    def count(self, facts: Int64s) -> Int64s:
        """How many of these facts each message has."""
        return np.bincount(self.place[facts], minlength=self.n)

    def same(self, facts: Int64s, others: Int64s) -> Mask:
        """Whether fact and other say the same, pair by pair."""
        equal = np.ones(len(facts), np.bool_)
        for name in CONTENT:
            equal &= self.facts[name][facts] == self.facts[name][others]
        return equal

    def in_journal(self, peer: int) -> Int64s:
        """The fact of each message in a peer's journal; -1: none."""
        return self._journals[peer]

    def _reference(self) -> None:
        peers = len(self.context.peers)
        none = np.full(self.n, -1, np.int64)
        self._journals: list[Int64s] = []
        for peer in range(peers):
            at = none.copy()
            found = self.of(Seen.ACCEPTED, Seen.CANCEL, peer=peer)
            at[self.place[found][::-1]] = found[::-1]  # the first of several
            self._journals.append(at)
        best, votes = none.copy(), np.zeros(self.n, np.int64)
        for peer, mine in enumerate(self._journals):
            agree = (mine >= 0).astype(np.int64)
            for other, theirs in enumerate(self._journals):
                if other == peer:
                    continue
                both = np.flatnonzero((mine >= 0) & (theirs >= 0))
                agree[both] += self.same(mine[both], theirs[both])
            # Of two that stand alone, the later master's.
            later = self.facts["at"][mine] > self.facts["at"][best]
            better = (agree > votes) | ((agree == votes) & (mine >= 0) & later)
            best[better], votes[better] = mine[better], agree[better]
        self.votes = votes
        """How many journals hold the reference."""
        receipts = self.of(Seen.RECEIPT)
        receipts = receipts[self.facts["flags"][receipts] & FORGED == 0]
        self.receipt = none.copy()
        """The fact of the first receipt; -1: none."""
        self.receipt[self.place[receipts][::-1]] = receipts[::-1]
        self.in_journals: Mask = best >= 0
        self.reference: Int64s = np.where(best >= 0, best, self.receipt)
        """The fact that is believed; -1: nothing says that it was accepted."""
        self.known: Mask = self.reference >= 0
        self.is_cancel: Mask = self.known & (self._of_reference("seen") == Seen.CANCEL)
        self.due: Int64s = self._of_reference("due")
        self.created: Int64s = self._of_reference("created")
        self.topic: npt.NDArray[np.uint32] = self._of_reference("topic")
        proven = max((peer.proven for peer in self.context.peers), default=0)
        context = self.context
        self.committed: Mask = self.known & (
            (self.receipt >= 0) | (votes >= context.needed) | (self.offset < proven)
        )
        if context.is_group and len(context.peers) == 1:
            self.committed &= (self.receipt >= 0) | (self.offset < proven)

    def _of_reference(self, name: str) -> npt.NDArray[Any]:
        """A field of the reference; 0 where there is none."""
        values = self.facts[name][np.maximum(self.reference, 0)]
        values[~self.known] = 0
        return values

    @cached_property
    def claimed(self) -> Mask:
        """What the newest mark of all claims to be done with."""
        return covered(self.context.marks, self.due, self.offset, self.topic)

    def claimed_by(self, peer: int) -> Mask:
        return covered(self.context.peers[peer].marks, self.due, self.offset, self.topic)

    @cached_property
    def readable(self) -> Mask:
        """Somebody's journal was read where this message would stand."""
        found = np.zeros(self.n, np.bool_)
        for peer in self.context.peers:
            found |= peer.has_journal(self.offset)
        return found

    @cached_property
    def behind_the_log(self) -> Mask:
        """Its offset is behind the end of every journal, all of which are known to their end."""
        if self.context.log_end is None:
            return np.zeros(self.n, np.bool_)
        mask: Mask = self.offset >= self.context.log_end
        return mask

    @cached_property
    def may_be_missing(self) -> Mask:
        """Damage may have taken it from some journal."""
        found = np.zeros(self.n, np.bool_)
        for peer in self.context.peers:
            found |= peer.may_miss(self.offset)
        return found

    @cached_property
    def second(self) -> Int64s:
        return self.due // 1000

    def in_slots(self, peer: int) -> Int64s:
        """How often each message stands in a peer's live slot files."""
        return self.count(self.of(Seen.SLOT, peer=peer))

    def arrivals(self, seen: Seen) -> Int64s:
        """Facts of records that arrived, each record once: dumps may hold the same ones, or those
        of a directory that is given, too."""
        found = self.of(seen)
        dumped = self.peer[found] == NO_PEER
        if not dumped.any():
            return found
        # Behind what it may be a copy of: peers come first.
        names = ("peer", "at", "where", "partition", "topic", "offset")
        keys = [self.facts[name][found] for name in names]
        order = np.lexsort(keys)
        equal = np.ones(max(0, len(found) - 1), np.bool_)
        for key in keys[1:]:
            equal &= key[order][1:] == key[order][:-1]
        again = np.zeros(len(found), np.bool_)
        again[order[1:]] = equal
        once: Int64s = found[~(again & dumped)]
        return once

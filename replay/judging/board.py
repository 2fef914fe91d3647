"""All facts of a range of offsets, side by side: one place for each message, one column for each
question.

Theory: facts are sorted by offset, so that those of a message stand together; the messages are then
numbered, and every question is a mask over these numbers. The *reference* of a message is the row
that its facts are compared with: the row that most peers' journals hold. Of a message whose
segments nobody was given any more it is the row of its slot file, which has only rows that were
committed: a message that was accepted forty days before it was due would else never be judged, as
no archive keeps a journal for so long. Without either it is its producer's receipt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...account.limits import NEVER_MS, ready_ms
from ...reading.files import NO_PEER
from ...wheel.schema import Int64s, Mask
from ..facts.fact import CANCEL_ROW, FORGED, Facts, Seen
from .context import Context, covered, within

CONTENT = ("digest", "due", "created", "partition", "topic")
"""Fields that must be equal for two rows to be the same."""


class FactColumns:
    """Sorted facts as columns; a field is copied when it is first used."""

    def __init__(self, facts: Facts, order: Int64s) -> None:
        self._facts = facts
        self._order = order
        self._taken: dict[str, npt.NDArray[Any]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        column = self._taken.get(name)
        if column is None:
            column = np.ascontiguousarray(self._facts[name])[self._order]
            self._taken[name] = column
        return column

    def rows(self, numbers: Int64s) -> Facts:
        """Whole facts at a few places."""
        return self._facts[self._order[numbers]]


class Board:
    """The facts of ``n`` messages (and cancel rows), by offset. Arrays have shape (n,) unless
    said."""

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
        """The number of each fact's message; shape (facts,)."""
        self.offset: Int64s = offset[new]
        self.n = len(self.offset)
        self.seen = self.facts["seen"]
        self.peer = self.facts["peer"]
        self._reference()

    def of(self, *seen: Seen, peer: int | None = None) -> Int64s:
        """Places of the facts of some kinds, of all peers or one; shape (facts,)."""
        mask = self.seen == seen[0]
        for kind in seen[1:]:
            mask |= self.seen == kind
        if peer is not None:
            mask &= self.peer == peer
        return np.flatnonzero(mask)

    def count(self, facts: Int64s) -> Int64s:
        """The number of these facts of each message; shape (n,)."""
        return np.bincount(self.place[facts], minlength=self.n)

    def same(self, facts: Int64s, others: Int64s) -> Mask:
        """True where two facts have the same content, pair by pair; shape of ``facts``."""
        equal = np.ones(len(facts), np.bool_)
        for name in CONTENT:
            equal &= self.facts[name][facts] == self.facts[name][others]
        return equal

    def in_journal(self, peer: int) -> Int64s:
        """The place of each message's fact in a peer's journal; -1: none."""
        return self._journals[peer]

    def _reference(self) -> None:
        peers = len(self.context.peers)
        none = np.full(self.n, -1, np.int64)
        self._journals: list[Int64s] = []
        for peer in range(peers):
            at = none.copy()
            facts = self.of(Seen.ACCEPTED, Seen.CANCEL, peer=peer)
            at[self.place[facts][::-1]] = facts[::-1]  # the first of several
            self._journals.append(at)
        best, votes = self._most_agreed(self._journals)
        self.in_journals: Mask = best >= 0
        unread = within(self.context.unread, self.offset)
        if unread.any():
            resting = [self._slot_rows(peer, unread) for peer in range(peers)]
            best = np.where(best >= 0, best, self._most_agreed(resting)[0])
        self.has_row: Mask = best >= 0
        """True for messages whose reference is a row of a journal or a slot file, and no receipt,
        which has no creation time and no partition."""
        receipts = self.of(Seen.RECEIPT)
        receipts = receipts[self.facts["flags"][receipts] & FORGED == 0]
        self.receipt = none.copy()
        """The place of the first receipt's fact; -1: none."""
        self.receipt[self.place[receipts][::-1]] = receipts[::-1]
        self.reference: Int64s = np.where(best >= 0, best, self.receipt)
        """The place of the reference's fact; -1: no journal, slot file or receipt has it."""
        self.known: Mask = self.reference >= 0
        self.is_cancel: Mask = self.known & (
            (self._of_reference("seen") == Seen.CANCEL)
            | (self._of_reference("flags") & CANCEL_ROW != 0)
        )
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

    def _slot_rows(self, peer: int, wanted: Mask) -> Int64s:
        """The place of each wanted message's fact in a peer's slot files, live or archived; -1:
        none."""
        at = np.full(self.n, -1, np.int64)
        facts = self.of(Seen.SLOT, Seen.ARCHIVED, peer=peer)
        facts = facts[wanted[self.place[facts]]]
        at[self.place[facts][::-1]] = facts[::-1]
        return at

    def _most_agreed(self, peers: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
        """The row of each message that most peers hold, as the place of its fact (-1: none has
        one), and how many these are. ``peers``: the places of each peer's facts."""
        best, votes = np.full(self.n, -1, np.int64), np.zeros(self.n, np.int64)
        for peer, places in enumerate(peers):
            agree = (places >= 0).astype(np.int64)
            for other, other_places in enumerate(peers):
                if other == peer:
                    continue
                both = np.flatnonzero((places >= 0) & (other_places >= 0))
                agree[both] += self.same(places[both], other_places[both])
            # Of two with equal votes, the later master's.
            later = self.facts["at"][places] > self.facts["at"][best]
            better = (agree > votes) | ((agree == votes) & (places >= 0) & later)
            best[better], votes[better] = places[better], agree[better]
        return best, votes

    def _of_reference(self, name: str) -> npt.NDArray[Any]:
        """A field of the reference; 0 where there is none."""
        values = self.facts[name][np.maximum(self.reference, 0)]
        values[~self.known] = 0
        return values

    @cached_property
    def due_anywhere(self) -> Int64s:
        """The due time of each message by its reference, or else by any of its facts."""
        first = np.searchsorted(self.place, np.arange(self.n))
        return np.where(self.known, self.due, self.facts["due"][first])

    @cached_property
    def ready_ms(self) -> Int64s:
        """When each message could leave the wheel, ms (``account.limits``)."""
        return ready_ms(self.due, self.created)

    @cached_property
    def arrived(self) -> Int64s:
        """Places of the facts of records that arrived with an id of this group; shape (facts,)."""
        arrived = self.arrivals(Seen.DELIVERED)
        own: Int64s = arrived[self.facts["flags"][arrived] & FORGED == 0]
        return own

    @cached_property
    def arrived_ms(self) -> Int64s:
        """When each message first arrived in its topic, ms; ``NEVER_MS``: it did not."""
        return self.first_ms(self.arrived)

    def first_ms(self, facts: Int64s) -> Int64s:
        """The earliest time (``at``) of these facts of each message, ms; ``NEVER_MS``: it has
        none."""
        first = np.full(self.n, NEVER_MS)
        np.minimum.at(first, self.place[facts], self.facts["at"][facts])
        return first

    @cached_property
    def cancelled(self) -> Mask:
        """True for messages that a committed cancel row names. It is committed if some peer proves
        that its own offset (``where``) is, or if enough peers hold it."""
        facts = self.of(Seen.CANCELLED)
        by = self.facts["where"][facts]
        proven = max((peer.proven for peer in self.context.peers), default=0)
        sure: Mask = self.count(facts[by < proven]) > 0
        return sure | (self.count(facts) >= self.context.needed)

    @cached_property
    def claimed(self) -> Mask:
        """True for messages that the newest mark covers."""
        return covered(self.context.marks, self.due, self.offset, self.topic)

    def claimed_by(self, peer: int) -> Mask:
        return covered(self.context.peers[peer].marks, self.due, self.offset, self.topic)

    @cached_property
    def readable(self) -> Mask:
        """True for offsets that lie in a part of a journal that was read."""
        readable = np.zeros(self.n, np.bool_)
        for peer in self.context.peers:
            readable |= peer.has_journal(self.offset)
        return readable

    @cached_property
    def behind_the_log(self) -> Mask:
        """True for offsets behind the end of every journal; for none unless all ends are known."""
        if self.context.log_end is None:
            return np.zeros(self.n, np.bool_)
        mask: Mask = self.offset >= self.context.log_end
        return mask

    @cached_property
    def may_be_missing(self) -> Mask:
        """True for messages that damage may have taken from a journal."""
        missing = np.zeros(self.n, np.bool_)
        for peer in self.context.peers:
            missing |= peer.may_miss(self.offset)
        return missing

    def in_slots(self, peer: int) -> Int64s:
        """The number of rows that each message has in a peer's live slot files."""
        return self.count(self.of(Seen.SLOT, peer=peer))

    def arrivals(self, seen: Seen) -> Int64s:
        """Places of the facts of records that arrived, each record once: a dump may hold records
        that another dump or a given directory has, too."""
        facts = self.of(seen)
        dumped = self.peer[facts] == NO_PEER
        if not dumped.any():
            return facts
        # A copy from a dump is sorted behind the original: peers come first.
        names = ("peer", "at", "where", "partition", "topic", "offset")
        keys = [self.facts[name][facts] for name in names]
        order = np.lexsort(keys)
        equal = np.ones(max(0, len(facts) - 1), np.bool_)
        for key in keys[1:]:
            equal &= key[order][1:] == key[order][:-1]
        again = np.zeros(len(facts), np.bool_)
        again[order[1:]] = equal
        once: Int64s = facts[~(again & dumped)]
        return once

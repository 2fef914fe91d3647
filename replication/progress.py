"""What a master knows of one peer, and what it may ship to it next.

Theory: a peer is in one of three states. *probe*: where its log and the master's part is not known;
one empty ``Append`` at a time asks. *replicate*: known; entries are shipped ahead of the answers,
a bounded number of messages. *snapshot*: what it needs next is no longer in the journal.

Rules
- ``match``: durable there, acknowledged in this epoch by this store. Another store behind the same
  node id begins at nothing.
- ``counted`` and ``relied_on`` are what a store said *as a voter*; only these count for a majority.
  What it said before it knew of its admission stays uncounted for good.
- A message may get lost without a sign. The pipeline that has not moved for two heartbeats although
  something is under way is taken for lost, and probed.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from .messages import Ack

WINDOW_MESSAGES = 64
"""``Append`` messages under way to one peer, at most."""
MESSAGE_ENTRIES = 64
"""Entries in one ``Append``, at most."""

NEVER = float("-inf")


class Shipping(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "beat_next",
        "beat_verified",
        "counted",
        "due",
        "echo",
        "flight",
        "heard",
        "match",
        "next",
        "peer",
        "relied_on",
        "silent_beats",
        "state",
        "store",
        "verified",
    )

    def __init__(self, peer: str, following: int) -> None:
        """``following``: the index behind the master's last entry."""
        self.peer = peer
        self.heard = NEVER
        self.reset(b"", following)

    def reset(self, store: bytes, following: int) -> None:
        """Nothing is known of this store."""
        self.store = store
        self.match = 0
        self.counted = 0
        self.relied_on = NEVER
        self.verified = 0
        self.echo = NEVER
        self.flight: deque[int] = deque()
        self.beat_verified = 0
        self.beat_next = 0
        self.probe(following, NEVER)

    def probe(self, following: int, due: float) -> None:
        """Ask at ``due`` whether all before ``following`` is there."""
        self.state = Shipping.PROBE
        self.next = max(following, self.match + 1)
        self.due = due
        self.flight.clear()
        self.silent_beats = 0

    @property
    def has_room(self) -> bool:
        return len(self.flight) < WINDOW_MESSAGES

    def shipped(self, last: int) -> None:
        """Entries up to ``last`` are under way."""
        self.next = last + 1
        self.flight.append(last)

    def accepted(self, ack: Ack) -> None:
        """The peer has this much."""
        verified, in_order = ack.verified, ack.sent_at >= max(self.echo, 0)
        self.verified = verified if in_order else max(self.verified, verified)
        self.match = max(self.match, ack.durable)
        self.echo = max(self.echo, ack.sent_at)
        if ack.voter:
            self.counted = max(self.counted, ack.durable)
            if ack.sent_at >= 0:
                self.relied_on = max(self.relied_on, ack.sent_at)
        flight, has = self.flight, max(self.match, verified)
        while flight and flight[0] <= has:
            flight.popleft()
        if self.state is Shipping.PROBE and has >= self.next - 1:
            self.state = Shipping.REPLICATE
            self.next = has + 1
            self.beat_verified = has
            self.beat_next = 0

    def rejected(self, hint: int) -> None:
        """The peer's log can part from the master's at ``hint`` at the latest."""
        if self.state is not Shipping.SNAPSHOT and self.match <= hint < self.next - 1:
            self.probe(hint + 1, NEVER)

    def beat(self) -> bool:
        """Called at each heartbeat; whether what is under way must be taken for lost."""
        if self.state is not Shipping.REPLICATE:
            return False
        has = max(self.verified, self.match)
        waiting = has < self.beat_next - 1 and has <= self.beat_verified
        self.silent_beats = self.silent_beats + 1 if waiting else 0
        self.beat_verified = has
        self.beat_next = self.next
        return self.silent_beats >= 2

"""A master's view of one peer, and what it may ship to it next.

Theory: a peer is in one of three states.

    probe       where its log parts from the master's is not known; one empty ``Append`` at a time
                asks, for the entries before ``next``
    replicate   known; entries are shipped ahead of the answers, a bounded number of messages
    snapshot    the entry it needs next is no longer in the journal; it is offered a snapshot, and
                asked all the same

    probe ----------- it has all before ``next`` --------------------> replicate
    replicate ------- it lacks what it was thought to have, or lost -> probe
    probe ----------- ``next`` is no longer in the journal ----------> snapshot
    snapshot -------- it has all that the journal begins behind -----> probe
    any ------------- entries could not be sent ---------------------> probe

Rules
- A peer is asked from behind ``match``, never before: what is durable there stays.
- Only what a store answered *as a voter* counts for a majority (``counted``, ``relied_on``). What
  it answered before it knew of its admission is never counted.
- Another store behind the same node id is another ``Progress``, which begins at nothing.
- A message may get lost without a sign. When the pipeline has not moved for two heartbeats although
  something is in flight, it is assumed lost, and the peer is probed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from .messages import Ack
from .timing import NEVER

WINDOW_MESSAGES = 64
"""Most ``Append`` messages in flight to one peer."""
MESSAGE_ENTRIES = 64
"""Most entries in one ``Append``."""


class Shipping(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, eq=False)
class Progress:
    """One peer in one epoch of a master. Times are the master's, s. ``next`` begins as the index
    behind the master's last entry."""

    peer: str
    next: int
    """The index to ship next; while probing, the peer is asked whether it has all before it."""
    store: bytes = b""
    """The store that answered; empty until the peer has answered."""
    state: Shipping = Shipping.PROBE
    ask_at: float = NEVER
    """The time to ask it next, unless it is replicated to."""
    match: int = 0
    """The index up to which the log is on the peer's disk."""
    verified: int = 0
    """The index up to which the peer's log is the master's, by its newest answer. It falls when the
    peer's disk fails to write what was received."""
    counted: int = 0
    """``match``, as far as it was answered as a voter: the commit index is counted by it."""
    relied_on: float = NEVER
    """The time at which the message was sent that it answered last as a voter, for the lease."""
    echo: float = NEVER
    """The latest such time of all its answers: one that echoes an earlier time was overtaken."""
    answered_at: float = NEVER
    """The time at which its last answer was received."""
    flight: deque[int] = field(default_factory=deque)
    """The last index of each message of entries that is in flight."""
    beat_has: int = 0
    """``has`` at the last heartbeat."""
    beat_next: int = 0
    """``next`` at the last heartbeat; 0 if it was not replicated to yet."""
    silent_beats: int = 0
    """Heartbeats for which ``has`` has not moved, although something was in flight."""

    @property
    def has(self) -> int:
        """The index up to which it has the log, durable or not."""
        return max(self.verified, self.match)

    @property
    def has_room(self) -> bool:
        return len(self.flight) < WINDOW_MESSAGES

    # Transitions

    def become_probe(self, following: int, ask_at: float = NEVER) -> None:
        """Ask, from time ``ask_at`` on, whether the peer has all before ``following``."""
        self.state = Shipping.PROBE
        self.next = max(following, self.match + 1)
        self.ask_at = ask_at
        self.flight.clear()
        self.silent_beats = 0

    def become_replicate(self, has: int) -> None:
        """The peer has the log up to ``has``: ship the rest."""
        self.state = Shipping.REPLICATE
        self.next = has + 1
        self.beat_has = has
        self.beat_next = 0

    def become_snapshot(self) -> None:
        """``next`` is no longer in the journal: offer a snapshot."""
        self.state = Shipping.SNAPSHOT

    # Events

    def asked(self, again_at: float) -> None:
        """The peer was asked; ask again at that time."""
        self.ask_at = again_at

    def shipped(self, last: int) -> None:
        """Entries up to ``last`` were sent."""
        self.next = last + 1
        self.flight.append(last)

    def answered(self, ack: Ack, now: float) -> None:
        self.store, self.answered_at = ack.store, now
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
            self.become_replicate(has)
        # The logs part at ``hint`` at the latest.
        possible = self.match <= ack.hint < self.next - 1
        if ack.rejected and possible and self.state is not Shipping.SNAPSHOT:
            self.become_probe(ack.hint + 1)

    def beat(self) -> bool:
        """Call at each heartbeat. Returns True if messages in flight are assumed lost."""
        if self.state is not Shipping.REPLICATE:
            return False
        waiting = self.has < self.beat_next - 1 and self.has <= self.beat_has
        self.silent_beats = self.silent_beats + 1 if waiting else 0
        self.beat_has = self.has
        self.beat_next = self.next
        if self.silent_beats < 2:
            return False
        self.become_probe(self.has + 1)
        return True

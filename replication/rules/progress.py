"""What a master knows of one peer, and what it may ship to it next.

Theory: a peer is in one of three states.

    probe       where its log and the master's part is not known; one empty ``Append`` at a time
                asks, for the entries before ``next``
    replicate   known; entries are shipped ahead of the answers, a bounded number of messages
    snapshot    what it needs next is no longer in the journal; it is offered a snapshot, and asked
                all the same

    probe ----------- it has all before ``next`` --------------------> replicate
    replicate ------- it lacks what was taken for there, or lost ----> probe
    probe ----------- what comes next is no longer in the journal ---> snapshot
    snapshot -------- it has all that the journal begins behind -----> probe
    any ------------- what was to be shipped did not leave ----------> probe

Rules
- A peer is asked from behind ``match``, never before: what is durable there stays.
- Only what a store said *as a voter* counts for a majority (``counted``, ``relied_on``). What it
  said before it knew of its admission stays uncounted for good.
- Another store behind the same node id is another ``Progress``, which begins at nothing.
- A message may get lost without a sign. The pipeline that has not moved for two heartbeats although
  something is under way is taken for lost, and probed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from .messages import Ack
from .timing import NEVER

WINDOW_MESSAGES = 64
"""``Append`` messages under way to one peer, at most."""
MESSAGE_ENTRIES = 64
"""Entries in one ``Append``, at most."""


class Shipping(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, eq=False)
class Progress:
    """Made with the index behind the master's last entry as ``next``. All is of one master's epoch;
    times are the master's."""

    peer: str
    next: int
    """The entry to ship next; or, while it is not replicated to, whether all before it is there is
    asked."""
    store: bytes = b""
    """Whose word all this is; empty until the peer has answered."""
    state: Shipping = Shipping.PROBE
    ask_at: float = NEVER
    """When to ask the next time, while it is not replicated to."""
    match: int = 0
    """Up to here the log is on its disk."""
    verified: int = 0
    """Up to here its log is the master's, by its newest answer. Falls when its disk takes back what
    was received."""
    counted: int = 0
    """``match``, as far as it was said as a voter: what the commit index is counted by."""
    relied_on: float = NEVER
    """When the newest of what it answered as a voter was sent: the lease rests on it."""
    echo: float = NEVER
    """The same, of all it answered: tells an answer from one that was overtaken."""
    answered_at: float = NEVER
    """When it was heard last."""
    flight: deque[int] = field(default_factory=deque)
    """The last index of each message of entries that is under way."""
    beat_has: int = 0
    """``has`` at the last heartbeat."""
    beat_next: int = 0
    """``next`` at the last heartbeat; 0 when it was not replicated to yet."""
    silent_beats: int = 0
    """For so many heartbeats ``has`` has not moved, although something was under way."""

    @property
    def has(self) -> int:
        """Up to here it has the log, on its disk or not."""
        return max(self.verified, self.match)

    @property
    def has_room(self) -> bool:
        return len(self.flight) < WINDOW_MESSAGES

    # From one state to another

    def become_probe(self, following: int, ask_at: float = NEVER) -> None:
        """Ask, at ``ask_at``, whether all before ``following`` is there."""
        self.state = Shipping.PROBE
        self.next = max(following, self.match + 1)
        self.ask_at = ask_at
        self.flight.clear()
        self.silent_beats = 0

    def become_replicate(self, has: int) -> None:
        """It has the log up to ``has``: ship what follows."""
        self.state = Shipping.REPLICATE
        self.next = has + 1
        self.beat_has = has
        self.beat_next = 0

    def become_snapshot(self) -> None:
        """``next`` is no longer in the journal."""
        self.state = Shipping.SNAPSHOT

    # What happens

    def asked(self, again_at: float) -> None:
        """A question is under way, and is to be repeated then."""
        self.ask_at = again_at

    def shipped(self, last: int) -> None:
        """Entries up to ``last`` are under way."""
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
        # Logs part at ``hint`` at the latest.
        possible = self.match <= ack.hint < self.next - 1
        if ack.rejected and possible and self.state is not Shipping.SNAPSHOT:
            self.become_probe(ack.hint + 1)

    def beat(self) -> bool:
        """To be called at each heartbeat; whether what is under way was taken for lost."""
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

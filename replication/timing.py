"""How long peers wait for one another.

Theory: a master may act alone only while no other can have been elected. It knows when it sent what
a majority has answered; each of those peers has promised to grant no vote for ``promise_s`` after
it *received* that, which was later. So the master's lease, counted from the *sending*, ends before
the first promise does, as long as clocks do not drift by more than the gap between the two.

Rules
- Seconds of a monotonic clock that runs on while the machine sleeps. Clocks of different peers are
  never compared; only their speed matters, and a quarter of it is allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    ``heartbeat_s``: how often a master tells that it is there. ``lease_s``: how long it may act
    after the sending of what a majority has answered. ``promise_s``: how long a peer that heard
    from its master grants no vote, and how long a master without a majority stays one.
    ``election_spread_s``: an election starts that much later at most, by chance, so that peers
    seldom start together. ``hand_over_s``: how long a hand-over may wait for the next master to
    have everything.
    """

    heartbeat_s: float = 0.08
    lease_s: float = 0.6
    promise_s: float = 0.8
    election_spread_s: float = 0.4
    hand_over_s: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s <= self.lease_s / 2:
            raise ValueError(
                f"heartbeat {self.heartbeat_s} s: must be above 0 and at most half the lease, "
                f"{self.lease_s} s"
            )
        if self.lease_s >= self.promise_s:
            raise ValueError(
                f"lease {self.lease_s} s: must be shorter than the promise, {self.promise_s} s"
            )
        if self.election_spread_s <= 0 or self.hand_over_s <= 0:
            raise ValueError("election_spread_s and hand_over_s must be above 0")

"""The times for which peers wait for one another.

Theory: a master may act alone only while no other can have been elected. It knows when it sent the
messages that a majority has answered; each of those peers has promised to grant no vote for
``promise_s`` after it *received* its message, which was later. So the master's lease, counted from
the *sending*, ends before the first promise does, as long as clocks do not drift by more than the
gap between the two. *Example.* Of a promise of 0.8 s (``--election 800``), a message is sent at 0
and received at 0.05: the lease ends at 0.6, the promise at 0.85.

Rules
- Seconds of a monotonic clock that runs on while the machine sleeps. Clocks of different peers are
  never compared; only their speed matters, and a quarter of it is allowed for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...wheel.errors import InvalidConfiguration

NEVER = float("-inf")
"""The time of an event that has not happened."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    ``heartbeat_s``: how often a master sends a sign of life. ``lease_s``: how long it may act after
    it sent the messages that a majority has answered. ``promise_s``: how long a peer grants no vote
    after a message of its master, and how long a master without a majority stays one.
    ``election_spread_s``: longest random delay of an election, so that peers seldom start together.
    ``hand_over_s``: how long a hand-over may wait for the next master to have everything.

    Errors on construction: ``InvalidConfiguration``.
    """

    heartbeat_s: float
    lease_s: float
    promise_s: float
    election_spread_s: float
    hand_over_s: float = 0.15

    @classmethod
    def of_promise(cls, promise_s: float) -> Self:
        """The times of a node, which all follow from its ``--election``."""
        return cls(
            heartbeat_s=promise_s / 10,
            lease_s=promise_s * 3 / 4,
            promise_s=promise_s,
            election_spread_s=promise_s / 2,
        )

    def __post_init__(self) -> None:
        if 0 < 2 * self.heartbeat_s <= self.lease_s < self.promise_s and (
            self.election_spread_s > 0 and self.hand_over_s > 0
        ):
            return
        raise InvalidConfiguration(
            "peers' timing is not usable",
            got=f"heartbeat {self.heartbeat_s}, lease {self.lease_s}, promise {self.promise_s}",
            limit="0 < 2 heartbeats <= lease < promise; spread and hand-over above 0",
            remedy="A lease that outlives the promise would allow two masters",
        )

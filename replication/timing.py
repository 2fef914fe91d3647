"""How long peers wait for each other, in seconds of the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from ..wheel.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class Timing:
    """Errors on construction: ``InvalidConfiguration``."""

    heartbeat_s: float = 0.08
    """The master tells so often that it is there."""
    lease_s: float = 0.6
    """A master acts for so long after a majority answered; counted from when it asked."""
    promise_s: float = 0.8
    """A peer grants no vote for so long after it heard from its master."""
    election_spread_s: float = 0.4
    """A peer asks for votes after ``promise_s`` and up to so much more."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.lease_s < self.promise_s or self.election_spread_s <= 0:
            raise InvalidConfiguration(
                "peers' timing is not usable",
                got=f"heartbeat {self.heartbeat_s}, lease {self.lease_s}, promise {self.promise_s}",
                limit="0 < heartbeat < lease < promise, spread above 0",
                remedy="A lease that outlives the promise would allow two masters",
            )

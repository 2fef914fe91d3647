"""A source as this node reads it, and as it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..wheel.backoff import Backoff
from .ports import WheelPort
from .sources import Place


@dataclass(slots=True, eq=False)
class DelaySource:
    """A source of this node. ``begin``: the first offset that was to be read; ``returned``:
    everything below was read, -1: not known; ``end``: of the partition, when last asked, None: not
    known. ``silent``: checks since records came, or there were none to come. ``problem``: why it is
    not read; empty: it is."""

    place: Place
    topic_id: str
    number: int
    begin: int
    problem: str = "it was not read yet"
    returned: int = -1
    end: int | None = None
    silent: float = 0
    retry_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 15.0))

    def position(self, wheel: WheelPort) -> int:
        """Its last offset in the log."""
        return max(wheel.source_position(self.number), self.begin - 1)

    def next_offset(self, wheel: WheelPort) -> int:
        """Everything below was read, and is in the log if it is a record."""
        return max(self.returned, self.position(wheel) + 1)

    def state(self, wheel: WheelPort) -> SourceState:
        known = not self.problem and self.end is not None
        lag = max(0, (self.end or 0) - self.next_offset(wheel)) if known else None
        return SourceState(
            topic=self.place.topic,
            partition=self.place.partition,
            topic_id=self.topic_id,
            position=self.position(wheel),
            lag=lag,
            problem=self.problem,
        )


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as it is shown. ``position``: its last offset in the log, -1: none. ``lag``: offsets
    that can be read and are not in the log; None: not known. ``problem``: as of ``DelaySource``."""

    topic: str
    partition: int | None
    """None: which partitions the topic has is not known."""
    topic_id: str
    position: int
    lag: int | None
    problem: str

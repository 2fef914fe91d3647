"""A source that this node reads, and the state of it for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...broker.sources import Place
from ...wheel.backoff import Backoff
from .ports import WheelPort


@dataclass(slots=True, eq=False)
class DelaySource:
    """A source of this node. ``begin`` is the first offset to read. All records below ``returned``
    were read; -1: not known. ``end`` is the partition's end when it was last asked for; None: not
    known. ``silent`` counts checks at which records were due and none came. ``problem`` is the
    reason that the source is not read; empty: it is read."""

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
        """The last offset of the source that is in the log; before its begin, ``begin - 1``."""
        return max(wheel.source_position(self.number), self.begin - 1)

    def next_offset(self, wheel: WheelPort) -> int:
        """The offset to go on from: every record below it is in the log."""
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
    """The state of a source. ``position``: its last offset in the log, -1: none. ``lag``: the
    number of offsets that can be read and are not in the log; None: not known. ``problem``: as of
    ``DelaySource``."""

    topic: str
    partition: int | None
    """None: the topic's partitions are not known."""
    topic_id: str
    position: int
    lag: int | None
    problem: str

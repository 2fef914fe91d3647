"""The core's decisions, as one value.

Theory: the core decides, the driver does. What must be durable before a message may be sent, and
what a message must precede, is the order of the fields below; a driver that does them in this
order, one ``Ready`` after the other, cannot break a promise that the core has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...wheel.state import StoreIds
from .messages import Admission, HardState, PeerMessage

Value: TypeAlias = str | int | float | bool
LogEvent: TypeAlias = tuple[str, Mapping[str, Value]]
"""For logs and counters: a name and its fields. ``fault``: a message broke the rules."""


@dataclass(frozen=True, slots=True)
class Elected:
    """This peer is master of ``epoch``: begin it with a configuration entry with these stores."""

    epoch: int
    stores: StoreIds


@dataclass(slots=True)
class Ready:
    """Decisions to be carried out in the order of the fields, completely, before the next input."""

    hard: HardState | None = None
    """Make this durable before anything below."""
    deposed: bool = False
    """No longer master. No own entry may be written after this; ``truncate_after`` cuts off those
    that were written and not yet reported to the core."""
    truncate_after: int | None = None
    """The log ends here: drop all entries behind, whether written or only queued."""
    receive: tuple[int, int] | None = None
    """First and last index of the entries, of the ``Append`` just stepped, to be written."""
    send: list[PeerMessage] = field(default_factory=list)
    commit: int | None = None
    """Everything up to here is committed. It may be ahead of this peer's own disk."""
    elected: Elected | None = None
    admit: Admission | None = None
    """Append a configuration entry with these stores."""
    fetch_from: str | None = None
    """This peer's log ends before the first entry that this node can ship: fetch a snapshot."""
    events: list[LogEvent] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.send
            or self.receive
            or self.hard is not None
            or self.commit is not None
            or self.events
            or self.deposed
            or self.truncate_after is not None
            or self.elected
            or self.admit
            or self.fetch_from
        )

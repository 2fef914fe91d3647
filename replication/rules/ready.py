"""What the core wants done, as one value.

Theory: the core decides, the driver does. What must be on disk before a message may leave, and what
a message must precede, is the order of the fields below; a driver that does them in this order,
one ``Ready`` after the other, cannot break a promise that the core has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...wheel.state import StoreIds
from .messages import Admission, HardState, PeerMessage

Value: TypeAlias = str | int | float | bool
LogEvent: TypeAlias = tuple[str, Mapping[str, Value]]
"""For logs and counters: a name and its fields. ``fault``: a peer said what no peer may say; the
message was ignored."""


@dataclass(frozen=True, slots=True)
class Elected:
    """This peer is master of ``epoch``: begin it with a configuration entry with these stores."""

    epoch: int
    stores: StoreIds


@dataclass(slots=True)
class Ready:
    """To be done in the order of the fields, completely, before the core is told anything else."""

    hard: HardState | None = None
    """Make this durable before anything below."""
    deposed: bool = False
    """No longer master. No entry of one's own may be written after this; those written and not yet
    told to the core are cut off by ``truncate_after``."""
    truncate_after: int | None = None
    """The log ends here: drop what is behind, whether written or only queued."""
    receive: tuple[int, int] | None = None
    """First and last index of the entries, of the ``Append`` just stepped, to write to the journal.
    """
    send: list[PeerMessage] = field(default_factory=list)
    commit: int | None = None
    """Committed up to here. May be ahead of what this peer's own disk holds."""
    elected: Elected | None = None
    admit: Admission | None = None
    """Append a configuration entry with these stores."""
    fetch_from: str | None = None
    """This peer's log has a gap before what that node can send: fetch a snapshot from it."""
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

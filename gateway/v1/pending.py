"""What is known of pending messages, and of a message, as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..predecessors import NameBefore
from .found import FoundMessage


class ReadUpTo(msgspec.Struct):
    """How far an answer has read the log, and what had left by then."""

    next_offset: int
    """Every message below this offset of the log was seen."""
    index: int
    """The last entry of the log that was read."""
    mark_ms: int
    """Due time up to which messages have left."""
    mark_offset: int
    """Offset up to which those that came late have left."""
    reach_ms: int
    """No message that is due later has left; -1: that is not known."""
    looked_ms: int
    """When the log was looked at. A message that was due by then may have left meanwhile."""


class PageEnd(msgspec.Struct):
    """The end of a page: where the next one begins, and what was read for this one."""

    next: str | None
    """Give it as ``page`` for the messages behind these; null: there are none."""
    complete: bool
    """True: no match up to ``next`` is missing. False: ``problems`` say what may be."""
    looked_through: int
    """Messages that were read for it."""
    read_point: ReadUpTo | None
    """Null in the answer of a fleet: each wheel has a log of its own."""
    problems: list[str]
    limited_by_rights: bool
    """Whether only topics that the caller may read were looked at."""


class FoundMessages(PageEnd):
    """Pending messages, in the order in which they are due."""

    messages: list[FoundMessage]


class SlotCount(msgspec.Struct, omit_defaults=True):
    """How many messages are due in a slot that begins at ``from_ms``."""

    from_ms: int
    messages: int
    seconds: int = 1
    """The length of the slot: a second, or, of what is due further ahead, an hour or a day."""


class PendingCounts(msgspec.Struct, omit_defaults=True):
    """Counts of pending messages."""

    messages: int
    complete: bool
    looked_through: int
    read_point: ReadUpTo | None
    """Null in the answer of a fleet: each wheel has a log of its own."""
    problems: list[str]
    limited_by_rights: bool = False
    """Whether only topics that the caller may read were looked at."""
    slots: list[SlotCount] | None = None
    """Counts by slot, with ``by=slot``: by second for two hours at least; what shares the file of
    its hour or day by hour for two days at least, then by day. All are pending messages, without
    what was cancelled, and none is in two of them."""
    topics: dict[str, int] | None = None
    """Counts by topic, with ``by=topic``."""


class KnownMessage(msgspec.Struct):
    """The state of a message, and what tells it."""

    id: str
    state: Literal["pending", "delivered", "cancelled", "expired", "dead", "unknown"]
    why: str
    """What tells the state, or why it is not known."""
    due_ms: int | None
    created_ms: int | None
    """When it was accepted; null: not known."""
    left_ms: int | None
    """When it left first, or was passed over as it was cancelled; null: it has not, or when it did
    is not known."""
    topic: str | None
    """Where it was to go; null: not known."""
    message: FoundMessage | None
    """Its content, as long as a file of the wheel has it."""
    before: NameBefore | None = None
    """The message that had its name when it came; null: nobody had, or nobody knows any more, which
    ``why`` says then."""
    replaced_by: str | None = None
    """The id of the later message of its name that replaced it; null: likewise."""

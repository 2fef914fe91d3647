"""The wheel's answers to its callers: receipts, outcomes of cancels, its status as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .schema import Int64s


class Before(StrEnum):
    """What became of the message that had a name before, when another one of that name came."""

    REPLACED = "replaced"
    """It was pending, and is cancelled."""
    KEPT = "kept"
    """It is pending, and stays so: the one that came never leaves."""
    DELIVERED = "already delivered"
    UNKNOWN = "unknown"
    """It is not pending any more, and cannot be known to have left."""


class NamedAnswer(NamedTuple):
    """The message that had the name of a batch's row ``row``: what became of it, its due time in
    ms, its offset. Nothing is said of a row whose name nobody had."""

    row: int
    before: Before
    due: int
    offset: int


@dataclass(frozen=True, slots=True)
class AppendReceipt:
    """An entry is committed. Row ``i`` has offset ``base_offset + i``.

    ``due``: due times in ms, shape (count,); with the offsets they make the messages' ids.
    ``sequence``: its producer's. All of it is that of the first time when it was appended before.
    """

    base_offset: int
    count: int
    created_ms: int
    due: Int64s
    sequence: int = -1
    named: Sequence[NamedAnswer] = ()
    """Of its rows with names, those whose name another message had."""


class CancelAnswer(StrEnum):
    """The outcome for a message that was to be cancelled; ``due/canceller.py`` decides it."""

    CANCELLED = "cancelled"
    """It will not be delivered (or was cancelled before)."""
    DELIVERED = "already delivered"
    """The sink has answered for it: delivered, or a dead letter; or it has expired."""
    UNKNOWN = "unknown"
    """Not an id of this group, or it cannot be known any more whether the message left."""


@dataclass(frozen=True, slots=True)
class Status:
    """One look at a wheel. Times in ms since the epoch, sizes in bytes."""

    group: str
    epoch: int
    pending: int
    """Messages accepted and neither delivered, dead, expired nor cancelled."""
    accepted: int
    """Messages ever committed."""
    delivered: int
    dead: int
    expired: int
    cancelled: int
    mark_c: int
    """Due time up to which everything has left; follows the clock when nothing is due."""
    mark_offset: int
    committed_mark_c: int
    committed_offset: int
    commit_index: int
    checkpoint_index: int
    held_topics: list[str]
    tail_rows: int
    tail_bytes: int
    queued_bytes: int
    slot_files: int
    slot_rows: int
    slot_bytes: int
    far_files: int
    """Files of slots of an hour or of a day, which are among the slot files."""
    far_rows: int
    """Rows in them: messages, also those that have left since or were cancelled, and cancels."""
    far_bytes: int
    open_handles: int
    journal_bytes: int
    archive_bytes: int
    archive_missed: int
    """Files that should have been kept in the archive and could not be."""
    producers: int
    requests: int
    """Requests that are remembered; they are not among the producers."""
    disk_free_bytes: int
    horizon_ms: int
    """A message may be due so far ahead."""
    schedules: int = 0
    schedule_runs: int = 0
    """Runs of schedules that this node, as master, has made messages of since its start."""
    schedule_missed: int = 0
    """Runs that were missed before those, and became no messages."""
    names: int = 0
    """Names in the table: those of all pending messages that have one, and some of messages that
    have left, until runs of names are merged."""
    names_replaced: int = 0
    """Messages that a later one of their name replaced, by entries committed here since the start
    of this node."""
    names_kept: int = 0
    """Messages that were dropped as another one of their name was kept, likewise."""
    draining: bool = False
    """Whether an operator has the group emptied: it takes no new messages."""

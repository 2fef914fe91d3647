"""An entry on its way through the log, with what the wheel keeps of it once it is committed.

On the master a batch becomes an entry; ``arrived`` is the way back, for an entry that a peer has
sent or a journal holds: rows for the tail, marks, cancels, a configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from ..answers import AppendReceipt
from ..errors import SlotwheelError
from ..mark import Marks
from ..schema import times
from ..state import ProducerEntry
from ..tail.tail import Piece, piece_of
from .entry import Entry, EntryKind
from .payloads import CancelRows, decode_config, decode_rows


@dataclass(frozen=True, slots=True)
class AppendWaiter:
    """A caller of this node waits for the entry. ``early``: only until it is durable here."""

    receipt: AppendReceipt
    future: Future[AppendReceipt]
    early: bool = False

    def answer(self) -> None:
        with contextlib.suppress(InvalidStateError):  # it was answered before
            self.future.set_result(self.receipt)

    def fail(self, error: SlotwheelError) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(slots=True)
class QueuedEntry:
    """An entry on its way, and what its commit will change."""

    entry: Entry
    piece: Piece | None = None
    """Its rows, for the tail."""
    marks: Marks | None = None
    config: Mapping[str, Any] | None = None
    cancels: CancelRows | None = None
    """Those in it, if any."""
    sent: ProducerEntry | None = None
    """The record of it for its producer."""
    callers: list[AppendWaiter] = field(default_factory=list)
    """Who waits for it: the one that sent it, and some that sent it again."""
    own: bool = False
    """Made here, by this master; others were received, or found in the journal."""

    @property
    def nbytes(self) -> int:
        return len(self.entry.payload)

    def fail(self, error: SlotwheelError) -> None:
        for caller in self.callers:
            caller.fail(error)


def arrived(entry: Entry) -> QueuedEntry:
    """The entry, decoded. Errors: ``Damaged`` when the payload does not fit the entry's kind."""
    where = f"journal entry {entry.index}"
    queued = QueuedEntry(entry)
    if entry.kind is EntryKind.MARK:
        queued.marks = Marks.decode(bytes(entry.payload), where)
    elif entry.kind is EntryKind.CONFIG:
        queued.config = decode_config(entry, where)
    else:
        rows = decode_rows(entry, where, full=False)
        created = int(times(rows, "created")[0]) if rows.num_rows else 0
        queued.piece = piece_of(entry.base_offset, rows, entry.index, created)
        if queued.piece.cancels:
            queued.cancels = CancelRows.of(rows, entry.base_offset)
        if entry.producer:
            queued.sent = ProducerEntry(
                entry.sequence, entry.base_offset, created, entry.index, entry.count
            )
    return queued

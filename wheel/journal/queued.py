"""An entry on its way through the log, with what the wheel keeps of it once it is committed.

On the master a batch becomes an entry, and its caller waits for it (``carry``); ``arrived`` is the
way back, for an entry that a peer has sent or a journal holds: rows for the tail, marks, cancels, a
configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from ..answers import AppendReceipt
from ..delay import due_times
from ..errors import InvalidBatch, SlotwheelError
from ..mark import Marks
from ..request import RequestKey
from ..schema import Int64s
from ..state import ProducerEntry
from ..tail.tail import Piece, piece_of
from .entry import Entry, EntryKind
from .payloads import CancelRows, EncodedBatch, decode_config, decode_rows, read_together


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
    """Its rows, for the tail; None if it has none, or they are not read yet (``pieces_of``)."""
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

    def carry(self, batch: EncodedBatch, created_ms: int, *, early: bool) -> None:
        """Rows of a caller of this node, which is the first in ``callers``."""
        entry = self.entry
        if batch.rows is not None:
            self.hold(batch.rows)
        receipt = AppendReceipt(
            entry.base_offset, entry.count, created_ms, batch.due, entry.sequence
        )
        self.wait_for(receipt, early)

    def hold(self, rows: pa.RecordBatch) -> Piece:
        """Its rows (PAYLOAD schema)."""
        entry = self.entry
        self.piece = piece_of(entry.base_offset, rows, entry.index)
        if self.piece.cancels:
            self.cancels = CancelRows.of(rows, entry.base_offset)
        return self.piece

    def wait_for(self, receipt: AppendReceipt, early: bool) -> AppendWaiter:
        waiter = AppendWaiter(receipt, Future(), early)
        waiter.future.set_running_or_notify_cancel()  # whoever waits cannot take it back
        self.callers.append(waiter)
        return waiter

    def fail(self, error: SlotwheelError) -> None:
        for caller in self.callers:
            caller.fail(error)


def answer_again(
    known: ProducerEntry,
    waiting: QueuedEntry | None,
    due: Int64s,
    producer: int,
    sequence: int,
    *,
    early: bool,
) -> Future[AppendReceipt]:
    """The answer to a batch that was appended before: that of the first time, once committed.
    ``waiting``: its entry until then. ``due``: due times, and delays, which begin when the first
    one was created. Errors: ``InvalidBatch`` when it is another batch; ``InvalidMessage`` when it
    is another request."""
    start_ms = known.created
    if known.sequence != sequence:  # only of a request, whose first sender has counted the delays
        due = due + RequestKey.from_sequence(producer, sequence).shift_ms(known.sequence)
        start_ms = RequestKey.from_sequence(producer, known.sequence).base_ms or start_ms
    due = due_times(due, start_ms)
    if known.count != len(due):
        raise InvalidBatch(
            f"sequence {known.sequence} was used before for another batch",
            got=f"{len(due)} rows",
            limit=f"{known.count} rows",
            remedy="Give every batch a sequence of its own",
        )
    if waiting is not None and waiting.callers:
        # Of one kind: a receipt that was given early is none for who waits for a majority.
        same = [caller for caller in waiting.callers if caller.early is early]
        return (same or [waiting.wait_for(waiting.callers[0].receipt, early)])[0].future
    future: Future[AppendReceipt] = Future()
    future.set_result(AppendReceipt(known.base_offset, known.count, start_ms, due, known.sequence))
    return future


def arrived(entry: Entry) -> QueuedEntry:
    """The entry, decoded. Errors: ``Damaged`` when the payload does not fit the entry's kind."""
    where = f"journal entry {entry.index}"
    queued = QueuedEntry(entry)
    if entry.kind is EntryKind.MARK:
        queued.marks = Marks.decode(bytes(entry.payload), where)
    elif entry.kind is EntryKind.CONFIG:
        queued.config = decode_config(entry, where)
    else:
        piece = queued.hold(decode_rows(entry, where, full=False))
        if entry.producer:
            queued.sent = ProducerEntry(
                entry.sequence, entry.base_offset, piece.oldest_ms, entry.index, entry.count
            )
    return queued


def pieces_of(done: Sequence[QueuedEntry]) -> Iterator[Piece]:
    """What consecutive entries add to the tail. Small ones become one piece, read by one call into
    Arrow: with many threads, a call for each would cost most of what an entry of one row costs."""
    with_rows = (queued for queued in done if queued.entry.kind is EntryKind.ROWS)
    for unread, run in groupby(with_rows, lambda queued: queued.piece is None):
        if unread:
            entries = [queued.entry for queued in run]
            rows = read_together([entry.payload for entry in entries])
            yield piece_of(entries[0].base_offset, rows, entries[-1].index)
        else:
            yield from (queued.piece for queued in run if queued.piece is not None)

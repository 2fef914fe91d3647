"""An entry on its way through the log, with what the wheel keeps of it once it is committed.

On the master a batch becomes an entry, and its callers wait for it (``carry``); ``arrived`` is the
way back, for an entry that a peer has sent or a journal holds: rows for the tail, marks, cancels, a
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..answers import AppendReceipt, NamedAnswer
from ..delay import due_times
from ..errors import Damaged, InvalidBatch, SlotwheelError
from ..mark import Marks
from ..names import TakenNames, decode_named, named_rows
from ..request import RequestKey
from ..schedules import FiredRun, ScheduleChange, decode_changes, decode_runs
from ..schema import Int64s
from ..state import ProducerEntry
from ..tail.tail import Piece, piece_of, unread_piece
from .entry import Entry, EntryKind, EntryPart, NoteKind, Notes
from .payloads import CancelRows, EncodedBatch, decode_config, decode_rows

_NO_NAMES = TakenNames()


class EntryWaiter:
    """A caller of this node that waits for an entry. ``done`` is called once, with None or the
    error. ``early``: when the entry is durable here, without waiting for its commit."""

    __slots__ = ("_done", "early")

    def __init__(self, done: Callable[[SlotwheelError | None], None], early: bool) -> None:
        self.early = early
        self._done = [done]

    def answer(self, error: SlotwheelError | None = None) -> None:
        try:
            done = self._done.pop()  # once: the writing and the committing thread may both come
        except IndexError:
            return
        done(error)


class AppendWaiter(EntryWaiter):
    """A caller that waits on a future, which would be too dear for callers of plain rows."""

    __slots__ = ("future", "receipt")

    def __init__(self, receipt: AppendReceipt, early: bool) -> None:
        super().__init__(self._resolve, early)
        self.receipt = receipt
        self.future: Future[AppendReceipt] = Future()
        self.future.set_running_or_notify_cancel()  # whoever waits cannot take it back

    def _resolve(self, error: SlotwheelError | None) -> None:
        if error is None:
            self.future.set_result(self.receipt)
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class QueuedEntry:
    """An entry on its way, with all that the wheel has to change when it is committed."""

    entry: Entry
    piece: Piece | None = None
    """Its rows, for the tail; None if it has none."""
    marks: Marks | None = None
    config: Mapping[str, Any] | None = None
    cancels: CancelRows | None = None
    """Its cancel rows, if it has any."""
    sent: Sequence[tuple[int, ProducerEntry]] = ()
    """For each of its producers: the producer's id and what is recorded of the entry."""
    callers: list[EntryWaiter] = field(default_factory=list)
    """The callers that wait for it, among them some that sent it again."""
    names: TakenNames = _NO_NAMES
    """The names that its rows take."""
    named: Sequence[NamedAnswer] = ()
    """What became of the messages that had the names of its rows."""
    schedules: Sequence[ScheduleChange] = ()
    """The changes of schedules in it, among them the runs that its rows are."""
    own: bool = False
    """Made here, by this master; others were received, or read from the journal."""

    @property
    def nbytes(self) -> int:
        return len(self.entry.payload)

    def carry(
        self,
        batch: EncodedBatch,
        created_ms: int,
        names: TakenNames,
        named: Sequence[NamedAnswer],
    ) -> None:
        """Attach the rows that callers of this node have sent, the names that these take, and what
        becomes of the messages that had them."""
        entry = self.entry
        self.names, self.named = names, named
        if batch.rows is not None:
            self.hold(batch.rows)
        else:
            self.piece = unread_piece(
                base_offset=entry.base_offset,
                due=batch.due,
                payload=batch.payload,
                index=entry.index,
                created_ms=created_ms,
                plain=batch.plain,
            )

    def hold(self, rows: pa.RecordBatch) -> Piece:
        """Attach its rows (PAYLOAD schema) as a piece, which is returned, and their cancels."""
        entry = self.entry
        self.piece = piece_of(entry.base_offset, rows, entry.index)
        if self.piece.cancels:
            self.cancels = CancelRows.of(rows, entry.base_offset)
        return self.piece

    def schedule(self, changes: Sequence[ScheduleChange]) -> None:
        """Attach the changes of schedules in it."""
        self.schedules = changes

    def wait_for(self, receipt: AppendReceipt, early: bool) -> AppendWaiter:
        waiter = AppendWaiter(receipt, early)
        self.callers.append(waiter)
        return waiter

    def refuse_by(self, error: SlotwheelError, early: bool) -> Future[AppendReceipt]:
        """The future of a batch that is refused for what this entry brings: it fails with ``error``
        once that is true, or with what this entry fails with."""
        future: Future[AppendReceipt] = Future()
        future.set_running_or_notify_cancel()
        self.call(lambda instead: future.set_exception(instead or error), early=early)
        return future

    def call(self, done: Callable[[SlotwheelError | None], None], *, early: bool) -> None:
        """Call ``done`` when the entry's outcome is known; see ``EntryWaiter``."""
        self.callers.append(EntryWaiter(done, early))

    def fail(self, error: SlotwheelError) -> None:
        for caller in self.callers:
            caller.answer(error)


def receipt_again(known: ProducerEntry, due: Int64s, producer: int, sequence: int) -> AppendReceipt:
    """The first receipt of a batch that comes again. ``due``: due times in ms, or delays, which
    count from when the first one was created. Errors: ``InvalidBatch`` when it is another batch;
    ``InvalidMessage`` when it is another request."""
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
    return AppendReceipt(known.base_offset, known.count, start_ms, due, known.sequence, known.named)


def sent_of(
    entry: Entry,
    parts: Sequence[EntryPart],
    created_ms: int,
    named: Sequence[NamedAnswer] = (),
) -> list[tuple[int, ProducerEntry]]:
    """For each producer of an entry: the producer's id and what is recorded of the entry.
    ``named``: what became of messages with the names of its rows."""
    sent = []
    offset, index = entry.base_offset, entry.index
    for producer, sequence, rows in parts:
        if producer:
            its = named_among(named, offset - entry.base_offset, rows) if named else ()
            record = ProducerEntry(sequence, offset, created_ms, index, rows, its)
            sent.append((producer, record))
        offset += rows
    return sent


def named_in(notes: Notes | None) -> Sequence[NamedAnswer]:
    """What an entry's notes say of names. Errors: ``ValueError``."""
    note = notes.get(NoteKind.NAMES) if notes else None
    return decode_named(note) if note else ()


def named_among(named: Sequence[NamedAnswer], first: int, rows: int) -> Sequence[NamedAnswer]:
    """What is said of ``rows`` rows from ``first`` on, numbered by themselves."""
    return tuple(
        answer._replace(row=answer.row - first)
        for answer in named
        if first <= answer.row < first + rows
    )


def arrived(entry: Entry) -> QueuedEntry:
    """Decode an entry from a peer or a journal. Errors: ``Damaged``: its payload does not fit."""
    where = f"journal entry {entry.index}"
    queued = QueuedEntry(entry)
    if entry.kind is EntryKind.MARK:
        queued.marks = Marks.decode(bytes(entry.payload), where)
    elif entry.kind is EntryKind.CONFIG:
        queued.config = decode_config(entry, where)
    elif entry.kind is EntryKind.SCHEDULES:
        queued.schedules = decode_changes(entry.payload, where)
    else:
        piece = queued.hold(decode_rows(entry, where, full=False))
        notes = entry.notes
        queued.named = named_in(notes)
        queued.sent = sent_of(entry, entry.parts, piece.oldest_ms, queued.named)
        if NoteKind.NAMES in notes:
            queued.names = _names_of(piece, queued.cancels)
        if NoteKind.RUNS in notes:
            queued.schedules = _runs_of(notes[NoteKind.RUNS], piece, where)
    return queued


def _runs_of(note: bytes, piece: Piece, where: str) -> list[FiredRun]:
    try:
        return decode_runs(note, piece.due.tolist(), piece.base_offset)
    except ValueError as error:
        expected = "the runs that its rows are"
        raise Damaged(where, 0, expected=expected, found=str(error)) from None


def _names_of(piece: Piece, cancels: CancelRows | None) -> TakenNames:
    """The names that the rows of an entry take: of all but those that it cancels itself."""
    named = named_rows(piece.rows)
    if named is None:
        return _NO_NAMES
    taken = TakenNames.of(named, piece.due, piece.base_offset)
    return taken if cancels is None else taken.without(cancels.target)

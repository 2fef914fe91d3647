"""The fates of messages, by their ids.

Theory: an id leads to its second. While the row is there, the mark and the cancels of the second
are enough. A row that has left is gone from slot files and journal, and only its traces are left:
the record of cancels, which the state keeps for two hours; the departures, if the node keeps them;
the mark's counters, if no row expired or was refused; the archive, where cancels stand beside their
rows; the embedded topics, if messages go there. Without any of these the answer is *unknown*, with
the reason.

Rules
- No answer is guessed. Where the record of cancels is not complete, a missing cancel proves
  nothing: the message may have been cancelled.
- A departure is written before the mark moves, and cannot be taken back: it is true whatever else
  is damaged or missing.
- Embedded topics are read from the blocks on that were delivered when the message was due, and not
  further than ``_TOPIC_ROWS_MAX`` rows each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...policy.deadletters import DEAD_LETTER_TOPIC, EXPIRED, REASON
from ...wheel.answers import Before
from ...wheel.config import TICK_MS
from ...wheel.departurefile import STATES
from ...wheel.errors import UnknownId
from ...wheel.ids import MessageId
from ...wheel.mark import Marks, RowKey
from ...wheel.names import NAME_HEADER
from ...wheel.rows import header_values
from ...wheel.schema import Mask, times
from ..departures import Departure
from ..growing.tails import EmbeddedTails
from ..listing import topic_folders
from ..namesakes import NOT_CANCELLED, Namesakes, namesakes
from ..recordedblocks import archived_rows
from ..tailing import TailRows, TailStart
from ..visible import MayTopic
from .pending import PendingReader
from .view import View, cancel_rows, key_columns

_TOPIC_ROWS_MAX = 1_000_000
_SAID_OF_BEFORE = {
    Before.REPLACED: "it replaced {}",
    Before.KEPT: "kept out: {} of the same name was there already",
    Before.DELIVERED: "{} had its name before, and had left already",
    Before.UNKNOWN: "{} had its name before, and may have left or not",
}


class MessageState(StrEnum):
    """The state of a message, as far as the directory shows it."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The message is a dead letter, as it expired."""
    DEAD = "dead"
    """The message is a dead letter for another reason."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FateBefore:
    """The message that had the name of another one when that came: what became of it, and its id.
    If it was kept, the other one never leaves."""

    what: Before
    id: str


@dataclass(frozen=True, slots=True)
class MessageFate:
    """The state of a message, with the evidence."""

    id: str
    state: MessageState
    why: str
    """The evidence of the state, or the reason that it is unknown."""
    due_ms: int | None = None
    """The due time in the id; None: the text is no id."""
    row: pa.RecordBatch | None = None
    """A row of schema ``ROW``, as long as a slot or the journal has it."""
    created_ms: int | None = None
    """The time at which it was accepted; None: not known any more."""
    left_ms: int | None = None
    """The time at which it first left in that state, or the mark passed it as it was cancelled;
    None: it has not left, or the time is not known."""
    topic: str | None = None
    """The topic it was addressed to; None: not known any more."""
    before: FateBefore | None = None
    """The message that had its name before; None: there was none, or ``why`` says that nobody knows
    any more."""
    replaced_by: str | None = None
    """The id of the later message of its name that replaced it; None: likewise."""


NOT_VISIBLE = "there is no such message, or it is of a topic that the caller may not read"


def visible_fate(fate: MessageFate, may: MayTopic | None) -> MessageFate:
    """The fate of a message, for a caller who may see some topics; None: all. Whatever is not known
    to be of one of these looks as an id that nobody gave out: otherwise a caller could find out
    which messages others have."""
    if may is None or (fate.topic is not None and may(fate.topic)):
        return fate
    return MessageFate(fate.id, MessageState.UNKNOWN, NOT_VISIBLE)


def find(
    reader: PendingReader, ids: Iterable[str], dead_letter_topic: str = DEAD_LETTER_TOPIC
) -> list[MessageFate]:
    """The fates of the messages with these ids, in their order.

    Errors: as of ``PendingReader.view``.
    """
    view = reader.view()
    by_text: dict[str, MessageFate] = {}
    by_second: dict[int, list[MessageId]] = {}
    texts = list(ids)
    for text in dict.fromkeys(texts):
        try:
            id_ = MessageId.parse(text)
        except UnknownId as error:
            by_text[text] = MessageFate(text, MessageState.UNKNOWN, error.message)
            continue
        if view.mint.genuine(id_):
            by_second.setdefault(id_.due // TICK_MS, []).append(id_)
        else:
            reason = f"no id of the group {view.mint.group}"
            by_text[text] = MessageFate(text, MessageState.UNKNOWN, reason, id_.due)
    fates: dict[MessageId, MessageFate] = {}
    gone: list[tuple[Marks, bool, list[_Gone]]] = []
    cancels: dict[int, int] = {}
    for second, ids_of_second in sorted(by_second.items()):
        view, of_second, left, cancels_known = _in_second(
            reader, view, second, ids_of_second, cancels
        )
        fates |= of_second
        gone.append((view.marks, cancels_known, left))
    reader.release()
    # Departures are read after the view, so they have every row that its marks cover.
    departures = _departures(reader, fates, view.point.looked_ms)
    for marks, cancels_known, left in gone:
        untraced = [message for message in left if message.id not in departures]
        if untraced:
            traces = _Left(reader.root, marks, dead_letter_topic, cancels_known=cancels_known)
            fates |= traces.find(untraced)
            cancels |= traces.cancels
    for id_, fate in fates.items():
        fates[id_] = _departed(fate, departures[id_]) if id_ in departures else fate
    by_text |= {fate.id: fate for fate in _with_names(reader.root, view, fates, cancels)}
    return [by_text[text] for text in texts]


def _departures(
    reader: PendingReader, fates: Mapping[MessageId, MessageFate], looked_ms: int
) -> dict[MessageId, list[Departure]]:
    """The departures of messages that may have left."""
    keys = {
        (id_.due, id_.offset): id_
        for id_, fate in fates.items()
        if fate.state is not MessageState.PENDING or id_.due <= looked_ms
    }
    return {keys[key]: departures for key, departures in reader.departures.find(keys).items()}


def _departed(fate: MessageFate, departures: Sequence[Departure]) -> MessageFate:
    first = departures[0]
    fate = replace(fate, topic=first.topic, created_ms=first.created_ms, left_ms=first.left_ms)
    if fate.state is MessageState.CANCELLED:
        return fate
    often = f", {len(departures)} times" if len(departures) > 1 else ""
    seen = f"the node saw it leave for the topic {first.topic}{often}"
    if fate.state is MessageState.PENDING:
        return replace(fate, why=f"{seen}; no mark covers that, so it may leave again")
    # A delivery counts more than whatever was tried before or after it.
    states = {departure.state for departure in departures}
    state = next(MessageState(known) for known in STATES.values() if known in states)
    if state is MessageState.CANCELLED:
        seen = "it was cancelled: the node saw its mark pass it"
    elif state is MessageState.EXPIRED:
        seen = f"the node saw it expire; it was to go to the topic {first.topic}"
    elif state is MessageState.DEAD:
        seen = f"the node saw it become a dead letter; it was to go to the topic {first.topic}"
    elif state is MessageState.UNKNOWN:
        seen += ", and no clear answer followed"
    left_ms = next(departure.left_ms for departure in departures if departure.state == state)
    return replace(fate, state=state, why=seen, left_ms=left_ms)


def _with_names(
    root: Path,
    view: View,
    fates: Mapping[MessageId, MessageFate],
    cancels: Mapping[int, int],
) -> Iterator[MessageFate]:
    """The fates, with what became of other messages of their names. ``cancels``: the offsets of
    cancel rows, by those of their targets, as far as they are known. A message whose row is there
    and has no name met no other one."""
    asked: dict[RowKey, int | None] = {}
    named: set[MessageId] = set()
    for id_, fate in fates.items():
        if fate.row is not None:
            if header_values(fate.row.column("headers"), NAME_HEADER) is None:
                continue
            named.add(id_)
        cancel = cancels.get(id_.offset)
        is_cancelled = fate.state is MessageState.CANCELLED
        asked[id_.due, id_.offset] = cancel if is_cancelled else NOT_CANCELLED
    known = namesakes(root, asked) if asked else {}
    for id_, fate in fates.items():
        others = known.get((id_.due, id_.offset))
        yield fate if others is None else _with_others(fate, others, view, is_named=id_ in named)


def _with_others(
    fate: MessageFate, others: Namesakes, view: View, *, is_named: bool
) -> MessageFate:
    """``is_named``: the message is known to have a name. Of another one, of which no entry is there
    any more, nothing is said."""
    texts = [fate.why]
    if others.replaced_by is not None:
        after = str(view.mint.one(*others.replaced_by))
        texts = [f"replaced by {after}, a later message of its name"]
        fate = replace(fate, replaced_by=after)
    if others.before is not None:
        answer = others.before
        before = FateBefore(answer.before, str(view.mint.one(answer.due, answer.offset)))
        fate = replace(fate, before=before)
        if before.what is Before.KEPT:
            texts = []
        texts.append(_SAID_OF_BEFORE[before.what].format(before.id))
    elif is_named and not others.stored_read:
        texts.append("what it replaced, if anything, is not in the journal any more")
    is_cancelled = fate.state is MessageState.CANCELLED
    if is_named and is_cancelled and not others.cancel_read:
        texts.append("what it was cancelled by is not in the journal any more")
    return replace(fate, why="; ".join(texts))


@dataclass(frozen=True, slots=True)
class _Gone:
    """A message that has left, with its row if a file still has it."""

    id: MessageId
    row: pa.RecordBatch | None

    def fate(self, state: MessageState, why: str) -> MessageFate:
        return _with_row(MessageFate(str(self.id), state, why, self.id.due), self.row)


def _with_row(fate: MessageFate, row: pa.RecordBatch | None) -> MessageFate:
    if row is None:
        return fate
    topic, [created_ms] = row.column("topic")[0].as_py(), times(row, "created").tolist()
    return replace(fate, row=row, topic=topic, created_ms=created_ms)


def _in_second(
    reader: PendingReader,
    view: View,
    second: int,
    ids: Sequence[MessageId],
    cancels: dict[int, int],
) -> tuple[View, dict[MessageId, MessageFate], list[_Gone], bool]:
    """Judge messages by the rows of their second. Returns the view by which they were judged, their
    fates, the messages that have left, which are *unknown* so far, and True when all cancels of the
    second are known: those messages were not cancelled then. Puts the offsets of cancel rows into
    ``cancels``, by those of their targets."""
    seconds = range(second, second + 1)
    view, batches, problem = reader.rows_of(view, seconds)
    keys = key_columns(batches)
    pending = view.pending(seconds, keys)
    record = reader.cancelled(second)  # read after the view
    in_rows = cancel_rows(keys)
    cancels |= in_rows
    targets = {*in_rows, *record.offsets.tolist()}
    damaged = problem is not None or bool(view.problems) or view.is_lost(seconds)
    fates: dict[MessageId, MessageFate] = {}
    gone: list[_Gone] = []
    for id_ in ids:
        row, is_pending = _row_of(batches, pending, id_)
        state, why = MessageState.UNKNOWN, ""
        if id_.offset in targets:
            state, why = MessageState.CANCELLED, "a cancel names it"
        elif is_pending:
            state, why = MessageState.PENDING, "not due yet"
            if id_.due <= view.point.looked_ms:
                why = "no mark covers it; it is due, and may be leaving"
        elif row is not None:
            gone.append(_Gone(id_, row))
        elif damaged:
            why = str(problem.text if problem else "rows of the directory are missing")
        elif id_.offset >= view.point.next_offset:
            why = f"this directory holds the log up to offset {view.point.next_offset - 1}"
        elif not all(mark.covers(id_.due, id_.offset) for mark in view.marks.every):
            why = "no mark covers it, and it is in no file of its second"
        else:
            gone.append(_Gone(id_, None))
        fates[id_] = _Gone(id_, row).fate(state, why)
    return view, fates, gone, not (damaged or record.incomplete)


def _row_of(
    batches: Sequence[pa.RecordBatch], pending: Mask, id_: MessageId
) -> tuple[pa.RecordBatch | None, bool]:
    """An id's row, and True if it is pending. ``pending``: a mask of the batches' rows."""
    start = 0
    for batch in batches:
        for at in np.flatnonzero(times(batch, "offset") == id_.offset).tolist():
            row = batch.slice(at, 1)
            if int(times(row, "due")[0]) == id_.due:
                return row.take(pa.array([0])), bool(pending[start + at])
        start += batch.num_rows
    return None, False


@dataclass(frozen=True, slots=True)
class _Trace:
    """A message in an embedded topic, with the time at which it got there."""

    state: MessageState
    why: str
    topic: str | None
    created_ms: int
    left_ms: int


class _Left:
    """Looks for traces of messages of one second that have left. ``cancels_known``: all cancels of
    the second are known, and name none of them."""

    def __init__(
        self, root: Path, marks: Marks, dead_letter_topic: str, *, cancels_known: bool
    ) -> None:
        self.cancels: dict[int, int] = {}
        """The offsets of cancel rows in the archive, by those of their targets."""
        self._root = root
        self._cancels_known = cancels_known
        self._marks = marks
        self._dead_letter_topic = dead_letter_topic

    def find(self, gone: Sequence[_Gone]) -> dict[MessageId, MessageFate]:
        every = all_delivered(self._marks, cancels_known=self._cancels_known)
        if not every:
            gone = self._archived(gone)
        traces = self._in_topics(gone)
        fates = {}
        for message in gone:
            trace = traces.get((message.id.due, message.id.offset))
            if every:
                why = (
                    "the mark covers it, no cancel names it, and nothing ever became a dead letter"
                )
                fate = message.fate(MessageState.DELIVERED, why)
            elif message.id.offset in self.cancels:
                fate = message.fate(MessageState.CANCELLED, "a cancel in the archive names it")
            elif trace is not None:
                fate = message.fate(trace.state, trace.why)
            else:
                fate = message.fate(MessageState.UNKNOWN, self._possible())
            if trace is not None:
                created_ms, left_ms = trace.created_ms, trace.left_ms
                topic = fate.topic or trace.topic
                fate = replace(fate, topic=topic, created_ms=created_ms, left_ms=left_ms)
            fates[message.id] = fate
        return fates

    def _possible(self) -> str:
        """A text with the possible states of a message that left no trace."""
        marks = self._marks
        counts = {
            "delivered": marks.delivered,
            "cancelled": 0 if self._cancels_known else marks.cancels,
            "expired": marks.expired,
            "a dead letter": marks.dead,
        }
        possible = [name for name, count in counts.items() if count]
        return (
            f"it has left: {' or '.join(possible)}; nothing here says which. A node with"
            " --trace-retain keeps how each message leaves"
        )

    def _archived(self, gone: Sequence[_Gone]) -> list[_Gone]:
        """The messages with the archive's rows."""
        second = gone[0].id.due // TICK_MS
        batches = archived_rows(self._root, second)
        pending = np.zeros(sum(batch.num_rows for batch in batches), np.bool_)
        self.cancels = cancel_rows(key_columns(batches))
        return [
            message
            if message.row is not None
            else _Gone(message.id, _row_of(batches, pending, message.id)[0])
            for message in gone
        ]

    def _in_topics(self, gone: Sequence[_Gone]) -> dict[RowKey, _Trace]:
        """The traces in embedded topics, by due time and offset."""
        topics = topic_folders(self._root)
        rows = [message.row for message in gone if message.row is not None]
        if len(rows) == len(gone):
            named = {row.column("topic")[0].as_py() for row in rows}
            topics = [topic for topic in topics if topic in {*named, self._dead_letter_topic}]
        missing = {(message.id.due, message.id.offset) for message in gone}
        traces: dict[RowKey, _Trace] = {}
        for topic in topics:
            for key, row in _topic_rows(self._root, topic, missing).items():
                is_letter = topic == self._dead_letter_topic
                state = _died_of(row) if is_letter else MessageState.DELIVERED
                why = f"it is at position {row.column('position')[0].as_py()} of the topic {topic}"
                [created_ms], [left_ms] = (
                    times(row, name).tolist() for name in ("created", "delivered")
                )
                traces[key] = _Trace(state, why, None if is_letter else topic, created_ms, left_ms)
            missing -= traces.keys()
        return traces


def all_delivered(marks: Marks, *, cancels_known: bool = False) -> bool:
    """Returns True when every message that the marks cover was delivered, or, with
    ``cancels_known``, every one that was not cancelled."""
    undelivered = marks.dead + marks.expired + (0 if cancels_known else marks.cancels)
    return not undelivered and marks.delivered >= marks.passed


def _died_of(row: pa.RecordBatch) -> MessageState:
    headers = row.column("headers")[0].as_py()
    reasons = [header["value"] for header in headers if header["key"] == REASON]
    expired = bool(reasons) and reasons[-1] == EXPIRED.encode()
    return MessageState.EXPIRED if expired else MessageState.DEAD


def _topic_rows(
    root: Path, topic: str, keys: set[tuple[int, int]]
) -> dict[tuple[int, int], pa.RecordBatch]:
    """The rows of an embedded topic with these due times and offsets."""
    rows: dict[tuple[int, int], pa.RecordBatch] = {}
    if not keys:
        return rows
    offsets = np.array(sorted(offset for _, offset in keys), np.int64)
    looked = 0
    tails = EmbeddedTails(root)
    tails.follow(topic, TailStart(min(due for due, _ in keys)))
    at_end = False
    while not at_end:
        for new in tails.read():
            if not isinstance(new, TailRows):
                continue
            offset, due = times(new.rows, "offset"), times(new.rows, "due")
            for at in np.flatnonzero(np.isin(offset, offsets)).tolist():
                key = int(due[at]), int(offset[at])
                if key in keys:
                    rows[key] = new.rows.slice(at, 1)
            looked += new.rows.num_rows
            if len(rows) == len(keys) or looked >= _TOPIC_ROWS_MAX:
                return rows
        at_end = tails.at_end
    return rows

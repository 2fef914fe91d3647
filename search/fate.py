"""What became of messages, by their ids.

Theory: an id leads to its slot. While the row is there, the mark and the cancels of the slot say
all. A row that has left is gone from slot files and journal, and only what it left behind can tell:
the record of cancels, which the state keeps for a horizon; the departures, if the node keeps them;
the mark's counters, if nothing expired or was refused; the archive, where cancels stand beside
their rows; the embedded topics, if that is where messages go. Without any of these the answer is
unknown, with the reason.

Rules
- No answer is guessed. That no cancel is found proves that there was none only where the record of
  cancels is complete.
- A departure is written before the mark moves, and cannot be taken back: what it says is true
  whatever else is damaged or missing.
- Embedded topics are read from the blocks on that were delivered when the message was due, and not
  further than ``_TOPIC_ROWS_MAX`` rows each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..policy.deadletters import DEAD_LETTER_TOPIC, EXPIRED, REASON
from ..reading.departures import Departure
from ..reading.events import RowsSeen
from ..reading.growing.parts import TopicPart, read_part
from ..reading.growing.topics import delivered_from, look_at_topic
from ..reading.listing import topic_folders
from ..reading.slotblocks import archived_blocks
from ..wheel.config import TICK_MS
from ..wheel.departurefile import STATES
from ..wheel.errors import UnknownId
from ..wheel.ids import MessageId
from ..wheel.mark import Marks, RowKey
from ..wheel.schema import Mask, times
from .pending import PendingReader
from .view import View, cancelled, key_columns

_TOPIC_ROWS_MAX = 1_000_000


class MessageState(StrEnum):
    """What is known of a message."""

    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """A dead letter, as its time was over."""
    DEAD = "dead"
    """A dead letter for another reason."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MessageFate:
    """What became of a message."""

    id: str
    state: MessageState
    why: str
    """What the state is known by, or why it is not."""
    due_ms: int | None = None
    """None: it is no id."""
    row: pa.RecordBatch | None = None
    """One row of schema ``ROW``, as long as a slot or the journal has it."""
    created_ms: int | None = None
    """When it was accepted; None: nothing says it any more."""
    left_ms: int | None = None
    """When it left first in that state, or was passed over as it was cancelled; None: it has not,
    or nothing says when."""
    topic: str | None = None
    """Where it was to go; None: nothing says it any more."""


def find(
    reader: PendingReader, ids: Iterable[str], dead_letter_topic: str = DEAD_LETTER_TOPIC
) -> list[MessageFate]:
    """What became of the messages with these ids, in their order.

    Errors: as of ``PendingReader.view``.
    """
    view = reader.view()
    found: dict[str, MessageFate] = {}
    by_second: dict[int, list[MessageId]] = {}
    texts = list(ids)
    for text in dict.fromkeys(texts):
        try:
            one = MessageId.parse(text)
        except UnknownId as error:
            found[text] = MessageFate(text, MessageState.UNKNOWN, error.message)
            continue
        if view.mint.genuine(one):
            by_second.setdefault(one.due // TICK_MS, []).append(one)
        else:
            why = f"no id of the group {view.mint.group}"
            found[text] = MessageFate(text, MessageState.UNKNOWN, why, one.due)
    fates: dict[MessageId, MessageFate] = {}
    gone: list[tuple[Marks, bool, list[_Gone]]] = []
    for second, wanted in by_second.items():
        view, of_slot, left, cancels_known = _in_slot(reader, view, second, wanted)
        fates |= of_slot
        gone.append((view.marks, cancels_known, left))
    # Read behind the view: what it knows to have left is in there.
    departures = _departures(reader, fates, view.point.looked_ms)
    for marks, cancels_known, left in gone:
        open_ = [one for one in left if one.id not in departures]
        if open_:
            where = _Left(reader.root, marks, dead_letter_topic, cancels_known=cancels_known)
            fates |= where.find(open_)
    for one, fate in fates.items():
        found[fate.id] = _departed(fate, departures[one]) if one in departures else fate
    return [found[text] for text in texts]


def _departures(
    reader: PendingReader, fates: Mapping[MessageId, MessageFate], looked_ms: int
) -> dict[MessageId, list[Departure]]:
    """The departures of those that may have left."""
    keys = {
        (one.due, one.offset): one
        for one, fate in fates.items()
        if fate.state is not MessageState.PENDING or one.due <= looked_ms
    }
    return {keys[key]: found for key, found in reader.departures.find(keys).items()}


def _departed(fate: MessageFate, departures: Sequence[Departure]) -> MessageFate:
    """The fate of a message of which there are departures, in the order of time."""
    first = departures[0]
    fate = replace(fate, topic=first.topic, created_ms=first.created_ms, left_ms=first.left_ms)
    if fate.state is MessageState.CANCELLED:
        return fate
    often = f", {len(departures)} times" if len(departures) > 1 else ""
    seen = f"the node saw it leave for the topic {first.topic}{often}"
    if fate.state is MessageState.PENDING:
        return replace(fate, why=f"{seen}; no mark covers that, so it may leave again")
    # That it was delivered counts, whatever was tried before or behind it.
    states = {one.state for one in departures}
    state = next(MessageState(one) for one in STATES.values() if one in states)
    if state is MessageState.CANCELLED:
        seen = "it was cancelled: the node saw its mark pass it"
    elif state is MessageState.EXPIRED:
        seen = f"the node saw it expire; it was to go to the topic {first.topic}"
    elif state is MessageState.DEAD:
        seen = f"the node saw it become a dead letter; it was to go to the topic {first.topic}"
    elif state is MessageState.UNKNOWN:
        seen += ", and no clear answer followed"
    left_ms = next(one.left_ms for one in departures if one.state == state)
    return replace(fate, state=state, why=seen, left_ms=left_ms)


@dataclass(frozen=True, slots=True)
class _Gone:
    """A message that has left, with its row if that is still there."""

    id: MessageId
    row: pa.RecordBatch | None

    def fate(self, state: MessageState, why: str) -> MessageFate:
        return _with_row(MessageFate(str(self.id), state, why, self.id.due), self.row)


def _with_row(fate: MessageFate, row: pa.RecordBatch | None) -> MessageFate:
    if row is None:
        return fate
    topic, [created_ms] = row.column("topic")[0].as_py(), times(row, "created").tolist()
    return replace(fate, row=row, topic=topic, created_ms=created_ms)


def _in_slot(
    reader: PendingReader, view: View, second: int, wanted: Sequence[MessageId]
) -> tuple[View, dict[MessageId, MessageFate], list[_Gone], bool]:
    """The view by which it was judged, what the slot says, and which messages have left: of those
    nothing is known yet, or, where all cancels are known, that they were not cancelled."""
    view, batches, problem = reader.slot(view, second)
    keys = key_columns(batches)
    pending = view.pending(second, keys)
    record = reader.cancelled(second)  # behind the view
    targets = {*cancelled(keys).tolist(), *record.offsets.tolist()}
    damaged = problem is not None or bool(view.problems) or second in view.lost
    fates: dict[MessageId, MessageFate] = {}
    gone: list[_Gone] = []
    for one in wanted:
        row, is_pending = _row_of(batches, pending, one)
        state, why = MessageState.UNKNOWN, ""
        if one.offset in targets:
            state, why = MessageState.CANCELLED, "a cancel names it"
        elif is_pending:
            state, why = MessageState.PENDING, "not due yet"
            if one.due <= view.point.looked_ms:
                why = "no mark covers it; it is due, and may be leaving"
        elif row is not None:
            gone.append(_Gone(one, row))
        elif damaged:
            why = str(problem.text if problem else "rows of the directory are missing")
        elif one.offset >= view.point.next_offset:
            why = f"this directory holds the log up to offset {view.point.next_offset - 1}"
        elif not all(mark.covers(one.due, one.offset) for mark in view.marks.every):
            why = "no mark covers it, and it is not in its slot"
        else:
            gone.append(_Gone(one, None))
        fates[one] = _Gone(one, row).fate(state, why)
    return view, fates, gone, not (damaged or record.incomplete)


def _row_of(
    batches: Sequence[pa.RecordBatch], pending: Mask, one: MessageId
) -> tuple[pa.RecordBatch | None, bool]:
    """The row of an id, and whether it is pending. ``pending``: of all rows of the batches."""
    start = 0
    for batch in batches:
        for at in np.flatnonzero(times(batch, "offset") == one.offset).tolist():
            row = batch.slice(at, 1)
            if int(times(row, "due")[0]) == one.due:
                return row.take(pa.array([0])), bool(pending[start + at])
        start += batch.num_rows
    return None, False


@dataclass(frozen=True, slots=True)
class _Trace:
    """A message in an embedded topic, and when it got there."""

    state: MessageState
    why: str
    topic: str | None
    created_ms: int
    left_ms: int


class _Left:
    """Looks for traces of messages of one slot that have left. ``cancels_known``: none of them was
    cancelled."""

    def __init__(
        self, root: Path, marks: Marks, dead_letter_topic: str, *, cancels_known: bool
    ) -> None:
        self._root = root
        self._cancels_known = cancels_known
        self._marks = marks
        self._dead_letter_topic = dead_letter_topic

    def find(self, gone: Sequence[_Gone]) -> dict[MessageId, MessageFate]:
        every = all_delivered(self._marks, cancels_known=self._cancels_known)
        targets: set[int] = set()
        if not every:
            gone, targets = self._archived(gone)
        traces = self._in_topics(gone)
        fates = {}
        for one in gone:
            trace = traces.get((one.id.due, one.id.offset))
            if every:
                why = (
                    "the mark covers it, no cancel names it, and nothing ever became a dead letter"
                )
                fate = one.fate(MessageState.DELIVERED, why)
            elif one.id.offset in targets:
                fate = one.fate(MessageState.CANCELLED, "a cancel in the archive names it")
            elif trace is not None:
                fate = one.fate(trace.state, trace.why)
            else:
                fate = one.fate(MessageState.UNKNOWN, self._open())
            if trace is not None:
                created_ms, left_ms = trace.created_ms, trace.left_ms
                topic = fate.topic or trace.topic
                fate = replace(fate, topic=topic, created_ms=created_ms, left_ms=left_ms)
            fates[one.id] = fate
        return fates

    def _open(self) -> str:
        """What may have become of a message that left no trace."""
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

    def _archived(self, gone: Sequence[_Gone]) -> tuple[list[_Gone], set[int]]:
        """With the rows that the archive has, and what cancels name there."""
        second = gone[0].id.due // TICK_MS
        batches = archived_blocks(self._root, second)
        pending = np.zeros(sum(batch.num_rows for batch in batches), np.bool_)
        rows = [
            one if one.row is not None else _Gone(one.id, _row_of(batches, pending, one.id)[0])
            for one in gone
        ]
        return rows, set(cancelled(key_columns(batches)).tolist())

    def _in_topics(self, gone: Sequence[_Gone]) -> dict[RowKey, _Trace]:
        """What embedded topics say, by due time and offset."""
        there = topic_folders(self._root)
        named = {one.row.column("topic")[0].as_py() for one in gone if one.row is not None}
        if all(one.row is not None for one in gone):
            there = [topic for topic in there if topic in {*named, self._dead_letter_topic}]
        missing = {(one.id.due, one.id.offset) for one in gone}
        found: dict[RowKey, _Trace] = {}
        for topic in there:
            for key, row in _topic_rows(self._root, topic, missing).items():
                is_letter = topic == self._dead_letter_topic
                state = _died_of(row) if is_letter else MessageState.DELIVERED
                why = f"it is at position {row.column('position')[0].as_py()} of the topic {topic}"
                [created_ms], [left_ms] = (
                    times(row, name).tolist() for name in ("created", "delivered")
                )
                found[key] = _Trace(state, why, None if is_letter else topic, created_ms, left_ms)
            missing -= found.keys()
        return found


def all_delivered(marks: Marks, *, cancels_known: bool = False) -> bool:
    """Whether every message that the marks cover was delivered, or, with ``cancels_known``, every
    one that was not cancelled."""
    others = marks.dead + marks.expired + (0 if cancels_known else marks.cancels)
    return not others and marks.delivered >= marks.passed


def _died_of(row: pa.RecordBatch) -> MessageState:
    headers = row.column("headers")[0].as_py()
    reasons = [header["value"] for header in headers if header["key"] == REASON]
    expired = bool(reasons) and reasons[-1] == EXPIRED.encode()
    return MessageState.EXPIRED if expired else MessageState.DEAD


def _topic_rows(
    root: Path, topic: str, wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], pa.RecordBatch]:
    """The rows of an embedded topic with these due times and offsets."""
    found: dict[tuple[int, int], pa.RecordBatch] = {}
    if not wanted:
        return found
    end, _ = look_at_topic(root, topic, None)
    start = delivered_from(root, topic, min(due for due, _ in wanted))
    if end is None or start is None:
        return found
    offsets = np.array(sorted(offset for _, offset in wanted), np.int64)
    looked = 0
    for event in read_part(TopicPart(0, root.name, str(root), topic, start, end)):
        if not isinstance(event, RowsSeen):
            continue
        offset, due = times(event.rows, "offset"), times(event.rows, "due")
        for at in np.flatnonzero(np.isin(offset, offsets)).tolist():
            key = int(due[at]), int(offset[at])
            if key in wanted:
                found[key] = event.rows.slice(at, 1)
        looked += event.rows.num_rows
        if len(found) == len(wanted) or looked >= _TOPIC_ROWS_MAX:
            break
    return found

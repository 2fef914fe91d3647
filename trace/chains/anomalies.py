"""Finds what messages should not need, such as retries, repeats and waiting.

Rules
- Each kind is one condition on the columns of events and departures, the same for one message and
  for millions; Spark calls the same function (``replay/traces``).
- A repeat, and a message that nobody answers for, takes two events or their absence: it is judged
  by the given events alone, so a time must be wide enough to have both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...account.limits import LATE_MS
from ...policy.deadletters import EXPIRED
from ...reading.search.fate import MessageState
from ...wheel.schema import Int64s
from ...wheel.texts import span_text
from ..events import ID, EventKind
from .departures import Departures, integers, ready


class AnomalyKind(StrEnum):
    """The kinds of anomalies, and what the ``amount`` of each is."""

    RETRY = "retry"
    """Another attempt was asked for. ``amount``: the number of the failed one."""
    REPEAT = "repeat"
    """A group has answered for one message more than once. ``amount``: the number of answers."""
    LATE = "late"
    """The wheel delivered it late. ``amount``: ms."""
    BACKLOG = "backlog"
    """It lay on its topic for long before a group first had it. ``amount``: ms."""
    STUCK = "stuck"
    """It is due, or an application has it, for long. ``amount``: ms."""
    EXPIRED = "expired"
    DEAD = "dead"
    CLOCKS = "clocks"
    """By its clock a group had it before it was due, or accepted. ``amount``: the clocks differ by
    at least so many ms."""
    GAP = "gap"
    """A sender had no room for events. ``amount``: the number of missing ones."""


@dataclass(frozen=True, slots=True)
class AnomalyLimits:
    """What takes longer is an anomaly, ms. ``late_ms``: as in an account of all messages."""

    late_ms: int = LATE_MS
    backlog_ms: int = 60_000
    stuck_ms: int = 300_000


LIMITS = AnomalyLimits()

ANOMALY = pa.schema(
    [
        pa.field("kind", pa.utf8(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("id", ID),
        pa.field("topic", pa.utf8()),
        pa.field("group", pa.utf8()),
        pa.field("amount", pa.int64()),
        pa.field("why", pa.utf8()),
    ]
)
"""``at``: when, ms. ``group``: of consumers. ``amount``: see ``AnomalyKind``."""

CLOCKS_MS = 10
"""Clocks that differ by less are not worth a word."""
NO_GROUP = "a consumer without a group"
_HELD = (EventKind.RECEIVED, EventKind.PROCESSED)
_TEXTS = {
    AnomalyKind.RETRY: "attempt {amount} failed, and another one was asked for",
    AnomalyKind.REPEAT: "{group} has answered for it {amount} times",
    AnomalyKind.LATE: "delivered {span} after it was due",
    AnomalyKind.BACKLOG: "it lay on its topic for {span}",
    AnomalyKind.STUCK: "{group} has it for {span}, and has not answered",
    AnomalyKind.EXPIRED: "its time was over",
    AnomalyKind.DEAD: "it became a dead letter",
    AnomalyKind.CLOCKS: "by the clocks, {group} had it {span} before it could leave: they differ"
    " by at least that",
    AnomalyKind.GAP: "{amount} events before this one are missing",
}


def anomaly_text(kind: AnomalyKind, amount: int | None, group: str | None, why: str | None) -> str:
    span = span_text(amount or 0)
    text = _TEXTS[kind].format(amount=amount, span=span, group=group or NO_GROUP)
    return f"{text}: {why}" if why else text


def anomalies(
    events: pa.Table, departures: Departures, now_ms: int, limits: AnomalyLimits = LIMITS
) -> pa.Table:
    """All anomalies (schema ``ANOMALY``) in the order of their times. ``events``: schema ``STORED``
    without its sender's columns, or with them."""
    parts = [*_of_events(events, departures, now_ms, limits), *_of_departures(departures, limits)]
    every = pa.concat_tables([ANOMALY.empty_table(), *parts])
    return every.sort_by([("at", "ascending"), ("kind", "ascending")])


def _of_events(
    events: pa.Table, left: Departures, now_ms: int, limits: AnomalyLimits
) -> Iterator[pa.Table]:
    def of(kind: EventKind) -> pa.Table:
        return events.filter(pc.equal(events.column("kind"), kind))

    retried, dead, dropped = of(EventKind.RETRIED), of(EventKind.DEAD), of(EventKind.DROPPED)
    yield _made(AnomalyKind.RETRY, retried, _ints_or_null(retried, "attempt"))
    expired = pc.fill_null(pc.equal(dead.column("error"), EXPIRED), False)
    yield _made(AnomalyKind.EXPIRED, dead.filter(expired))
    other = dead.filter(pc.invert(expired))
    yield _made(AnomalyKind.DEAD, other, why=other.column("error"))
    yield _made(AnomalyKind.GAP, dropped, _ints_or_null(dropped, "count"))
    answers = events.filter(pc.is_in(events.column("kind"), pa.array(_HELD)))
    # An event with neither an id nor a place names no message.
    named = (answers.column(name).is_valid() for name in ("id", "offset"))
    answers = answers.filter(pc.or_(*named))
    yield from _repeated_or_stuck(answers, now_ms, limits.stuck_ms)
    yield from _between_clocks(of(EventKind.PROCESSED), left, limits.backlog_ms)


def _of_departures(left: Departures, limits: AnomalyLimits) -> Iterator[pa.Table]:
    rows = left.delivered
    late = integers(rows, "at") - ready(rows)
    over = late > limits.late_ms
    yield _made(AnomalyKind.LATE, _as_events(rows.filter(pa.array(over)), left), late[over])
    for state, kind in (
        (MessageState.EXPIRED, AnomalyKind.EXPIRED),
        (MessageState.DEAD, AnomalyKind.DEAD),
    ):
        rows = left.rows.filter(pc.equal(left.rows.column("state"), state))
        yield _made(kind, _as_events(rows, left))


def _as_events(rows: pa.Table, left: Departures) -> pa.Table:
    columns = {
        "at": rows.column("at"),
        "id": left.ids(rows),
        "topic": rows.column("topic"),
        "group": pa.nulls(rows.num_rows, pa.utf8()),
    }
    return pa.table(columns)


def _repeated_or_stuck(events: pa.Table, now_ms: int, stuck_ms: int) -> Iterator[pa.Table]:
    owner = _owners(events)
    count = int(owner.max()) + 1 if len(owner) else 0
    answered = np.asarray(pc.equal(events.column("kind"), EventKind.PROCESSED))
    answers = np.bincount(owner[answered], minlength=count)
    last = np.zeros(count, np.int64)
    last[owner[answered]] = np.flatnonzero(answered)
    repeated = np.flatnonzero(answers > 1)
    yield _made(AnomalyKind.REPEAT, events.take(last[repeated]), answers[repeated])
    held_ms = now_ms - integers(events, "at")
    stuck = ~answered & (answers[owner] == 0) & (held_ms > stuck_ms)
    yield _made(AnomalyKind.STUCK, events.filter(pa.array(stuck)), held_ms[stuck])


def _owners(events: pa.Table) -> Int64s:
    """A number for each pair of message and group, shape (rows,). A message without an id is known
    by its place on its topic."""
    ids = events.column("id").combine_chunks()
    known = np.asarray(ids.is_valid())
    of_id = [_codes(ids.field("group")), *(_plain(ids.field(name)) for name in ID.names[1:])]
    place = [_codes(events.column("topic"))]
    place += [_plain(events.column(name)) for name in ("partition", "offset")]
    columns = [np.where(known, column, -1) for column in of_id]
    columns += [np.where(known, -1, column) for column in place]
    columns.append(_codes(events.column("group")))
    order = np.lexsort(columns)
    new = np.zeros(len(order), np.bool_)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    owner = np.empty(len(order), np.int64)
    owner[order] = np.cumsum(new)
    return owner


def _codes(texts: pa.Array | pa.ChunkedArray) -> Int64s:
    encoded = pa.chunked_array([texts]) if isinstance(texts, pa.Array) else texts
    return _plain(encoded.combine_chunks().dictionary_encode().indices)


def _plain(values: pa.Array | pa.ChunkedArray) -> Int64s:
    # A check of 64 bits may be beyond: as any other, it is only compared.
    return np.asarray(pc.fill_null(values.cast(pa.int64(), safe=False), -1))


def _between_clocks(processed: pa.Table, left: Departures, backlog_ms: int) -> Iterator[pa.Table]:
    """The time from the delivery of a message until a group first had it, if it is long or below
    zero."""
    known = processed.filter(processed.column("id").is_valid()).sort_by("at")
    known = known.take(np.unique(_owners(known), return_index=True)[1])  # of each group the first
    place, left_wheel = left.find(known.column("id").combine_chunks())
    waited = np.zeros(known.num_rows, np.int64)
    waited[left_wheel] = integers(known, "at")[left_wheel] - left.at[place[left_wheel]]
    # The node is answered after the record is on its topic, where it may have been read.
    early = np.zeros(known.num_rows, np.int64)
    early[left_wheel] = left.ready[place[left_wheel]] - integers(known, "at")[left_wheel]
    over, before = waited > backlog_ms, early >= CLOCKS_MS
    yield _made(AnomalyKind.BACKLOG, known.filter(pa.array(over)), waited[over])
    yield _made(AnomalyKind.CLOCKS, known.filter(pa.array(before)), early[before])


def _ints_or_null(events: pa.Table, name: str) -> pa.ChunkedArray:
    return events.column(name).cast(pa.int64())


def _made(
    kind: AnomalyKind,
    events: pa.Table,
    amount: pa.ChunkedArray | Int64s | None = None,
    why: pa.ChunkedArray | None = None,
) -> pa.Table:
    count = events.num_rows
    columns = {name: events.column(name) for name in ("id", "topic", "group")}
    columns |= {
        "kind": pa.repeat(kind.value, count),
        "at": events.column("at").cast(pa.int64()),
        "amount": pa.nulls(count, pa.int64()) if amount is None else amount,
        "why": pa.nulls(count, pa.utf8()) if why is None else why,
    }
    return pa.table([columns[name] for name in ANOMALY.names], schema=ANOMALY)

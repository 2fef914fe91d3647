"""Finds what messages should not need, as retries, repeats and waiting: of one message, or of all
of a time.

Rules
- Each kind is one condition on the columns of events and departures, the same for one message and
  for millions; Spark calls the same function (``replay/traces``).
- What two events say together (a repeat, a message that nobody answers for) is found among the
  events that were given, and no others.
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
    """``amount``: what the number of an anomaly is."""

    RETRY = "retry"
    """Another attempt was asked for. ``amount``: behind so many."""
    REPEAT = "repeat"
    """A group has answered for one message more than once. ``amount``: so many times."""
    LATE = "late"
    """The wheel gave it away later than it was due. ``amount``: ms."""
    BACKLOG = "backlog"
    """It lay on its topic for long before a group first had it. ``amount``: ms."""
    STUCK = "stuck"
    """It is due, or in an application's hands, for long. ``amount``: ms."""
    EXPIRED = "expired"
    DEAD = "dead"
    CLOCKS = "clocks"
    """By its consumer's clock a group had it before it was due, or accepted. ``amount``: ms, at
    least so much the clocks differ."""
    GAP = "gap"
    """A sender had no room for events. ``amount``: so many are missing."""


@dataclass(frozen=True, slots=True)
class AnomalyLimits:
    """From when on something is an anomaly, ms. ``late_ms``: as in an account of all messages."""

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
"""In words."""
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
    """An anomaly in words."""
    span = span_text(amount or 0)
    text = _TEXTS[kind].format(amount=amount, span=span, group=group or NO_GROUP)
    return f"{text}: {why}" if why else text


def anomalies(
    events: pa.Table, departures: Departures, now_ms: int, limits: AnomalyLimits = LIMITS
) -> pa.Table:
    """All anomalies (schema ``ANOMALY``) in the order of their times. ``events``: schema ``STORED``
    without its sender's columns, or with them."""
    found = [*_of_events(events, departures, now_ms, limits), *_of_departures(departures, limits)]
    every = pa.concat_tables([ANOMALY.empty_table(), *found])
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
    # Of an event without an id and without a place nobody can say which message it is of.
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
    """Departures with the columns of events that an anomaly has."""
    columns = {
        "at": rows.column("at"),
        "id": left.ids(rows),
        "topic": rows.column("topic"),
        "group": pa.nulls(rows.num_rows, pa.utf8()),
    }
    return pa.table(columns)


def _repeated_or_stuck(events: pa.Table, now_ms: int, stuck_ms: int) -> Iterator[pa.Table]:
    """``events``: ``received`` and ``processed``."""
    whose = _whose(events)
    count = int(whose.max()) + 1 if len(whose) else 0
    answered = np.asarray(pc.equal(events.column("kind"), EventKind.PROCESSED))
    answers = np.bincount(whose[answered], minlength=count)
    last = np.zeros(count, np.int64)
    last[whose[answered]] = np.flatnonzero(answered)
    repeated = np.flatnonzero(answers > 1)
    yield _made(AnomalyKind.REPEAT, events.take(last[repeated]), answers[repeated])
    held_ms = now_ms - integers(events, "at")
    stuck = ~answered & (answers[whose] == 0) & (held_ms > stuck_ms)
    yield _made(AnomalyKind.STUCK, events.filter(pa.array(stuck)), held_ms[stuck])


def _whose(events: pa.Table) -> Int64s:
    """A number for each message and group, shape (rows,). A message without an id is known by its
    place on its topic."""
    ids = events.column("id").combine_chunks()
    known = np.asarray(ids.is_valid())
    of_id = [_codes(ids.field("group")), *(_plain(ids.field(name)) for name in ID.names[1:])]
    place = [_codes(events.column("topic"))]
    place += [_plain(events.column(name)) for name in ("partition", "offset")]
    columns = [np.where(known, one, -1) for one in of_id]
    columns += [np.where(known, -1, one) for one in place]
    columns.append(_codes(events.column("group")))
    order = np.lexsort(columns)
    new = np.zeros(len(order), np.bool_)
    for one in columns:
        new[1:] |= np.diff(one[order]) != 0
    whose = np.empty(len(order), np.int64)
    whose[order] = np.cumsum(new)
    return whose


def _codes(texts: pa.Array | pa.ChunkedArray) -> Int64s:
    encoded = pa.chunked_array([texts]) if isinstance(texts, pa.Array) else texts
    return _plain(encoded.combine_chunks().dictionary_encode().indices)


def _plain(values: pa.Array | pa.ChunkedArray) -> Int64s:
    return np.asarray(pc.fill_null(values.cast(pa.int64()), -1))


def _between_clocks(processed: pa.Table, left: Departures, backlog_ms: int) -> Iterator[pa.Table]:
    """By how much later, or sooner, a group first had a message than it was delivered."""
    known = processed.filter(processed.column("id").is_valid()).sort_by("at")
    known = known.take(np.unique(_whose(known), return_index=True)[1])  # of each group the first
    place, there = left.find(known.column("id").combine_chunks())
    waited = np.zeros(known.num_rows, np.int64)
    waited[there] = integers(known, "at")[there] - left.at[place[there]]
    # The node is answered after the record is on its topic, where it may have been read.
    early = np.zeros(known.num_rows, np.int64)
    early[there] = left.ready[place[there]] - integers(known, "at")[there]
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

"""Counts what went into each boundary and what came out of it, by topic and time bucket, and names
the messages that are lost, repeated or late.

Theory: a message's id is in the client's event, in the journal, in its record and in the
consumer's event. So for each boundary it is known how often each message came to it and came out of
it (``Crossings``), and ``account.judging`` says what that means. The judge of conservation has
decided what became of a message in the wheel; the events are beside it on the same board.

Rules
- Not a loss: what is cancelled, expired or a dead letter (*excused*); what is not due yet, or whose
  group's committed position is not behind it (*waiting*); what nobody could have seen: its journal
  is gone, events are missing, or it came before the group's first event (*undecided*).
- A loss between topic and consumer is a message that the group has committed, and that nobody of it
  has answered for.
- Accepted twice is a message that no client knows to be stored, beside one of the same due time,
  topic and content that a client knows; unless the event that says so may be missing.
- A consumer that buries a message answers for it, too: that is one end of the message, not two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ...account.judging import Crossings, judge
from ...account.limits import NEVER_MS, bucket_of
from ...account.vocabulary import AuditVerdict, Boundary
from ...reading.files import NO_PEER
from ...wheel.ids import id_texts
from ...wheel.schema import Int64s, Mask
from ..facts.fact import BURIED, NO_DIGEST, Facts, Seen
from ..facts.traced import GroupReading, TraceSummary, distinct_events
from .board import Board
from .conservation import judge_conservation, wanted
from .context import Context
from .judged import Judged

CLIENT, WHEEL, CONSUMER = Boundary
LISTED = (AuditVerdict.LOST, AuditVerdict.REPEATED, AuditVerdict.LATE)
"""Messages with such a verdict are named."""
CLASSES = (
    *("sent", "arrived", "excused", "waiting", "undecided"),
    *LISTED,
    "untraced",
)
"""``sent`` is the sum of ``arrived`` to ``lost``. ``waiting`` are open ones, ``undecided`` unknown
ones. ``untraced``: accepted without a client's event."""
COUNTS_TABLE, IDS_TABLE = "boundaries", "ids"
"""The tables that judged boundaries are written to."""
BOUNDARY_ARROW = pa.schema(
    [
        *(("boundary", pa.utf8()), ("group", pa.utf8())),
        *(("topic", pa.int64()), ("bucket_ms", pa.int64())),
        *((name, pa.int64()) for name in CLASSES),
        *(("kind", pa.utf8()), ("id", pa.utf8()), ("offset", pa.int64())),
        *(("due_ms", pa.int64()), ("amount", pa.int64())),
    ]
)
"""Counts of a topic (CRC of its name), bucket, boundary and group; or, with a ``kind``, a message
that is lost, repeated (``amount``: times) or late (ms)."""


def boundaries_of(facts: Facts, context: Context, traces: TraceSummary) -> pa.Table:
    """Judge all boundaries of some messages, of which ``facts`` must have all facts. Schema
    ``BOUNDARY_ARROW``."""
    board, result = Board(distinct_events(facts), context), Judged()
    judge_conservation(board, result)
    return Boundaries(board, result, traces).judged()


def wheel_crossings(board: Board, result: Judged) -> Crossings:
    """How often each message came to the boundary between wheel and topic, and came out of it.
    ``result``: of ``judge_conservation``."""
    counted, made_ms = result.counted, board.context.made_ms
    left = counted["delivered"] | counted["dead"] | counted["expired"]
    unseen = counted["undecided"]
    settled = board.context.options.limits.settled(board.ready_ms, made_ms)
    return Crossings(
        before=(counted["accepted"] & ~counted["cancelled"]).astype(np.int64),
        after=np.where(left, 1 + counted["repeated"], 0),
        spare=np.zeros(board.n, np.int64),
        settled=unseen | (settled & ~counted["pending"]),
        unseen_before=np.zeros(board.n, np.bool_),
        unseen_after=unseen,
        late_ms=np.where(counted["delivered"], board.arrived_ms - board.ready_ms, 0),
    )


class Boundaries:
    """Judges all boundaries of the messages on a board, which must have each event once.
    ``result``: of ``judge_conservation``."""

    def __init__(self, board: Board, result: Judged, traces: TraceSummary) -> None:
        self._board, self._result, self._traces = board, result, traces
        self._context = board.context
        self._limits = board.context.options.limits
        self._sent_ms = board.first_ms(board.of(Seen.PRODUCED))
        self._due = board.due_anywhere
        first = np.searchsorted(board.place, np.arange(board.n))
        self._topic = np.where(board.known, board.topic, board.facts["topic"][first])
        self._wanted = board.context.options.judges(self._due)
        self.waiting = np.zeros(board.n, np.bool_)
        """Messages that may still pass a boundary."""
        self.lost: dict[Boundary, Mask] = {}
        """Messages that were lost outside the wheel, by boundary."""

    def judged(self) -> pa.Table:
        """Schema ``BOUNDARY_ARROW``."""
        parts = [*self._client(), *self._wheel()]
        for group, readings in self._traces.by_group():
            parts += self._consumer(group, readings)
        return pa.concat_tables([BOUNDARY_ARROW.empty_table(), *parts])

    def _client(self) -> Iterator[pa.Table]:
        board, now_ms = self._board, self._context.made_ms
        sent = (self._sent_ms < NEVER_MS) & self._wanted & ~board.is_cancel
        arrived = sent & board.known
        accepted = board.known & ~board.is_cancel & board.committed & wanted(board)
        untraced = accepted & (self._sent_ms == NEVER_MS)
        ends = [int(end) for peer in self._context.peers for end in peer.journal[1]]
        behind = board.offset >= max(ends, default=0)
        rows = Crossings(
            before=sent.astype(np.int64),
            after=(arrived | untraced).astype(np.int64),
            # An untraced message is no fault, unless it is a traced one's twin.
            spare=np.where(untraced & ~self._accepted_twice(untraced, arrived), 1, 0),
            settled=self._limits.settled(self._sent_ms, now_ms),
            unseen_before=board.created <= self._traces.missing_ms(),
            unseen_after=~((board.readable | behind) & ~board.may_be_missing),
            late_ms=np.where(arrived, board.created - self._sent_ms, 0),
        )
        yield from self._tables(CLIENT, "", rows, sent, arrived, {"untraced": untraced})

    def _accepted_twice(self, untraced: Mask, traced: Mask) -> Mask:
        board = self._board
        twice = np.zeros(board.n, np.bool_)
        if not untraced.any() or not traced.any():
            return twice
        reference = np.maximum(board.reference, 0)
        digest = board.facts["digest"][reference]
        judged = np.flatnonzero(
            (untraced | traced) & (board.facts["flags"][reference] & NO_DIGEST == 0)
        )
        keys = [digest[judged], board.due[judged], board.topic[judged]]
        order = np.lexsort(keys)
        new = np.zeros(len(order), np.int64)
        for key in keys:
            new[1:] |= key[order][1:] != key[order][:-1]
        twin = np.empty(len(order), np.int64)
        twin[order] = np.cumsum(new)
        known = np.bincount(twin, weights=traced[judged]) > 0
        twice[judged] = untraced[judged] & known[twin]
        return twice

    def _wheel(self) -> Iterator[pa.Table]:
        counted = self._result.counted
        rows = wheel_crossings(self._board, self._result)
        excused = counted["dead"] | counted["expired"] | counted["cancelled"]
        sent, arrived = counted["accepted"], counted["delivered"]
        yield from self._tables(WHEEL, "", rows, sent, arrived, {"excused": excused})

    def _consumer(self, group: str, readings: list[GroupReading]) -> Iterator[pa.Table]:
        board, facts = self._board, self._board.facts
        crc = crc32c(group.encode())
        answers = board.of(Seen.CONSUMED)
        answers = answers[facts["created"][answers] == crc]
        buried = board.count(answers[facts["flags"][answers] & BURIED != 0])
        answered = np.maximum(board.count(answers) - buried, buried)
        since_ms = np.full(board.n, NEVER_MS)
        records = board.arrived
        position = np.full(len(records), -1, np.int64)
        topic = facts["topic"][records]
        # An embedded topic has one log, whatever partition was asked for.
        embedded = facts["peer"][records] != NO_PEER
        partition = np.where(embedded, 0, facts["partition"][records])
        for reading in readings:
            of_topic = crc32c(reading.topic.encode())
            since_ms[board.topic == of_topic] = reading.since_ms
            for number, committed in reading.committed.items():
                position[(topic == of_topic) & (partition == int(number))] = committed
        passed = records[facts["where"][records] < position]
        n_arrived = board.count(records)
        done = board.count(passed) >= n_arrived
        sent = board.known & (n_arrived > 0) & wanted(board) & (since_ms < NEVER_MS)
        arrived = sent & (answered > 0)
        unseen_ms = np.maximum(since_ms - 1, self._traces.missing_ms(group))
        late_ms = board.first_ms(answers) - board.arrived_ms
        rows = Crossings(
            before=sent.astype(np.int64),
            after=np.where(sent, answered, 0),
            # Whoever finds a message in its topic twice may answer for it twice.
            spare=np.maximum(n_arrived - 1, 0),
            settled=done & self._limits.settled(board.arrived_ms, self._context.made_ms),
            unseen_before=np.zeros(board.n, np.bool_),
            unseen_after=board.arrived_ms <= unseen_ms,
            late_ms=np.where(arrived, late_ms, 0),
        )
        yield from self._tables(CONSUMER, group, rows, sent, arrived)

    def _tables(
        self,
        boundary: Boundary,
        group: str,
        rows: Crossings,
        sent: Mask,
        arrived: Mask,
        others: Mapping[str, Mask] = MappingProxyType({}),
    ) -> Iterator[pa.Table]:
        """The counts of a boundary and its messages that are named. ``others``: further
        classes."""
        verdicts = judge(rows, self._limits)
        classes = {
            "sent": sent,
            "arrived": arrived,
            "waiting": verdicts[AuditVerdict.OPEN],
            "undecided": verdicts[AuditVerdict.UNKNOWN] & sent,
            **{verdict.value: verdicts[verdict] for verdict in LISTED},
            **others,
        }
        self.waiting |= classes["waiting"]
        if boundary is not WHEEL:
            self.lost[boundary] = self.lost.get(boundary, False) | verdicts[AuditVerdict.LOST]
        bucket_ms = bucket_of(self._due, self._limits.interval_ms)
        none = np.zeros(self._board.n, np.bool_)
        columns = {name: classes.get(name, none).astype(np.int64) for name in CLASSES}
        counted = np.logical_or.reduce([column > 0 for column in columns.values()])
        table = pa.table(
            {
                "topic": self._topic[counted].astype(np.int64),
                "bucket_ms": bucket_ms[counted],
                **{name: column[counted] for name, column in columns.items()},
            }
        )
        by = table.group_by(["topic", "bucket_ms"], use_threads=False)
        sums = by.aggregate([(name, "sum") for name in CLASSES])
        yield _rows(
            sums.num_rows,
            boundary=boundary,
            group=group,
            **{name: sums.column(name) for name in ("topic", "bucket_ms")},
            **{name: sums.column(f"{name}_sum") for name in CLASSES},
        )
        # Accepted twice are two messages, of which one is named.
        times = np.full(self._board.n, 2) if boundary is CLIENT else rows.after
        for verdict, amount in zip(LISTED, (None, times, rows.late_ms), strict=True):
            messages = np.flatnonzero(verdicts[verdict])
            if not len(messages):
                continue
            due, offset = self._due[messages], self._board.offset[messages]
            yield _rows(
                len(messages),
                boundary=boundary,
                group=group,
                topic=self._topic[messages].astype(np.int64),
                bucket_ms=bucket_ms[messages],
                kind=verdict.value,
                id=self._ids(due, offset),
                offset=offset,
                due_ms=due,
                amount=None if amount is None else amount[messages],
            )

    def _ids(self, due: Int64s, offset: Int64s) -> pa.Array:
        terms = self._context.terms
        if terms.mint is None:
            pairs = zip(due.tolist(), offset.tolist(), strict=True)
            return pa.array([terms.id_of(*pair) for pair in pairs], pa.utf8())
        return id_texts(terms.group, due, offset, terms.mint.checks(due, offset))


def _rows(count: int, **columns: object) -> pa.Table:
    arrays = []
    for field in BOUNDARY_ARROW:
        value = columns.get(field.name)
        if value is None or isinstance(value, str):
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
        elif isinstance(value, pa.ChunkedArray):
            arrays.append(value.combine_chunks().cast(field.type))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.Table.from_arrays(arrays, schema=BOUNDARY_ARROW)

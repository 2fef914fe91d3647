"""What went into each boundary and what came out of it: client to wheel, wheel to topic, topic to
consumer. By topic and time bucket, with the ids of what is lost, repeated or late.

Theory: a message's id is in the client's event, in the journal, in its record and in the
consumer's event. So for each boundary two sets of ids are compared. The judge of conservation has
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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...reading.files import NO_PEER
from ...wheel.ids import id_texts
from ...wheel.schema import Int64s, Mask
from ..facts.fact import BURIED, FORGED, NO_DIGEST, Facts, Seen
from ..facts.traced import GroupReading, TraceSummary, distinct, group_crc
from .board import Board
from .conservation import judge_conservation, wanted
from .context import Context
from .found import Judged

CLIENT, WHEEL, CONSUMER = "client to wheel", "wheel to topic", "topic to consumer"
LOST, REPEATED, LATE = "lost", "repeated", "late"
CLASSES = (
    *("sent", "arrived", "excused", "waiting", "undecided"),
    *(LOST, REPEATED, LATE, "untraced"),
)
"""``sent`` is the sum of ``arrived`` to ``lost``. ``untraced``: accepted without a client's
event."""
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
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class BoundaryTerms:
    """``late_ms``: more than that at one boundary is late. ``grace_ms``: so long after it could
    have passed a boundary a message is waiting."""

    interval_ms: int
    late_ms: int = 2_000
    grace_ms: int = 5_000


class Boundaries:
    """Judges the messages of some facts, which must be all there are of them."""

    def __init__(
        self, facts: Facts, context: Context, traces: TraceSummary, terms: BoundaryTerms
    ) -> None:
        events = (facts["seen"] == Seen.PRODUCED) | (facts["seen"] == Seen.CONSUMED)
        facts = np.concatenate([facts[~events], distinct(facts[events])])
        self._context, self._traces, self._terms = context, traces, terms
        self._board = board = Board(facts, context)
        self._found = Judged()
        judge_conservation(board, self._found)
        self._produced = board.of(Seen.PRODUCED)
        at = board.facts["at"]
        self._sent_ms = self._first(self._produced, at)
        arrived = board.arrivals(Seen.DELIVERED)
        self._arrived = arrived[board.facts["flags"][arrived] & FORGED == 0]
        self._arrived_ms = self._first(self._arrived, at)
        self._due = board.due_anywhere
        first = np.searchsorted(board.place, np.arange(board.n))
        self._topic = np.where(board.known, board.topic, board.facts["topic"][first])
        self._wanted = context.options.judges(self._due)
        self.waiting = np.zeros(board.n, np.bool_)
        """Messages that may still pass a boundary."""
        self.lost: dict[str, Mask] = {}
        """Messages that were lost outside the wheel, by boundary."""

    def judged(self) -> pa.Table:
        """Schema ``BOUNDARY_ARROW``."""
        parts = [*self._client(), *self._wheel()]
        for group, readings in self._traces.by_group():
            parts += self._consumer(group, readings)
        return pa.concat_tables([BOUNDARY_ARROW.empty_table(), *parts])

    def _client(self) -> Iterator[pa.Table]:
        board, now_ms, grace_ms = self._board, self._context.made_ms, self._terms.grace_ms
        sent = (self._sent_ms < _FAR) & self._wanted & ~board.is_cancel
        there = sent & board.known
        accepted = board.known & ~board.is_cancel & board.committed & wanted(board)
        missing = sent & ~there
        ends = [int(end) for peer in self._context.peers for end in peer.journal[1]]
        behind = board.offset >= max(ends, default=0)
        settled = self._sent_ms <= now_ms - grace_ms
        seen = (board.readable | behind) & ~board.may_be_missing
        lost = missing & settled & seen
        waiting = missing & ~settled
        late_ms = np.where(there, board.created - self._sent_ms, 0)
        told = board.created > self._traces.missing_ms()
        twice = self._accepted_twice(accepted & (self._sent_ms == _FAR) & told, there)
        classes = {
            "sent": sent,
            "arrived": there,
            "waiting": waiting,
            "undecided": missing & settled & ~seen,
            LOST: lost,
            REPEATED: twice,
            LATE: late_ms > self._terms.late_ms,
            "untraced": accepted & (self._sent_ms == _FAR),
        }
        yield from self._tables(CLIENT, "", classes, np.full(board.n, 2), late_ms)

    def _accepted_twice(self, untraced: Mask, traced: Mask) -> Mask:
        board = self._board
        found = np.zeros(board.n, np.bool_)
        if not untraced.any() or not traced.any():
            return found
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
        found[judged] = untraced[judged] & known[twin]
        return found

    def _wheel(self) -> Iterator[pa.Table]:
        board, counted = self._board, self._found.counted
        settled = (
            np.maximum(board.due, board.created) + self._terms.grace_ms <= self._context.made_ms
        )
        lost = counted["lost"] & settled
        late_ms = self._arrived_ms - np.maximum(board.due, board.created)
        there = counted["delivered"]
        classes = {
            "sent": counted["accepted"],
            "arrived": there,
            "excused": counted["dead"] | counted["expired"] | counted["cancelled"],
            "waiting": counted["pending"] | (counted["lost"] & ~settled),
            "undecided": counted["undecided"],
            LOST: lost,
            REPEATED: counted["repeated"] > 0,
            LATE: there & (late_ms > self._terms.late_ms),
        }
        yield from self._tables(WHEEL, "", classes, counted["repeated"] + 1, late_ms)

    def _consumer(self, group: str, readings: list[GroupReading]) -> Iterator[pa.Table]:
        board, facts = self._board, self._board.facts
        crc = group_crc(group)
        answers = board.of(Seen.CONSUMED)
        answers = answers[facts["created"][answers] == crc]
        buried = board.count(answers[facts["flags"][answers] & BURIED != 0])
        answered = np.maximum(board.count(answers) - buried, buried)
        since_ms = np.full(board.n, _FAR)
        position = np.full(len(self._arrived), -1, np.int64)
        topic = facts["topic"][self._arrived]
        # An embedded topic has one log, whatever partition was asked for.
        embedded = facts["peer"][self._arrived] != NO_PEER
        partition = np.where(embedded, 0, facts["partition"][self._arrived])
        for reading in readings:
            of_topic = group_crc(reading.topic)
            since_ms[board.topic == of_topic] = reading.since_ms
            for number, committed in reading.committed.items():
                position[(topic == of_topic) & (partition == int(number))] = committed
        passed = self._arrived[facts["where"][self._arrived] < position]
        n_arrived = board.count(self._arrived)
        done = board.count(passed) >= n_arrived
        sent = board.known & (n_arrived > 0) & wanted(board) & (since_ms < _FAR)
        settled = self._arrived_ms <= self._context.made_ms - self._terms.grace_ms
        missing = sent & (answered == 0) & done & settled
        unclear = missing & (
            (self._arrived_ms < since_ms) | (self._arrived_ms <= self._traces.missing_ms(group))
        )
        late_ms = self._first(answers, facts["at"]) - self._arrived_ms
        there = sent & (answered > 0)
        classes = {
            "sent": sent,
            "arrived": there,
            "waiting": sent & ~there & ~missing,
            "undecided": unclear,
            LOST: missing & ~unclear,
            REPEATED: there & (answered > n_arrived),
            LATE: there & (late_ms > self._terms.late_ms),
        }
        yield from self._tables(CONSUMER, group, classes, answered, late_ms)

    def _tables(
        self, boundary: str, group: str, classes: dict[str, Mask], times: Int64s, late_ms: Int64s
    ) -> Iterator[pa.Table]:
        """``times``, ``late_ms``: how often, and how late, each message passed the boundary."""
        self.waiting |= classes["waiting"]
        if boundary != WHEEL:
            self.lost[boundary] = self.lost.get(boundary, False) | classes[LOST]
        bucket_ms = self._due - self._due % self._terms.interval_ms
        none = np.zeros(self._board.n, np.bool_)
        columns = {name: classes.get(name, none).astype(np.int64) for name in CLASSES}
        some = np.logical_or.reduce([one > 0 for one in columns.values()])
        table = pa.table(
            {
                "topic": self._topic[some].astype(np.int64),
                "bucket_ms": bucket_ms[some],
                **{name: one[some] for name, one in columns.items()},
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
        for kind, amount in ((LOST, None), (REPEATED, times), (LATE, late_ms)):
            found = np.flatnonzero(classes[kind])
            if not len(found):
                continue
            due, offset = self._due[found], self._board.offset[found]
            yield _rows(
                len(found),
                boundary=boundary,
                group=group,
                topic=self._topic[found].astype(np.int64),
                bucket_ms=bucket_ms[found],
                kind=kind,
                id=self._ids(due, offset),
                offset=offset,
                due_ms=due,
                amount=None if amount is None else amount[found],
            )

    def _ids(self, due: Int64s, offset: Int64s) -> pa.Array:
        terms = self._context.terms
        if terms.mint is None:
            pairs = zip(due.tolist(), offset.tolist(), strict=True)
            return pa.array([terms.id_of(*pair) for pair in pairs], pa.utf8())
        return id_texts(terms.group, due, offset, terms.mint.checks(due, offset))

    def _first(self, facts: Int64s, at: Int64s) -> Int64s:
        """The earliest time of these facts of each message, ms; far away: it has none."""
        first = np.full(self._board.n, _FAR)
        np.minimum.at(first, self._board.place[facts], at[facts])
        return first


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

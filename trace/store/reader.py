"""Finds events: those of a message, of a key or a tag, or of a time.

Theory: a question becomes a list of blocks, by hashes or by time and masks. They are read in the
order of their first times, and no event can come before the first time of the next block. So a page
is complete as soon as the next block begins behind it, however late some events came.

Rules
- The writer may merge and delete meanwhile: a segment that was opened can be read to its end, and
  one that is gone when it is opened is found by its new name.
- Damage is a problem of the answer, and the other segments and blocks are read.
- The work for a page is bounded: after ``rows_max`` rows it ends where it is, and ``next`` says
  where to go on. A question with few matches would else read the whole store at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...reading.problems import INTEGRITY, Problem
from ...reading.visible import MayTopic, visible_topics
from ...wheel.errors import Damaged, SlotwheelError
from ...wheel.ids import MessageId
from ...wheel.rows import from_numpy
from ...wheel.schema import Int64s, Mask, times
from ..events import STORED
from .names import SegmentName, list_segments, missing_segments
from .query import TraceKey, TraceQuery
from .segment import StoreSegment

LIMIT = 100
"""Events of a page, by default."""
ID_EVENTS_MAX = 10_000
"""Events of one message, at most."""
ROWS_MAX = 20_000_000
"""Rows that are looked through for one page, by default."""
_LOOKS = 5
_ALL = tuple(STORED.names)


@dataclass(frozen=True, slots=True)
class TracePage:
    """Events in the order of ``TraceKey``."""

    events: pa.Table
    """Schema ``STORED``."""
    next: TraceKey | None
    """The key behind which the next page begins; None: this was the last one."""
    looked_through: int = 0
    """The number of rows that were read for it."""
    problems: tuple[Problem, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every match up to ``next`` is there."""
        return not self.problems


class _Block(NamedTuple):
    first_at: int
    segment: StoreSegment
    number: int
    rows: Int64s | None
    """Those that may match; None: all."""


class TraceReader:
    """Reads the store in a directory. Not thread-safe. A directory that is not there is empty."""

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self._open: dict[SegmentName, StoreSegment] = {}

    def of_id(self, wanted: MessageId, may: MayTopic | None = None) -> TracePage:
        """The first ``ID_EVENTS_MAX`` events with this id, or with this origin, as retries have.
        ``may``: as of ``page``."""
        return self.page(TraceQuery(id=wanted), limit=ID_EVENTS_MAX, may=may)

    def page(
        self,
        query: TraceQuery,
        after: TraceKey | None = None,
        limit: int = LIMIT,
        *,
        rows_max: int = ROWS_MAX,
        may: MayTopic | None = None,
    ) -> TracePage:
        """The next events that fulfil a query, at most ``limit``; fewer, with a ``next``, if
        ``rows_max`` rows were looked through. Only events of topics that ``may`` be seen count;
        None: all. If they were taken out of a page that is full, ``next`` would still say that the
        store has such an event, and of which sender: one question for each key that an attacker can
        think of would tell which keys a hidden topic has."""
        segments, problems = self._view()
        if after is not None:
            query = _from(query, after.at_ms)
        blocks = sorted(
            (block for segment in segments for block in _blocks(segment, query, problems)),
            key=lambda block: block.first_at,
        )
        matches = _Matches(after, limit)
        looked = 0
        begun = None if after is None else after.at_ms
        for block in blocks:
            if matches.are_complete_before(block.first_at):
                break
            # Where it ends must lie behind where it began, or the next page were this one again.
            ahead = begun is None or block.first_at > begun
            if looked >= rows_max and ahead:
                events, last = matches.page(block.first_at)
                last = last or TraceKey(block.first_at)
                return TracePage(events, last, looked, tuple(problems))
            count = block.segment.rows_of(block.number) if block.rows is None else len(block.rows)
            looked += count
            rows = _read(block, query, problems)
            if rows is not None:
                matches.add(rows if may is None else _visible(rows, may))
            if begun is None:
                begun = block.first_at
        events, last = matches.page()
        return TracePage(events, last, looked, tuple(problems))

    def batches(
        self,
        columns: Sequence[str] = _ALL,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> Iterator[pa.RecordBatch | Problem]:
        """These columns of all events of a time, segment by segment, each in the order of ``at``;
        and what could not be read."""
        segments, problems = self._view()
        query = TraceQuery(from_ms=from_ms, to_ms=to_ms)
        wanted = tuple(name for name in _ALL if name in {*columns, "at"})
        for segment in segments:
            for block in _blocks(segment, query, problems):
                rows = _checked(block, wanted, problems)
                if rows is not None:
                    mask = query.matches(rows)
                    rows = rows if mask.all() else rows.filter(pa.array(mask))
                    if rows.num_rows:
                        yield rows.select(list(columns))
        yield from problems

    def segments(self) -> list[StoreSegment]:
        """The segments that count now and can be read, by their names."""
        return self._view()[0]

    def _view(self) -> tuple[list[StoreSegment], list[Problem]]:
        problems: list[Problem] = []
        segments: list[StoreSegment] = []
        names: list[SegmentName] = []
        for _ in range(_LOOKS):
            names = list_segments(self._root)
            problems, segments, gone = [], [], False
            for name in names:
                try:
                    segments.append(self._open.get(name) or StoreSegment(self._root, name))
                except FileNotFoundError as error:
                    gone = True
                    problems.append(_problem(name, "missing", error))
                except (SlotwheelError, OSError) as error:
                    problems.append(_problem(name, "damaged", error))
            if not gone and not missing_segments(names):
                break
        self._open = {segment.name: segment for segment in segments}
        for gap in missing_segments(names):
            text = f"expected flushes {gap.first} to {gap.last}, found none"
            problems.append(Problem(INTEGRITY, "missing", text, file=gap.events_file))
        return segments, problems


def _blocks(segment: StoreSegment, query: TraceQuery, problems: list[Problem]) -> Iterator[_Block]:
    wanted: Mask = np.ones(segment.blocks, np.bool_)
    if query.from_ms is not None:
        wanted &= segment.last_at >= query.from_ms
    if query.to_ms is not None:
        wanted &= segment.first_at < query.to_ms
    for name, value in query.masked.items():
        wanted &= segment.blocks_with(name, value)
    if not wanted.any():
        return
    hashed = query.hashed
    rows: dict[int, Int64s] | None = None
    if hashed is not None:
        try:
            rows = segment.find(*hashed)
        except Damaged as error:
            problems.append(_problem(segment.name, "damaged", error, error.path))
            return
    for number in np.flatnonzero(wanted).tolist() if rows is None else sorted(rows):
        if wanted[number]:
            at = None if rows is None else rows[number]
            yield _Block(int(segment.first_at[number]), segment, number, at)


def _read(block: _Block, query: TraceQuery, problems: list[Problem]) -> pa.RecordBatch | None:
    if block.rows is None:
        few = _checked(block, query.columns, problems)
        if few is None:
            return None
        at = np.flatnonzero(query.matches(few))
        rows = _checked(block, _ALL, problems) if len(at) else None
        return None if rows is None else rows.take(from_numpy(at, pa.int64()))
    rows = _checked(block, _ALL, problems)
    if rows is None:
        return None
    rows = rows.take(from_numpy(block.rows, pa.int64()))
    return rows.filter(pa.array(query.matches(rows)))


def _visible(rows: pa.RecordBatch, may: MayTopic) -> pa.RecordBatch:
    return rows.filter(visible_topics(rows.column("topic").cast(pa.utf8()), may))


def _checked(
    block: _Block, columns: tuple[str, ...], problems: list[Problem]
) -> pa.RecordBatch | None:
    try:
        return block.segment.read(block.number, columns)
    except Damaged as error:
        problem = _problem(block.segment.name, "damaged", error)
        if problem not in problems:
            problems.append(problem)
        return None


class _Matches:
    """The first ``limit`` of the matches so far, behind ``after``."""

    def __init__(self, after: TraceKey | None, limit: int) -> None:
        self._after = after
        self._limit = limit
        self._rows: list[pa.RecordBatch] = []
        self._count = 0
        self._at: Int64s = np.empty(0, np.int64)
        """Times of the first ``limit`` + 1 matches, ms, ascending."""

    def add(self, rows: pa.RecordBatch) -> None:
        if self._after is not None:
            at = times(rows, "at")
            behind = at > self._after.at_ms
            same = np.flatnonzero(at == self._after.at_ms)
            keys = _keys(rows.take(from_numpy(same, pa.int64())))
            behind[same] = [key > self._after for key in keys]
            rows = rows if behind.all() else rows.filter(pa.array(behind))
        if not rows.num_rows:
            return
        self._rows.append(rows)
        self._count += rows.num_rows
        self._at = np.sort(np.concatenate([self._at, times(rows, "at")]))[: self._limit + 1]
        if self._count > 4 * self._limit + 10_000:
            table = self._sorted().slice(0, self._limit + 1)
            self._rows = table.combine_chunks().to_batches()
            self._count = table.num_rows

    def are_complete_before(self, at_ms: int) -> bool:
        """True if ``limit`` + 1 matches lie before ``at_ms``: later blocks change nothing."""
        return len(self._at) > self._limit and bool(self._at[-1] < at_ms)

    def page(self, before_ms: int | None = None) -> tuple[pa.Table, TraceKey | None]:
        """The first ``limit`` matches, of those before ``before_ms``, and the key of the last if
        there are more."""
        table = self._sorted()
        if before_ms is not None:
            at = np.asarray(table.column("at").cast(pa.int64()))
            table = table.slice(0, int(np.searchsorted(at, before_ms)))
        if table.num_rows <= self._limit:
            return table, None
        table = table.slice(0, self._limit)
        last = table.slice(self._limit - 1).combine_chunks().to_batches()[0]
        return table, _keys(last)[0]

    def _sorted(self) -> pa.Table:
        table = pa.Table.from_batches(self._rows, STORED).unify_dictionaries()
        plain = pa.table(
            {
                "at": table.column("at"),
                "sender": table.column("sender").cast(pa.utf8()),
                "number": table.column("number"),
            }
        )
        order = [(name, "ascending") for name in plain.column_names]
        return table.take(pc.sort_indices(plain, sort_keys=order))


def _keys(rows: pa.RecordBatch) -> list[TraceKey]:
    columns = (
        times(rows, "at").tolist(),
        rows.column("sender").cast(pa.utf8()).to_pylist(),
        times(rows, "number").tolist(),
    )
    return [TraceKey(*key) for key in zip(*columns, strict=True)]


def _from(query: TraceQuery, at_ms: int) -> TraceQuery:
    first = at_ms if query.from_ms is None else max(query.from_ms, at_ms)
    return replace(query, from_ms=first)


def _problem(name: SegmentName, kind: str, error: Exception, path: str = "") -> Problem:
    if isinstance(error, Damaged):
        text = f"expected {error.expected}, found {error.found}"
        file = Path(path or error.path).name
        return Problem(INTEGRITY, kind, text, file=file, position=error.position)
    return Problem(INTEGRITY, kind, str(error), file=name.events_file)

"""A view of a data directory: the rows at one instant, and which of them are pending.

Theory: every committed row is in a slot file or behind the checkpoint in the journal, and is
pending until a mark covers it or a cancel names it; and row and cancel are in the same slot. So a
slot can be judged alone: by the length of its file in the catalog, by the journal's rows behind the
checkpoint of that same catalog, and by the newest mark. A view has these three, of one instant, and
never changes. Two slots may be judged by two views: no row moves from one slot to another.

The number of pending messages in a slot that no mark has reached is a subtraction, as each of its
cancels takes two rows, itself and its target: 10 rows with 3 cancels are 4 pending messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...wheel.config import TICK_MS
from ...wheel.ids import IdMint
from ...wheel.mark import Marks
from ...wheel.rows import members, take_rows
from ...wheel.schema import ROW, Int64s, Mask, bounds, times
from ...wheel.slots.slot import begins_ms
from ...wheel.state import SlotInfo
from ..problems import Problem

_KEY_COLUMNS = ["offset", "due", "topic", "cancels"]
_KEYS = pa.schema([ROW.field(name) for name in _KEY_COLUMNS])
_NO_KEYS = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in _KEYS], schema=_KEYS)


@dataclass(frozen=True, slots=True)
class AnswerPoint:
    """The read point of an answer: the rows that it has seen, and their age."""

    next_offset: int
    """Every row below this offset was seen: all that were acknowledged before the question."""
    index: int
    """The last journal entry that was read."""
    mark_ms: int
    """The due time of the main mark, ms: rows due by then have left, if no topic is held back."""
    mark_offset: int
    """The offset of the main mark: of rows that came late, those up to it have left."""
    reach_ms: int
    """No row due later than this, ms, has left by that mark; -1: not known."""
    looked_ms: int
    """The time at which the journal was looked at, ms by this machine's clock. A row that is
    pending in the answer and was due by then may have left meanwhile."""


class TailPiece:
    """Rows of the journal (ROW schema), found by slot: they are sorted by due time, and by offset
    where that is the same."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """``rows`` are in the order of their offsets."""
        self.rows = take_rows(rows, np.argsort(times(rows, "due"), kind="stable"))
        second = times(self.rows, "due") // TICK_MS
        self.seconds, self._starts, self.counts = np.unique(
            second, return_index=True, return_counts=True
        )
        self._numbers = {second: number for number, second in enumerate(self.seconds.tolist())}

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    def slot(self, second: int) -> pa.RecordBatch | None:
        """The rows of a slot; None: it has none."""
        number = self._numbers.get(second)
        if number is None:
            return None
        return self.rows.slice(int(self._starts[number]), int(self.counts[number]))

    @cached_property
    def cancel_counts(self) -> Int64s:
        """The number of cancels in each of ``seconds``."""
        column = self.rows.column("cancels")
        if column.null_count == len(column):
            return np.zeros(len(self.seconds), np.int64)
        cancelling = times(self.rows, "due")[np.asarray(column.is_valid())] // TICK_MS
        at = np.searchsorted(self.seconds, cancelling)
        return np.bincount(at, minlength=len(self.seconds))

    @cached_property
    def offsets(self) -> tuple[int, int]:
        """The lowest and the highest offset."""
        return bounds(times(self.rows, "offset"))

    def from_offset(self, first: int) -> TailPiece | None:
        """The piece without rows below an offset; None: no row is left."""
        lowest, highest = self.offsets
        if first <= lowest:
            return self
        if first > highest:
            return None
        return joined([take_rows(self.rows, np.flatnonzero(times(self.rows, "offset") >= first))])


def joined(batches: Sequence[pa.RecordBatch]) -> TailPiece:
    """Join rows in any order, at least one, into a piece."""
    rows = pa.concat_batches(batches)
    offset = times(rows, "offset")
    if not (offset[1:] > offset[:-1]).all():
        rows = take_rows(rows, np.argsort(offset))
    return TailPiece(rows)


@dataclass(frozen=True)
class View:
    """A data directory at one instant."""

    slots: Mapping[int, SlotInfo]
    tail: Sequence[TailPiece]
    marks: Marks
    mint: IdMint
    point: AnswerPoint
    problems: tuple[Problem, ...] = ()
    """The problems for which rows may be missing."""
    lost: frozenset[int] = frozenset()
    """The seconds of slots of which a repair lost rows."""

    @cached_property
    def passed_ms(self) -> int:
        """No mark covers a row that is due later than this, ms."""
        return max(mark.furthest_ms for mark in self.marks.every)

    @cached_property
    def seconds(self) -> Int64s:
        """The seconds of all slots that have rows, ascending."""
        of_files = np.fromiter(self.slots, np.int64, len(self.slots))
        return np.unique(np.concatenate([of_files, *(piece.seconds for piece in self.tail)]))

    def seconds_within(self, first: int | None, behind: int | None) -> list[int]:
        """The slots with rows from ``first`` on and before ``behind``; None: no limit."""
        start = 0 if first is None else int(np.searchsorted(self.seconds, first))
        stop = None if behind is None else int(np.searchsorted(self.seconds, behind))
        within: list[int] = self.seconds[start:stop].tolist()
        return within

    def tail_of(self, second: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slot that are in no file yet."""
        for piece in self.tail:
            rows = piece.slot(second)
            if rows is not None:
                yield rows

    @cached_property
    def counts(self) -> tuple[Int64s, Int64s]:
        """The numbers, for each of ``seconds``, of its pending messages if no mark covers any of
        its rows, and of its rows."""
        pending, every = (np.zeros(len(self.seconds), np.int64) for _ in range(2))
        if self.slots:
            at = np.searchsorted(self.seconds, np.fromiter(self.slots, np.int64, len(self.slots)))
            infos = self.slots.values()
            rows = np.fromiter((info.rows for info in infos), np.int64, len(at))
            cancels = np.fromiter((info.cancels for info in infos), np.int64, len(at))
            pending[at] += rows - 2 * cancels
            every[at] += rows
        for piece in self.tail:
            at = np.searchsorted(self.seconds, piece.seconds)
            pending[at] += piece.counts - 2 * piece.cancel_counts
            every[at] += piece.counts
        return pending, every

    def is_untouched(self, second: int) -> bool:
        """Returns True when no mark covers any row of a slot, and no repair lost rows of it."""
        return begins_ms(second) > self.passed_ms and second not in self.lost

    def pending(self, second: int, rows: pa.RecordBatch) -> Mask:
        """A mask of the rows that are pending messages, shape (rows,). ``rows``: the keys of all
        rows of a slot (``key_columns``)."""
        column = rows.column("cancels")
        mask: Mask = np.ones(rows.num_rows, np.bool_)
        if column.null_count < len(column):
            mask &= np.asarray(column.is_null())
            mask &= ~members(cancelled(rows), times(rows, "offset"))
        if not self.is_untouched(second):
            mask &= ~self.covered(rows)
        return mask

    def covered(self, rows: pa.RecordBatch) -> Mask:
        """A mask of the rows that the mark of their topic covers, shape (rows,)."""
        due, offset = times(rows, "due"), times(rows, "offset")
        mask = self.marks.main.covered(due, offset)
        for topic, copy in self.marks.copies.items():
            held = np.asarray(pc.equal(rows.column("topic"), topic))
            mask[held] = copy.mark.covered(due[held], offset[held])
        return mask


def key_columns(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The columns that decide if rows are pending, of all batches: offset, due time, topic,
    cancels. A slot has a block from each spill; a call for all costs as much as one for each."""
    return pa.concat_batches([_NO_KEYS, *(batch.select(_KEY_COLUMNS) for batch in batches)])


def cancelled(rows: pa.RecordBatch) -> Int64s:
    """The offsets that the cancels among the rows name, ascending."""
    return np.sort(np.asarray(rows.column("cancels").drop_null()))

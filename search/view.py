"""What lies where in a data directory at one instant, and which of it is pending.

Theory: every committed row is in a slot file or behind the checkpoint in the journal, and leaves
when a mark covers it or a cancel names it; and row and cancel are in the same slot. So a slot can
be judged alone: by the length of its file in the catalog, by the journal's rows behind the
checkpoint of that same catalog, and by the newest mark. A view has these three, of one instant, and
never changes. Two slots may be judged by two views: no row moves from one slot to another.

How much is pending in a slot that no mark has reached is a subtraction: each of its cancels takes
two rows, itself and its target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..reading.problems import Problem
from ..wheel.config import TICK_MS
from ..wheel.ids import IdMint
from ..wheel.mark import Marks
from ..wheel.rows import members, take_rows
from ..wheel.schema import ROW, Int64s, Mask, bounds, times
from ..wheel.state import SlotInfo

_KEY_COLUMNS = ["offset", "due", "topic", "cancels"]
_KEYS = pa.schema([ROW.field(name) for name in _KEY_COLUMNS])
_NO_KEYS = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in _KEYS], schema=_KEYS)


@dataclass(frozen=True, slots=True)
class AnswerPoint:
    """The read point of an answer: what it has seen, and how new that is."""

    next_offset: int
    """Every row below this offset was seen: all that were acknowledged before the question."""
    index: int
    """The last journal entry that was read."""
    mark_ms: int
    """Due time, ms, up to which the mark says what has left."""
    mark_offset: int
    """Offset up to which it says so for rows that came late."""
    reach_ms: int
    """No row due later than this, ms, has left by that mark; -1: that is not known."""
    looked_ms: int
    """When the journal was looked at, ms by this machine's clock. A row that is shown as pending
    and was due by then may have left meanwhile."""


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
        """The rows of a slot; None: there are none."""
        number = self._numbers.get(second)
        if number is None:
            return None
        return self.rows.slice(int(self._starts[number]), int(self.counts[number]))

    @cached_property
    def cancel_counts(self) -> Int64s:
        """How many of the rows of each of ``seconds`` are cancels."""
        column = self.rows.column("cancels")
        if column.null_count == len(column):
            return np.zeros(len(self.seconds), np.int64)
        cancelling = times(self.rows, "due")[np.asarray(column.is_valid())] // TICK_MS
        at = np.searchsorted(self.seconds, cancelling)
        return np.bincount(at, minlength=len(self.seconds))

    @cached_property
    def offsets(self) -> tuple[int, int]:
        """The lowest and the highest."""
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
    """One piece of rows in any order, at least one."""
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
    """Why rows may be missing in it."""
    lost: frozenset[int] = frozenset()
    """Slots of which a repair lost rows."""

    @cached_property
    def passed_ms(self) -> int:
        """No mark covers a row that is due later than this."""
        return max(mark.furthest_ms for mark in self.marks.every)

    @cached_property
    def seconds(self) -> Int64s:
        """All slots that have rows, ascending."""
        of_files = np.fromiter(self.slots, np.int64, len(self.slots))
        return np.unique(np.concatenate([of_files, *(piece.seconds for piece in self.tail)]))

    def seconds_within(self, first: int | None, behind: int | None) -> list[int]:
        """The slots with rows from ``first`` on and before ``behind``; None: no limit."""
        start = 0 if first is None else int(np.searchsorted(self.seconds, first))
        stop = None if behind is None else int(np.searchsorted(self.seconds, behind))
        found: list[int] = self.seconds[start:stop].tolist()
        return found

    def tail_of(self, second: int) -> Iterator[pa.RecordBatch]:
        """The rows of a slot that are in no file yet."""
        for piece in self.tail:
            rows = piece.slot(second)
            if rows is not None:
                yield rows

    @cached_property
    def counts(self) -> tuple[Int64s, Int64s]:
        """For each of ``seconds``: how many messages are pending if no mark covers any of its rows,
        and how many rows it has."""
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
        """Whether no mark covers any row of a slot, and no repair lost rows of it."""
        return second * TICK_MS > self.passed_ms and second not in self.lost

    def pending(self, second: int, rows: pa.RecordBatch) -> Mask:
        """Which rows are pending messages, shape (rows,). ``rows``: all rows of a slot, as of
        ``key_columns``."""
        column = rows.column("cancels")
        mask: Mask = np.ones(rows.num_rows, np.bool_)
        if column.null_count < len(column):
            mask &= np.asarray(column.is_null())
            mask &= ~members(cancelled(rows), times(rows, "offset"))
        if not self.is_untouched(second):
            mask &= ~self.covered(rows)
        return mask

    def covered(self, rows: pa.RecordBatch) -> Mask:
        """Which rows the mark of their topic covers, shape (rows,)."""
        due, offset = times(rows, "due"), times(rows, "offset")
        mask = self.marks.main.covered(due, offset)
        for topic, copy in self.marks.copies.items():
            held = np.asarray(pc.equal(rows.column("topic"), topic))
            mask[held] = copy.mark.covered(due[held], offset[held])
        return mask


def key_columns(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """What says whether rows are pending, of all batches: due time, offset, topic, cancels. A slot
    has a block from each spill, and one call for all of them costs as much as one for each."""
    return pa.concat_batches([_NO_KEYS, *(batch.select(_KEY_COLUMNS) for batch in batches)])


def cancelled(rows: pa.RecordBatch) -> Int64s:
    """The offsets that the cancels among the rows name, ascending."""
    return np.sort(np.asarray(rows.column("cancels").drop_null()))

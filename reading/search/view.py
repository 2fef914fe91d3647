"""A view of a data directory: the rows at one instant, and which of them are pending.

Theory: every committed row is in a slot file or behind the checkpoint in the journal, and is
pending until a mark covers it or a cancel names it; and row and cancel are due in the same second.
They need not be in the same file: a target may lie in the file of its day, and a cancel that came
shortly before its time in that of its second. So a second can be judged alone, by all of its files:
by their lengths in the catalog, by the journal's rows behind the checkpoint of that same catalog,
and by the newest mark. A view has these three, of one instant, and never changes. Two seconds may
be judged by two views: no row moves from one second to another.

The number of pending messages in a stretch (``reading/stretches.py``) that no mark has reached is a
subtraction, as each of its cancels takes two rows, itself and its target: 10 rows with 3 cancels
are 4 pending messages.
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
from ...wheel.rows import due_in, members, take_rows
from ...wheel.schema import ROW, Int64s, Mask, bounds, times, valid
from ...wheel.slots.secondsums import SecondSums
from ...wheel.slots.slot import bounds_of, overlap, seconds_of
from ...wheel.state import SlotInfo
from ..problems import Problem
from ..stretches import files_of, stretches_of

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
    """Rows of the journal (ROW schema), found by due time: they are sorted by it, and by offset
    where that is the same."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        """``rows`` are in the order of their offsets."""
        self.rows = take_rows(rows, np.argsort(times(rows, "due"), kind="stable"))

    @property
    def count(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def pending(self) -> SecondSums:
        """As of ``signed_counts``."""
        return signed_counts(self.rows)

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


def signed_counts(rows: pa.RecordBatch) -> SecondSums:
    """What ``rows`` add to the pending messages of each second: a message adds one, a cancel takes
    one away."""
    return SecondSums.of(*signed(rows))


def signed(rows: pa.RecordBatch) -> tuple[Int64s, Int64s]:
    """The second of each row, and what the row adds to the pending messages of it."""
    return times(rows, "due") // TICK_MS, np.where(valid(rows.column("cancels")), -1, 1)


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
    """The slots of which a repair lost rows."""

    @cached_property
    def passed_ms(self) -> int:
        """No mark covers a row that is due later than this, ms."""
        return max(mark.furthest_ms for mark in self.marks.every)

    @cached_property
    def _numbers(self) -> Int64s:
        """The numbers of all slots with a file, ascending."""
        return np.sort(np.fromiter(self.slots, np.int64, len(self.slots)))

    @cached_property
    def _stretches(self) -> tuple[Int64s, Int64s]:
        """The first seconds of all stretches, ascending, and the seconds behind them."""
        return stretches_of(self._numbers, [piece.pending.seconds for piece in self.tail])

    def stretches(self, first: int | None = None, behind: int | None = None) -> list[range]:
        """The stretches with rows, ascending, each cut to the seconds from ``first`` on and before
        ``behind``; None: no limit."""
        firsts, ends = self._stretches
        start = 0 if first is None else int(np.searchsorted(ends, first, side="right"))
        stop = len(firsts) if behind is None else int(np.searchsorted(firsts, behind))
        low = firsts[start:stop] if first is None else np.maximum(firsts[start:stop], first)
        high = ends[start:stop] if behind is None else np.minimum(ends[start:stop], behind)
        return [range(*each) for each in zip(low.tolist(), high.tolist(), strict=True)]

    @cached_property
    def counts(self) -> dict[range, int]:
        """The number of pending messages of each stretch, if no mark covers any of its rows."""
        firsts, ends = self._stretches
        pending = np.zeros(len(firsts), np.int64)
        infos = self.slots.values()
        signed = np.fromiter((info.rows - 2 * info.cancels for info in infos), np.int64, len(infos))
        begins, _ = bounds_of(np.fromiter(self.slots, np.int64, len(infos)))
        for part in (SecondSums(begins, signed), *(piece.pending for piece in self.tail)):
            at = np.searchsorted(firsts, part.seconds, side="right") - 1
            np.add.at(pending, at, part.sums)
        return dict(zip(map(range, firsts.tolist(), ends.tolist()), pending.tolist(), strict=True))

    def files_of(self, seconds: range) -> list[int]:
        """The slots with files that may have rows of these seconds, in the order of numbers."""
        return files_of(self._numbers, seconds)

    def tail_of(self, seconds: range) -> Iterator[pa.RecordBatch]:
        """The rows of these seconds that are in no file yet."""
        for piece in self.tail:
            rows = due_in(piece.rows, seconds)
            if rows.num_rows:
                yield rows

    def is_untouched(self, seconds: range) -> bool:
        """Returns True when no mark covers any row of these seconds, and no repair lost rows that
        may be due in them."""
        return seconds.start * TICK_MS > self.passed_ms and not self.is_lost(seconds)

    def is_lost(self, seconds: range) -> bool:
        """Returns True when a repair lost rows that may be due in these seconds."""
        return any(overlap(seconds_of(slot), seconds) for slot in self.lost)

    def pending(self, seconds: range, rows: pa.RecordBatch) -> Mask:
        """A mask of the rows that are pending messages, shape (rows,). ``rows``: the keys of all
        rows of these seconds (``key_columns``)."""
        column = rows.column("cancels")
        mask: Mask = np.ones(rows.num_rows, np.bool_)
        if column.null_count < len(column):
            mask &= np.asarray(column.is_null())
            mask &= ~members(cancelled(rows), times(rows, "offset"))
        if not self.is_untouched(seconds):
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
    cancels. A file has a block from each spill; a call for all costs as much as one for each."""
    if not batches:
        return _NO_KEYS
    [*keys] = pa.Table.from_batches(batches).select(_KEY_COLUMNS).combine_chunks().to_batches()
    return keys[0] if len(keys) == 1 else pa.concat_batches([_NO_KEYS, *keys])


def cancelled(rows: pa.RecordBatch) -> Int64s:
    """The offsets that the cancels among the rows name, ascending."""
    return np.sort(np.asarray(rows.column("cancels").drop_null()))


def cancel_rows(rows: pa.RecordBatch) -> dict[int, int]:
    """The offsets of the cancels among the rows, by the offsets that they name."""
    cancels = rows.filter(pc.is_valid(rows.column("cancels")))
    return dict(
        zip(times(cancels, "cancels").tolist(), times(cancels, "offset").tolist(), strict=True)
    )

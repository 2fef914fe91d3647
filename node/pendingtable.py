"""How much is pending by prefix, counted beside the engine from the rows that it holds.

Theory: rows lie in seconds, by their due time, and leave second by second. The table has the rows
and bytes of each second. What is committed is added, from the tail, once. What has left, or was
cancelled, is not subtracted: its second is counted anew from its rows, its cancels and the marks.
So nothing can drift, whatever happens meanwhile: a restart, another master, a reset of the marks.

    tail ──new rows──> second ──marks moved, or a cancel came──> counted anew
                         └── all marks are past it ──> empty, without a look at its rows

*Example.* A million rows are pending, a hundred of them due at 12:00:00. Then this one second is
read again while the marks are in it, some hundred rows a time, and all others stay as they are.

Rules
- ``offset`` says what the table has: all committed rows below it. Rows that were spilled before the
  table saw them make their seconds *unseen*, until they were counted from their files.
- A second is counted at one ``StockPoint``, from rows below the offset that the table has by then;
  otherwise a row that comes meanwhile would count twice.
- A second that is yet to be counted anew has too much, never too little, unless it is unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..security.pending import Amount, Prefixes
from ..wheel.config import TICK_MS
from ..wheel.mark import Mark, Marks
from ..wheel.rows import members, take_rows
from ..wheel.schema import Int64s, Mask, sizes, times, valid
from ..wheel.slots.slot import begins_ms, ends_ms
from ..wheel.slots.storage import StockPoint
from ..wheel.state import SlotInfo
from .intake.callers import TopicColumn

ReadSlot = Callable[[int, SlotInfo], Sequence[pa.RecordBatch]]
"""The blocks of a slot as of a ``StockPoint``. Errors: ``Damaged``, ``OSError``."""
_COLUMNS = ("due", "cancels", "topic", "key", "value", "headers")
_SPARE = 256
"""Seconds that are added on each side when the table has to grow, so that it seldom does."""
Clipped = bool | tuple[int, int, int] | Mark
"""A mark as far as it matters for one second: it is not there yet, it is past, or where it stands.
"""


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """A table as it can be kept over a restart: all rows below ``offset``, as they stood then.
    ``cells``: shape (n, 4), each a prefix's place, a second, rows and bytes. ``ends``: shape (m,
    2), each a second with rows, and an offset behind its rows."""

    offset: int
    cells: Int64s
    ends: Int64s


class PendingTable:
    """Counts for one set of prefixes. One thread uses it, but anybody may ask for ``amounts`` and
    ``unseen_seconds``."""

    def __init__(self, patterns: Iterable[str], read_slot: ReadSlot) -> None:
        self._prefixes = Prefixes(patterns)
        self._read_slot = read_slot
        self.offset = 0
        """All committed rows below it are in the table, but for those of unseen seconds."""
        self._first = 0
        """The second of the first column of ``_cells``."""
        self._cells = np.zeros((len(self.patterns), 0, 2), np.int64)
        """Rows and bytes: shape (prefixes, seconds, 2)."""
        self._end = np.zeros(0, np.int64)
        """Behind the highest offset in each second, or further."""
        self._totals = np.zeros((len(self.patterns), 2), np.int64)
        self._unseen: set[int] = set()
        self._cancelled: set[int] = set()
        """Seconds with cancels that came since they were counted."""
        self._counted_by: dict[int, tuple[tuple[str | None, Clipped], ...]] = {}
        """The marks by which a second was counted, of those that they have reached."""
        self._replacements: int | None = None

    @property
    def patterns(self) -> tuple[str, ...]:
        return self._prefixes.patterns

    @property
    def amounts(self) -> list[Amount]:
        """Rows and bytes of each prefix."""
        return [(rows, nbytes) for rows, nbytes in self._totals.tolist()]

    @property
    def unseen_seconds(self) -> int:
        """The number of seconds of which not all rows were counted yet: a prefix may have more than
        ``amounts`` says."""
        return len(self._unseen)

    # What came in

    def add_new(self, point: StockPoint) -> None:
        """Add the rows that were committed since the last call."""
        if point.spilled > self.offset:
            behind = (s for s, info in point.catalog.items() if info.highest >= self.offset)
            self._unseen.update(behind)
        if point.replacements != self._replacements:
            if self._replacements is not None:  # a repair may have given rows up
                self._cancelled.update(point.catalog)
            self._replacements = point.replacements
        for piece in point.pieces:
            if piece.next_offset > self.offset:
                new = piece.behind(self.offset)
                if new.cancels:
                    cancels = valid(new.rows.column("cancels"))
                    self._cancelled.update(np.unique(new.due[cancels] // TICK_MS).tolist())
                self._add(new.rows, new.due // TICK_MS, new.next_offset)
        self.offset = max(self.offset, point.next_offset)

    def _add(self, rows: pa.RecordBatch, seconds: Int64s, end: int) -> None:
        """Add rows of these ``seconds``, shape (rows,), to the cells. ``end``: behind their
        offsets."""
        at, groups = self._groups(rows)
        if not groups:
            return
        self._hold(int(seconds.min()), int(seconds.max()))
        columns = seconds - self._first
        nbytes = sizes(rows)
        for number, places in enumerate(groups):
            # Cancel rows have an empty topic, so they are in no group.
            mine = slice(None) if at is None else np.flatnonzero(at == number)
            where = columns[mine]
            width = nbytes[mine]
            for place in places:
                # Not bincount: the seconds are more than the rows of a piece, mostly.
                np.add.at(self._cells[place, :, 0], where, 1)
                np.add.at(self._cells[place, :, 1], where, width)
                self._totals[place] += len(where), int(width.sum())
            self._end[where] = end

    def _groups(self, rows: pa.RecordBatch) -> tuple[Int64s | None, list[tuple[int, ...]]]:
        """The prefixes that rows have: places of prefixes, and which of these each row has, -1:
        none; None: all rows have the first one's."""
        column = TopicColumn.of(rows)
        distinct = () if column is None else tuple(column.distinct())
        if len(distinct) == 1:  # mostly
            places = self._prefixes.of(distinct[0].decode())
            return None, [places] if places else []
        topics = rows.column("topic").dictionary_encode()
        found: dict[tuple[int, ...], int] = {}
        numbers = [
            found.setdefault(places, len(found)) if (places := self._prefixes.of(topic)) else -1
            for topic in topics.dictionary.to_pylist()
        ]
        return np.array(numbers, np.int64)[np.asarray(topics.indices)], list(found)

    # What has left

    def stale(self, point: StockPoint) -> list[int]:
        """The seconds that have to be counted anew, those first from which rows are leaving. Those
        that all marks are past are emptied."""
        marks = point.marks
        last = max(mark.furthest_ms for mark in marks.every) // TICK_MS
        upto = min(len(self._end), last - self._first + 1)
        used = self._cells[:, : max(0, upto), 0].any(0)
        reached = set((np.flatnonzero(used) + self._first).tolist())
        reached |= {second for second in self._unseen if second <= last}
        self._counted_by = {s: seen for s, seen in self._counted_by.items() if s in reached}
        left: list[int] = []
        for second in sorted(reached):
            seen = self._clipped(second, marks, self._end_of(second, point))
            if all(clipped is True for _, clipped in seen):
                self._set(second, None)
            elif self._counted_by.get(second) != seen:
                left.append(second)
        chosen = dict.fromkeys(left)
        chosen.update(dict.fromkeys(sorted(self._cancelled | self._unseen)))
        return list(chosen)

    def count(self, second: int, point: StockPoint) -> None:
        """Count a second anew. ``point``: the one that ``add_new`` had last. Errors: ``Damaged``,
        ``OSError``; it stays as it is."""
        batches = list(self._rows_in(second, point))
        named = [_targets(rows) for _, rows in batches]
        cancelled = np.sort(np.concatenate(named)) if named else np.empty(0, np.int64)
        cells = np.zeros((len(self.patterns), 2), np.int64)
        end = 0
        for offset, rows in batches:
            end = max(end, int(offset.max()) + 1)
            stays = self._uncovered(rows, offset, point.marks)
            if len(cancelled):
                stays &= ~members(cancelled, offset)
            at, groups = self._groups(rows)
            nbytes = sizes(rows)
            for number, places in enumerate(groups):
                mine = stays if at is None else stays & (at == number)
                both = np.count_nonzero(mine), int(nbytes[mine].sum())
                for place in places:
                    cells[place] += both
        self._set(second, cells, end)
        seen = self._clipped(second, point.marks, self._end_of(second, point))
        if any(clipped is not False for _, clipped in seen):
            self._counted_by[second] = seen

    def _rows_in(self, second: int, point: StockPoint) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        info = point.catalog.get(second)
        if info is not None:
            for block in self._read_slot(second, info):
                if block.num_rows:
                    yield times(block, "offset"), block.select(_COLUMNS)
        start, end = begins_ms(second), ends_ms(second)
        for piece in point.pieces:
            if piece.latest < start or piece.earliest >= end:
                continue
            mine = np.flatnonzero((piece.due >= start) & (piece.due < end))
            if len(mine):
                rows = piece.rows.select(_COLUMNS)
                yield mine + piece.base_offset, take_rows(rows, mine)

    def _uncovered(self, rows: pa.RecordBatch, offset: Int64s, marks: Marks) -> Mask:
        due = times(rows, "due")
        stays: Mask = ~marks.main.covered(due, offset)
        if marks.copies:
            topics = rows.column("topic").dictionary_encode()
            indices = np.asarray(topics.indices)
            for number, topic in enumerate(topics.dictionary.to_pylist()):
                if (copy := marks.copies.get(topic)) is not None:
                    own = indices == number
                    stays[own] = ~copy.mark.covered(due[own], offset[own])
        return stays

    @staticmethod
    def _clipped(second: int, marks: Marks, end: int) -> tuple[tuple[str | None, Clipped], ...]:
        def clip(mark: Mark) -> Clipped:
            if mark.former:
                return mark
            if mark.c < begins_ms(second):
                return False
            last = min(mark.L, end - 1)
            if mark.c >= ends_ms(second):
                return True if last == end - 1 else (1, 0, last)
            return mark.c, mark.r, last

        copies = marks.copies.items()
        return (None, clip(marks.main)), *((topic, clip(copy.mark)) for topic, copy in copies)

    # Over a restart

    def saved(self) -> SavedCounts | None:
        """What can be kept; None while seconds are unseen or have cancels that do not count."""
        if self._unseen or self._cancelled:
            return None
        places, columns = np.nonzero(self._cells[:, :, 0])
        counts = self._cells[places, columns]
        cells = np.column_stack((places, columns + self._first, counts)).astype(np.int64)
        used = np.unique(columns)
        ends = np.column_stack((used + self._first, self._end[used])).astype(np.int64)
        return SavedCounts(self.offset, cells, ends)

    def restore(self, saved: SavedCounts) -> None:
        """Begin with what was kept of the same prefixes. Seconds from which rows have left since
        are counted anew, as their marks are not known."""
        self.offset = saved.offset
        if not len(saved.ends):
            return
        seconds = saved.ends[:, 0]
        self._hold(int(seconds.min()), int(seconds.max()))
        self._end[seconds - self._first] = saved.ends[:, 1]
        self._cells[saved.cells[:, 0], saved.cells[:, 1] - self._first] = saved.cells[:, 2:]
        self._totals = self._cells.sum(1)

    # The cells

    def _end_of(self, second: int, point: StockPoint) -> int:
        """An offset behind the highest one in a second."""
        if second in self._unseen:
            return point.next_offset
        column = second - self._first
        return int(self._end[column]) if 0 <= column < len(self._end) else 0

    def _set(self, second: int, cells: npt.NDArray[np.int64] | None, end: int = 0) -> None:
        """Set what a second has; None: nothing."""
        self._unseen.discard(second)
        self._cancelled.discard(second)
        self._counted_by.pop(second, None)
        if cells is not None and cells.any():
            self._hold(second, second)
        column = second - self._first
        if 0 <= column < len(self._end):
            new = 0 if cells is None else cells
            self._totals += new - self._cells[:, column]
            self._cells[:, column] = new
            self._end[column] = end

    def _hold(self, first: int, last: int) -> None:
        """Make room for these seconds, and let go of empty ones before the first that has rows."""
        have = self._first, self._first + len(self._end)
        if have[0] <= first and last < have[1]:
            return
        used = np.flatnonzero(self._cells[:, :, 0].any(0)) + self._first
        low, high = min([first, *used[:1].tolist()]), max([last, *used[-1:].tolist()])
        low, high = low - _SPARE, high + _SPARE + 1
        cells = np.zeros((len(self.patterns), high - low, 2), np.int64)
        end = np.zeros(high - low, np.int64)
        kept = slice(max(low, have[0]), max(low, have[0], min(high, have[1])))
        if kept.stop > kept.start:
            new = slice(kept.start - low, kept.stop - low)
            old = slice(kept.start - have[0], kept.stop - have[0])
            cells[:, new], end[new] = self._cells[:, old], self._end[old]
        self._first, self._cells, self._end = low, cells, end


def _targets(rows: pa.RecordBatch) -> Int64s:
    """The offsets that the cancels among rows name."""
    column = rows.column("cancels")
    if column.null_count == len(column):
        return np.empty(0, np.int64)
    targets: Int64s = times(rows, "cancels")[valid(column)]
    return targets

"""How much is pending by prefix, counted beside the engine from the rows that it holds.

Theory: the table cuts the time of due into slots, each row counts for one of them, and the table
has the rows and bytes of each. What is committed is added, from the tail, once. What has left, or
was cancelled, is not subtracted: its slot is counted anew from its rows, its cancels and the marks.
So nothing can drift, whatever happens meanwhile: a restart, another master, a reset of the marks.

    tail ──new rows──> slot ──marks moved, or a cancel came──> counted anew
                        └── all marks are past it ──> empty, without a look at its rows

A slot is counted anew again and again while the marks are in it, so it has to be a second by then;
but there is no memory for each second of a year. So the table has seconds for what is due soon,
behind them hours, behind these days, as the wheel has files (``slots/slot.py``). The borders
between them go ahead with the marks, and an hour, or a day, that a border comes to is *split*: it
is counted anew into seconds, or hours. These slots are the table's own: the rows of one of them may
lie in files of all three widths.

*Example.* A million rows are pending, a hundred of them due at 12:00:00. Then this one second is
read again while the marks are in it, some hundred rows a time, and all others stay as they are.
With 7,200 slots the hour from 14:00 on is split when the marks come to 13:00, by one look at its
rows: in a file of that hour, and one of that day.

Rules
- ``offset`` says what the table has: all committed rows below it. Rows that were spilled before the
  table saw them make their slots *unseen*, until these were counted from the files.
- A slot is counted at one ``StockPoint``, from rows below the offset that the table has by then;
  otherwise a row that comes meanwhile would count twice.
- A slot that is yet to be counted anew has too much, never too little, unless it is unseen.
- A slot that cannot be read stays as it is, and those behind it are not split (``pendingborders``):
  they are counted right, but for more work while the marks are in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..security.pending import Amount, Prefixes
from ..wheel.config import TICK_MS
from ..wheel.mark import Mark, Marks
from ..wheel.rows import members, take_rows
from ..wheel.schema import Int64s, Mask, sizes, times, valid
from ..wheel.slots.slot import (
    HOUR_S,
    Widths,
    begins_ms,
    bounds_of,
    ends_ms,
    is_wide,
    seconds_of,
)
from ..wheel.slots.storage import StockPoint
from ..wheel.state import SlotInfo
from .intake.callers import TopicColumn
from .pendingborders import (
    borders_before,
    borders_behind,
    earlier_borders,
    is_to_split,
    wanted_borders,
)
from .pendingcells import PendingCells, cells_of

ReadSlot = Callable[[int, SlotInfo, range], Iterable[pa.RecordBatch]]
"""The rows in a slot's file, as of a ``StockPoint``, that are due in some seconds, as blocks.
Errors: ``Damaged``, ``OSError``."""
_NO_OFFSETS = np.empty(0, np.int64)
_COLUMNS = ("due", "cancels", "topic", "key", "value", "headers")
Clipped = bool | tuple[int, int, int] | Mark
"""A mark as far as it matters for one slot: it is not there yet, it is past, or where it stands."""


@dataclass(frozen=True, slots=True)
class SavedCounts:
    """A table as it can be kept over a restart: all rows below ``offset``, as they stood then.
    ``cells``: shape (n, 4), each a prefix's place, a slot, rows and bytes. ``ends``: shape (m, 2),
    each a slot with rows, and an offset behind its rows."""

    offset: int
    cells: Int64s
    ends: Int64s


class PendingTable:
    """Counts for one set of prefixes, of a wheel with ``slots`` slots of a second. One thread uses
    it, but anybody may ask for ``amounts`` and ``unseen_slots``."""

    def __init__(self, patterns: Iterable[str], read_slot: ReadSlot, slots: int) -> None:
        self._prefixes = Prefixes(patterns)
        self._read_slot = read_slot
        self._ahead_ms = slots * TICK_MS
        self.offset = 0
        """All committed rows below it are in the table, but for those of unseen slots."""
        self._widths = Widths()
        """Its borders are the begin of an hour and the begin of a day."""
        self._cells = PendingCells(len(self.patterns))
        self._unseen: set[int] = set()
        self._cancelled: set[int] = set()
        """Slots with cancels that came since they were counted."""
        self._counted_by: dict[int, tuple[tuple[str | None, Clipped], ...]] = {}
        """The marks by which a slot was counted, of those that they have reached."""
        self._replacements: int | None = None

    @property
    def patterns(self) -> tuple[str, ...]:
        return self._prefixes.patterns

    @property
    def amounts(self) -> list[Amount]:
        """Rows and bytes of each prefix."""
        return [(rows, nbytes) for rows, nbytes in self._cells.totals.tolist()]

    @property
    def unseen_slots(self) -> int:
        """The number of slots of which not all rows were counted yet: a prefix may have more than
        ``amounts`` says."""
        return len(self._unseen)

    # What came in

    def add_new(self, point: StockPoint) -> None:
        """Add the rows that were committed since the last call."""
        self._move_borders(point)
        if point.spilled > self.offset:
            files = {slot: i for slot, i in point.catalog.items() if i.highest >= self.offset}
            self._note_unseen(files, point.marks)
        if point.replacements != self._replacements:
            if self._replacements is not None:  # a repair may have given rows up
                self._cancelled.update(self._cells.slots.tolist())
            self._replacements = point.replacements
        for piece in point.pieces:
            if piece.next_offset > self.offset:
                new = piece.behind(self.offset)
                slots, groups = self._widths.slots(new.due), list(self._groups(new.rows))
                if new.cancels:
                    cancels = valid(new.rows.column("cancels"))
                    self._cancelled.update(np.unique(slots[cancels]).tolist())
                nbytes = sizes(new.rows) if groups else slots
                for places, group in groups:
                    self._cells.add(slots[group], nbytes[group], places, new.next_offset)
        self.offset = max(self.offset, point.next_offset)

    def _note_unseen(self, files: Mapping[int, SlotInfo], marks: Marks) -> None:
        """Note the slots that may have rows of these files. Where the table has seconds for what
        lies in a wide file, it gets hours again: for each second apart, the file would be read
        thousands of times."""
        begins: list[int] = []
        hours: list[int] = []
        for file, info in files.items():
            if not is_wide(file) or begins_ms(file) >= self._widths.hours_until_ms:
                begins.append(begins_ms(file))
                continue
            for hour_ms in range(begins_ms(file), ends_ms(file), HOUR_S * TICK_MS):
                if not marks.all_cover(hour_ms + HOUR_S * TICK_MS, info.highest):
                    hours.append(hour_ms)
        until_ms = min(hours, default=self._widths.seconds_until_ms)
        if until_ms < self._widths.seconds_until_ms:
            self._widen(replace(self._widths, seconds_until_ms=until_ms))
        unseen = np.unique(self._widths.slots(np.array([*begins, *hours], np.int64)))
        self._cells.hold(unseen)
        self._unseen.update(unseen.tolist())

    def _groups(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[int, ...], Int64s]]:
        """The places of prefixes that rows have together, and the numbers of the rows that have
        them. A cancel row has an empty topic, and so none."""
        column = TopicColumn.of(rows)
        distinct = () if column is None else tuple(column.distinct())
        if len(distinct) == 1:  # mostly
            if places := self._prefixes.of(distinct[0].decode()):
                yield places, np.arange(rows.num_rows)
            return
        topics = rows.column("topic").dictionary_encode()
        groups: dict[tuple[int, ...], int] = {}
        numbers = [
            groups.setdefault(places, len(groups)) if (places := self._prefixes.of(topic)) else -1
            for topic in topics.dictionary.to_pylist()
        ]
        of_rows = np.array(numbers, np.int64)[np.asarray(topics.indices)]
        for places, number in groups.items():
            yield places, np.flatnonzero(of_rows == number)

    # What has left

    def stale(self, point: StockPoint) -> list[int]:
        """The slots that have to be counted anew, those first from which rows are leaving. Those
        that all marks are past are emptied."""
        marks = point.marks
        last = max(mark.furthest_ms for mark in marks.every) // TICK_MS
        slots = self._cells.slots
        reached = slots[: np.searchsorted(bounds_of(slots)[0], last, "right")].tolist()
        before, self._counted_by = self._counted_by, {}
        left: list[int] = []
        passed: list[int] = []
        for slot in reached:
            seen = self._clipped(slot, marks, self._end_of(slot, point))
            if all(clipped is True for _, clipped in seen):
                passed.append(slot)
            elif slot in before and before[slot] == seen:
                self._counted_by[slot] = seen
            else:
                left.append(slot)
        self._drop(passed)
        # Where no row counts, no cancel does.
        self._cancelled.intersection_update(self._cells.slots.tolist())
        wanted = wanted_borders(point, self._ahead_ms)
        left += [slot for slot in self._cells.wide if is_to_split(slot, wanted)]
        chosen = dict.fromkeys(left)
        chosen.update(dict.fromkeys(sorted(self._cancelled | self._unseen)))
        return list(chosen)

    def count(self, slot: int, point: StockPoint) -> None:
        """Count a slot anew, and split it if a border has come to it. ``point``: the one that
        ``add_new`` had last. Errors: ``Damaged``, ``OSError``; it stays as it is."""
        # A file of a day may be larger than memory: it is read twice rather than held.
        named = [_targets(rows) for _, rows in self._rows_in(slot, point, cancelling=True)]
        cancelled = np.sort(np.concatenate([_NO_OFFSETS, *named]))
        wanted = wanted_borders(point, self._ahead_ms)
        widths = borders_behind(slot, self._cells.wide, self._widths, wanted)
        cells = PendingCells(len(self.patterns))
        for offset, rows in self._rows_in(slot, point):
            stays = self._uncovered(rows, offset, point.marks)
            if len(cancelled):
                stays &= ~members(cancelled, offset)
            due, nbytes, end = times(rows, "due"), sizes(rows), int(offset.max()) + 1
            slots = np.full(len(due), slot) if widths is None else widths.slots(due)
            for places, group in self._groups(rows):
                staying = group[stays[group]]
                cells.add(slots[staying], nbytes[staying], places, end)
        self._drop([slot])
        self._cells.join(cells)
        self._widths = widths or self._widths
        for counted in cells.slots.tolist():
            seen = self._clipped(counted, point.marks, cells.end(counted))
            if any(clipped is not False for _, clipped in seen):
                self._counted_by[counted] = seen

    def _rows_in(
        self, slot: int, point: StockPoint, *, cancelling: bool = False
    ) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """The rows of a slot, and their offsets. ``cancelling``: of those places alone that have
        cancels."""
        seconds = seconds_of(slot)
        for file in point.catalog.within(seconds[0], seconds[-1]):
            info = point.catalog[file]
            if cancelling and not info.cancels:
                continue
            for block in self._read_slot(file, info, seconds):
                if block.num_rows:
                    yield times(block, "offset"), block.select(_COLUMNS)
        start, end = begins_ms(slot), ends_ms(slot)
        for piece in point.pieces:
            if piece.latest < start or piece.earliest >= end or (cancelling and not piece.cancels):
                continue
            inside = np.flatnonzero((piece.due >= start) & (piece.due < end))
            if len(inside):
                rows = piece.rows.select(_COLUMNS)
                yield inside + piece.base_offset, take_rows(rows, inside)

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
    def _clipped(slot: int, marks: Marks, end: int) -> tuple[tuple[str | None, Clipped], ...]:
        def clip(mark: Mark) -> Clipped:
            if mark.former:
                return mark
            if mark.c < begins_ms(slot):
                return False
            last = min(mark.L, end - 1)
            if mark.c >= ends_ms(slot):
                return True if last == end - 1 else (1, 0, last)
            return mark.c, mark.r, last

        copies = marks.copies.items()
        return (None, clip(marks.main)), *((topic, clip(copy.mark)) for topic, copy in copies)

    def _end_of(self, slot: int, point: StockPoint) -> int:
        """An offset behind the highest one in a slot."""
        return point.next_offset if slot in self._unseen else self._cells.end(slot)

    def _drop(self, slots: Sequence[int]) -> None:
        """Take all rows of some slots out of the table, and what was noted of them."""
        self._cells.drop(np.array(slots, np.int64))
        self._unseen.difference_update(slots)
        self._cancelled.difference_update(slots)
        for slot in slots:
            self._counted_by.pop(slot, None)

    # The borders

    def _move_borders(self, point: StockPoint) -> None:
        """Move the borders ahead up to the first slot that has to be split. Those of a new table
        come back from where they are out of the way."""
        wanted = wanted_borders(point, self._ahead_ms)
        earlier = earlier_borders(self._widths, wanted)
        if earlier != self._widths:
            self._widen(earlier)
        self._widths = borders_before(self._cells.wide, wanted)

    def _widen(self, widths: Widths) -> None:
        """Move borders back: slots behind them are joined to hours, or days."""

        def widened(slots: Int64s) -> Int64s:
            return widths.slots(bounds_of(slots)[0] * TICK_MS)

        def widened_set(slots: set[int]) -> set[int]:
            return set(widened(np.array(sorted(slots), np.int64)).tolist())

        self._widths = widths
        slots, counts, ends = self._cells.content()
        joined = widened(slots)
        if (joined == slots).all():
            return
        self._cells = cells_of(joined, counts, ends)
        self._unseen, self._cancelled = widened_set(self._unseen), widened_set(self._cancelled)
        self._counted_by = {}

    # Over a restart

    def saved(self) -> SavedCounts | None:
        """What can be kept; None while slots are unseen or have cancels that do not count."""
        if self._unseen or self._cancelled:
            return None
        slots, counts, ends = self._cells.content()
        at, places = np.nonzero(counts[:, :, 0])
        cells = np.column_stack((places, slots[at], counts[at, places])).astype(np.int64)
        return SavedCounts(self.offset, cells, np.column_stack((slots, ends)))

    def restore(self, saved: SavedCounts) -> None:
        """Begin with what was kept of the same prefixes. Slots from which rows have left since are
        counted anew, as their marks are not known."""
        self.offset = saved.offset
        slots = saved.ends[:, 0]
        counts = np.zeros((len(slots), len(self.patterns), 2), np.int64)
        counts[np.searchsorted(slots, saved.cells[:, 1]), saved.cells[:, 0]] = saved.cells[:, 2:]
        self._cells = cells_of(slots, counts, saved.ends[:, 1])
        self._widths = borders_before(self._cells.wide, Widths())


def _targets(rows: pa.RecordBatch) -> Int64s:
    """The offsets that the cancels among rows name."""
    targets: Int64s = times(rows, "cancels")[valid(rows.column("cancels"))]
    return targets

"""Rows and bytes of prefixes by slot, for as many slots as have any.

Theory: due times may lie ten years apart, and a message due in 1970 is as good as any other. A
table with a column for each second between the first and the last one would then take more memory
than there is. So a slot has a place only while it has rows: its number is found in a sorted array,
and its counts stay where they are when others come and go.

    slots   1800000060   1800000061   1<<56|1800007200        sorted, each once
    place            2            0                  1
    counts  [0] ...  [1] ...  [2] ...                         a free place is used again
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..wheel.schema import Int64s
from ..wheel.slots.slot import HOUR_S, slot_with

_FIRST_PLACES = 64


class PendingCells:
    """Counts for ``prefixes`` prefixes, each by its place. ``slots``: the numbers of those slots
    that have a place, ascending. ``totals``: rows and bytes of each prefix, shape (prefixes, 2)."""

    def __init__(self, prefixes: int) -> None:
        self.slots = np.zeros(0, np.int64)
        self.totals = np.zeros((prefixes, 2), np.int64)
        self._places = np.zeros(0, np.int64)
        """Of each of ``slots``: its row in the two tables."""
        self._counts = np.zeros((0, prefixes, 2), np.int64)
        self._ends = np.zeros(0, np.int64)
        self._free: list[int] = []

    def __contains__(self, slot: int) -> bool:
        return self._place(slot) is not None

    @property
    def wide(self) -> list[int]:
        """Those of ``slots`` that are hours or days, ascending."""
        wide: list[int] = self.slots[np.searchsorted(self.slots, slot_with(0, HOUR_S)) :].tolist()
        return wide

    def end(self, slot: int) -> int:
        """An offset behind the highest one of a slot's rows; 0 for a slot without a place."""
        place = self._place(slot)
        return 0 if place is None else int(self._ends[place])

    def hold(self, slots: Int64s) -> Int64s:
        """The places of ``slots``, which are ascending, each once; new ones get one."""
        at = np.searchsorted(self.slots, slots)
        known = at < len(self.slots)
        known[known] = self.slots[at[known]] == slots[known]
        fresh = slots[~known]
        if len(fresh):
            self._make_room(len(fresh))
            added = np.array([self._free.pop() for _ in range(len(fresh))], np.int64)
            self._counts[added] = 0
            self._ends[added] = 0
            self.slots = np.insert(self.slots, at[~known], fresh)
            self._places = np.insert(self._places, at[~known], added)
            at = np.searchsorted(self.slots, slots)
        places: Int64s = self._places[at]
        return places

    def add(self, slots: Int64s, nbytes: Int64s, prefixes: Iterable[int], end: int) -> None:
        """Add rows to each of ``prefixes``. ``slots``, ``nbytes``: of each row, shape (rows,).
        ``end``: an offset behind all of them."""
        if not len(slots):
            return
        distinct, at = np.unique(slots, return_inverse=True)
        places = self.hold(distinct)
        self._ends[places] = np.maximum(self._ends[places], end)
        # Weights are summed as floats, which are exact up to 2^53 bytes.
        sums = np.bincount(at), np.bincount(at, nbytes).astype(np.int64)
        both = np.column_stack(sums)
        for prefix in prefixes:
            self._counts[places, prefix] += both
            self.totals[prefix] += both.sum(0)

    def drop(self, slots: Int64s) -> None:
        """Let go of ``slots`` and their rows; those without a place are left aside."""
        gone = np.isin(self.slots, slots)
        places = self._places[gone]
        self.totals -= self._counts[places].sum(0)
        self._free += places.tolist()
        self.slots, self._places = self.slots[~gone], self._places[~gone]

    def join(self, other: PendingCells) -> None:
        """Add the rows of another table of the same prefixes."""
        slots, counts, ends = other.content()
        places = self.hold(slots)
        self._counts[places] += counts
        self._ends[places] = np.maximum(self._ends[places], ends)
        self.totals += counts.sum(0)

    def content(self) -> tuple[Int64s, Int64s, Int64s]:
        """The slots, shape (n,); of each prefix its rows and bytes in them, shape (n, prefixes, 2);
        and the offsets behind their rows, shape (n,)."""
        return self.slots, self._counts[self._places], self._ends[self._places]

    def _place(self, slot: int) -> int | None:
        at = int(np.searchsorted(self.slots, slot))
        return int(self._places[at]) if at < len(self.slots) and self.slots[at] == slot else None

    def _make_room(self, fresh: int) -> None:
        """Make sure that so many places are free."""
        have = len(self._ends)
        more = fresh - len(self._free)
        if more > 0:
            more = max(more, have // 2, _FIRST_PLACES)
            self._counts = np.concatenate(
                [self._counts, np.zeros((more, *self._counts.shape[1:]), np.int64)]
            )
            self._ends = np.concatenate([self._ends, np.zeros(more, np.int64)])
            self._free += range(have + more - 1, have - 1, -1)


def cells_of(slots: Int64s, counts: Int64s, ends: Int64s) -> PendingCells:
    """A table with this content (``PendingCells.content``). Slots may come in any order, and more
    than once: then their rows are added up."""
    cells = PendingCells(counts.shape[1])
    distinct, at = np.unique(slots, return_inverse=True)
    places = cells.hold(distinct)
    np.add.at(cells._counts, places[at], counts)
    np.maximum.at(cells._ends, places[at], ends)
    cells.totals = counts.sum(0, dtype=np.int64)
    return cells

"""A layer: the names of committed rows, and of rows on their way, in memory until they are spilled.

Theory: a batch of a thousand names has to be looked up, and taken, in microseconds, under the
owner's lock. A dictionary takes a Python object for each key and each place, 150 bytes, and one
call of the interpreter for each; so does a thread that lets go of half a million. A layer is a few
columns, in which each name is a row, and a table of *slots* that says in which row a key is:

    | first u64 | second u64 | due i64 | offset i64 |    rows, by ascending offset
    | row + 1 i32 |                                      slots, 4 times as many at least; 0: free

A key's slot is that of the low bits of its first half, or the next one that is free: keys are
hashes, so they need no other one. NumPy does that for many names at once, in rounds: each is for
those that have met another one's slot. The last few are looked at by Python one by one, as NumPy's
calls cost 30 us. With three of four slots free, such rounds are few.

Rules
- A layer has room for so many rows from the beginning, and the kernel gives it pages when they are
  written to. If it grew, all slots would be filled again, under the owner's lock.
- A slot has the newest row of its key. Older ones stay in the columns until the spill.
- Rows ascend by offset, so a spill takes the first ones, and what is withdrawn are the last ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..names import NameKeys, TakenNames
from ..schema import Int64s
from .runs import HeldNames

ROW_BYTES = 4 * 8 + 4 * 4
"""A name takes so much in memory."""
NO_OFFSET = (1 << 63) - 1
"""No row has so high an offset."""
FEW_KEYS = 32
"""Up to so many keys are quicker one by one."""
_FEW_LEFT = 8
"""Up to so many are quicker one by one than by a further round of NumPy's."""


class NameLayer:
    """See the module. ``room``: the most rows; ``names``: how many keys they have. ``cancelled``:
    by their offsets the rows that cancel rows name, each with the offset of the cancel row."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.cancelled: dict[int, int] = {}
        self.names = 0
        self._count = 0
        bits = (4 * room - 1).bit_length()
        self._mask = (1 << bits) - 1
        self._slots = np.zeros(1 << bits, np.int32)
        self._columns = HeldNames(
            np.empty(room, np.uint64),
            np.empty(room, np.uint64),
            np.empty(room, np.int64),
            np.empty(room, np.int64),
        )
        # For Python, which reads and writes numbers there quicker than in an array.
        self._slot = self._slots.data
        self._first, self._second, self._due, self._offset = (
            column.data for column in self._columns.columns()
        )

    def __len__(self) -> int:
        """The number of rows."""
        return self._count

    def __bool__(self) -> bool:
        return bool(self._count or self.cancelled)

    @property
    def rows(self) -> HeldNames:
        """All rows, by ascending offset."""
        return self._columns.at(slice(0, self._count))

    def split(self, offset: int) -> tuple[HeldNames, HeldNames]:
        """The rows below ``offset``, and the others."""
        rows = self.rows
        at = int(rows.offset.searchsorted(offset))
        return rows.at(slice(0, at)), rows.at(slice(at, None))

    def behind(self, offset: int) -> NameLayer:
        """A layer of what came from ``offset`` on."""
        _, rows = self.split(offset)
        layer = NameLayer(max(1, len(rows)))
        layer._add(rows)
        layer.cancelled = {target: own for target, own in self.cancelled.items() if own >= offset}
        return layer

    def cut(self, offset: int) -> None:
        """Remove the rows from ``offset`` on."""
        left = len(self.split(offset)[0])
        if left < self._count:
            self._slots[:] = 0
            self.names = 0
            self._index(0, left)
            self._count = left  # at once: a spill may be reading the rows before

    # -- looking up ------------------------------------------------------------------------------

    def place(self, first: int, second: int, below: int = NO_OFFSET) -> tuple[int, int] | None:
        """Due time and offset of the newest row below offset ``below`` that has a key; None: no row
        has it."""
        row = self._slot[self._find(first, second)] - 1
        if row >= 0 and self._offset[row] >= below:  # rare: no slot leads to older ones
            older = self._columns.at(slice(0, row))
            same = (older.first == first) & (older.second == second)
            row = int(np.flatnonzero(same & (older.offset < below)).max(initial=-1))
        return None if row < 0 else (self._due[row], self._offset[row])

    def _find(self, first: int, second: int) -> int:
        """The slot of a key, or the free one that it would get."""
        slots, mask = self._slot, self._mask
        at = first & mask
        while row := slots[at]:
            if self._first[row - 1] == first and self._second[row - 1] == second:
                break
            at = (at + 1) & mask
        return at

    def find(self, keys: NameKeys) -> tuple[Int64s, Int64s, Int64s]:
        """Of those of the keys that rows have: their positions among the keys, and due times (ms)
        and offsets of the rows; shape (known,) each."""
        first, second = keys.halves
        rows = self._columns
        at = first.view(np.int64) & self._mask
        held = self._slots[at]
        asked = np.flatnonzero(held)
        known = list[Int64s]()
        while len(asked) > _FEW_LEFT:
            row = held[asked] - 1
            same = (rows.first[row] == first[asked]) & (rows.second[row] == second[asked])
            known.append(asked[same])
            asked = asked[~same]
            at[asked] = (at[asked] + 1) & self._mask
            held[asked] = self._slots[at[asked]]
            asked = asked[held[asked] > 0]
        for position in asked.tolist():
            held[position] = self._slot[self._find(int(first[position]), int(second[position]))]
        known.append(asked[held[asked] > 0])
        positions = np.concatenate(known)
        row = held[positions] - 1
        return positions, rows.due[row], rows.offset[row]

    # -- growing ---------------------------------------------------------------------------------

    def take(self, names: TakenNames) -> None:
        """Add the rows of an entry, for which there is room."""
        if len(names) > FEW_KEYS:
            due, offset = np.asarray(names.due, np.int64), np.asarray(names.offset, np.int64)
            self._add(HeldNames(*names.keys.halves, due, offset))
            return
        row = self._count
        for halves, due_ms, offset in zip(names.keys.pairs, names.due, names.offset, strict=True):
            self._first[row], self._second[row] = halves
            self._due[row], self._offset[row] = due_ms, offset
            slot = self._find(*halves)
            self.names += not self._slot[slot]
            row += 1
            self._slot[slot] = row
        self._count = row

    def _add(self, names: HeldNames) -> None:
        start, stop = self._count, self._count + len(names)
        for column, values in zip(self._columns.columns(), names.columns(), strict=True):
            column[start:stop] = values
        self._index(start, stop)
        self._count = stop

    def _index(self, start: int, stop: int) -> None:
        """Give the keys of some rows their slots."""
        first, second, slots = self._columns.first, self._columns.second, self._slots
        rows = np.arange(start, stop, dtype=np.int32)
        at = first[start:stop].view(np.int64) & self._mask
        while len(rows) > _FEW_LEFT:
            free = slots[at] == 0
            slots[at[free]] = rows[free] + 1
            self.names += int(np.count_nonzero(slots[at[free]] == rows[free] + 1))
            # Of several rows for a free slot the last one has it now; the others look at that one.
            held = slots[at] - 1
            same = (first[held] == first[rows]) & (second[held] == second[rows])
            newer = same & (held < rows)
            slots[at[newer]] = rows[newer] + 1  # of several the last one, which is the newest
            rows, at = rows[~same], (at[~same] + 1) & self._mask
        self._index_each(rows.tolist())

    def _index_each(self, rows: Iterable[int]) -> None:
        """As ``_index``, one by one."""
        for row in rows:
            slot = self._find(self._first[row], self._second[row])
            self.names += not self._slot[slot]
            self._slot[slot] = max(self._slot[slot], row + 1)

"""The catalog in memory: which slot files there are, in the order of their slots.

Theory: a master asks for the next second with a file many times a second, under the owner's lock or
beside it, and a spill changes as many entries as there are slots. So a catalog is immutable: the
one thread that writes slot files makes the next one beside the lock, and only puts it in the place
of the last one while it holds the lock. If each new second were inserted into the sorted list under
the lock, a spill into 86,400 new slots would move 30 GB of memory meanwhile, and every append would
wait for it.

*Example.* Files of seconds 5 and 9; a spill adds 7. Who has taken the first catalog goes on to find
9 behind 5; who takes the next one finds 7. In neither is 7 without its record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..state import SlotInfo
from .slot import (
    by_begin,
    first_second,
    is_wide,
    places_within,
    slot_with,
    slots_with,
    width_s,
)


class FarFiles(NamedTuple):
    """The number of some slot files, and of their rows, of every kind, and bytes."""

    files: int
    rows: int
    nbytes: int


class Catalog(Mapping[int, SlotInfo]):
    """Records of slot files by slot, in the order of their numbers: those of a second first, then
    hours, then days, each in the order of time. ``rows`` and ``nbytes``: of all files together, in
    rows of every kind and in bytes."""

    __slots__ = ("_far", "_infos", "_slots", "nbytes", "rows")

    def __init__(self, infos: Mapping[int, SlotInfo] | None = None) -> None:
        self._infos = dict(infos or {})
        self._slots = sorted(self._infos)
        self._far: FarFiles | None = None
        self.rows = sum(info.rows for info in self._infos.values())
        self.nbytes = sum(info.length for info in self._infos.values())

    def __getitem__(self, slot: int) -> SlotInfo:
        return self._infos[slot]

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def far(self) -> FarFiles:
        """The files of slots of an hour or of a day, a few thousand at most; added up once."""
        if self._far is None:
            wide = self._slots[bisect_left(self._slots, slots_with(0)[1]) :]
            infos = [self._infos[slot] for slot in wide]
            self._far = FarFiles(len(infos), _rows(infos), _nbytes(infos))
        return self._far

    def behind(self, slot: int | None) -> int | None:
        """The slot with the next higher number, the first one for None; None if there is none."""
        at = 0 if slot is None else bisect_right(self._slots, slot)
        return self._slots[at] if at < len(self._slots) else None

    def following(self, slot: int | None) -> int | None:
        """The slot with a file that follows in the order of time, of those that begin together the
        narrower first; the first one for None; None if there is none.

        *Example.* Files of seconds 5 and 7200, of the hour from 3600 on and of the day from 0 on:
        the day is followed by second 5, then the hour, then second 7200.
        """
        slots = []
        for least in slots_with(0):
            at = self._place_behind(slot, least)
            if at < len(self._slots) and width_s(self._slots[at]) == width_s(least):
                slots.append(self._slots[at])
        return min(slots, key=by_begin, default=None)

    def _place_behind(self, slot: int | None, least: int) -> int:
        """Where in the order of numbers the slots of a width, of which ``least`` is the first that
        there can be, begin to follow a slot in the order of time."""
        if slot is None:
            return bisect_left(self._slots, least) if is_wide(least) else 0
        begin = first_second(slot)
        if not is_wide(least):
            return bisect_right(self._slots, begin)
        if begin < 0:
            return bisect_left(self._slots, least)
        place = bisect_right if width_s(least) <= width_s(slot) else bisect_left
        return place(self._slots, least + begin)

    def with_rows_of(self, second: int) -> dict[int, SlotInfo]:
        """The files that may have rows of a second, at most one of each width."""
        infos = self._infos
        return {slot: infos[slot] for slot in slots_with(second) if slot in infos}

    def next_slots(self, second: int) -> list[int]:
        """Of each width the first slot with a file that does not end before ``second``. Also behind
        a second before 1970, at which a wheel stands that has delivered nothing yet: if it were
        told that there are none, its mark would move past all that is far."""
        slots = []
        for first in (second, *slots_with(max(second, 0))[1:]):
            at = bisect_left(self._slots, first)
            if at < len(self._slots) and width_s(self._slots[at]) == width_s(first):
                slots.append(self._slots[at])
        return slots

    def within(self, first: int, last: int) -> Iterator[int]:
        """The slots with a file that have seconds from ``first`` to ``last``."""
        for places in places_within(self._slots, first, last):
            yield from self._slots[places]

    def upto(self, second: int) -> list[int]:
        """The slots with a file that begin at ``second`` or before, in the order of numbers."""
        slots: list[int] = []
        for last in slots_with(second):
            first = bisect_left(self._slots, slot_with(0, width_s(last))) if is_wide(last) else 0
            slots += self._slots[first : bisect_right(self._slots, last)]
        return slots

    def with_files(self, changed: Mapping[int, SlotInfo]) -> Catalog:
        """The catalog with these records, in the place of those of the same slots."""
        fresh = [slot for slot in changed if slot not in self._infos]
        before = [self._infos[slot] for slot in changed if slot in self._infos]
        after = changed.values()
        catalog = Catalog()
        catalog._infos = {**self._infos, **changed}
        # Two ascending runs, as slots are spilled in their order: they are merged in one pass.
        catalog._slots = sorted([*self._slots, *fresh]) if fresh else self._slots
        catalog.rows = self.rows + _rows(after) - _rows(before)
        catalog.nbytes = self.nbytes + _nbytes(after) - _nbytes(before)
        return catalog

    def without(self, slots: Iterable[int]) -> Catalog:
        """The catalog without the files of these slots, which it has."""
        gone = set(slots)
        if not gone:
            return self
        last = bisect_right(self._slots, max(gone))
        before = [self._infos[slot] for slot in gone]
        catalog = Catalog()
        catalog._infos = dict(self._infos)
        for slot in gone:
            del catalog._infos[slot]
        # Mostly the oldest go, so little of the list is looked at.
        kept = [slot for slot in self._slots[:last] if slot not in gone]
        catalog._slots = kept + self._slots[last:]
        catalog.rows = self.rows - _rows(before)
        catalog.nbytes = self.nbytes - _nbytes(before)
        return catalog


def _rows(infos: Iterable[SlotInfo]) -> int:
    return sum(info.rows for info in infos)


def _nbytes(infos: Iterable[SlotInfo]) -> int:
    return sum(info.length for info in infos)

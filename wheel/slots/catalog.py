"""The catalog in memory: which slot files there are, in the order of their seconds.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..state import SlotInfo


class Catalog(Mapping[int, SlotInfo]):
    """Records of slot files by second, ascending. ``rows`` and ``nbytes``: of all files together,
    in rows of every kind and in bytes."""

    __slots__ = ("_infos", "_seconds", "nbytes", "rows")

    def __init__(self, infos: Mapping[int, SlotInfo] | None = None) -> None:
        self._infos = dict(infos or {})
        self._seconds = sorted(self._infos)
        self.rows = sum(info.rows for info in self._infos.values())
        self.nbytes = sum(info.length for info in self._infos.values())

    def __getitem__(self, second: int) -> SlotInfo:
        return self._infos[second]

    def __iter__(self) -> Iterator[int]:
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def from_second(self, second: int) -> int | None:
        """The first second with a file that is not before ``second``; None if there is none."""
        at = bisect_left(self._seconds, second)
        return self._seconds[at] if at < len(self._seconds) else None

    def upto(self, second: int) -> Sequence[int]:
        """The seconds with a file up to ``second``, which is among them."""
        return self._seconds[: bisect_right(self._seconds, second)]

    def with_files(self, changed: Mapping[int, SlotInfo]) -> Catalog:
        """The catalog with these records, in the place of those of the same seconds."""
        fresh = [second for second in changed if second not in self._infos]
        before = [self._infos[second] for second in changed if second in self._infos]
        after = changed.values()
        catalog = Catalog()
        catalog._infos = {**self._infos, **changed}
        # Two ascending runs, as slots are spilled in their order: they are merged in one pass.
        catalog._seconds = sorted([*self._seconds, *fresh]) if fresh else self._seconds
        catalog.rows = self.rows + _rows(after) - _rows(before)
        catalog.nbytes = self.nbytes + _nbytes(after) - _nbytes(before)
        return catalog

    def without(self, seconds: Iterable[int]) -> Catalog:
        """The catalog without the files of these seconds, which it has."""
        gone = set(seconds)
        if not gone:
            return self
        last = bisect_right(self._seconds, max(gone))
        before = [self._infos[second] for second in gone]
        catalog = Catalog()
        catalog._infos = dict(self._infos)
        for second in gone:
            del catalog._infos[second]
        # Mostly the oldest go, so little of the list is looked at.
        kept = [second for second in self._seconds[:last] if second not in gone]
        catalog._seconds = kept + self._seconds[last:]
        catalog.rows = self.rows - _rows(before)
        catalog.nbytes = self.nbytes - _nbytes(before)
        return catalog


def _rows(infos: Iterable[SlotInfo]) -> int:
    return sum(info.rows for info in infos)


def _nbytes(infos: Iterable[SlotInfo]) -> int:
    return sum(info.length for info in infos)

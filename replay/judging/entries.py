"""The log as all journals together show it: which entries were read, and which were overruled.

Theory: entries have indexes without a gap, and every journal of a group is a part of one log, but
for ends that a deposed master wrote and its successor overruled. What is judged by the order of
entries needs to know where that order has holes, and which entries are not of it.

*Example.* The master of epoch 3 writes entries 8 and 9 and fails. That of epoch 4 has not got them,
and begins with an 8 of its own: both of epoch 3 are overruled, 9 as well, though there may be no
other 9 yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Self

from ..facts.summary import FileSummary

_LAST = 1 << 63


@dataclass(frozen=True)
class LogSeen:
    """The entries of all journals. ``begins``, ``ends``: of the ranges of indexes that were read,
    apart, ascending. ``epochs``: of each epoch, the lowest index that an entry of it has;
    ascending. ``newest``: how long the newest epoch is known to have gone on, as the times at which
    the first and the last of its rows were accepted, ms; empty: not known."""

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    newest: tuple[int, int] | tuple[()] = ()

    @classmethod
    def of(cls, summaries: Iterable[FileSummary]) -> Self:
        """The log that these files are parts of."""
        ranges: list[tuple[int, int]] = []
        first_of: dict[int, int] = {}
        newest: tuple[int, int, int] | None = None
        for summary in summaries:
            ranges += [(begin, end) for begin, end in summary.indexes]
            for index, epoch in summary.epochs:
                first_of[epoch] = min(index, first_of.get(epoch, index))
            if not summary.newest:
                continue
            epoch, first, last = summary.newest
            if newest is None or epoch > newest[0]:
                newest = epoch, first, last
            elif epoch == newest[0]:
                newest = epoch, min(first, newest[1]), max(last, newest[2])
        joined: list[list[int]] = []
        for begin, end in sorted(ranges):
            if joined and begin <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        return cls(
            tuple(begin for begin, _ in joined),
            tuple(end for _, end in joined),
            tuple(sorted(first_of.items())),
            newest[1:] if newest is not None else (),
        )

    @property
    def is_from_the_begin(self) -> bool:
        """True if the first entry of the log was read."""
        return self.begins[:1] == (1,)

    def range_of(self, index: int) -> int:
        """The number of the range that has an entry; entries of one range have no hole between
        them."""
        return bisect_right(self.begins, index) - 1

    @property
    def last_range(self) -> int:
        """The number of the range in which the log ends."""
        return len(self.begins) - 1

    def is_overruled(self, index: int, epoch: int) -> bool:
        """True if a later epoch has an entry of its own at this index, or before."""
        later = bisect_right(self.epochs, (epoch, _LAST))
        return later < len(self.epochs) and self._lowest_behind[later] <= index

    @cached_property
    def _lowest_behind(self) -> list[int]:
        """The lowest index that an epoch has, or one behind it; in their order."""
        firsts = [first for _, first in reversed(self.epochs)]
        return list(accumulate(firsts, min))[::-1]

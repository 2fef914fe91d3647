"""Sums over rows by the second in which they are due, and the strips that follow from them.

Theory: seconds that share a file are looked at together, as many as have no more bytes than may be
in memory. Which these are follows from the bytes of each second. If a strip was cut by guess and
its rows were counted then, every guess would have to look for them in each block of a day's file.

*Example.* Seconds 5, 6 and 9 have 10, 10 and 30 bytes. The seconds from 0 to 19, cut into strips of
at most 25 bytes, are those from 0 to 8, second 9, which is larger than a strip, and the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..config import TICK_MS
from ..schema import Int64s

_APART_MAX = 1 << 20
"""Entries that ``SecondSums.joined`` keeps apart. Each part of a file of gigabytes may have one for
every second of its day: all of them together would take a gigabyte, too."""


@dataclass(frozen=True, slots=True)
class SecondSums:
    """One sum for each second that has rows. ``seconds``: ascending, since the epoch; ``sums``: of
    whatever is counted; shape (seconds,) both."""

    seconds: Int64s
    sums: Int64s

    @classmethod
    def of(cls, seconds: Int64s, values: Int64s) -> SecondSums:
        """The sums of ``values`` by their ``seconds``, which come in any order and repeat; shape
        (rows,) both."""
        return cls(*summed(seconds, values))

    @classmethod
    def of_sorted(cls, due: Int64s) -> SecondSums:
        """The numbers of rows by their due times in ms, which ascend, shape (rows,)."""
        seconds = due // TICK_MS
        starts = np.flatnonzero(np.diff(seconds, prepend=seconds[:1] - 1))
        return cls(seconds[starts], np.diff(starts, append=len(seconds)))

    @classmethod
    def joined(cls, parts: Iterable[SecondSums]) -> SecondSums:
        """The sums of all parts together."""
        apart, count = [NO_SUMS], 0
        for part in parts:
            apart.append(part)
            count += len(part.seconds)
            if count > _APART_MAX:
                apart, count = [cls._joined(apart)], 0
        return cls._joined(apart)

    @classmethod
    def _joined(cls, parts: list[SecondSums]) -> SecondSums:
        seconds = np.concatenate([part.seconds for part in parts])
        return cls.of(seconds, np.concatenate([part.sums for part in parts]))

    @property
    def size(self) -> int:
        """Bytes that the sums take in memory."""
        return self.seconds.nbytes + self.sums.nbytes

    @property
    def total(self) -> int:
        """The sum over all seconds."""
        return int(self.sums.sum())

    def within(self, seconds: range) -> SecondSums:
        """The sums of these seconds alone."""
        start, stop = self.seconds.searchsorted([seconds.start, seconds.stop])
        return SecondSums(self.seconds[start:stop], self.sums[start:stop])

    def next_second(self, second: int) -> int | None:
        """The first second from ``second`` on that has rows; None if there is none."""
        at = int(self.seconds.searchsorted(second))
        return int(self.seconds[at]) if at < len(self.seconds) else None

    def strip(self, seconds: range, limit: int) -> range:
        """The first of these ``seconds``, as many as have at most ``limit`` together; one at least,
        whatever it has."""
        at = int(self.seconds.searchsorted(seconds.start))
        over = at + int(np.cumsum(self.sums[at:]).searchsorted(limit, side="right"))
        if over == len(self.seconds):
            return seconds
        return seconds[: max(1, int(self.seconds[over]) - seconds.start)]

    def strips(self, seconds: range, limit: int) -> Iterator[range]:
        """All of these ``seconds``, one ``strip`` after the other."""
        while seconds:
            strip = self.strip(seconds, limit)
            yield strip
            seconds = seconds[len(strip) :]


def summed(keys: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """The different keys in ascending order, and the sum of the values of each."""
    different, at = np.unique(keys, return_inverse=True)
    return different, np.bincount(at, values, len(different)).astype(np.int64)


NO_SUMS = SecondSums(np.empty(0, np.int64), np.empty(0, np.int64))

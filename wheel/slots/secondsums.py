"""Sums over rows by the second in which they are due, and the strips that follow from them.

Theory: seconds that share a file are looked at together, as many as have no more bytes than may be
in memory. Which these are follows from the bytes of each second. If a strip was cut by guess and
its rows were counted then, every guess would have to look for them in each block of a day's file.

*Example.* Seconds 5, 6 and 9 have 10, 10 and 30 bytes. The seconds from 0 to 19, cut into strips of
at most 25 bytes, are those from 0 to 8, second 9, which is larger than a strip, and the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..schema import Int64s


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
    def of_slot(
        cls, slot_seconds: range, parts: Iterable[tuple[Int64s, Int64s | int]]
    ) -> SecondSums:
        """The same of the rows of a slot's file, which come in parts. Seconds outside of the slot
        are left out, and those whose sum is 0. In memory are one part and 8 bytes a second: if the
        sums of all parts were joined at the end, those of a file of gigabytes would take a
        gigabyte, as each part may have rows of every second of the day."""
        sums = np.zeros(len(slot_seconds), np.int64)
        for seconds, values in parts:
            at = seconds - slot_seconds.start
            inside = (at >= 0) & (at < len(sums))
            if inside.all():
                np.add.at(sums, at, values)
            else:
                np.add.at(sums, at[inside], np.broadcast_to(values, at.shape)[inside])
        places = np.flatnonzero(sums)
        return cls(places + slot_seconds.start, sums[places])

    @classmethod
    def joined(cls, parts: Sequence[SecondSums]) -> SecondSums:
        """The sums of all parts together."""
        if not parts:
            return NO_SUMS
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

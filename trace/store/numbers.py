"""The numbers of senders that are stored: they show what comes twice, and how much is missing.

Theory: a sender numbers its events from 0 on, so what is stored of it is a few ranges, mostly one.

Rules
- Memory is bounded, whatever is sent: to ``SENDERS_MAX`` senders, those heard of last, and to
  ``RANGES_MAX`` ranges of each. When there are more, the first two become one: 0-4 and 7-9 become
  0-9, and event 5 is dropped if it comes later.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...wheel.schema import Int64s, Mask

SENDERS_MAX = 100_000
RANGES_MAX = 256

NumberRanges = list[tuple[int, int]]
"""Ranges of numbers, ascending and apart, both ends included."""


class SenderNumbers:
    """Tells events that come twice from new ones, by sender and number. ``missing``: how many
    numbers between stored ones, or before the first of a new sender, never came."""

    def __init__(self, senders_max: int = SENDERS_MAX, ranges_max: int = RANGES_MAX) -> None:
        self._senders_max = senders_max
        self._ranges_max = ranges_max
        self._ranges: dict[str, NumberRanges] = {}
        self.missing = 0

    def remember(self, sender: str, ranges: NumberRanges) -> None:
        """Add ranges that a segment has. Numbers before the first of them do not count as missing:
        retention may have deleted them."""
        before = self._ranges.pop(sender, [])
        united = union([*before, *ranges])
        self.missing += _gaps(united) - _gaps(before)
        self._keep(sender, united)

    def add(self, sender: str, numbers: Int64s) -> Mask:
        """Add numbers. The result is true for the first of each that is not stored yet; shape
        (rows,)."""
        before = self._ranges.pop(sender, [])
        new = np.zeros(len(numbers), np.bool_)
        distinct, first = np.unique(numbers, return_index=True)
        if before:
            starts, ends = np.array(before, np.int64).T
            at = np.searchsorted(starts, distinct, "right") - 1
            first = first[(at < 0) | (distinct > ends[np.maximum(at, 0)])]
        new[first] = True
        if new.any():
            added = ranges_of(numbers[new])
            end = before[-1][1] if before else -1
            self.missing += max(0, added[-1][1] - end) - int(new.sum())
            before = union([*before, *added])
        self._keep(sender, before)
        return new

    def _keep(self, sender: str, ranges: NumberRanges) -> None:
        while len(ranges) > self._ranges_max:
            ranges[:2] = [(ranges[0][0], ranges[1][1])]
        if ranges:
            self._ranges[sender] = ranges
        if len(self._ranges) > self._senders_max:
            self._ranges.pop(next(iter(self._ranges)))


def ranges_of(numbers: Int64s) -> NumberRanges:
    """The ranges of at least one number, in any order and each once."""
    ordered = np.sort(numbers)
    ends = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.concatenate([[0], ends + 1])].tolist()
    lasts = ordered[np.concatenate([ends, [len(ordered) - 1]])].tolist()
    return list(zip(firsts, lasts, strict=True))


def union(ranges: Iterable[tuple[int, int]]) -> NumberRanges:
    """Ranges in any order as ranges that are apart."""
    united: NumberRanges = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return united


def _gaps(ranges: NumberRanges) -> int:
    return ranges[-1][1] - ranges[0][0] + 1 - sum(b - a + 1 for a, b in ranges) if ranges else 0

"""Ranges of positions that consumers' sums cover. With 0 to 10 and 15 to 20, five positions are in
no sum: their consumer was killed before it sent them."""

from __future__ import annotations

from collections.abc import Sequence

RANGES_MAX = 1_000


def merge_range(covered: list[tuple[int, int]], start: int, end: int) -> None:
    """Add ``start`` to before ``end`` to sorted ranges that do not touch. The lowest are dropped
    when there are more than ``RANGES_MAX``."""
    kept = []
    for low, high in covered:
        if high < start or low > end:
            kept.append((low, high))
        else:
            start, end = min(start, low), max(end, high)
    kept.append((start, end))
    kept.sort()
    covered[:] = kept[-RANGES_MAX:]


def covered_of(covered: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """The number of positions from ``start`` to before ``end`` that are covered."""
    return sum(max(0, min(high, end) - max(low, start)) for low, high in covered)

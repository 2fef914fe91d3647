"""Facts of neighbouring offsets brought together before they travel.

Theory: a topic holds rows in the order of their due times, so a batch of it has facts of many
ranges of offsets. What is moved between tasks should be few large values, not many small ones, so
facts are gathered here, range by range, until there are enough of one. The total is bounded: at the
bound all ranges are emitted, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from .fact import FACT, Facts, bucket_of, compress

PIECE_BYTES = 1 << 20
HELD_BYTES_MAX = 64 << 20

BucketPiece = tuple[int, int, bytes]
"""Bucket, number of facts, and the facts, packed and compressed."""


class Buckets:
    """Gathers facts by bucket. Not thread-safe. ``piece_bytes``: size at which a bucket is
    emitted."""

    def __init__(self, piece_bytes: int = PIECE_BYTES, held_bytes_max: int = HELD_BYTES_MAX):
        self._piece_bytes = piece_bytes
        self._held_bytes_max = held_bytes_max
        self._held: dict[int, bytearray] = {}
        self._total = 0

    def add(self, facts: Facts) -> Iterator[BucketPiece]:
        """Add facts of any buckets; yields the pieces that are large enough."""
        for bucket, part in _by_bucket(facts):
            held = self._held.setdefault(bucket, bytearray())
            held += part.tobytes()
            self._total += part.nbytes
            if len(held) >= self._piece_bytes:
                yield self._emit(bucket)
        if self._total > self._held_bytes_max:
            yield from self.drain()

    def drain(self) -> Iterator[BucketPiece]:
        for bucket in sorted(self._held):
            yield self._emit(bucket)

    def _emit(self, bucket: int) -> BucketPiece:
        data = self._held.pop(bucket)
        self._total -= len(data)
        return bucket, len(data) // FACT.itemsize, compress(data)


def _by_bucket(facts: Facts) -> Iterator[tuple[int, Facts]]:
    if not len(facts):
        return
    buckets = bucket_of(facts["offset"])
    lowest, highest = int(buckets.min()), int(buckets.max())
    if lowest == highest:
        yield lowest, facts
        return
    # Small numbers are sorted by radix, in one pass over them.
    small = highest - lowest < 1 << 16
    keys = (buckets - lowest).astype(np.uint16) if small else buckets
    order = np.argsort(keys, kind="stable")
    buckets, facts = buckets[order], facts[order]
    edges = [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist(), len(facts)]
    for start, end in pairwise(edges):
        yield int(buckets[start]), facts[start:end]

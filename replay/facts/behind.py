"""Which chunks of a topic have messages that stand behind later ones.

Theory: rows out of order inside a chunk are found while it is read (``chunks.py``). To find those
between chunks, the lowest key of each chunk is compared with the highest key of all chunks that end
before it begins. That is a running maximum over two events a chunk, its begin and its end, in the
order of positions; so the driver knows for each chunk, before any row is judged, the key above
which its rows must be. Most often there is nothing out of order.

Rules
- Chunks that overlap, because the same records were read twice, are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ...wheel.mark import RowKey
from ...wheel.schema import Mask
from .chunks import OrderChunk
from .fact import Facts

NAMED_MAX = 10_000
"""Rows out of order for which the key before them is kept."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A chunk with rows out of order. ``key``: the highest key before it, if the chunk has lower
    ones; else None. ``named``: by position of a row, the highest key before that row; the chunk's
    own list is empty, since each task gets all of this."""

    chunk: OrderChunk
    key: RowKey | None
    named: dict[int, RowKey]

    def has(self, facts: Facts) -> Mask:
        """Which facts are of rows in the chunk."""
        chunk = self.chunk
        found: Mask = (facts["file"] == chunk.number) & (facts["topic"] == chunk.crc)
        found &= (facts["where"] >= chunk.first) & (facts["where"] <= chunk.last)
        if chunk.partition >= 0:
            found &= facts["partition"] == chunk.partition
        return found


def behind(chunks: Iterable[OrderChunk]) -> list[Behind]:
    """Chunks with rows out of order, for the judges; empty if there are none."""
    found: list[Behind] = []
    room = NAMED_MAX
    for _, some in groupby(sorted(chunks, key=_log), key=_log):
        for chunk, highest in _highest_before(list(some)):
            lower = highest is not None and (chunk.low_due, chunk.low_offset) < highest
            if lower or chunk.late:
                named = {position: (due, offset) for position, due, offset in chunk.named[:room]}
                room -= len(named)
                key = highest if lower else None
                found.append(Behind(replace(chunk, named=[]), key, named))
    return found


def _log(chunk: OrderChunk) -> tuple[str, int, int]:
    return chunk.source, chunk.crc, chunk.partition


def _highest_before(chunks: Sequence[OrderChunk]) -> list[tuple[OrderChunk, RowKey | None]]:
    """Each chunk of a log with the highest key of all that end before it begins."""
    ends = sorted(chunks, key=lambda chunk: chunk.last)
    at, highest = 0, None
    found = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.first):
        while ends[at].last < chunk.first:
            key = ends[at].due, ends[at].offset
            highest = key if highest is None else max(highest, key)
            at += 1
        found.append((chunk, highest))
    return found

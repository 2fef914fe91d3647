"""Finds the chunks of a topic with messages that stand behind later ones.

Theory: rows out of order inside a chunk are found while it is read (``chunks.py``). To find those
between chunks, the lowest key of each chunk is compared with the highest key of all chunks that end
before it begins: after a chunk of positions 0 to 9 with rows due up to 50, a row that is due at 40
at position 12 is out of order. So the driver knows for each chunk, before any row is judged, the
key above which its rows must be. Most often there is nothing out of order.

Rules
- Chunks that overlap are not compared: the same records were read twice, and most of them would be
  called out of order.
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
        """True for facts of rows in the chunk; shape of ``facts``."""
        chunk = self.chunk
        inside: Mask = (facts["file"] == chunk.number) & (facts["topic"] == chunk.crc)
        inside &= (facts["where"] >= chunk.first) & (facts["where"] <= chunk.last)
        if chunk.partition >= 0:
            inside &= facts["partition"] == chunk.partition
        return inside


def behind(chunks: Iterable[OrderChunk]) -> list[Behind]:
    """Chunks with rows out of order, for the judges; empty if there are none."""
    disordered: list[Behind] = []
    room = NAMED_MAX
    for _, of_log in groupby(sorted(chunks, key=_log), key=_log):
        for chunk, highest in _highest_before(list(of_log)):
            lower = highest is not None and (chunk.low_due, chunk.low_offset) < highest
            if lower or chunk.late:
                named = {position: (due, offset) for position, due, offset in chunk.named[:room]}
                room -= len(named)
                key = highest if lower else None
                disordered.append(Behind(replace(chunk, named=[]), key, named))
    return disordered


def _log(chunk: OrderChunk) -> tuple[str, int, int]:
    return chunk.source, chunk.crc, chunk.partition


def _highest_before(chunks: Sequence[OrderChunk]) -> list[tuple[OrderChunk, RowKey | None]]:
    """Each chunk of a log with the highest key of all that end before it begins."""
    ends = sorted(chunks, key=lambda chunk: chunk.last)
    at, highest = 0, None
    pairs = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.first):
        while ends[at].last < chunk.first:
            key = ends[at].due, ends[at].offset
            highest = key if highest is None else max(highest, key)
            at += 1
        pairs.append((chunk, highest))
    return pairs

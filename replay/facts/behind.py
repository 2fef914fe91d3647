"""Which chunks of a topic have messages that stand behind later ones.

Theory: inside a chunk whoever read it has found them (``chunks.py``). Between chunks it takes the
highest key of all that end before a chunk begins: is the chunk's lowest key lower? That is a
running maximum over two small events a chunk, its begin and its end, in the order of positions; so
the driver can say of each chunk, before any row is judged, above which key its rows must be. Most
often there is nothing to say.

Rules
- Chunks that overlap, because the same records were read twice, are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...wheel.mark import RowKey
from .chunks import OrderChunk

NAMED_MAX = 10_000
"""Rows of which it is said what they stand behind."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A chunk with rows out of order. ``key``: of the highest one before it, if it has lower ones.
    ``named``: by position, what a row stands behind."""

    number: int
    file: str
    crc: int
    where: str
    partition: int
    first: int
    last: int
    key: RowKey | None = None
    named: dict[int, RowKey] = field(default_factory=dict)


def behind(chunks: Iterable[OrderChunk]) -> list[Behind]:
    """What judges must know: chunks with rows out of order; none when there are none."""
    found: list[Behind] = []
    room = NAMED_MAX
    everywhere = sorted(chunks, key=_log)
    for _, some in groupby(everywhere, key=_log):
        for chunk, highest in _highest_before(list(some)):
            lower = highest is not None and (chunk.low_due, chunk.low_offset) < highest
            if not lower and not chunk.late:
                continue
            named = chunk.named[:room]
            room -= len(named)
            found.append(
                Behind(
                    chunk.number,
                    chunk.file,
                    chunk.crc,
                    f"partition {chunk.partition} of {chunk.topic}"
                    if chunk.partition >= 0
                    else chunk.topic,
                    chunk.partition,
                    chunk.first,
                    chunk.last,
                    highest if lower else None,
                    {position: (due, offset) for position, due, offset in named},
                )
            )
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

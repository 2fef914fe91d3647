"""Lines, which move a mark each, and the chunks in flight on them.

Values only: ``due.py`` moves them, under the owner's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..mark import Mark
from ..schema import Int64s, Mask
from .reader import SlotCursor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to hand to the sink: ROW schema, in ``(due, offset)`` order (late ones: by offset).

    ``topic``: the held-back topic it belongs to, None for the main mark. May have no rows; it has
    to be answered all the same. ``after`` is the mark once every row is answered.
    """

    rows: pa.RecordBatch
    topic: str | None
    before: Mark
    after: Mark


@dataclass(slots=True)
class ChunkInFlight:
    """A chunk in flight with all rows it passes, also those not handed out."""

    chunk: Chunk
    due: Int64s
    offset: Int64s
    late: bool
    kept: Int64s
    """Positions of the rows handed out."""
    cancels: Mask
    """Which rows are cancel rows."""
    gone: Mask
    """Which rows were cancelled."""
    topics: pa.Array
    of_held: dict[str, Int64s]
    """Positions of messages of held-back topics, by topic, with cancelled and answered ones. The
    main line leaves them to the topics' own lines; on such a line they are its own."""

    def mark_before(self, at: int) -> Mark:
        """The mark that covers the rows before position ``at`` of the chunk, and not that row."""
        return mark_before(self.chunk.before, self.due, self.offset, at, self.late)


@dataclass(slots=True)
class Line:
    """What moves a mark: the main mark, of all topics that are not held back (``topic`` None), or
    the copy of it that a held-back topic has."""

    topic: str | None
    mark: Mark
    behind: int = 0
    """Messages of the topic between this line's mark and the main mark, whatever became of them."""
    ahead: set[int] = field(default_factory=set)
    """Offsets that were answered but lie beyond the mark; of its own topic, for one held back."""
    flight: ChunkInFlight | None = None
    cursor: SlotCursor | None = None

    def answered_ahead(self, offset: Int64s) -> Mask:
        """Which rows were answered before, although the mark has not passed them."""
        if not self.ahead:
            return np.zeros(len(offset), np.bool_)
        return np.isin(offset, np.fromiter(self.ahead, np.int64, len(self.ahead)))

    def in_flight(self, due: Int64s, offset: Int64s) -> Mask:
        """Which rows may be in flight, judged by the marks; shape (rows,)."""
        if self.flight is None:
            return np.zeros(len(due), np.bool_)
        chunk = self.flight.chunk
        return chunk.after.covered(due, offset) & ~chunk.before.covered(due, offset)


def mark_before(before: Mark, due: Int64s, offset: Int64s, at: int, late: bool) -> Mark:
    """The mark that covers the rows before position ``at`` of a chunk, and not that row."""
    if late:
        return Mark(before.c, before.r, int(offset[at]) - 1)
    if at == 0:
        return before
    return Mark(int(due[at - 1]), int(offset[at - 1]), before.L)

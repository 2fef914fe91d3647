"""A chunk, which the sink gets and answers, and all rows that it passes while it is in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..mark import Mark
from ..rows import take_rows
from ..schema import Int64s, Mask
from .runs import Skipped


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to hand to the sink, in ``(due, offset)`` order (late ones: by offset): schema ``ROW``,
    with ``CHECK`` behind it where a window had them.

    ``topic``: the held-back topic it belongs to, None for the main mark. May have no rows; it has
    to be answered all the same. ``after`` is the mark once every row is answered.
    """

    rows: pa.RecordBatch
    topic: str | None
    before: Mark
    after: Mark
    ready: Int64s
    """When each row could leave at the earliest, ms: the later of ``due`` and ``created``."""
    read: pa.RecordBatch
    """All rows that were read for it, also those that are not handed out."""
    withdrawn: Int64s
    """Positions in ``read`` of cancelled messages, but for those that another line will pass."""

    @property
    def cancelled(self) -> pa.RecordBatch:
        """The messages that were cancelled."""
        return take_rows(self.read, self.withdrawn)


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
    """True for cancel rows, shape (rows,)."""
    gone: Mask
    """True for rows that were cancelled, shape (rows,)."""
    topics: pa.Array
    of_held: dict[str, Int64s]
    """Positions of messages of held-back topics, by topic, with cancelled and answered ones. The
    main line leaves them to the topics' own lines; on such a line they are its own."""
    skipped: Sequence[Skipped] = ()
    """Further messages of held-back topics that it passes; they were not read."""

    def mark_before(self, at: int) -> Mark:
        """The mark that covers the rows before position ``at`` of the chunk, and not that row."""
        return mark_before(self.chunk.before, self.due, self.offset, at, self.late)


def mark_before(before: Mark, due: Int64s, offset: Int64s, at: int, late: bool) -> Mark:
    """The mark that covers the rows before position ``at`` of a chunk, and not that row."""
    if late:
        return before.upto(int(offset[at]) - 1)
    if at == 0:
        return before
    return before.at(int(due[at - 1]), int(offset[at - 1]))

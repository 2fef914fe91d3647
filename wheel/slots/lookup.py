"""Rows that are looked up by their ids: which of them cancel rows name, and what their topics are.

Theory: a request names up to 10,000 messages, of as many seconds, and the seconds of a year lie in
365 files of a day. A look-up that went through the seconds would read such a file once for each
second of it. So it goes through the files, and each is read once for all rows that it may have.

Rules
- A look-up is of one instant: catalog and tail are taken together, so that a row that a spill moves
  meanwhile is not missed in both.
- A row may be in one file and the cancel of it in another one, which was spilled later. It is named
  if any of them names it. What a damaged file may have had is not known of its rows alone.
- An id stands for the row of its offset that is due in its second. Another row of that offset was
  accepted by a master whose rows were lost.

All of it reads files, so the owner's lock is not held.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..config import TICK_MS
from ..errors import Damaged
from ..journal.payloads import CancelRows
from ..rows import members
from ..schema import Int64s, Mask, times
from ..state import SlotInfo
from .slot import rows_by_slot
from .storage import Storage


def cancelled_rows(
    storage: Storage, due: Int64s, offset: Int64s, *, in_tail: bool
) -> tuple[Mask, Mask]:
    """Two masks of rows by their due times (ms) and offsets, shape (rows,) all: those that a cancel
    row in a slot file names, and those of which that is not known, as a file is damaged.
    ``in_tail``: cancels in the tail count, too."""
    point = storage.whole_point()
    named, unknown = np.zeros(len(due), np.bool_), np.zeros(len(due), np.bool_)
    if in_tail:
        parts = [
            CancelRows.of(piece.rows, piece.base_offset) for piece in point.pieces if piece.cancels
        ]
        named |= _named(CancelRows.joined(parts).by_target(), due, offset)
    for slot, at in rows_by_slot(point.files, due):
        try:
            cancels = storage.file_cancels.of(slot, point.files[slot])
            named[at] |= _named(cancels, due[at], offset[at])
        except Damaged:
            unknown[at] = True
    return named, unknown & ~named


def _named(cancels: CancelRows, due: Int64s, offset: Int64s) -> Mask:
    """The mask of the rows that cancel rows, in the order of their targets, name."""
    named, second = np.zeros(len(due), np.bool_), due // TICK_MS
    first = cancels.target.searchsorted(offset)
    stop = cancels.target.searchsorted(offset, side="right")
    # Mostly there is one at most: an offset has others only by ids of rows that were lost.
    for step in range(int((stop - first).max(initial=0))):
        at = np.minimum(first + step, stop - 1)
        named |= (first + step < stop) & (cancels.due[at] // TICK_MS == second)
    return named


def _pairs(due: Int64s, offset: Int64s) -> zip[tuple[int, int]]:
    """The second and the offset of each row."""
    return zip((due // TICK_MS).tolist(), offset.tolist(), strict=True)


def topics_of(storage: Storage, due: Int64s, offset: Int64s) -> npt.NDArray[np.object_]:
    """The topics of rows by their due times (ms) and offsets, shape (rows,) all; an empty one for a
    row that is nowhere any more, None for one that may be in a damaged file."""
    point = storage.whole_point()
    topics = np.full(len(due), "", object)
    missing = np.ones(len(due), np.bool_)
    for piece in point.pieces:
        at = np.flatnonzero((offset >= piece.base_offset) & (offset < piece.next_offset))
        rows = offset[at] - piece.base_offset
        real = piece.due[rows] // TICK_MS == due[at] // TICK_MS
        at, rows = at[real], rows[real]
        if len(at):
            column = piece.take(rows).column("topic")
            topics[at], missing[at] = column.to_numpy(zero_copy_only=False), False
    for slot, among in rows_by_slot(point.files, due):
        info = point.files[slot]
        at = among[missing[among] & (offset[among] <= info.highest)]
        if not len(at):
            continue
        try:
            known = _topics_in(storage, slot, info, np.unique(offset[at]))
        except Damaged:
            topics[at] = None
            continue
        for row, pair in zip(at.tolist(), _pairs(due[at], offset[at]), strict=True):
            if pair in known:
                topics[row], missing[row] = known[pair], False
    return topics


def _topics_in(
    storage: Storage, slot: int, info: SlotInfo, offsets: Int64s
) -> dict[tuple[int, int], str]:
    """By second and offset, the topics of the rows of a slot's file with these ascending offsets.
    Errors: ``Damaged``."""
    topics: dict[tuple[int, int], str] = {}
    for block in storage.select(slot, info, lambda index: index.with_any_of(offsets)):
        rows = np.flatnonzero(members(offsets, times(block, "offset")))
        if len(rows):
            pairs = _pairs(times(block, "due")[rows], times(block, "offset")[rows])
            topics.update(zip(pairs, block.column("topic").take(rows).to_pylist(), strict=True))
    return topics

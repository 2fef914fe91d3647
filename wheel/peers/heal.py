"""A damaged slot file is made anew from the rows of a peer.

Theory: peers hold the same committed rows, but spill at moments of their own, so their slot files
need not be the same and one may still have in its tail what the other has in the file. What they
have in common is the log. So a peer is asked for rows, not for a file: for those of one second
below an offset, the one up to which the asking peer has spilled. Together with rows that were lost
before, they are what its file must hold, and its catalog has their number.

Rules
- A peer answers only when it has committed everything below that offset: before, rows are missing.
- Rows that every mark covers may be missing: one peer drops them before a spill, another one after
  it. Only when delivery has reached the slot may the counts differ for that reason.
- Rows that a repair gave up on the answering peer are missing there for good, and so they are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..due.runs import source_of_piece
from ..errors import Damaged
from ..findings import CheckedFile
from ..mark import Marks
from ..rows import sort_rows, take_rows
from ..schema import times
from ..slots.blocks import check_block
from ..slots.slot import begins_ms, ends_ms, path_of
from ..slots.storage import Storage
from ..state import Loss, SlotInfo


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of one second below an offset, as blocks of a slot file: ROW schema, each sorted,
    their offsets ascending from block to block. ``losses``: what repairs gave up of it."""

    second: int
    blocks: Sequence[pa.RecordBatch]
    losses: Sequence[Loss] = ()

    def check(self, info: SlotInfo, upto: int, marks: Marks, given_up: Sequence[Loss] = ()) -> None:
        """Raise if a row has an offset of ``upto`` or above or, before delivery by ``marks`` has
        come to the slot, if rows or cancels are not as many as ``info`` and ``given_up`` (lost here
        before) say: what a peer lacks would be lost here, too. Later, rows that have left may be
        missing.

        Errors: ``Damaged``: the peers do not have the same rows.
        """
        item = CheckedFile("slot", f"what a peer has of {path_of(self.second)}")
        highest = -1
        for block in self.blocks:
            highest = check_block(item, 0, block, self.second, highest)
        if highest >= upto:
            item.fault(0, f"offsets below {upto}", highest)
        if marks.main.furthest_ms < begins_ms(self.second):
            rows = sum(block.num_rows for block in self.blocks)
            cancels = sum(block.column("cancels").is_valid().true_count for block in self.blocks)
            item.expect(0, "rows", info.rows + _rows(given_up), rows + _rows(self.losses))
            item.expect(
                0, "cancel rows", info.cancels + _cancels(given_up), cancels + _cancels(self.losses)
            )
        for fault in item.faults[:1]:
            remedy = "Stop both nodes and run 'slotwheel verify --against' on them"
            raise Damaged(item.path, 0, expected=fault.expected, found=fault.found, remedy=remedy)


def _rows(losses: Sequence[Loss]) -> int:
    return sum(loss.rows for loss in losses)


def _cancels(losses: Sequence[Loss]) -> int:
    return sum(loss.cancels for loss in losses)


def uncounted(losses: Sequence[Loss]) -> tuple[int, int]:
    """The number of rows, and of cancel rows among them, that losses took from the counters."""
    taken = [loss for loss in losses if not loss.at_most]
    return _rows(taken), _cancels(taken)


def rows_below(storage: Storage, second: int, upto: int) -> list[pa.RecordBatch]:
    """The rows of a second with offsets below ``upto``, from file and tail. Errors: ``Damaged``."""
    point = storage.read_point(second)
    blocks = []
    for block in storage.read_second(second, point.files):
        below = np.flatnonzero(times(block, "offset") < upto)
        blocks.append(block if len(below) == block.num_rows else take_rows(block, below))
    parts = []
    for piece in point.pieces:
        source = source_of_piece(piece, begins_ms(second), ends_ms(second), point.spilled)
        if source is None or piece.base_offset >= upto:
            continue
        at = np.sort(source.offset[source.offset < upto]) - piece.base_offset
        parts.append(piece.take(at))
    if parts:
        blocks.append(sort_rows(pa.concat_batches(parts)))
    return [block for block in blocks if block.num_rows]

"""Damaged slot files are made anew from the rows of a peer.

Theory: peers hold the same committed rows, but spill at moments of their own, so their slot files
need not be the same: what one has in the file of a day, the other may have in those of its hours
and seconds, or still in its tail. What they have in common is the log. So a peer is asked for rows,
not for a file: for those that are due in the time of the damaged one, below the offset up to which
the asking peer has spilled. What none of its own sound files has is what the damaged one had.

    a peer's rows due in the day  -  those in own files of its hours and seconds  =  the day's file

Of two damaged files, one with the hours of the other, nobody can say which row was in which. They
are made anew together, as one file of the wider: any file may have a row that is due in its time.

Rules
- A peer answers only when it has committed everything below that offset: before, rows are missing.
- Rows that every mark covers may be missing: one peer drops them before a spill, another one after
  it, and narrow files are deleted while the file of the day is still needed. Only when delivery has
  reached the damaged slot may the counts differ for that reason.
- Rows that a repair gave up on the answering peer are missing there for good, and so they are here.
- Rows come in shares by offset (``shares.py``), and each becomes a block of the new file: memory is
  bounded, however much is due in a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..errors import Damaged
from ..files import Files
from ..findings import CheckedFile
from ..rows import sort_rows, take_rows
from ..schema import times
from ..slots.blocks import check_block
from ..slots.mend import StagedFile, in_shares
from ..slots.slot import begins_ms, ends_ms, nested, path_of
from ..slots.storage import Storage
from ..state import Loss, SlotInfo
from .shares import rows_beside


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Damaged slot files that are made anew as one. ``slot``: the widest of them, which has the
    times of all; ``files``: all of them, as the catalog has them; ``upto``: rows below this offset
    are theirs."""

    slot: int
    upto: int
    files: Mapping[int, SlotInfo]

    @property
    def paths(self) -> list[str]:
        return [path_of(slot) for slot in self.files]


def damaged_ranges(storage: Storage) -> list[DamagedRange]:
    """The damaged slot files of a storage, in the order of time. The caller holds the lock."""
    catalog, upto = storage.catalog, storage.spilled
    return [
        DamagedRange(slot, upto, {at: catalog[at] for at in inside})
        for slot, inside in nested(storage.damaged).items()
    ]


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of a slot's time below an offset, as blocks of a slot file: ROW schema, each sorted,
    their offsets ascending from block to block. ``losses``: what repairs gave up of that time.
    ``close``: ends the connection that the blocks come over, also when not all of them came."""

    slot: int
    blocks: Iterable[pa.RecordBatch]
    losses: Sequence[Loss] = ()
    close: Callable[[], None] = lambda: None


class Mending:
    """The file that takes the place of a damaged range, while a peer's rows come in. One thread."""

    def __init__(self, storage: Storage, files: Files, damaged: DamagedRange) -> None:
        """Read which rows the sound files of that time have. Errors: ``Damaged``: one of them is
        damaged, too; ``OSError``."""
        self.damaged = damaged
        self._slot_files = storage.slot_files
        self._beside = rows_beside(storage, damaged.slot, damaged.upto, damaged.files)
        self._item = CheckedFile("slot", f"what a peer has of {path_of(damaged.slot)}")
        self._highest = -1
        self.staged = StagedFile(files, damaged.slot)

    def add(self, block: pa.RecordBatch) -> None:
        """Take the next block of ``SlotRows``. Errors: ``Damaged``: it is none of this time, or out
        of order; ``OSError``."""
        slot, upto = self.damaged.slot, self.damaged.upto
        before = self._highest
        self._highest = check_block(self._item, 0, block, slot, before)
        if self._highest >= upto:
            self._item.fault(0, f"offsets below {upto}", self._highest)
        raise_fault(self._item)
        own = self._beside.offsets(before + 1, self._highest)
        lacking = ~np.isin(times(block, "offset"), own)
        if lacking.all():
            self.staged.add(block)
        elif lacking.any():
            self.staged.add(take_rows(block, np.flatnonzero(lacking)))

    def add_all(self, rows: SlotRows) -> None:
        """``add`` for each block."""
        for block in rows.blocks:
            self.add(block)

    def add_grown(self, now: DamagedRange) -> None:
        """Take what the damaged files have got since, by spills of rows that no peer was asked for.
        Errors: ``Damaged``: that is damaged, too; ``OSError``."""
        grown = [
            block
            for slot, info in now.files.items()
            for block in self._slot_files.read(slot, info, self.damaged.files[slot])
        ]
        if grown:
            for block in in_shares(sort_rows(pa.concat_batches(grown))):
                self.staged.add(block)

    def close(self) -> None:
        self.staged.close()


def losses_after(
    damaged: DamagedRange,
    made: SlotInfo,
    losses: Sequence[Loss],
    there: Sequence[Loss],
    *,
    reached: bool,
) -> list[Loss]:
    """What is lost here once ``made`` has taken the place of a damaged range. ``losses``: what is
    now; ``there``: what the answering peer has lost of that time. ``reached``: delivery has come to
    the range, so that what has left may be missing.

    Before, each row that the damaged files had, or that was given up here, is there or was given up
    by the peer. More rows than that can only be such as a wider file here has lost.

    Errors: ``Damaged``: the peers do not have the same rows; what a peer lacks would be lost here,
    too.
    """
    inside = [loss for loss in losses if is_within(loss.slot, damaged.slot)]
    others = [loss for loss in losses if loss not in inside]
    if reached:
        return others + _of_range(damaged, there, None)
    had = damaged.files.values()
    missing = _Counts(
        sum(info.rows for info in had) + sum(loss.rows for loss in inside) - made.rows,
        sum(info.cancels for info in had) + sum(loss.cancels for loss in inside) - made.cancels,
    )
    wider = [loss for loss in others if is_within(damaged.slot, loss.slot)]
    item = CheckedFile("slot", f"what a peer has of {path_of(damaged.slot)}")
    for name, lacking, given_up, regained in (
        ("rows", missing.rows, _rows(there), _rows(wider)),
        ("cancel rows", missing.cancels, _cancels(there), _cancels(wider)),
    ):
        if not -regained <= lacking <= given_up:
            limits = f"{name}: at most {given_up} less than there were, and {regained} more"
            item.fault(0, limits, f"{abs(lacking)} {'less' if lacking > 0 else 'more'}")
    raise_fault(item)
    if missing.rows < 0:
        return _regained(others, wider, -missing.rows, max(0, -missing.cancels))
    return others + (_of_range(damaged, there, missing) if missing.rows else [])


@dataclass(frozen=True, slots=True)
class _Counts:
    rows: int
    cancels: int


def _of_range(damaged: DamagedRange, there: Sequence[Loss], missing: _Counts | None) -> list[Loss]:
    """The losses of a peer as those of a range here, ``missing``: if it is known how much."""
    exact = all(is_within(loss.slot, damaged.slot) for loss in there)
    rows, cancels = _rows(there), _cancels(there)
    if exact and missing in (None, _Counts(rows, cancels)):
        return [replace(loss, kept="") for loss in there]
    if missing is None:
        return [Loss(damaged.slot, rows, cancels, at_most=True)]
    at_most = any(loss.at_most for loss in there)
    return [Loss(damaged.slot, missing.rows, max(0, missing.cancels), at_most=at_most)]


def _regained(losses: Sequence[Loss], wider: Sequence[Loss], rows: int, cancels: int) -> list[Loss]:
    """``losses``, of which so many rows of the ``wider`` ones are there again."""
    left = []
    for loss in losses:
        again = again_cancels = 0
        if loss in wider:
            again, again_cancels = min(rows, loss.rows), min(cancels, loss.cancels)
            rows, cancels = rows - again, cancels - again_cancels
        if loss.rows > again:
            fewer, fewer_cancels = loss.rows - again, loss.cancels - again_cancels
            left.append(replace(loss, rows=fewer, cancels=fewer_cancels))
    return left


def is_within(slot: int, other: int) -> bool:
    """True if all times of a slot are in those of another one."""
    return begins_ms(other) <= begins_ms(slot) and ends_ms(slot) <= ends_ms(other)


def losses_of(losses: Iterable[Loss], slot: int) -> list[Loss]:
    """Those of ``losses`` that may be of the time of a slot."""
    return [loss for loss in losses if is_within(loss.slot, slot) or is_within(slot, loss.slot)]


def raise_fault(item: CheckedFile) -> None:
    """Raise the first fault of what a peer has sent, if there is one. Errors: ``Damaged``."""
    for fault in item.faults[:1]:
        remedy = "Stop both nodes and run 'slotwheel verify --against' on them"
        raise Damaged(item.path, 0, expected=fault.expected, found=fault.found, remedy=remedy)


def _rows(losses: Iterable[Loss]) -> int:
    return sum(loss.rows for loss in losses)


def _cancels(losses: Iterable[Loss]) -> int:
    return sum(loss.cancels for loss in losses)


def uncounted(losses: Iterable[Loss]) -> tuple[int, int]:
    """The number of rows, and of cancel rows among them, that losses took from the counters."""
    taken = [loss for loss in losses if not loss.at_most]
    return _rows(taken), _cancels(taken)

"""Gathering the tail for a spill: rows of many pieces, in slot order, a range of slots at a time.

Theory: a spill is one sort and one append a slot. Gathering everything in one piece would take
three times the tail; gathering by ranges of slots takes a fraction of it on top. Each piece is
sorted by due time once (64-bit keys of due time and row, so that the vectorised sort of NumPy
applies); for a range, its part of every piece is taken, joined and put in order.

All heavy work here runs in NumPy and Arrow, outside the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .config import TICK_MS
from .rows import take_rows
from .schema import Int64s, times
from .slotfile import encode_block
from .tail import Piece, offsets_of

_RANGE_BYTES = 8 << 20
"""About how much is gathered at a time. No buffer is larger then: jemalloc gives larger ones back
to the kernel at once, and the next range would pay for each of their pages again."""

Covered = Callable[[Int64s, Int64s], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one slot, sorted by ``(due, offset)``, ROW schema."""

    second: int
    rows: pa.RecordBatch
    data: pa.Buffer
    """The rows as they stand in a slot file."""
    cancels: int
    highest: int
    """The highest offset."""


@dataclass(slots=True)
class _Sorted:
    piece: Piece
    due: Int64s
    indices: Int64s


def _sorted_rows(piece: Piece, covered: Covered) -> _Sorted:
    """The rows of a piece that are not covered, in due order."""
    keep = np.flatnonzero(~covered(piece.due, offsets_of(piece)))
    due = piece.due[keep]
    if not len(keep):
        return _Sorted(piece, due, keep)
    indices = keep[_order(due)]
    return _Sorted(piece, piece.due[indices], indices)


def _order(due: Int64s) -> Int64s:
    """The stable order of due times (at least one), shape (rows,)."""
    relative = due - int(due.min())
    if int(relative.max()) >> 31:
        return np.argsort(due, kind="stable")
    # One sort of (due, place) packed into 64 bits is several times faster than an argsort.
    relative <<= 32
    relative |= np.arange(len(due))
    relative.sort()
    relative &= 0xFFFFFFFF
    return relative


Ahead = Callable[[Iterator[list[Block]]], Iterator[list[Block]]]
"""Gives back what it is given, and may work on the next items while the caller uses the last one:
how, and on which thread, is the caller's business."""


def in_turn(made: Iterator[list[Block]]) -> Iterator[list[Block]]:
    return made


def blocks(pieces: Sequence[Piece], covered: Covered, ahead: Ahead = in_turn) -> Iterator[Block]:
    """The uncovered rows of ``pieces`` as blocks, in slot order, each slot once."""
    for found in ahead(_by_range(pieces, covered)):
        yield from found


def _by_range(pieces: Sequence[Piece], covered: Covered) -> Iterator[list[Block]]:
    parts = [_sorted_rows(piece, covered) for piece in pieces]
    parts = [part for part in parts if len(part.indices)]
    for low, high in _ranges(parts):
        yield _blocks_of(parts, low, high)


def _blocks_of(parts: Sequence[_Sorted], low: int, high: int) -> list[Block]:
    """The blocks of the seconds ``low`` to ``high``."""
    rows = _gather(parts, low * TICK_MS, high * TICK_MS)
    if rows is None:
        return []
    second = times(rows, "due") // TICK_MS
    starts = [0, *(np.flatnonzero(np.diff(second)) + 1).tolist()]
    highest = np.maximum.reduceat(times(rows, "offset"), starts).tolist()
    found = []
    for start, stop, last in zip(starts, [*starts[1:], rows.num_rows], highest, strict=True):
        block = rows.slice(start, stop - start)
        cancels = block.num_rows - block.column("cancels").null_count
        found.append(Block(int(second[start]), block, encode_block(block), cancels, last))
    return found


def _ranges(parts: Sequence[_Sorted]) -> list[tuple[int, int]]:
    """Ranges of seconds, each with about ``_RANGE_BYTES`` of rows."""
    if not parts:
        return []
    rows = sum(len(part.indices) for part in parts)
    nbytes = sum(
        part.piece.nbytes * len(part.indices) // part.piece.rows.num_rows for part in parts
    )
    pieces = max(1, -(-nbytes // _RANGE_BYTES))
    # Quantiles of a sample: exact borders do not matter, an even share does.
    step = max(1, rows // 65_536)
    sample = np.sort(np.concatenate([part.due[::step] for part in parts])) // TICK_MS
    low, high = int(sample[0]), max(int(part.due[-1]) for part in parts) // TICK_MS + 1
    low = min(low, min(int(part.due[0]) for part in parts) // TICK_MS)
    inner = [int(sample[len(sample) * n // pieces]) for n in range(1, pieces)]
    borders = sorted({low, high, *(b for b in inner if low < b < high)})
    return list(pairwise(borders))


def _gather(parts: Sequence[_Sorted], low: int, high: int) -> pa.RecordBatch | None:
    taken = []
    due = []
    for part in parts:
        start, stop = np.searchsorted(part.due, [low, high])
        if stop > start:
            taken.append(part.piece.take(part.indices[start:stop]))
            due.append(part.due[start:stop])
    if len(taken) <= 1:
        return taken[0] if taken else None
    # Parts are in offset order, and so are rows of one due time within a part.
    order = _order(np.concatenate(due))
    return take_rows(pa.concat_batches(taken), order)

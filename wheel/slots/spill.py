"""Gathering the tail for a spill: rows of many pieces, in slot order, a range of slots at a time.

Theory: a spill is one sort, and one append for each slot. The pieces are first copied into one
batch: to select the rows of a range of slots from each piece would cost twice as much as all the
rest. The batch is sorted by due time (64-bit keys of due time and row, for NumPy's vectorised
sort). Then its rows are selected and encoded, a range of slots after the other, in little memory.
So a spill needs, for about a second, as much memory again as it spills, without the rows that the
marks cover.

A range does not end inside of a slot, but all of a tail may be due in one day, or in one second. So
the rows of a slot are cut by offset where they are many: each share becomes a block of its own,
whose offsets are above those of the share before. With one block a spill of 128 MiB would need
three times that, and who wants one row of the block would have to map it whole. What counts are
bytes, not rows: a few large messages among many small ones would else come into one share.

*Example.* All rows of a tail are due in one day: rows of offsets 0 to 39,999 have 5 MiB, the next
20,000 as well, as they are larger. They become two blocks, each sorted, both of any hour.

All heavy work here runs in NumPy and Arrow, outside the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..config import TICK_MS
from ..rows import take_rows
from ..schema import ROW_BYTES, Int64s, lengths, sizes, times
from ..tail.tail import Piece, offsets_of, with_offsets
from .blocks import encode_blocks
from .slot import Widths, first_second, is_wide, width_s

_RANGE_BYTES = 5 << 20
"""Bytes of a range, about. No buffer exceeds 8 MiB then: jemalloc returns larger ones to the kernel
at once, and the next range would pay for each of their pages again."""
_SECOND_SHARES = 4
"""The rows of a second become about so many blocks at most. Delivery merges the rows of a second
out of its blocks: a million of one millisecond take 0.4 s of processor time out of one block, 0.55
out of four, and 1.6 out of 27. Those of an hour or a day are merged in strips, ahead of time."""
_JOIN_BYTES = 256 << 20
"""The largest batch that pieces are copied into: Arrow's offsets have 31 bits."""

_EVERY_OFFSET = range((1 << 63) - 1)

Covered = Callable[[Int64s, Int64s], npt.NDArray[np.bool_]]
"""From due times (ms) and offsets to the mask of rows that the marks cover, shape (rows,) each."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one slot, sorted by ``(due, offset)``."""

    slot: int
    rows: int
    """The number of rows."""
    data: memoryview
    """The rows as they stand in a slot file, ROW schema."""
    cancels: int
    """The number of cancel rows among them."""
    highest: int
    """The highest offset among them."""


def block_of(slot: int, rows: pa.RecordBatch) -> Block:
    """Rows of one slot (ROW schema, sorted, at least one) as one block."""
    [data] = encode_blocks(rows, [0])
    cancels = rows.num_rows - rows.column("cancels").null_count
    return Block(slot, rows.num_rows, data, cancels, int(times(rows, "offset").max()))


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The uncovered rows of several pieces, and their ``(due, offset)`` order.

    ``rows``: PAYLOAD schema. ``due``, ``offset``, ``nbytes`` (of each row, about) in that order,
    ``indices`` (into ``rows``): shape (rows,).
    """

    rows: pa.RecordBatch
    due: Int64s
    offset: Int64s
    nbytes: Int64s
    indices: Int64s

    def span(self, low: int, high: int) -> slice:
        """The rows due at ``low <= due < high``, in ms."""
        start, stop = np.searchsorted(self.due, [low, high]).tolist()
        return slice(start, stop)

    def take(self, at: slice | Int64s) -> pa.RecordBatch:
        """Some rows in that order, ROW schema."""
        return with_offsets(take_rows(self.rows, self.indices[at]), self.offset[at])


def _sorted_rows(pieces: Sequence[Piece], covered: Covered) -> _Sorted | None:
    """The rows that are not covered, None if there are none. Pieces are in offset order."""
    rows: list[pa.RecordBatch] = []
    due: list[Int64s] = []
    offset: list[Int64s] = []
    for piece in pieces:
        offsets = offsets_of(piece)
        keep = np.flatnonzero(~covered(piece.due, offsets))
        if not len(keep):
            continue
        every = len(keep) == len(offsets)
        rows.append(piece.rows if every else take_rows(piece.rows, keep))
        due.append(piece.due[keep])
        offset.append(offsets[keep])
    if not rows:
        return None
    joined = np.concatenate(due)
    indices = _order(joined)
    whole = pa.concat_batches(rows)
    nbytes = sizes(whole) + lengths(whole.column("topic")) + ROW_BYTES
    return _Sorted(
        whole, joined[indices], np.concatenate(offset)[indices], nbytes[indices], indices
    )


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.nbytes > _JOIN_BYTES:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.nbytes
    if group:
        yield group


def _order(due: Int64s) -> Int64s:
    """The stable order of due times (at least one), shape (rows,)."""
    place_bits = len(due).bit_length()
    relative = due - int(due.min())
    if int(relative.max()) >> (63 - place_bits):
        return np.argsort(due, kind="stable")
    # One sort of (due, place) packed into 64 bits takes a fifteenth of an argsort. A million rows
    # leave 43 bits for due times that are 278 years apart.
    relative <<= place_bits
    relative |= np.arange(len(due))
    relative.sort()
    relative &= (1 << place_bits) - 1
    return relative


Ahead = Callable[[Iterator[list[Block]]], Iterator[list[Block]]]
"""Yields the items of an iterator, and may make the next ones, on another thread, while the last
one is in use. The node brings one; the engine itself starts no thread."""


def in_turn(made: Iterator[list[Block]]) -> Iterator[list[Block]]:
    return made


def blocks(
    pieces: Sequence[Piece], covered: Covered, widths: Widths, ahead: Ahead = in_turn
) -> Iterator[Block]:
    """The uncovered rows of ``pieces`` as blocks, in slot order: one a slot, of a slot with many
    rows several, in the order of offsets."""
    for encoded in ahead(_by_range(pieces, covered, widths)):
        yield from encoded


def _by_range(pieces: Sequence[Piece], covered: Covered, widths: Widths) -> Iterator[list[Block]]:
    sorted_rows = [_sorted_rows(group, covered) for group in _groups(pieces)]
    parts = [part for part in sorted_rows if part is not None]
    for low, high in _ranges(parts, widths):
        for offsets in _shares(parts, low * TICK_MS, high * TICK_MS, widths):
            yield _blocks_of(parts, low * TICK_MS, high * TICK_MS, offsets, widths)


def _blocks_of(
    parts: Sequence[_Sorted], low: int, high: int, offsets: range, widths: Widths
) -> list[Block]:
    rows = _gather(parts, low, high, offsets)
    if rows is None:
        return []
    slots = widths.slots(times(rows, "due"))
    starts = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist()]
    highest = np.maximum.reduceat(times(rows, "offset"), starts)
    cancels = np.add.reduceat(np.asarray(rows.column("cancels").is_valid(), np.int64), starts)
    counts = np.diff([*starts, rows.num_rows])
    columns = (column.tolist() for column in (slots[starts], counts, cancels, highest))
    return [
        Block(at, count, data, cancelling, last)
        for at, count, cancelling, last, data in zip(
            *columns, encode_blocks(rows, starts), strict=True
        )
    ]


def _ranges(parts: Sequence[_Sorted], widths: Widths) -> list[tuple[int, int]]:
    """Ranges of seconds, each with about ``_RANGE_BYTES`` of rows, or up to three times as many:
    none ends inside of a slot, or the slot would get two blocks whose offsets interleave. A slot
    with more rows is a range of its own."""
    if not parts:
        return []
    rows = sum(len(part.due) for part in parts)
    # Borders by a sample: they need not be exact.
    step = max(1, rows // 65_536)
    due = np.concatenate([part.due[::step] for part in parts])
    nbytes = np.concatenate(
        [np.add.reduceat(part.nbytes, np.arange(0, len(part.due), step)) for part in parts]
    )
    order = np.argsort(due)
    at = _cuts(nbytes[order], _RANGE_BYTES)
    low = min(int(part.due[0]) for part in parts) // TICK_MS
    high = max(int(part.due[-1]) for part in parts) // TICK_MS + 1
    slots, counts = np.unique(widths.slots(due[order[at]]), return_counts=True)
    borders = {low, high}
    for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
        borders.add(first_second(slot))
        if count > 1:
            borders.add(first_second(slot) + width_s(slot))
    return list(pairwise(sorted(border for border in borders if low <= border <= high)))


def _cuts(nbytes: Int64s, part_bytes: int) -> Int64s:
    """The places, ascending, that cut rows with ``nbytes`` each into parts of ``part_bytes``, or
    less than a row more; shape (parts - 1,)."""
    sums = np.cumsum(nbytes)
    return np.unique(np.searchsorted(sums, np.arange(part_bytes, int(sums[-1]), part_bytes)))


def _shares(parts: Sequence[_Sorted], low: int, high: int, widths: Widths) -> list[range]:
    """Ranges of offsets, each with about ``_RANGE_BYTES`` of the rows due at ``low <= due < high``
    (ms), if these are of one slot and more than twice as many; else all offsets. Of a slot of a
    second, ranges have a share of what is spilled, if that is more."""
    first, last = widths.slots(np.array([low, high - 1], np.int64)).tolist()
    spans = [(part, part.span(low, high)) for part in parts]
    nbytes = np.concatenate([part.nbytes[at] for part, at in spans])
    share_bytes = _RANGE_BYTES
    if not is_wide(first):
        every = sum(int(part.nbytes.sum()) for part in parts)
        share_bytes = max(share_bytes, -(-every // _SECOND_SHARES))
    if first != last or nbytes.sum() <= 2 * share_bytes:
        return [_EVERY_OFFSET]
    offsets = np.concatenate([part.offset[at] for part, at in spans])
    order = np.argsort(offsets)
    inner = offsets[order[_cuts(nbytes[order], share_bytes)]].tolist()
    borders = sorted({0, *inner, _EVERY_OFFSET.stop})
    return [range(start, stop) for start, stop in pairwise(borders)]


def _gather(parts: Sequence[_Sorted], low: int, high: int, offsets: range) -> pa.RecordBatch | None:
    """The rows due at ``low <= due < high`` (ms) with these offsets; None if there are none."""
    taken = []
    due = []
    for part in parts:
        span = part.span(low, high)
        at: slice | Int64s = span
        if offsets != _EVERY_OFFSET:
            offset = part.offset[span]
            at = np.flatnonzero((offset >= offsets.start) & (offset < offsets.stop)) + span.start
        due_of_part = part.due[at]
        if len(due_of_part):
            taken.append(part.take(at))
            due.append(due_of_part)
    if len(taken) <= 1:
        return taken[0] if taken else None
    # Parts are in offset order, and so are rows of one due time within a part.
    order = _order(np.concatenate(due))
    return take_rows(pa.concat_batches(taken), order)

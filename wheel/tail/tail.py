"""The tail: committed rows that are not in slot files yet, in memory.

Theory: rows come in entries of any size, from one row up. A batch of one row costs 6 KiB of Arrow
bookkeeping, so entries are coalesced into *pieces*, level by level (a piece of level n+1 is made of
``_FAN`` pieces of level n, up to about 4 MiB). Every row is copied a few times at most, and the
number of pieces stays small however small the entries are.

Rules
- A piece is immutable. ``pieces`` is a tuple that is replaced, never changed: a reader that holds
  one sees a consistent tail for as long as it likes.
- Offsets are consecutive inside a piece; pieces are in offset order.
- ``publish`` is called under the owner's lock; readers need no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ..rows import from_numpy, take_rows
from ..schema import ROW, Int64s, bounds, times

_FAN = 32
_PIECE_BYTES = 4 << 20
_FAR_MS = 1 << 62
_SPAN_MS = 2_000
"""Pieces are not merged across more time than this, so that a spill can leave the newest rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of the log."""

    base_offset: int
    rows: pa.RecordBatch
    """PAYLOAD schema."""
    due: Int64s
    index: int
    """Index of the last entry in it."""
    oldest_ms: int
    newest_ms: int
    nbytes: int
    """Of the buffers that ``rows`` lie in."""
    earliest: int
    """The lowest due time in it, in ms; ``latest`` the highest."""
    latest: int
    level: int = 0
    _sorted: list[Int64s] = field(default_factory=list, repr=False, compare=False)
    """Its due times, sorted, once somebody has asked for one in their midst."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.due)

    @property
    def count(self) -> int:
        return len(self.due)

    @property
    def cancels(self) -> int:
        """How many of the rows are cancel rows."""
        return len(self.due) - int(self.rows.column("cancels").null_count)

    def behind(self, offset: int) -> Piece:
        """The rows from ``offset`` on, of which there is at least one."""
        skip = offset - self.base_offset
        if skip <= 0:
            return self
        due = self.due[skip:]
        earliest, latest = bounds(due)
        return replace(
            self,
            base_offset=offset,
            rows=self.rows.slice(skip),
            due=due,
            earliest=earliest,
            latest=latest,
            _sorted=[],
        )

    def due_after(self, after_ms: int) -> int | None:
        """The lowest due time behind ``after_ms``, or None."""
        if self.latest <= after_ms:
            return None
        if self.earliest > after_ms:
            return self.earliest
        if not self._sorted:
            self._sorted.append(np.unique(self.due))
        times_of = self._sorted[0]
        return int(times_of[np.searchsorted(times_of, after_ms, side="right")])

    def take(self, indices: Int64s) -> pa.RecordBatch:
        """Some rows, in the given order, with the ROW schema."""
        return with_offsets(take_rows(self.rows, indices), indices + self.base_offset)


def piece_of(base_offset: int, rows: pa.RecordBatch, index: int) -> Piece:
    """Rows of consecutive entries (PAYLOAD schema), up to entry ``index``."""
    due, created = times(rows, "due"), times(rows, "created")
    earliest, latest = bounds(due) if len(due) else (_FAR_MS, -_FAR_MS)
    oldest, newest = (int(created[0]), int(created[-1])) if len(created) else (0, 0)
    nbytes = rows.get_total_buffer_size()
    return Piece(base_offset, rows, due, index, oldest, newest, nbytes, earliest, latest)


def _merge(pieces: Sequence[Piece]) -> Piece:
    """One piece of the next level."""
    rows = pa.concat_batches([piece.rows for piece in pieces])
    merged = piece_of(pieces[0].base_offset, rows, pieces[-1].index)
    return replace(merged, level=max(piece.level for piece in pieces) + 1)


class Tail:
    """The pieces, and how many bytes their buffers take."""

    def __init__(self) -> None:
        self.pieces: tuple[Piece, ...] = ()
        self.nbytes = 0

    @classmethod
    def grown(cls, pieces: tuple[Piece, ...], new: list[Piece]) -> list[Piece]:
        """``pieces`` and ``new`` (offset order), coalesced. The heavy part; needs no lock."""
        grown = list(pieces)
        for piece in new:
            grown.append(piece)
            cls._coalesce(grown)
        return grown

    @staticmethod
    def _coalesce(pieces: list[Piece]) -> None:
        while True:
            level = pieces[-1].level
            size = 0
            start = len(pieces)
            # The run of newest pieces of one level that can become one piece of the next.
            while start > 0 and pieces[start - 1].level == level and size < _PIECE_BYTES:
                at = pieces[start - 1]
                if at.nbytes >= _PIECE_BYTES:
                    break
                newest = pieces[-1].newest_ms
                joined = start == len(pieces) or at.next_offset == pieces[start].base_offset
                if not joined or newest - at.oldest_ms > _SPAN_MS:
                    break
                size += at.nbytes
                start -= 1
            if len(pieces) - start < 2 or (len(pieces) - start < _FAN and size < _PIECE_BYTES):
                return
            pieces[start:] = [_merge(pieces[start:])]

    def drop_below(self, offset: int) -> None:
        """Forget the rows below ``offset`` (they are in slot files now).

        Rows committed during the spill may have been joined with spilled ones: such a piece is cut,
        or the next spill would write its first rows once more.
        """
        kept = [piece for piece in self.pieces if piece.next_offset > offset]
        self.publish([piece.behind(offset) for piece in kept])

    def publish(self, pieces: list[Piece]) -> None:
        """Make ``pieces`` the tail (owner's lock)."""
        self.pieces = tuple(pieces)
        self.nbytes = sum(piece.nbytes for piece in pieces)


def with_offsets(rows: pa.RecordBatch, offsets: Int64s) -> pa.RecordBatch:
    """Rows of the PAYLOAD schema, with the ROW schema. ``offsets``: shape (rows,)."""
    return pa.RecordBatch.from_arrays([from_numpy(offsets, pa.int64()), *rows.columns], schema=ROW)


def offsets_of(piece: Piece) -> Int64s:
    """Offsets of the rows, shape (rows,)."""
    return np.arange(piece.base_offset, piece.next_offset, dtype=np.int64)

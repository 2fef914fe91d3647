"""The tail: committed rows that are not in slot files yet, in memory.

Theory: rows come in entries of any size, from one row up. A batch of one row costs 6 KiB of Arrow
bookkeeping, so entries are coalesced into *pieces*, level by level (a piece of level n+1 is made of
``_FAN`` pieces of level n, up to about 4 MiB). Every row is copied a few times at most, and the
number of pieces stays small however small the entries are. Entries of a few rows that are committed
together are one piece from the start, and are decoded only when their rows are asked for.

Rules
- A piece is immutable. ``pieces`` is a tuple that is replaced, never changed: a reader that holds
  one sees a consistent tail for as long as it likes.
- Offsets are consecutive inside a piece; pieces are in offset order.
- ``publish`` is called under the owner's lock; readers need no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from ..files import Bytes
from ..rows import from_numpy, take_rows
from ..schema import ROW, Int64s, bounds, times
from .smallbatch import EncodedRows, UnreadRows

_FAN = 32
_PIECE_BYTES = 4 << 20
_FAR_MS = 1 << 62
_SPAN_MS = 2_000
"""Pieces are not merged across more time than this, so that a spill can leave the newest rows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of the log."""

    base_offset: int
    held: pa.RecordBatch | UnreadRows
    due: Int64s
    index: int
    """Index of the last entry in it."""
    oldest_ms: int
    newest_ms: int
    size: int
    """Bytes of ``held``, if that is rows."""
    earliest: int
    """The lowest due time in it, in ms; ``latest`` the highest."""
    latest: int
    level: int = 0

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.due)

    @property
    def count(self) -> int:
        return len(self.due)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows, PAYLOAD schema."""
        return self.held.rows() if isinstance(self.held, UnreadRows) else self.held

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.held.nbytes if isinstance(self.held, UnreadRows) else self.size

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows alone; decodes them."""
        if isinstance(self.held, UnreadRows):
            return int(self.held.rows().get_total_buffer_size())
        return self.size

    @property
    def cancels(self) -> int:
        """How many of the rows are cancel rows."""
        if isinstance(self.held, UnreadRows):
            return self.held.cancels
        return len(self.due) - int(self.held.column("cancels").null_count)

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
            held=self.rows.slice(skip),
            size=self.nbytes,
            due=due,
            earliest=earliest,
            latest=latest,
        )

    def take(self, indices: Int64s) -> pa.RecordBatch:
        """Some rows, in the given order, with the ROW schema."""
        return with_offsets(take_rows(self.rows, indices), indices + self.base_offset)


def piece_of(base_offset: int, rows: pa.RecordBatch, index: int, created_ms: int) -> Piece:
    size = rows.get_total_buffer_size()
    return _new_piece(base_offset, rows, times(rows, "due"), index, created_ms, size)


def unread_piece(
    base_offset: int, payload: Bytes, due: Int64s, index: int, created_ms: int
) -> Piece:
    """An entry of a few rows, none of which cancels anything. ``due``: shape (rows,), its own."""
    held = UnreadRows((payload,), len(payload))
    return _new_piece(base_offset, held, due, index, created_ms, 0)


def _new_piece(
    base_offset: int,
    held: pa.RecordBatch | UnreadRows,
    due: Int64s,
    index: int,
    created_ms: int,
    size: int,
) -> Piece:
    earliest, latest = bounds(due) if len(due) else (_FAR_MS, -_FAR_MS)
    return Piece(base_offset, held, due, index, created_ms, created_ms, size, earliest, latest)


def _merge(pieces: Sequence[Piece]) -> Piece:
    """One piece of the next level. Undecoded rows stay so: a commit does not wait for that."""
    level = max(piece.level for piece in pieces) + 1
    if any(isinstance(piece.held, UnreadRows) for piece in pieces):
        return replace(_unread(pieces), level=level)
    rows = pa.concat_batches([piece.held for piece in pieces])
    due = times(rows, "due")
    return replace(_joined(pieces, rows, due), size=rows.get_total_buffer_size(), level=level)


def _unread(pieces: Sequence[Piece]) -> Piece:
    nbytes = sum(piece.nbytes for piece in pieces)  # first: read meanwhile, they take less
    parts = [part for piece in pieces for part in _parts(piece)]
    held = UnreadRows(parts, nbytes, sum(piece.cancels for piece in pieces))
    return _joined(pieces, held, np.concatenate([piece.due for piece in pieces]))


def _parts(piece: Piece) -> Sequence[EncodedRows]:
    return piece.held.parts if isinstance(piece.held, UnreadRows) else (piece.held,)


def _joined(pieces: Sequence[Piece], held: pa.RecordBatch | UnreadRows, due: Int64s) -> Piece:
    return replace(
        pieces[0],
        held=held,
        due=due,
        index=pieces[-1].index,
        newest_ms=pieces[-1].newest_ms,
        earliest=min(piece.earliest for piece in pieces),
        latest=max(piece.latest for piece in pieces),
    )


def together(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, with runs of undecoded ones made into one piece each."""
    found: list[Piece] = []
    run: list[Piece] = []
    for piece in pieces:
        if run and not _follows(run, piece):
            found.append(_one(run))
            run = []
        run.append(piece)
    return [*found, _one(run)] if run else found


def _one(run: Sequence[Piece]) -> Piece:
    return run[0] if len(run) == 1 else _unread(run)


def _follows(run: Sequence[Piece], piece: Piece) -> bool:
    """Whether a piece may join those before it: all undecoded, and not too far apart in time."""
    return (
        isinstance(run[-1].held, UnreadRows)
        and isinstance(piece.held, UnreadRows)
        and run[-1].next_offset == piece.base_offset
        and piece.newest_ms - run[0].oldest_ms <= _SPAN_MS
    )


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

    def read_across(self, offset: int) -> None:
        """Decode the piece that ``drop_below(offset)`` will have to cut, if any. Call it without
        the lock: a piece of 4 MiB takes 50 ms."""
        for piece in self.pieces:
            if piece.base_offset < offset < piece.next_offset:
                _ = piece.rows

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

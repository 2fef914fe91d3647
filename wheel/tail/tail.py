"""The tail: committed rows that are not in slot files yet, in memory.

Theory: rows come in entries of any size, from one row up. A batch of one row costs 6 KiB of Arrow
bookkeeping, so entries are coalesced into *pieces*, level by level (a piece of level n+1 is made of
``_FAN`` pieces of level n, up to about 4 MiB). Every row is copied a few times at most, and the
number of pieces stays small however small the entries are. *Example:* of 1024 entries of one row,
each 32 become a piece of 32 rows, and these one of 1024: each row was copied twice. A standby reads
no rows, so its pieces are left small: 128 KiB, of which a full tail has about a thousand.

Rules
- A piece is immutable, whether its rows were read or not. ``pieces`` is a tuple that is replaced,
  never changed: a reader that holds one sees a consistent tail for as long as it likes.
- Offsets are consecutive inside a piece; pieces are in offset order.
- ``publish`` is called under the owner's lock; readers need no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

import numpy as np
import pyarrow as pa

from ..arrowbytes import PlainRow, encode_rows
from ..files import Bytes
from ..rows import from_numpy, take_rows
from ..schema import PAYLOAD, ROW, Int64s, bounds, times

_FAN = 32
_PIECE_BYTES = 4 << 20
_UNREAD_PIECE_BYTES = 128 << 10
"""The size of pieces in a tail that nobody reads before it is spilled. Larger ones would be copied
once more: for batches of 2000 rows, two thirds of what a standby does to keep its tail."""
_FAR_MS = 1 << 62
_SPAN_MS = 2_000
_SPAN_SHARE = 8
"""Pieces are not merged across more time than the longer of 2 s and an eighth of the tail's, so
that a spill can leave the newest rows. *Example:* at 5 messages a second 32 of them span more than
2 s; if none were merged, a tail of ten minutes would have 3,000 pieces, and each look for the next
row would go through all of them."""


class Piece:
    """Consecutive rows of the log. ``index``: of the last entry in it. ``oldest_ms`` and
    ``newest_ms``: when its rows came. ``earliest``, ``latest``: the lowest and the highest due time
    in it, in ms. ``nbytes``: of the buffers that its rows lie in.

    The rows of a small entry stay a payload until somebody looks at them (``unread_piece``): for a
    single row, Arrow's calls cost as much as all else that is done for it, and mostly nobody looks
    before many such pieces are read as one. Of a few plain rows the piece keeps these, too, so that
    they can be joined without Arrow.
    """

    __slots__ = (
        *("_due", "_payload", "_plain", "_rows", "_sorted", "base_offset", "count", "earliest"),
        *("index", "latest", "level", "nbytes", "newest_ms", "next_offset", "oldest_ms"),
    )

    def __init__(
        self,
        base_offset: int,
        due: Int64s | Sequence[int],
        rows: pa.RecordBatch | None,
        payload: Bytes,
        *,
        index: int,
        oldest_ms: int,
        newest_ms: int,
        nbytes: int,
        level: int = 0,
        plain: Sequence[PlainRow] = (),
    ) -> None:
        """``rows``: PAYLOAD schema; None: they are read from ``payload``. ``plain``: the same rows
        again, if they are few."""
        self.base_offset = base_offset
        self.count = len(due)
        self.next_offset = base_offset + self.count
        self._due = due
        self._rows = rows
        self._payload = payload
        self._plain = plain
        self._sorted: Int64s | None = None
        self.index = index
        self.oldest_ms = oldest_ms
        self.newest_ms = newest_ms
        self.nbytes = nbytes
        self.level = level
        self.earliest, self.latest = bounds(due) if self.count else (_FAR_MS, -_FAR_MS)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows, PAYLOAD schema; they are read out of the payload at the first call."""
        if self._rows is None:
            self._rows = read_together([self._payload])
        return self._rows

    @property
    def due(self) -> Int64s:
        """Due times, ms, shape (count,)."""
        if not isinstance(self._due, np.ndarray):
            self._due = np.array(self._due, np.int64)
        return self._due

    @property
    def cancels(self) -> int:
        """The number of cancel rows among the rows."""
        if self._payload:
            return 0
        return self.count - int(self.rows.column("cancels").null_count)

    def behind(self, offset: int) -> Piece:
        """The rows from ``offset`` on, of which there is at least one."""
        skip = offset - self.base_offset
        if skip <= 0:
            return self
        return Piece(
            offset,
            self.due[skip:],
            self.rows.slice(skip),
            b"",
            index=self.index,
            oldest_ms=self.oldest_ms,
            newest_ms=self.newest_ms,
            nbytes=self.nbytes,
            level=self.level,
        )

    def due_after(self, after_ms: int) -> int | None:
        """The lowest due time above ``after_ms``, or None."""
        if self.latest <= after_ms:
            return None
        if self.earliest > after_ms:
            return self.earliest
        if self._sorted is None:
            self._sorted = np.sort(self.due)
        return int(self._sorted[np.searchsorted(self._sorted, after_ms, side="right")])

    def take(self, indices: Int64s) -> pa.RecordBatch:
        """Some rows, in the given order, with the ROW schema."""
        return with_offsets(take_rows(self.rows, indices), indices + self.base_offset)


def piece_of(base_offset: int, rows: pa.RecordBatch, index: int, level: int = 0) -> Piece:
    """Rows of consecutive entries (PAYLOAD schema), up to entry ``index``."""
    created = times(rows, "created")
    oldest, newest = (int(created[0]), int(created[-1])) if len(created) else (0, 0)
    return Piece(
        base_offset,
        times(rows, "due"),
        rows,
        b"",
        index=index,
        oldest_ms=oldest,
        newest_ms=newest,
        nbytes=rows.get_total_buffer_size(),
        level=level,
    )


def unread_piece(
    base_offset: int,
    due: Int64s | Sequence[int],
    payload: Bytes,
    index: int,
    created_ms: int,
    plain: Sequence[PlainRow] = (),
) -> Piece:
    """Rows of an entry without cancel rows, which are read when somebody looks. ``due``: of each,
    at least one; ``payload``: their batch; ``plain``: what it was made of, if they are few."""
    return Piece(
        base_offset,
        due,
        None,
        payload,
        index=index,
        oldest_ms=created_ms,
        newest_ms=created_ms,
        nbytes=len(payload),
        plain=plain,
    )


@cache
def _schema_message() -> bytes:
    return bytes(PAYLOAD.serialize())


def read_together(payloads: Sequence[Bytes]) -> pa.RecordBatch:
    """The rows of our own payloads, at least one, PAYLOAD schema; copied if there are several."""
    if len(payloads) == 1:  # one caller waits: this takes a third of the time of a stream of one
        return pa.ipc.read_record_batch(pa.py_buffer(payloads[0]), PAYLOAD)
    stream = pa.py_buffer(b"".join([_schema_message(), *payloads]))
    [rows] = pa.ipc.open_stream(stream).read_all().combine_chunks().to_batches()
    return rows


def _merge(pieces: Sequence[Piece]) -> Piece:
    parts: list[pa.RecordBatch] = []
    for (plain, unread), run in groupby(pieces, _kind):
        if plain:
            parts.append(read_together([_joined(list(run))]))
        elif unread:
            parts.append(read_together([piece._payload for piece in run]))
        else:
            parts += [piece.rows for piece in run]
    rows = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    level = max([piece.level for piece in pieces]) + 1
    return piece_of(pieces[0].base_offset, rows, pieces[-1].index, level)


def _kind(piece: Piece) -> tuple[bool, bool]:
    return bool(piece._plain), bool(piece._payload)


def _joined(pieces: Sequence[Piece]) -> bytes:
    """The payload of pieces of plain rows: for a few rows a thirtieth of what Arrow takes."""
    rows = [row for piece in pieces for row in piece._plain]
    return encode_rows(rows, [piece.oldest_ms for piece in pieces for _ in piece._plain])


class Tail:
    """The tail's pieces, and the bytes of their buffers."""

    def __init__(self) -> None:
        self.pieces: tuple[Piece, ...] = ()
        self.nbytes = 0

    @classmethod
    def grown(
        cls, pieces: tuple[Piece, ...], new: list[Piece], *, read: bool = True
    ) -> list[Piece]:
        """``pieces`` and ``new`` (offset order), coalesced. The heavy part; needs no lock.
        ``read``: rows are read from the tail, because this node delivers them."""
        piece_bytes = _PIECE_BYTES if read else _UNREAD_PIECE_BYTES
        grown = list(pieces)
        for piece in new:
            grown.append(piece)
            cls._coalesce(grown, piece_bytes)
        return grown

    @staticmethod
    def _coalesce(pieces: list[Piece], piece_bytes: int) -> None:
        while True:
            level = pieces[-1].level
            if pieces[-1].nbytes * _FAN < piece_bytes and (
                len(pieces) < _FAN or pieces[-_FAN].level != level
            ):
                return  # mostly: the newest piece is small, and too few are of its level
            size = 0
            start = len(pieces)
            newest_ms = pieces[-1].newest_ms
            oldest_ms = newest_ms - max(_SPAN_MS, (newest_ms - pieces[0].oldest_ms) // _SPAN_SHARE)
            # The run of newest pieces of one level that can become one piece of the next.
            while start > 0 and pieces[start - 1].level == level and size < piece_bytes:
                at = pieces[start - 1]
                if at.nbytes >= piece_bytes:
                    break
                joined = start == len(pieces) or at.next_offset == pieces[start].base_offset
                if not joined or at.oldest_ms < oldest_ms:
                    break
                size += at.nbytes
                start -= 1
            if len(pieces) - start < 2 or (len(pieces) - start < _FAN and size < piece_bytes):
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
        self.nbytes = sum([piece.nbytes for piece in pieces])


def with_offsets(rows: pa.RecordBatch, offsets: Int64s) -> pa.RecordBatch:
    """Rows of the PAYLOAD schema, with the ROW schema. ``offsets``: shape (rows,)."""
    return pa.RecordBatch.from_arrays([from_numpy(offsets, pa.int64()), *rows.columns], schema=ROW)


def offsets_of(piece: Piece) -> Int64s:
    """Offsets of the rows, shape (rows,)."""
    return np.arange(piece.base_offset, piece.next_offset, dtype=np.int64)

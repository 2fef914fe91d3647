"""The tail: what comes in stays in order, in few pieces; old snapshots stay what they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.schema import ROW
from slotwheel.wheel.tail import tail as module
from slotwheel.wheel.tail.tail import Piece, Tail, offsets_of, with_offsets
from support.wheels import keys_of, piece_at

entries = st.lists(
    st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(0, 900)),
    max_size=60,
)


def pieces_of(shape: list[tuple[list[int], int]], gap_at: int = -1) -> list[Piece]:
    """Entries one after the other; ``created`` grows. ``gap_at``: offsets jump before that one."""
    made: list[Piece] = []
    offset, now = 0, 0
    for index, (due, later) in enumerate(shape):
        now += later
        offset += 100 if index == gap_at else 0
        made.append(piece_at(offset, due, index=index, created_ms=now))
        offset += len(due)
    return made


def rows_of(pieces: list[Piece] | tuple[Piece, ...]) -> list[tuple[int, int]]:
    return [key for piece in pieces for key in keys_of(with_offsets(piece.rows, offsets_of(piece)))]


@given(entries, st.integers(-1, 60), st.integers(1, 10), st.integers(0, 60))
def test_coalescing_loses_and_moves_nothing(
    shape: list[tuple[list[int], int]], gap_at: int, group: int, read_from: int
) -> None:
    """``read_from``: where a standby has become the master."""
    made = pieces_of(shape, gap_at)
    tail = Tail()
    for at in range(0, len(made), group):
        new = made[at : at + group]
        tail.publish(Tail.grown(tail.pieces, new, read=at >= read_from))
    assert rows_of(tail.pieces) == rows_of(made)
    assert tail.nbytes == sum(piece.nbytes for piece in tail.pieces)
    for piece in tail.pieces:
        parts = [p for p in made if piece.base_offset <= p.base_offset < piece.next_offset]
        assert piece.index == parts[-1].index
        assert (piece.oldest_ms, piece.newest_ms) == (parts[0].oldest_ms, parts[-1].newest_ms)
        longest_ms = max(2_000, (piece.newest_ms - made[0].oldest_ms) // 8)
        assert piece.newest_ms - piece.oldest_ms <= longest_ms, "an old row would hold new ones"


def test_many_small_entries_become_few_pieces() -> None:
    """A batch of one row costs 6 KiB of bookkeeping, so 4096 of them may not stay 4096."""
    pieces: tuple[Piece, ...] = ()
    for offset in range(4096):
        pieces = tuple(Tail.grown(pieces, [piece_at(offset, [offset])]))
        assert len(pieces) <= 31 * 3
    assert [len(piece.due) for piece in pieces] == [1024] * 4


def test_a_tail_of_ten_minutes_is_few_pieces() -> None:
    """Of five entries a second 32 span more than two seconds."""
    pieces: tuple[Piece, ...] = ()
    for offset, created_ms in enumerate(range(0, 600_000, 200)):
        entry = piece_at(offset, [offset], index=offset, created_ms=created_ms)
        pieces = tuple(Tail.grown(pieces, [entry]))
    assert len(pieces) <= 600
    assert [due for due, _ in rows_of(pieces)] == list(range(pieces[-1].next_offset))


def test_a_piece_stops_growing_at_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 4000)
    pieces: list[Piece] = []
    for offset in range(1000):
        pieces = Tail.grown(tuple(pieces), [piece_at(offset, [offset], pad=100)])
    assert max(piece.nbytes for piece in pieces) < 16 * 4000
    assert len(pieces) > 10
    assert rows_of(pieces) == [(offset, offset) for offset in range(1000)]


def test_a_large_entry_is_copied_only_where_somebody_reads() -> None:
    entries = [piece_at(offset, [offset], pad=200_000) for offset in range(40)]
    kept, joined = Tail.grown((), entries, read=False), Tail.grown((), entries)
    assert kept == entries
    assert len(joined) < len(entries)
    small = [piece_at(offset, [offset]) for offset in range(4096)]
    assert len(Tail.grown((), small, read=False)) <= 4096 // 32


def test_a_snapshot_stays_what_it_was() -> None:
    tail = Tail()
    tail.publish(Tail.grown((), [piece_at(0, [5, 3]), piece_at(2, [9])]))
    before = tail.pieces
    rows = rows_of(before)
    tail.publish(Tail.grown(before, [piece_at(n, [n]) for n in range(3, 40)]))
    tail.drop_below(40)
    assert tail.pieces == ()
    assert tail.nbytes == 0
    assert rows_of(before) == rows


def test_a_piece_that_reaches_beyond_keeps_only_what_is_beyond() -> None:
    tail = Tail()
    tail.publish([piece_at(0, [1, 2, 3]), piece_at(3, [4])])
    tail.drop_below(2)
    assert [piece.base_offset for piece in tail.pieces] == [2, 3]
    assert (tail.pieces[0].due.tolist(), tail.pieces[0].next_offset) == ([3], 3)
    assert (tail.pieces[0].earliest, tail.pieces[0].latest) == (3, 3)
    tail.drop_below(3)
    assert [piece.base_offset for piece in tail.pieces] == [3]


def test_taken_rows_carry_their_offsets_and_cancels_are_counted() -> None:
    piece = piece_at(10, [5, 3, 9], cancels={11: 4})
    assert piece.cancels == 1
    assert offsets_of(piece).tolist() == [10, 11, 12]
    taken = piece.take(offsets_of(piece)[[2, 0]] - 10)
    assert taken.schema == ROW
    assert keys_of(taken) == [(9, 12), (5, 10)]

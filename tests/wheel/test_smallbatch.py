"""Payloads of a few rows: the bytes that Arrow writes, read many at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.rows import from_columns, from_numpy, no_cancels
from slotwheel.wheel.schema import FEW_ROWS, INPUT, PAYLOAD, TIME, times
from slotwheel.wheel.tail import smallbatch
from slotwheel.wheel.tail.smallbatch import UnreadRows, decode, encode
from slotwheel.wheel.tail.tail import Piece, Tail, piece_of, together, unread_piece
from support.wheels import Node

NOW = 1_700_000_000_000
CONFIG = WheelConfig()

maybe = st.none() | st.binary(max_size=40)
row = st.tuples(
    st.integers(NOW, NOW + 7_000_000),
    st.text("abcdefgh-", min_size=1, max_size=30),
    st.none() | st.integers(0, 2**31 - 1),
    maybe,
    maybe,
)


def received(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As it comes out of the transport: all columns in one buffer."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    due, topics, partitions, keys, values = (list(column) for column in zip(*rows, strict=True))
    return from_columns(due, topics, partitions, keys, values, [[] for _ in rows])


def by_arrow(rows: pa.RecordBatch, created_ms: int) -> bytes:
    count = rows.num_rows
    created = from_numpy(np.full(count, created_ms, np.int64), TIME)
    columns = [rows.column(0), created, no_cancels(count), *rows.columns[1:]]
    return bytes(pa.RecordBatch.from_arrays(columns, schema=PAYLOAD).serialize())


def plain(count: int, size: int = 10) -> pa.RecordBatch:
    return batch_of([(NOW + n, f"t{n % 3}", None, None, b"v" * size) for n in range(count)])


@given(st.lists(row, min_size=2, max_size=20), st.data())
def test_the_same_rows_whatever_their_buffers_hold_besides(rows: list[Any], data: Any) -> None:
    """A slice is sent with what its buffers hold behind it, in part; junk stands behind bitmaps."""
    start = data.draw(st.integers(0, len(rows) - 1))
    part = batch_of(rows).slice(start, data.draw(st.integers(1, len(rows) - start)))
    for batch in (received(part), part):
        checked = check_input(batch, CONFIG, NOW)
        payload = encode(checked, 7)
        if payload is None:
            assert start > 0
            continue
        found = decode([payload])
        found.validate(full=True)
        assert found.select(INPUT.names).to_pylist() == checked.to_pylist()
        assert found.equals(decode([by_arrow(checked, 7)]))


@given(st.lists(row, min_size=1, max_size=FEW_ROWS), st.integers(0, 1 << 45))
def test_the_same_bytes_as_arrow(rows: list[Any], created_ms: int) -> None:
    batch = check_input(received(batch_of(rows)), CONFIG, NOW)
    assert encode(batch, created_ms) == by_arrow(batch, created_ms)


@pytest.mark.parametrize("missing", [["partition"], ["key", "headers"], ["partition", "key"]])
def test_columns_that_were_left_out(missing: list[str]) -> None:
    left = received(plain(3).drop_columns(missing))
    batch = check_input(left, CONFIG, NOW)
    assert encode(batch, 5) == by_arrow(batch, 5)


def test_what_is_not_plain_is_left_to_arrow() -> None:
    headers = [[("k", b"v")], []]
    with_headers = from_columns([1, 2], ["t"] * 2, [None] * 2, [None] * 2, [b""] * 2, headers)
    assert encode(with_headers, 1) is None
    assert encode(plain(FEW_ROWS), 1) is not None
    assert encode(plain(FEW_ROWS + 1), 1) is None
    assert encode(plain(8).slice(2, 3), 1) is None
    assert encode(plain(1, 63 << 10), 1) is not None
    assert encode(plain(1, 64 << 10), 1) is None


def test_texts_that_do_not_begin_at_their_buffers_begin() -> None:
    batch = plain(4)
    whole = batch.column("value")
    ends = pa.py_buffer(whole.buffers()[1].to_pybytes()[4:])
    shifted = pa.Array.from_buffers(pa.binary(), 3, [None, ends, whole.buffers()[2]])
    columns = [*(c.take(pa.array([0, 1, 2])) for c in batch.columns[:4]), shifted]
    columns.append(batch.column("headers").take(pa.array([0, 1, 2])))
    moved = pa.RecordBatch.from_arrays(columns, schema=INPUT)
    assert moved.column("value").to_pylist() == [b"v" * 10] * 3
    assert encode(moved, 1) is None


@given(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=40))
def test_many_are_read_as_one(batches: list[list[Any]]) -> None:
    inputs = [batch_of(rows) for rows in batches]
    payloads = [encode(batch, NOW + n) for n, batch in enumerate(inputs)]
    found = decode([payload for payload in payloads if payload is not None])
    found.validate(full=True)
    assert found.schema == PAYLOAD
    assert found.select(INPUT.names).to_pylist() == [r for one in inputs for r in one.to_pylist()]
    created = [NOW + n for n, rows in enumerate(batches) for _ in rows]
    assert times(found, "created").tolist() == created
    assert found.column("cancels").null_count == found.num_rows


def test_rows_asked_for_by_many_at_once() -> None:
    for _ in range(50):
        payload = encode(plain(2), NOW) or b""
        unread = UnreadRows([payload] * 8, 8 * len(payload))
        found: list[int] = []
        gate = threading.Barrier(4)

        def ask(unread: UnreadRows = unread, found: list[int] = found, gate: Any = gate) -> None:
            gate.wait(10)
            found.append(unread.rows().num_rows)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [16] * 4
        assert [isinstance(part, bytes) for part in unread.parts] == [False]  # they are let go of
        kept = unread.nbytes - unread.rows().get_total_buffer_size()
        assert 0 < kept < 10_000  # of the batch itself


def piece_at(offset: int, count: int = 1, created_ms: int = NOW, *, read: bool = False) -> Piece:
    batch = plain(count)
    payload = encode(batch, created_ms)
    assert payload is not None
    if read:
        return piece_of(offset, decode([payload]), offset, created_ms)
    return unread_piece(offset, payload, times(batch, "due"), offset, created_ms)


def test_those_committed_together_are_one_piece() -> None:
    pieces = together([piece_at(0, 2), piece_at(2), piece_at(3, 4)])
    assert [(p.base_offset, p.count, p.index) for p in pieces] == [(0, 7, 3)]
    assert pieces[0].nbytes == sum(piece_at(0, n).nbytes for n in (2, 1, 4))
    assert pieces[0].due.tolist() == times(pieces[0].rows, "due").tolist()
    assert (pieces[0].earliest, pieces[0].latest) == (NOW, NOW + 3)


def test_what_does_not_follow_stays_apart() -> None:
    given = [
        piece_at(0),
        piece_at(1, read=True),
        piece_at(2),
        piece_at(5),  # a gap
        piece_at(6, created_ms=NOW + 2_001),  # too much later
        piece_at(7, created_ms=NOW + 2_001),
    ]
    assert [(p.base_offset, p.count) for p in together(given)] == [
        *((0, 1), (1, 1), (2, 1), (5, 1)),
        (6, 2),
    ]
    assert together([]) == []


def test_pieces_grow_together_whoever_was_read() -> None:
    pieces: list[Piece] = []
    for offset in range(200):
        new = piece_at(offset, read=offset % 7 == 0)
        if offset % 5 == 0:
            assert new.rows.num_rows == 1  # somebody looked at it
        pieces = Tail.grown(tuple(pieces), together([new]))
    assert len(pieces) < 20
    assert [row for p in pieces for row in p.rows.column("value").to_pylist()] == [b"v" * 10] * 200
    assert pieces[0].due.tolist() == times(pieces[0].rows, "due").tolist()
    assert pieces[0].behind(3).rows.num_rows == pieces[0].count - 3
    assert sum(piece.cancels for piece in pieces) == 0


def test_who_commits_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_payloads: Any) -> Any:
        raise AssertionError("a commit waited for rows to be read")

    pieces: list[Piece] = []
    with monkeypatch.context() as within:
        within.setattr(smallbatch, "decode", never)
        for offset in range(0, 3000, 3):
            new = together([piece_at(offset), piece_at(offset + 1, 2)])
            pieces = Tail.grown(tuple(pieces), new)
    assert len(pieces) < 70
    assert sum(piece.rows.num_rows for piece in pieces) == 3000


def test_rows_read_alone_join_others_as_payloads() -> None:
    """A batch of one row costs 6 KiB besides its row, which a merged piece must not carry on."""
    pieces = [piece_at(offset) for offset in range(40)]
    sizes = [piece.nbytes for piece in pieces]
    for piece in pieces:
        assert piece.rows.num_rows == 1
    assert all(piece.nbytes > size + 5_000 for piece, size in zip(pieces, sizes, strict=True))
    merged = together(pieces)[0].held
    assert isinstance(merged, UnreadRows)
    assert all(isinstance(part, bytes) for part in merged.parts)


def test_what_a_spill_cuts_is_read_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The piece across its end, and before the lock is taken."""
    tail = Tail()
    tail.publish([together([piece_at(0), piece_at(1)])[0], together([piece_at(2), piece_at(3)])[0]])
    tail.read_across(2)
    tail.read_across(4)
    assert [len(piece.held.parts) for piece in tail.pieces] == [2, 2]
    tail.read_across(3)
    monkeypatch.setattr(smallbatch, "decode", None)
    tail.drop_below(3)
    assert [(piece.base_offset, piece.rows.num_rows) for piece in tail.pieces] == [(3, 1)]


def test_cancel_rows_are_counted_among_what_is_unread() -> None:
    cancelling = with_cancel(piece_at(0, 3, read=True))
    pieces: list[Piece] = []
    for piece in [cancelling, *(piece_at(offset) for offset in range(3, 40))]:
        pieces = Tail.grown(tuple(pieces), [piece])
    assert isinstance(pieces[0].held, UnreadRows)
    assert [piece.cancels for piece in pieces] == [1, *[0] * (len(pieces) - 1)]
    assert pieces[0].count - pieces[0].rows.column("cancels").null_count == 1


def with_cancel(piece: Piece) -> Piece:
    """The same with a cancel row in front."""
    cancels = pa.array([77, *[None] * (piece.count - 1)], pa.int64())
    rows = piece.rows.set_column(2, PAYLOAD.field("cancels"), cancels)
    return piece_of(piece.base_offset, rows, piece.index, piece.oldest_ms)


@pytest.mark.parametrize("known", [True, False])
def test_an_arrow_that_writes_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Then everything goes by its own writer, and the wheel's files are the same."""
    if not known:
        monkeypatch.setattr(smallbatch, "_TEMPLATE", None)
        assert encode(plain(1), 1) is None
    node = Node(tmp_path, CONFIG, NOW)
    for _ in range(3):
        node.wheel.append(received(plain(2)), NOW)
    node.sync()
    assert sum(piece.count for piece in node.wheel._storage.tail.pieces) == 6
    node.wheel.spill(NOW, everything=True)
    assert node.wheel.status().slot_rows == 6
    node.close()


def test_a_message_without_the_numbers() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        smallbatch._Template.of(b"\xff\xff\xff\xff" + (680).to_bytes(4, "little") + bytes(680))


def test_the_transports_memory_is_not_kept(tmp_path: Path) -> None:
    """A row of a few bytes must not keep the megabytes that it came in with."""
    node = Node(tmp_path, CONFIG, NOW)
    before = pa.total_allocated_bytes()
    for _ in range(3):
        node.wheel.append(received(plain(1)), NOW)
    node.sync()
    pieces = node.wheel._storage.tail.pieces
    held = [piece.held for piece in pieces]
    assert all(isinstance(part, bytes) for one in held for part in one.parts)
    assert all(piece.due.flags.owndata for piece in pieces)
    assert pa.total_allocated_bytes() <= before
    node.close()

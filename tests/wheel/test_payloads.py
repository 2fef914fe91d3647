"""Payloads: the rows as they came in, small ones read many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.journal.payloads import encode_input, read_together
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import INPUT, PAYLOAD, times
from support.wheels import NOW, opened

CONFIG = WheelConfig(disk_reserve_bytes=0)

maybe = st.none() | st.binary(max_size=40)
row = st.tuples(
    st.integers(NOW, NOW + 7_000_000),
    st.text("abcdefgh-", min_size=1, max_size=30),
    st.none() | st.integers(0, 2**31 - 1),
    maybe,
    maybe,
    st.lists(st.tuples(st.text(max_size=3), maybe), max_size=2),
)


def received(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As it comes out of the transport: all columns in one buffer."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    return from_columns(*(list(column) for column in zip(*rows, strict=True)))


def plain(count: int, size: int = 10) -> pa.RecordBatch:
    return batch_of([(NOW + n, f"t{n % 3}", None, None, b"v" * size, []) for n in range(count)])


@given(st.lists(row, min_size=2, max_size=80), st.data())
def test_the_same_rows_whatever_their_buffers_hold_besides(rows: list[Any], data: Any) -> None:
    """A slice is sent with what its buffers hold behind it, in part; junk stands behind bitmaps."""
    start = data.draw(st.integers(0, len(rows) - 1))
    part = batch_of(rows).slice(start, data.draw(st.integers(1, len(rows) - start)))
    for batch in (received(part), part):
        checked = check_input(batch, CONFIG, NOW)
        encoded = encode_input(checked, 7)
        found = pa.ipc.read_record_batch(pa.py_buffer(encoded.payload), PAYLOAD)
        found.validate(full=True)
        assert found.select(INPUT.names).equals(checked)
        assert times(found, "created").tolist() == [7] * part.num_rows
        assert found.column("cancels").null_count == part.num_rows
        assert encoded.due.tolist() == times(part, "due").tolist()


@given(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=40))
def test_many_are_read_as_one(batches: list[list[Any]]) -> None:
    inputs = [batch_of(rows) for rows in batches]
    found = read_together([encode_input(one, NOW + n).payload for n, one in enumerate(inputs)])
    found.validate(full=True)
    assert found.schema == PAYLOAD
    assert found.select(INPUT.names).to_pylist() == [r for one in inputs for r in one.to_pylist()]
    created = [NOW + n for n, rows in enumerate(batches) for _ in rows]
    assert times(found, "created").tolist() == created
    assert found.column("cancels").null_count == found.num_rows


def test_small_entries_of_one_commit_are_one_piece(tmp_path: Path) -> None:
    """A large one between them stays what it is."""
    counts, sizes = (2, 1, 3, 1, 4), (10, 20, 100_000, 30, 40)
    with opened(tmp_path, CONFIG, NOW) as node:
        node.send([(NOW, "t", b"first")], NOW)  # the configuration goes with it
        for count, size in zip(counts, sizes, strict=True):
            node.wheel.append(plain(count, size), NOW)
        node.sync()
        before, *pieces = node.wheel._storage.tail.pieces
        assert [(piece.base_offset, piece.count) for piece in pieces] == [(1, 3), (4, 3), (7, 5)]
        assert [piece.index - before.index for piece in pieces] == [2, 3, 5]
        assert [(piece.earliest, piece.latest) for piece in pieces] == [
            (NOW, NOW + 1),
            (NOW, NOW + 2),
            (NOW, NOW + 3),
        ]
        lengths = [len(v) for piece in pieces for v in piece.rows.column("value").to_pylist()]
        assert lengths == [
            size for count, size in zip(counts, sizes, strict=True) for _ in range(count)
        ]


def test_the_transports_memory_is_not_kept(tmp_path: Path) -> None:
    """A row of a few bytes must not keep the megabytes that it came in with."""
    with opened(tmp_path, CONFIG, NOW) as node:
        before = pa.total_allocated_bytes()
        futures = [
            node.wheel.append(received(plain(1000, 2000)).slice(500, 1), NOW) for _ in range(3)
        ]
        assert pa.total_allocated_bytes() - before < 200_000
        node.sync()
        assert pa.total_allocated_bytes() - before < 200_000
        assert [future.result(0).due.tolist() for future in futures] == [[NOW + 500]] * 3

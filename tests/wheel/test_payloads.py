"""Payloads: the rows as they came in, small ones read many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.journal.entry import (
    NOTES_VERSION,
    PARTS_VERSION,
    Entry,
    EntryKind,
    EntryPart,
    NoteKind,
    decode_entry,
    with_parts,
)
from slotwheel.wheel.journal.payloads import decode_rows, encode_input
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import INPUT, PAYLOAD, times
from slotwheel.wheel.tail import tail
from slotwheel.wheel.tail.tail import read_together
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
        assert list(encoded.due) == times(part, "due").tolist()


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


def test_small_entries_are_read_when_somebody_looks_and_many_as_one(tmp_path: Path) -> None:
    """A large one was read before: it lies in memory as it lies in the journal."""
    sizes = (10, 20, 100_000, 30)
    with opened(tmp_path, CONFIG, NOW) as node:
        for count, size in enumerate(sizes, 1):
            node.wheel.append(plain(count, size), NOW)
        node.sync()
        pieces = node.wheel._storage.tail.pieces
        assert [piece._rows is None for piece in pieces] == [True, True, False, True]
        assert [(piece.base_offset, piece.count) for piece in pieces] == [
            *((0, 1), (1, 2)),
            *((3, 3), (6, 4)),
        ]
        assert [(piece.earliest, piece.latest) for piece in pieces] == [
            *((NOW, NOW), (NOW, NOW + 1)),
            *((NOW, NOW + 2), (NOW, NOW + 3)),
        ]
        for piece, size in zip(pieces, sizes, strict=True):
            values = piece.rows.column("value").to_pylist()
            assert [len(value) for value in values] == [size] * piece.count
            assert piece.due.tolist() == times(piece.rows, "due").tolist()
        more = range(tail._FAN - len(sizes))
        for number in more:
            node.wheel.append(plain(1, number), NOW)
        with mock.patch.object(tail, "read_together", side_effect=tail.read_together) as read:
            node.sync()
        assert [len(call.args[0]) for call in read.call_args_list] == [2, 1 + len(more)]
        [piece] = node.wheel._storage.tail.pieces
        values = piece.rows.column("value").to_pylist()
        lengths = [size for count, size in enumerate(sizes, 1) for _ in range(count)]
        assert [len(value) for value in values] == [*lengths, *more]


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


def rows_of(values: list[bytes]) -> pa.RecordBatch:
    absent: list[None] = [None] * len(values)
    batch = from_columns(
        [NOW] * len(values), ["t"] * len(values), absent, absent, values, [()] * len(values)
    )
    return check_input(batch, WheelConfig(), NOW)


@pytest.mark.parametrize("value", [b"v", b"x" * 60 + b"SWPT", b"\1\0\0\0SWPT" * 8])
def test_any_other_version_of_an_entry_is_noticed(value: bytes) -> None:
    """It is not covered by the CRC. Rows may end like a table of parts."""
    payload = encode_input(rows_of([value] * 2), NOW).payload
    parts = [EntryPart(7, 4, 1), EntryPart(9, 0, 1)]
    two = with_parts(payload, parts)
    noted = with_parts(payload, parts, {NoteKind.NAMES: b""})
    for entry in (
        Entry(EntryKind.ROWS, 1, 1, 0, 2, 7, 4, payload),
        Entry(EntryKind.ROWS, 1, 1, 0, 2, 0, -1, two, version=PARTS_VERSION),
        Entry(EntryKind.ROWS, 1, 1, 0, 2, 0, -1, noted, version=NOTES_VERSION),
    ):
        data = bytearray(b"".join(map(bytes, entry.encode())))
        for version in (*range(256), 256 + entry.version, 0xFFFF):
            data[4:6] = version.to_bytes(2, "little")
            if version == entry.version:
                assert decode_rows(decode_entry(data, "x", 0), "x").num_rows == 2
            else:
                with pytest.raises(
                    (Damaged, UnsupportedVersion), match=r"version|several callers|notes"
                ):
                    decode_rows(decode_entry(data, "x", 0), "x", full=bool(version % 2))

"""Gathering the tail: every uncovered row once, in slot order, whatever the ranges."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import PAYLOAD, ROW
from slotwheel.wheel.slots import blocks as wheel_blocks
from slotwheel.wheel.slots import spill
from slotwheel.wheel.slots.slot import DAY_S, Widths, begins_ms, ends_ms
from slotwheel.wheel.slots.slotfile import decode_blocks
from slotwheel.wheel.slots.spill import Block, blocks
from slotwheel.wheel.tail.tail import Piece, piece_of
from support.wheels import keys_of, piece_at

FAR = 1 << 61  # so far apart that a due time and a row's place are more than 64 bits
dues = st.one_of(st.integers(0, 6000), st.sampled_from([0, 999, 1000, 1001, FAR, FAR + 1]))
shapes = st.lists(st.lists(dues, min_size=1, max_size=20), min_size=1, max_size=6)
marks = st.builds(Mark, st.integers(-1, 4000), st.integers(-1, 60), st.integers(-1, 60))


def _rows(block: Block) -> pa.RecordBatch:
    """What stands in the file, which is byte for byte what Arrow makes of the rows alone."""
    [rows] = decode_blocks(pa.py_buffer(block.data), "block", with_schema=False)
    assert bytes(rows.serialize()) == bytes(block.data)
    assert block.rows == rows.num_rows
    assert block.cancels == rows.num_rows - rows.column("cancels").null_count
    assert block.highest == max(rows.column("offset").to_pylist())
    return rows


def pieces_of(shape: list[list[int]]) -> list[Piece]:
    pieces, offset = [], 0
    for due in shape:
        pieces.append(piece_at(offset, due))
        offset += len(due) + 3  # a gap, where entries without rows were
    return pieces


@settings(max_examples=200)
@given(
    shapes,
    marks,
    st.sampled_from([1, 200, 2000, 1 << 30]),
    st.sampled_from([1, 9000, 1 << 30]),
    st.sampled_from([Widths(), Widths(2000, 4000)]),
)
@example([[5, 3, FAR], [FAR, 0]], Mark(), 1, 1, Widths())
@example([[7] * 20, [7]], Mark(7, 10, 60), 1, 1, Widths())
@example([[FAR, FAR + 1, FAR + 5] * 6, [FAR + 1, 5000]], Mark(), 200, 1, Widths(2000, 4000))
def test_every_uncovered_row_once_in_slot_order(
    shape: list[list[int]], mark: Mark, range_bytes: int, join_bytes: int, widths: Widths
) -> None:
    """Of a slot in blocks whose offsets do not interleave."""
    pieces = pieces_of(shape)
    with (
        patch.object(spill, "_RANGE_BYTES", range_bytes),
        patch.object(spill, "_JOIN_BYTES", join_bytes),
    ):
        found = list(blocks(pieces, Marks(mark).all_covered, widths))
    expected = [
        (due, offset)
        for piece in pieces
        for offset, due in enumerate(piece.due.tolist(), piece.base_offset)
        if not mark.covers(due, offset)
    ]
    slots = [block.slot for block in found]
    assert slots == sorted(slots), "out of order"
    for block in found:
        assert _rows(block).schema == ROW
        keys = keys_of(_rows(block))
        assert keys == sorted(keys), "a block that is not sorted"
        assert {begins_ms(block.slot) <= due < ends_ms(block.slot) for due, _ in keys} == {True}
    every = [keys_of(_rows(block)) for block in found]
    assert sorted(expected) == sorted(key for keys in every for key in keys)
    for (lower, above), (before, after) in zip(pairwise(found), pairwise(every), strict=True):
        if lower.slot == above.slot:
            assert max(offset for _, offset in before) < min(offset for _, offset in after)


@pytest.mark.parametrize("span_ms", [DAY_S * 1000, 1000, 1])
@pytest.mark.parametrize("pads", [[100, 100], [100, 8_000, 0, 0]])
def test_what_is_due_together_is_written_in_small_blocks(span_ms: int, pads: list[int]) -> None:
    """In a day, a second or a millisecond, and also when some of it is large: else a spill would
    need a multiple of its memory (I9 of docs/design.md)."""
    first, other = 10 * DAY_S * 1000, 12 * DAY_S * 1000
    due = [*(first + number * span_ms // 1000 for number in range(1000)), other]
    counts = [len(due) // max(1, pad // 100) for pad in pads]
    offsets = [sum(counts[:number]) for number in range(len(counts))]
    pieces = [
        piece_at(offset, due[-count:], pad=pad)
        for offset, count, pad in zip(offsets, counts, pads, strict=True)
    ]
    widths = Widths(1000, 2000) if span_ms > 1000 else Widths()
    with patch.object(spill, "_RANGE_BYTES", 20_000):
        every = list(spill._by_range(pieces, Marks().all_covered, widths))
    found = [block for made in every for block in made]
    total = sum(len(block.data) for block in found)
    most = 60_000 if span_ms > 1000 else total // 3
    assert max(sum(len(block.data) for block in made) for made in every) <= most
    assert sum(block.rows for block in found) == sum(counts)
    ends = [np.array([first]), np.array([other])]
    assert {block.slot for block in found} == {int(widths.slots(end)[0]) for end in ends}


def test_contents_stay_with_their_rows() -> None:
    pieces = [piece_at(0, [2500, 100], cancels={1: 77}), piece_at(2, [2100, 100, 50])]
    found = list(blocks(pieces, Marks().all_covered, Widths()))
    values = [_rows(block).column("value").to_pylist() for block in found]
    assert values == [[b"4", b"1", b"3"], [b"2", b"0"]]
    assert _rows(found[0]).column("cancels").to_pylist() == [None, 77, None]


def test_nothing_left_is_no_block() -> None:
    assert list(blocks([piece_at(0, [5, 6])], Marks(Mark(6, 1, 1)).all_covered, Widths())) == []
    assert list(blocks([], Marks().all_covered, Widths())) == []


@pytest.mark.parametrize(("with_header", "without"), [(500, 1000), (20_000, 3000)])
def test_rows_without_headers_do_not_carry_those_of_others(with_header: int, without: int) -> None:
    """Arrow writes the whole offsets of a child of which a slice has nothing."""
    count = with_header + without
    due = [60_000] * with_header + [100_000 + 1000 * number for number in range(without)]
    headers = [[("trace", b"0123456789")]] * with_header + [[]] * without
    nothing = [None] * count
    rows = from_columns(due, ["t"] * count, nothing, nothing, [b"x" * 100] * count, headers)
    payload = [rows.column(0), rows.column(0), pa.nulls(count, pa.int64()), *rows.columns[1:]]
    piece = piece_of(0, pa.RecordBatch.from_arrays(payload, schema=PAYLOAD), 1)
    found = list(blocks([piece], Marks().all_covered, Widths()))
    assert len(found) == 1 + without
    assert max(len(block.data) for block in found[1:]) < 2000
    assert [_rows(block).column("headers").to_pylist() for block in found[1:3]] == [[[]], [[]]]
    assert _rows(found[0]).column("headers")[7].as_py() == [
        {"key": "trace", "value": b"0123456789"}
    ]


def test_an_estimate_that_is_too_small_stops_nothing() -> None:
    pieces = [piece_at(0, [2500, 100, 7000])]
    with patch.object(wheel_blocks, "_OVERHEAD_BYTES", 0):
        small = [bytes(block.data) for block in blocks(pieces, Marks().all_covered, Widths())]
    assert small == [bytes(block.data) for block in blocks(pieces, Marks().all_covered, Widths())]

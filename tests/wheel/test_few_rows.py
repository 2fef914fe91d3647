"""A few rows go another way than many, to the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel import rows, schema
from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidBatch, InvalidMessage
from slotwheel.wheel.rows import from_columns, no_cancels
from slotwheel.wheel.schema import INPUT, bounds, distinct

NOW_MS = 1_800_000_000_000
CONTENT = st.none() | st.binary(max_size=5) | st.text(max_size=3) | st.just(bytearray(b"b"))
ROW = st.tuples(
    st.integers(0, 1 << 50),
    st.text(max_size=3),
    st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    CONTENT,
    CONTENT,
    st.lists(st.tuples(st.text(max_size=2), CONTENT), max_size=3),
)


def columns(of: list[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*of, strict=True)]


@given(of=st.lists(ROW, min_size=1, max_size=8))
def test_both_ways_make_the_same_batch(of: list[Any]) -> None:
    few = from_columns(*columns(of))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "FEW_ROWS", 0)
        many = from_columns(*columns(of))
    assert few.schema.equals(INPUT)
    assert few.equals(many)
    few.validate(full=True)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *[(0, None), (0, "soon"), (1, 5), (1, b"\xff"), (1, "\ud800"), (2, "x"), (2, 1 << 40)],
        *[(3, 5), (4, 1.5), (5, [("a",)]), (5, ["abc"])],
    ],
)
def test_a_wrong_value_is_an_error_both_ways(place: int, wrong: object) -> None:
    row: list[Any] = [1, "t", None, None, b"", []]
    row[place] = wrong
    for few in (schema.FEW_ROWS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "FEW_ROWS", few)
            with pytest.raises((pa.ArrowException, TypeError, ValueError)):
                from_columns(*columns([row]))


@pytest.mark.parametrize("count", [3, schema.FEW_ROWS + 1])
def test_different_values_come_in_their_order(count: int) -> None:
    texts = ["b", "a", "b"] * count
    assert distinct(pa.array(texts[:count])) == ["b", "a"]


@pytest.mark.parametrize("count", [0, 1, schema.FEW_ROWS, schema.FEW_ROWS + 1])
def test_rows_that_cancel_nothing(count: int) -> None:
    column = no_cancels(count)
    assert (len(column), column.null_count, column.type) == (count, count, pa.int64())


def test_limits_hold_for_a_few_rows_as_for_many() -> None:
    config = WheelConfig(message_bytes_max=1000, batch_bytes_max=4000)

    def batch(*sizes: int) -> pa.RecordBatch:
        values = [bytes(size) for size in sizes]
        nothing = [None] * len(values)
        due, topics = [NOW_MS] * len(values), ["t"] * len(values)
        return from_columns(due, topics, nothing, nothing, values, [()] * len(values))

    assert check_input(batch(1000), config, NOW_MS).num_rows == 1
    with pytest.raises(InvalidMessage, match="1001 bytes"):
        check_input(batch(10, 1001), config, NOW_MS)
    with pytest.raises(InvalidBatch, match="batch too large"):
        check_input(batch(*[1000] * 4), config, NOW_MS)


@pytest.mark.parametrize("begin", [0, 8])
def test_memory_that_columns_share_counts_for_each(begin: int) -> None:
    """Arrow counts what begins at one place once, and as large as the first: a batch whose value
    begins where its due time does was taken for a small one, and stopped the journal."""
    shared = pa.py_buffer(NOW_MS.to_bytes(8, "little") + bytes(2000))
    due = pa.Array.from_buffers(schema.TIME, 1, [None, shared.slice(0, 8)])
    ends = pa.py_buffer(np.array([0, 1800], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, shared.slice(begin)])
    batch = pa.record_batch([due, pa.array(["t"]), value], ["due", "topic", "value"])
    assert batch.num_rows == 1
    config = WheelConfig(message_bytes_max=1000, batch_bytes_max=4000)
    with pytest.raises(InvalidMessage, match="1800 bytes"):
        check_input(batch, config, NOW_MS)
    small = WheelConfig(message_bytes_max=1000, batch_bytes_max=1000)
    with pytest.raises(InvalidBatch, match="batch too large"):
        check_input(batch, small, NOW_MS)


@pytest.mark.parametrize(
    "headers",
    [[["a", b"1"]], {"a": b"1"}.items(), [{"key": "a", "value": b"1"}], [None], None],
    ids=["lists", "items", "dicts", "none", "nothing"],
)
def test_pairs_of_any_kind_mean_the_same_in_a_few_rows_as_in_many(headers: Any) -> None:
    def made(count: int) -> object:
        nothing = [None] * count
        try:
            batch = from_columns(
                [1] * count, ["t"] * count, nothing, nothing, nothing, [headers] * count
            )
        except TypeError:
            return TypeError
        return batch.column("headers")[0].as_py()

    assert made(1) == made(schema.FEW_ROWS + 1)


@given(st.lists(st.integers(-(1 << 62), 1 << 62), min_size=1, max_size=8), st.booleans())
def test_bounds_are_the_same_in_a_few_values_as_in_many(some: list[int], many: bool) -> None:
    values = np.array(some * (schema.FEW_ROWS if many else 1), np.int64)
    assert bounds(values) == (min(some), max(some))

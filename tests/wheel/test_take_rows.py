"""Taking rows gives the same, whatever columns hold nothing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.rows import from_columns, take_rows
from slotwheel.wheel.schema import INPUT

_row = st.tuples(
    st.sampled_from(["a", "b"]),
    st.none() | st.integers(0, 5),
    st.none() | st.binary(max_size=4),
    st.none() | st.binary(max_size=4),
    st.lists(st.tuples(st.sampled_from(["h", "i"]), st.none() | st.binary(max_size=3)), max_size=2),
)


@given(st.lists(_row, min_size=1, max_size=20), st.data())
def test_the_same_as_arrow_s(rows: list[tuple[object, ...]], data: st.DataObject) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    batch = from_columns(np.arange(len(rows)), *columns)
    start = data.draw(st.integers(0, len(rows) - 1))
    part = batch.slice(start)
    wanted = data.draw(st.lists(st.integers(0, part.num_rows - 1), max_size=30))
    found = take_rows(part, np.array(wanted, np.int64))
    found.validate(full=True)
    assert found.schema.equals(batch.schema, check_metadata=True)
    assert found.equals(part.take(pa.array(wanted, pa.int64())))


@pytest.mark.parametrize("headers", [(), (("h", b"v"),)])
def test_nulls_are_counted(headers: tuple[tuple[str, bytes], ...]) -> None:
    batch = from_columns([1, 2, 3], ["t"] * 3, [None] * 3, [None] * 3, [b"v"] * 3, [headers] * 3)
    found = take_rows(batch, np.array([2, 0], np.int64))
    assert found.column("partition").null_count == 2
    assert (
        found.column("headers").to_pylist()
        == [[dict(zip(("key", "value"), h, strict=True)) for h in headers]] * 2
    )
    assert found.column("due").cast(pa.int64()).to_pylist() == [3, 1]


def test_of_no_rows_none_are_taken() -> None:
    assert take_rows(from_columns([], [], [], [], [], []), np.zeros(0, np.int64)).num_rows == 0


def test_a_column_that_may_not_be_null_is_taken_as_it_is() -> None:
    """Damaged data: whoever compares it must see it, not trip over a column made anew."""
    rows = pa.record_batch([pa.nulls(3, pa.utf8())], schema=pa.schema([INPUT.field("topic")]))
    assert take_rows(rows, np.array([2, 0])).column(0).to_pylist() == [None, None]

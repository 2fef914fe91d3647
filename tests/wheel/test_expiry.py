"""When a message expires: what is read of its headers, and what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.checks import bad_rows, check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidMessage
from slotwheel.wheel.expiry import EXPIRES_HEADER, NEVER_MS, expires_ms
from slotwheel.wheel.rows import from_columns, header_column, headers_of, with_headers

NOW = 1_790_000_000_000
Pairs = list[tuple[str, bytes | None]]
PAIRS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, b"", b"x"])))
TIMES = st.none() | st.integers(0, 10**18 - 1)


def rows(*headers: Pairs, due: int = NOW) -> pa.RecordBatch:
    count = len(headers)
    nothing = [None] * count
    return from_columns([due] * count, ["t"] * count, nothing, nothing, nothing, headers)


@given(st.lists(st.tuples(PAIRS, TIMES, PAIRS)))
def test_each_row_expires_when_its_header_says(
    given_rows: list[tuple[Pairs, int | None, Pairs]],
) -> None:
    headers = [
        [*before, *([] if at is None else [(EXPIRES_HEADER, b"%d" % at)]), *behind]
        for before, at, behind in given_rows
    ]
    wanted = [NEVER_MS if at is None else at for _, at, _ in given_rows]
    column = header_column([[("x", b"cut off")], *headers])[1:]
    found = expires_ms(column)
    if found is None:
        assert set(wanted) <= {NEVER_MS}
    else:
        assert found.tolist() == wanted


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([b"soon"], "unreadable"),
        ([b""], "unreadable"),
        ([b"-1"], "unreadable"),
        ([b"1" * 19], "unreadable"),
        ([None], "unreadable"),
        ([b"%d" % NOW], "expires before it is due"),
        ([b"%d" % (NOW - 1)], "expires before it is due"),
        ([b"%d" % (NOW + 1), b"%d" % (NOW + 1)], "twice"),
    ],
)
def test_an_unusable_time_is_refused_with_its_row(values: list[bytes | None], what: str) -> None:
    good: Pairs = [(EXPIRES_HEADER, b"%d" % (NOW + 1))]
    batch = rows([], good, [(EXPIRES_HEADER, value) for value in values], good)
    with pytest.raises(InvalidMessage, match=what) as caught:
        check_input(batch, WheelConfig(), NOW)
    assert caught.value.row == 2
    assert caught.value.remedy
    assert set(bad_rows(batch, latest_due_ms=None, message_bytes_max=1000)) == {2}


def test_a_usable_time_is_no_reserved_header() -> None:
    batch = rows([("a", b""), (EXPIRES_HEADER, b"%d" % (NOW + 1))])
    assert check_input(batch, WheelConfig(), NOW).equals(batch)
    pairs: Pairs = [(EXPIRES_HEADER, b"%d" % (NOW + 1))]
    many = rows(*[pairs] * 100)
    assert check_input(many, WheelConfig(), NOW).equals(many)


@given(st.lists(st.tuples(PAIRS, st.none() | st.binary(), st.none() | st.binary()), min_size=1))
def test_headers_are_added_behind_those_of_each_row(
    given_rows: list[tuple[Pairs, bytes | None, bytes | None]],
) -> None:
    own = header_column([[("x", b"cut off")], *(headers for headers, _, _ in given_rows)])[1:]
    added = headers_of(
        {
            "first": pa.array([first for _, first, _ in given_rows], pa.binary()),
            "second": pa.array([second for _, _, second in given_rows], pa.binary()),
        }
    )
    found = with_headers(own, added)
    found.validate(full=True)
    assert [[(one["key"], one["value"]) for one in row] for row in found.to_pylist()] == [
        headers
        + ([] if first is None else [("first", first)])
        + ([] if second is None else [("second", second)])
        for headers, first, second in given_rows
    ]


def test_a_time_that_was_never_checked_is_none() -> None:
    """In journals of a version that took any header of that name."""
    values = [b"soon", None, b"", b"-1", b"\xff", b"1" * 19, b"12\n", b"7"]
    column = header_column([[(EXPIRES_HEADER, value)] for value in values])
    found = expires_ms(column)
    assert found is not None
    assert found.tolist() == [NEVER_MS] * 7 + [7]
    spark = pa.array([None, *column.to_pylist()], column.type)
    found = expires_ms(spark)
    assert found is not None
    assert found.tolist() == [NEVER_MS] * 8 + [7]


def test_no_header_of_that_name_costs_nothing() -> None:
    assert expires_ms(header_column([[], []])) is None
    assert expires_ms(header_column([[("a", b"1")], []])) is None
    assert np.iinfo(np.int64).max == NEVER_MS

"""What bad input gets: an error that names value, limit, row and remedy, and nothing breaks.

Broken buffers are built by hand, as no Arrow library would: unchecked, each crashes or misleads one
of its kernels.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.checks import bad_rows, check_input, check_topic, reserved_headers
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidBatch, InvalidMessage, SlotwheelError
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import HEADER, HEADERS, INPUT, TIME, sizes
from support.wheels import NOW

CONFIG = WheelConfig(batch_rows_max=10, batch_bytes_max=5_000, message_bytes_max=1_000, slots=60)
Headers = list[tuple[str, bytes | None]]


def good(rows: int = 3) -> pa.RecordBatch:
    return from_columns(
        [NOW + n for n in range(rows)],
        ["topic"] * rows,
        [None] * rows,
        [b"key"] * rows,
        [b"value"] * rows,
        [[("a", b"1"), ("a", None)]] * rows,
    )


def replaced(name: str, column: pa.Array, batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """Another column, whatever its type: also one that contradicts the schema's nullability."""
    batch = batch if batch is not None else good(len(column))
    arrays = [column if field.name == name else batch.column(field.name) for field in INPUT]
    return pa.RecordBatch.from_arrays(arrays, names=INPUT.names)


def due(*ms: int | None) -> pa.RecordBatch:
    return replaced("due", pa.array(ms, pa.int64()).cast(TIME))


def refused(batch: pa.RecordBatch, kind: type[SlotwheelError], *words: str) -> SlotwheelError:
    with pytest.raises(kind) as caught:
        check_input(batch, CONFIG, NOW)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.remedy, "an error says what to do next"
    return caught.value


# -- what is accepted ----------------------------------------------------------------------------


def test_a_good_batch_passes_as_it_is() -> None:
    assert check_input(good(), CONFIG, NOW).equals(good())


def test_boundaries_of_the_due_time() -> None:
    """Due in the past is accepted and leaves at once; the horizon's end is inside."""
    for ms in (0, NOW - 1, NOW, NOW + 1, NOW + CONFIG.horizon_ms):
        assert check_input(due(ms), CONFIG, NOW).num_rows == 1
    error = refused(
        due(NOW, NOW + CONFIG.horizon_ms + 1),
        InvalidMessage,
        "horizon",
        "too far ahead by 1 ms",
        "--horizon",
    )
    assert error.row == 1
    assert refused(due(NOW, NOW, -1), InvalidMessage, "1970", "got -1").row == 2


def test_columns_in_any_order_and_some_left_out() -> None:
    batch = good()
    shuffled = batch.select(["headers", "value", "topic", "key", "due", "partition"])
    assert check_input(shuffled, CONFIG, NOW).equals(batch)
    least = check_input(batch.select(["value", "topic", "due"]), CONFIG, NOW)
    assert least.schema.equals(INPUT)
    assert least.column("headers").to_pylist() == [[], [], []]
    assert least.column("key").null_count == 3


def test_types_that_mean_the_same_are_cast() -> None:
    batch = good(2)
    assert check_input(
        replaced("due", pa.array([NOW, NOW], pa.timestamp("ms", tz="UTC")).cast(pa.int64())),
        CONFIG,
        NOW,
    ).num_rows
    for name, kind in (
        ("value", pa.large_binary()),
        ("key", pa.utf8()),
        ("topic", pa.large_utf8()),
    ):
        column = batch.column(name).cast(kind)
        assert check_input(replaced(name, column), CONFIG, NOW).equals(batch) or name == "due"
    dictionary = batch.column("topic").dictionary_encode()
    assert check_input(replaced("topic", dictionary), CONFIG, NOW).schema.equals(INPUT)


def test_a_slice_is_checked_as_what_it_is() -> None:
    batch = due(NOW + 10 * CONFIG.horizon_ms, NOW, NOW)
    assert check_input(batch.slice(1), CONFIG, NOW).num_rows == 2
    refused(batch.slice(0, 1), InvalidMessage, "horizon")


# -- what is refused -----------------------------------------------------------------------------


def test_no_rows_and_too_many() -> None:
    refused(good(0), InvalidBatch, "empty", "expected 1 row")
    refused(good(11), InvalidBatch, "too many rows", "got 11", "limit 10")
    assert check_input(good(10), CONFIG, NOW).num_rows == 10


def test_a_batch_over_the_limit() -> None:
    values = pa.array([b"x" * 999] * 6, pa.binary())
    refused(replaced("value", values), InvalidBatch, "batch too large", "limit 5000 bytes")


def test_a_message_over_the_limit_is_named() -> None:
    values = pa.array([b"", b"x" * 997, b"x" * 998], pa.binary())  # headers take 3, the key 3
    rows = replaced("value", values).slice(0, 1)
    assert check_input(rows, CONFIG, NOW).num_rows == 1
    fits = pa.array([b"", b"x" * 994, b""], pa.binary())
    none = pa.nulls(3, pa.binary())
    batch = replaced("key", none, replaced("value", fits))
    assert check_input(batch, CONFIG, NOW).num_rows == 3
    error = refused(
        replaced("key", none, replaced("value", values)),
        InvalidMessage,
        "message too large",
        "got 1001 bytes",
        "limit 1000",
    )
    assert error.row == 2


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=9),
            st.none() | st.binary(max_size=9),
            st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3),
        ),
        max_size=8,
    ),
    st.integers(0, 4),
)
def test_sizes_are_key_value_and_headers(
    rows: list[tuple[bytes | None, bytes | None, Headers]], skip: int
) -> None:
    batch = from_columns(
        [NOW] * len(rows),
        ["t"] * len(rows),
        [None] * len(rows),
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
    ).slice(skip)
    expected = [
        len(key or b"")
        + len(value or b"")
        + sum(len(name.encode()) + len(content or b"") for name, content in headers)
        for key, value, headers in rows[skip:]
    ]
    assert sizes(batch).tolist() == expected


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a b", "a/b", "ä", "a\n", "a" * 250, "a\0", "../escape"]
)
def test_an_illegal_topic(topic: str) -> None:
    with pytest.raises(InvalidMessage, match="topic"):
        check_topic(topic)
    column = pa.array(["fine", topic, "fine"])
    error = refused(replaced("topic", column), InvalidMessage, "topic", "expected 1 to 249")
    assert error.row == 1


def test_what_is_told_of_each_bad_row_refers_to_no_rows() -> None:
    batch = replaced("topic", pa.array(["a/b", "fine", "a/b"]))
    bad = bad_rows(batch, latest_due_ms=None, message_bytes_max=1_000)
    assert [(row, error.got) for row, error in bad.items()] == [(0, "'a/b'"), (2, "'a/b'")]
    assert [error.__traceback__ for error in bad.values()] == [None, None]


@pytest.mark.parametrize("topic", ["a", "a" * 249, "A.b_c-9", "...", "a.b"])
def test_a_legal_topic(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("extra", [0, 100], ids=["few", "many"])
@pytest.mark.parametrize("start", [0, 1])
def test_reserved_header_names(extra: int, start: int) -> None:
    """``extra``: rows before, so that it is found by column as well as by row."""
    fine = [("slotwheel", b"1"), ("Slotwheel-id", None), ("slotwheel-redelivered-id", b"2")]
    fine += [("slotwheel-dead-reason", b"refused"), ("slotwheel-dead-error", b"too large")]
    fine += [("slotwheel-origin-id", b"3")]
    wrong_ones = [("slotwheel-id", b"x"), ("slotwheel-dead-stage", b"")]
    pairs = [fine] * (extra + 1) + [[], [*fine, *wrong_ones], fine]
    rows = len(pairs)
    none = [None] * rows
    batch = from_columns([NOW] * rows, ["t"] * rows, none, none, [b"v"] * rows, pairs).slice(start)
    wrong = extra + 2 - start
    assert reserved_headers(batch.column("headers")) == {
        wrong: ["slotwheel-id", "slotwheel-dead-stage"]
    }
    with pytest.raises(
        InvalidMessage, match=r"got slotwheel-id, slotwheel-dead-stage; .*Leave"
    ) as one:
        check_input(batch, WheelConfig(), NOW)
    assert one.value.row == wrong
    assert check_input(batch, WheelConfig(), NOW, reserved=True).num_rows == batch.num_rows
    assert check_input(batch.slice(0, wrong), WheelConfig(), NOW).num_rows == wrong


@pytest.mark.parametrize("extra", [0, 100], ids=["few", "many"])
def test_a_dead_letter_that_does_not_say_why_is_refused(extra: int) -> None:
    """It could pass for one of the sink, in the format without a stage."""
    letter = [("slotwheel-dead-reason", b"expired"), ("slotwheel-dead-topic", b"orders")]
    whole = [*letter, ("slotwheel-dead-error", b"late")]
    pairs = [whole] * (extra + 1) + [letter, whole]
    rows = len(pairs)
    none = [None] * rows
    batch = from_columns([NOW] * rows, ["t"] * rows, none, none, [b"v"] * rows, pairs)
    with pytest.raises(InvalidMessage, match="slotwheel-dead-reason, slotwheel-dead-topic") as one:
        check_input(batch, WheelConfig(), NOW)
    assert one.value.row == extra + 1


def test_a_null_where_none_may_be() -> None:
    """What lies under a null would be read as a due time or a topic."""
    assert refused(due(NOW, None, NOW), InvalidMessage, "no due", "null").row == 1
    topics = pa.array(["a", None], pa.utf8())
    assert refused(replaced("topic", topics), InvalidMessage, "no topic").row == 1
    headers = pa.array([[], None], HEADERS)
    assert refused(replaced("headers", headers), InvalidMessage, "no headers").row == 1


def test_a_header_without_a_key() -> None:
    keys = pa.array(["a", None], pa.utf8())
    values = pa.array([b"1", b"2"], pa.binary())
    for items in (
        pa.StructArray.from_arrays([keys, values], fields=list(HEADER)),
        pa.StructArray.from_arrays(
            [keys.fill_null("b"), values], fields=list(HEADER), mask=pa.array([False, True])
        ),
    ):
        headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items, type=HEADERS)
        refused(replaced("headers", headers), InvalidMessage, "header without a key")


def test_a_negative_partition() -> None:
    column = pa.array([0, None, -3, -2], pa.int32())
    assert refused(replaced("partition", column), InvalidMessage, "partition", "got -3").row == 2


def test_a_wrong_schema() -> None:
    batch = good()
    refused(batch.select(["due", "topic"]), InvalidBatch, "wrong schema", "value")
    more = batch.append_column("offset", pa.array([1, 2, 3]))
    refused(more, InvalidBatch, "wrong schema", "offset")
    twice = pa.RecordBatch.from_arrays(
        [*batch.columns, batch.column("key")], names=[*batch.schema.names, "key"]
    )
    refused(twice, InvalidBatch, "wrong schema")
    refused(pa.RecordBatch.from_pylist([{"x": 1}]), InvalidBatch, "wrong schema")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("due", pa.array(["soon", "x", "y"])),
        ("due", pa.array([1.5, 2.5, 3.5])),
        ("due", pa.array([1, 2, 3], pa.timestamp("ns", tz="UTC"))),  # would lose digits
        ("topic", pa.array([1.0, None, 2.0])),
        ("topic", pa.array([b"\xff", b"a", b"b"])),
        ("partition", pa.array([1 << 40, 0, 0])),
        ("partition", pa.array(["x", "y", "z"])),
        ("value", pa.array([[1], [2], [3]])),
        ("key", pa.array([{"a": 1}] * 3)),
        ("headers", pa.array([["a"], ["b"], []])),
        ("headers", pa.array([1, 2, 3])),
    ],
)
def test_a_column_of_a_wrong_type(name: str, column: pa.Array) -> None:
    with pytest.raises((InvalidBatch, InvalidMessage)) as caught:
        check_input(replaced(name, column), CONFIG, NOW)
    assert caught.value.remedy


# -- broken buffers ------------------------------------------------------------------------------


def offsets(*values: int) -> pa.Buffer:
    return pa.py_buffer(np.array(values, np.int32).tobytes())


def binary(kind: pa.DataType, data: bytes, *ends: int) -> pa.Array:
    return pa.Array.from_buffers(kind, len(ends) - 1, [None, offsets(*ends), pa.py_buffer(data)])


def headers(*ends: int, items: pa.Array | None = None) -> pa.Array:
    items = items if items is not None else good(1).column("headers").flatten()
    return pa.Array.from_buffers(HEADERS, len(ends) - 1, [None, offsets(*ends)], children=[items])


def header_items(keys: pa.Array, values: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(HEADER, len(keys), [None], children=[keys, values])


BROKEN: dict[str, Callable[[], pa.RecordBatch]] = {
    "offset beyond the data": lambda: replaced(
        "value", binary(pa.binary(), b"abc", 0, 1, 2, 1 << 30)
    ),
    "offset just beyond the data": lambda: replaced(
        "value", binary(pa.binary(), b"abc", 0, 1, 2, 4)
    ),
    "negative first offset": lambda: replaced("value", binary(pa.binary(), b"abc", -1, 1, 2, 3)),
    "negative offset": lambda: replaced("key", binary(pa.binary(), b"abc", 0, -(1 << 31), 2, 3)),
    "offsets that go back": lambda: replaced("value", binary(pa.binary(), b"abc", 0, 3, 1, 3)),
    "topic offset beyond the data": lambda: replaced(
        "topic", binary(pa.utf8(), b"abc", 0, 1, 2, 99)
    ),
    "topic offsets that go back": lambda: replaced("topic", binary(pa.utf8(), b"abc", 0, 2, 1, 3)),
    "topic not UTF-8": lambda: replaced("topic", binary(pa.utf8(), b"a\xffc", 0, 1, 2, 3)),
    "topic cut inside a character": lambda: replaced(
        "topic", binary(pa.utf8(), "aä".encode(), 0, 1, 2, 3)
    ),
    "topic with a lone surrogate": lambda: replaced(
        "topic", binary(pa.utf8(), b"\xed\xa0\x80", 0, 3)
    ),
    "too few offsets": lambda: replaced(
        "value",
        pa.Array.from_buffers(pa.binary(), 3, [None, offsets(0, 1), pa.py_buffer(b"abc")]),
    ),
    "no offsets": lambda: replaced(
        "value", pa.Array.from_buffers(pa.binary(), 3, [None, None, pa.py_buffer(b"abc")])
    ),
    "due buffer too short": lambda: replaced(
        "due", pa.Array.from_buffers(TIME, 3, [None, pa.py_buffer(bytes(23))])
    ),
    "partition buffer too short": lambda: replaced(
        "partition", pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(bytes(8))])
    ),
    "validity bitmap too short": lambda: replaced(
        "partition",
        pa.Array.from_buffers(pa.int32(), 9, [pa.py_buffer(b"\xff"), pa.py_buffer(bytes(36))]),
    ),
    "list offset beyond the items": lambda: replaced("headers", headers(0, 1, 99)),
    "negative list offset": lambda: replaced("headers", headers(-5, 1, 2)),
    "list offsets that go back": lambda: replaced("headers", headers(0, 2, 1)),
    "header key not UTF-8": lambda: replaced(
        "headers",
        headers(
            0,
            1,
            items=header_items(binary(pa.utf8(), b"\xff", 0, 1), binary(pa.binary(), b"v", 0, 1)),
        ),
    ),
    "header value offset beyond the data": lambda: replaced(
        "headers",
        headers(
            0,
            1,
            items=header_items(binary(pa.utf8(), b"k", 0, 1), binary(pa.binary(), b"v", 0, 77_777)),
        ),
    ),
    "header struct longer than its children": lambda: replaced(
        "headers",
        headers(
            0,
            5,
            items=pa.Array.from_buffers(
                HEADER,
                5,
                [None],
                children=[binary(pa.utf8(), b"k", 0, 1), binary(pa.binary(), b"v", 0, 1)],
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_buffers_are_refused_and_nothing_crashes(name: str) -> None:
    try:
        batch = BROKEN[name]()
    except (pa.ArrowException, ValueError):
        return  # pyarrow refused to build it: nothing of it can reach us
    refused(batch, InvalidBatch, "not valid Arrow data")


@pytest.mark.parametrize("claimed", [1, 3])
def test_a_null_count_that_lies_is_refused(claimed: int) -> None:
    bitmap = pa.py_buffer(b"\x04")  # rows 0 and 1 are null
    values = pa.py_buffer(np.array([NOW, NOW, NOW], np.int64).tobytes())
    column = pa.Array.from_buffers(TIME, 3, [bitmap, values], null_count=claimed)
    refused(replaced("due", column), InvalidBatch, "not valid Arrow data")


def test_where_no_null_is_claimed_the_value_counts() -> None:
    """Arrow drops the bitmap then, so what lies under it is checked like any other value."""
    bitmap = pa.py_buffer(b"\x05")
    values = pa.py_buffer(np.array([NOW, -77, NOW], np.int64).tobytes())
    column = pa.Array.from_buffers(TIME, 3, [bitmap, values], null_count=0)
    assert refused(replaced("due", column), InvalidMessage, "1970", "got -77").row == 1


@settings(max_examples=300)
@given(st.data())
def test_one_number_changed_anywhere_in_the_message_is_no_crash(data: st.DataObject) -> None:
    """Whatever is changed in the IPC bytes: refused by Arrow, refused here, or a valid batch."""
    raw = bytearray(good().serialize().to_pybytes())
    at = data.draw(st.integers(8, len(raw) - 8))
    how = data.draw(st.sampled_from(["byte", "int32", "int64"]))
    number = data.draw(st.sampled_from([-1, 1, 1 << 30, -(1 << 31), 255, 0]))
    if how == "byte":
        raw[at] = number & 0xFF
    elif how == "int32":
        struct.pack_into("<i", raw, at, max(-(1 << 31), min(number, (1 << 31) - 1)))
    else:
        struct.pack_into("<q", raw, at, number << 31)
    try:
        batch: Any = pa.ipc.read_record_batch(pa.py_buffer(bytes(raw)), INPUT)
        checked = check_input(batch, CONFIG, NOW)
    except (pa.ArrowException, OSError, SlotwheelError):
        return
    checked.validate(full=True)
    assert checked.schema.equals(INPUT)
    assert checked.to_pylist()

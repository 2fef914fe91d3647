"""Plain rows: the bytes are Arrow's, the verdicts are those of the Arrow checks."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.arrowbytes import PlainHeader, PlainRow, encode_rows
from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.delay import as_due
from slotwheel.wheel.errors import InvalidBatch, SlotwheelError
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.journal.payloads import (
    cancel_rows,
    encode_cancels,
    encode_input,
    encode_own,
)
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from slotwheel.wheel.plain import check_plain, decode_records, encode_records
from slotwheel.wheel.rows import header_lists
from slotwheel.wheel.schema import INPUT, TIME
from support.wheels import NOW

maybe = st.none() | st.binary(max_size=12)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
row = st.tuples(
    int64s,
    st.text(max_size=9).map(str.encode),
    st.none() | st.integers(0, (1 << 31) - 1),
    maybe,
    maybe,
    st.lists(st.tuples(st.text(max_size=5).map(str.encode), maybe), max_size=3),
)
rows_of_a_kind = st.lists(row, min_size=1, max_size=70)


def without(rows: list[PlainRow], columns: set[int]) -> list[PlainRow]:
    """Some columns are null in all rows."""
    changed = [[None if at in columns else one for at, one in enumerate(row)] for row in rows]
    return [(*one,) for one in changed]  # type: ignore[misc]


sparse = st.builds(without, rows_of_a_kind, st.sets(st.integers(2, 4)))


def arrow(rows: list[PlainRow]) -> pa.RecordBatch:
    """The rows with the INPUT schema, whatever their texts hold."""
    due, topics, partitions, keys, values, headers = zip(*rows, strict=True)
    pairs = [pair for each in headers for pair in each]
    names = pa.array([name for name, _ in pairs], pa.binary()).view(pa.utf8())
    contents = pa.array([content for _, content in pairs], pa.binary())
    columns = [
        pa.array(due, pa.int64()).view(TIME),
        pa.array(topics, pa.binary()).view(pa.utf8()),
        pa.array(partitions, pa.int32()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        header_lists(np.array([len(each) for each in headers], np.int64), names, contents),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


@settings(max_examples=200)
@given(sparse, int64s)
def test_the_bytes_are_those_that_arrow_writes(rows: list[PlainRow], created_ms: int) -> None:
    """Of the installed pyarrow; the lists of columns that are all null, or none, are in it."""
    assert encode_rows(rows, created_ms) == bytes(encode_input(arrow(rows), created_ms).payload)


@given(st.lists(st.tuples(int64s, int64s), min_size=1, max_size=70), int64s)
def test_cancel_rows_are_those_that_arrow_writes(
    cancels: list[tuple[int, int]], created_ms: int
) -> None:
    """A few are made without Arrow, and are the same bytes."""
    due, target = np.array(cancels, np.int64).T.copy()
    encoded = encode_cancels(due, target, created_ms)
    by_arrow = encode_own(cancel_rows(due, target), created_ms)
    assert bytes(encoded.payload) == bytes(by_arrow.payload)
    assert encoded.rows == by_arrow.rows
    assert encoded.names is None
    np.testing.assert_array_equal(encoded.due, due)


@given(sparse)
def test_records_come_back(rows: list[PlainRow]) -> None:
    body = encode_records(rows)
    back = decode_records(body, len(rows))
    assert [(*one[:5], list(one[5])) for one in back] == rows
    for count in (0, len(rows) - 1, len(rows) + 1, 1 << 32):
        with pytest.raises(InvalidBatch, match="records"):
            decode_records(body, count)


def test_what_two_bytes_cannot_count_is_no_record() -> None:
    for topic, headers in (
        (b"t" * 65_536, []),
        (b"t", [(b"n" * 65_536, None)]),
        (b"t", [(b"", None)] * 65_536),
    ):
        with pytest.raises(OverflowError):
            encode_records([(0, topic, None, None, None, headers)])


@given(sparse, st.data())
def test_broken_records_are_refused_or_are_others(rows: list[PlainRow], data: Any) -> None:
    """Any byte may be another one, any end missing: nothing is read beyond the body."""
    body = bytearray(encode_records(rows))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    for broken in (bytes(body), cut):
        try:
            found = decode_records(broken, len(rows))
        except InvalidBatch:
            continue
        assert encode_records(found) == broken


@pytest.mark.parametrize("sizes", [(-2, 0), (0, -2), (1, 0), (0, 1), (1 << 30, -1), (-1, 1 << 30)])
def test_a_length_that_lies_is_refused_before_anything_is_made_of_it(
    sizes: tuple[int, int],
) -> None:
    record = struct.pack("<qiiiHH", NOW, *sizes, -1, 1, 0) + b"t"
    header = struct.pack("<qiiiHHHi", NOW, -1, -1, -1, 0, 1, max(0, min(sizes[0], 9)), sizes[1])
    for body in (record, header) if sizes[1] else (record,):
        with pytest.raises(InvalidBatch, match="records"):
            decode_records(body, 1)


HORIZON = 60_000
DUES = [
    *(NOW, NOW + 1, NOW + HORIZON, NOW + HORIZON + 1, 0, -1, -(1 << 63), (1 << 63) - 1),
    *map(as_due, (0, 1, -1_000, HORIZON, HORIZON + 1, -NOW, -NOW - 1, -(1 << 46))),
]
TOPICS = [
    *(b"a", b"a.b_c-9", b"", b".", b"..", b"a b", b"a\0", b"\xff", b"\xed\xa0\x80"),
    *("\u00e9".encode(), b"t" * 249, b"t" * 250, b"slotwheel-dead", b"__consumer_offsets"),
]
PARTITIONS = [None, 0, 5, (1 << 31) - 1, -2, -(1 << 31)]
NAMES = [
    *(b"h", b"", "\u00e9".encode(), b"\xff", b"\0", b"slotwheel", b"slotwheel-", b"slotwheel-id"),
    *(b"slotwheel-redelivered-id", b"slotwheel-dead-error", b"slotwheel-dead-stage"),
    *(b"slotwheel-dead-x", b"slotwheel-retry-n", b"slotwheel-expires-ms\0"),
]
EXPIRIES = [
    *(None, b"", b"x", b"+", b"+1", b"+0", b"+60000", b"-1", b" 1", b"1_0", "\u0661".encode()),
    *(b"0", b"%d" % NOW, b"%d" % (NOW + 1), b"%d" % (NOW + 2), b"%d" % (NOW + HORIZON + 1)),
    *(b"9" * 18, b"1" + b"0" * 18, b"+" + b"9" * 18, b"+1" + b"0" * 18, b"+" + b"0" * 17 + b"1"),
]
EXPIRES = EXPIRES_HEADER.encode()
ALONE: list[list[PlainHeader]] = [[(name, None)] for name in NAMES]
OF_LETTERS: list[list[PlainHeader]] = [
    [(name, b""), (b"slotwheel-dead-error", b"e")] for name in NAMES
]
EXPIRING: list[list[PlainHeader]] = [[(EXPIRES, value)] for value in EXPIRIES]
NAME, IF_EXISTS = NAME_HEADER.encode(), IF_EXISTS_HEADER.encode()
TEXTS = ["\U0001f600" * 50, "\U0001f600" * 51, "a\x85", "a\nb"]
GIVEN_NAMES: list[bytes | None] = [
    *(b"n", b"x" * 200, b"x" * 201, b"", None),
    *(text.encode() for text in TEXTS),
    *(b"\xff", b"\xed\xa0\x80", b"\x7f", b"a\0"),
]
RULES: list[bytes | None] = [b"keep", b"KEEP", b"maybe", b"", None]
NAMING: list[list[PlainHeader]] = [
    *([(NAME, name)] for name in GIVEN_NAMES),
    *([(NAME, b"n"), (IF_EXISTS, rule)] for rule in RULES),
    [(IF_EXISTS, b"keep")],
    [(IF_EXISTS, b"refuse"), (NAME, b"n"), (b"a", None)],
    [(NAME, b"n"), (NAME, b"n")],
    [(NAME, b"n"), (IF_EXISTS, b"keep"), (IF_EXISTS, b"keep")],
    [(NAME, b""), (IF_EXISTS, b"maybe"), (EXPIRES, b"x")],
]
HEADERS: list[list[PlainHeader]] = [
    *ALONE,
    *OF_LETTERS,
    *EXPIRING,
    *NAMING,
    EXPIRING[-1] * 2,
    [(EXPIRES, b"9" * 17)] * 2,
]
AMPLE = WheelConfig(slots=HORIZON // 1000)


def verdict(check: Any) -> object:
    try:
        return check()
    except SlotwheelError as error:
        return type(error), error.code, str(error), error.got, error.limit, error.row


def assert_judged_alike(rows: list[PlainRow], config: WheelConfig) -> None:
    def by_arrow() -> object:
        return check_input(arrow(rows), config, NOW).to_pylist()

    def by_us() -> object:
        checked = check_plain(rows, len(encode_records(rows)), config, NOW)
        batch = arrow([(*one[:5], list(one[5])) for one in checked])
        batch.validate(full=True)
        return batch.to_pylist()

    assert verdict(by_us) == verdict(by_arrow), rows


def test_each_fault_of_a_row_is_judged_as_arrow_judges_it() -> None:
    for due, headers in itertools.product(DUES, HEADERS):
        assert_judged_alike([(due, b"a", None, None, b"x", headers)], AMPLE)
    for topic, partition in itertools.product(TOPICS, PARTITIONS):
        assert_judged_alike([(NOW, topic, partition, b"k", None, [])], AMPLE)


def test_sizes_are_judged_as_arrow_judges_them() -> None:
    """Around the limits, and where nothing is looked at because nothing can be too large."""
    small = WheelConfig(message_bytes_max=100)
    for size in range(130):
        assert_judged_alike([(NOW, b"a", None, bytes(size // 3), bytes(size), [])], small)
        assert_judged_alike([(NOW, b"a", None, None, b"", [(b"", None)] * size)], small)
    batch = WheelConfig(batch_bytes_max=700, batch_rows_max=40)
    for count in range(1, 45):
        for row in ((b"a", None, None, None), (b"a" * 9, 5, b"", b"x")):
            assert_judged_alike([(NOW, *row, [])] * count, batch)


row_like = st.tuples(
    st.sampled_from(DUES[:3] + DUES[8:10]) | st.sampled_from(DUES),
    st.just(b"a") | st.sampled_from(TOPICS),
    st.none() | st.sampled_from(PARTITIONS),
    st.sampled_from([None, b"", b"x"]),
    st.sampled_from([None, bytes(50), bytes(100)]),
    st.just([]) | st.sampled_from(HEADERS),
)
limits = st.just(AMPLE) | st.builds(
    WheelConfig,
    slots=st.just(HORIZON // 1000),
    message_bytes_max=st.sampled_from([99, 1_000_000]),
    batch_bytes_max=st.sampled_from([300, 16 << 20]),
    batch_rows_max=st.sampled_from([2, 65_536]),
)


@settings(max_examples=200)
@given(st.lists(row_like, min_size=1, max_size=3), limits)
def test_several_faults_are_judged_as_arrow_judges_them(
    rows: list[PlainRow], config: WheelConfig
) -> None:
    """Of two bad rows, the one is named that Arrow's checks name."""
    assert_judged_alike(rows, config)


def test_no_rows_are_no_batch() -> None:
    with pytest.raises(InvalidBatch, match="empty"):
        check_plain([], 0, WheelConfig(), NOW)

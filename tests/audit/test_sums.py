"""Sums against a plain model; batches as they travel, and hostile ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.account.vocabulary import Tier
from slotwheel.audit.sums import (
    SUMS_MAX,
    IdSum,
    SumBatch,
    SumKey,
    SummedRange,
    Sums,
    add_rows,
    decode_sums,
    encode_sums,
)
from slotwheel.trace.events import EventSender
from slotwheel.wheel.errors import InvalidMessage, UnsupportedVersion
from support.auditing import pairs, plain_sums

_ABOUT = (Tier.PRODUCED.value, "default", "")
_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["orders", "bills", "ü"]),
        st.integers(-5_000, 50_000),
        st.integers(0, 1 << 62),
    ),
    max_size=50,
)


@given(_ROWS, st.integers(1, 10_000), st.randoms())
def test_sums_are_those_of_a_plain_model_in_any_order_and_any_parts(
    rows: list[tuple[str, int, int]], interval_ms: int, random: Any
) -> None:
    sums: Sums = {}
    shuffled = list(rows)
    random.shuffle(shuffled)
    cut = len(rows) // 3
    for part in (shuffled[:cut], shuffled[cut:]):
        topics, due, offset = ([row[at] for row in part] for at in range(3))
        numbers = np.array(due, np.int64), np.array(offset, np.int64)
        add_rows(sums, _ABOUT, interval_ms, pa.array(topics, pa.utf8()), *numbers)
    assert pairs(sums) == plain_sums(rows, _ABOUT, interval_ms)


def test_how_late_they_were_is_summed_and_the_latest_is_kept() -> None:
    sums: Sums = {}
    topic, due = pa.array(["a"] * 3), np.array([10, 20, 30], np.int64)
    add_rows(sums, _ABOUT, 100, topic, due, due, np.array([5, -7, 30], np.int64))
    (one,) = sums.values()
    assert (one.count, one.late_max_ms, one.late_ms) == (3, 30, 35)


def _batch() -> SumBatch:
    key = SumKey(Tier.CONSUMED, "default", "orders", "billing", 20_000)
    ranges = [SummedRange("billing", "orders", 3, 10, 20)]
    sums = {key: IdSum(2, (1 << 64) - 1, 7, 9)}
    return SumBatch(EventSender("s1", "till"), 4, 10_000, sums, ranges, 5, last=True)


def test_a_batch_arrives_as_it_was_sent() -> None:
    assert decode_sums(encode_sums(_batch())) == _batch()


def _changed(path: str, value: Any) -> bytes:
    found = json.loads(encode_sums(_batch()))
    *above, name = path.split("/")
    place = found
    for one in above:
        place = place[one]
    place[name] = value
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("number", -1),
        ("number", True),
        ("number", 1.5),
        ("number", 1 << 63),
        ("interval_ms", 0),
        ("missing", -1),
        ("last", 1),
        ("sender", None),
        ("sender/name", ""),
        ("sender/name", "x" * 2_000),
        ("sums", []),
        ("sums/count", [1, 2]),
        ("sums/count", [-1]),
        ("sums/count", [1 << 70]),
        ("sums/count", 1),
        ("sums/hash", ["f" * 17]),
        ("sums/hash", ["x" * 16]),
        ("sums/hash", [1]),
        ("sums/bucket", [20_001]),
        ("sums/tier", ["delivered"]),
        ("sums/tier", [["consumed"]]),
        ("sums/topic", ["\ud800"]),
        ("sums/topic", [{}]),
        ("sums/topic", ["../etc"]),
        ("sums/topic", ["a\0"]),
        ("sums/topic", ["t" * 250]),
        ("sums/group", ["\x1b]0;title\x07"]),
        ("sender/client", "two\nlines"),
        ("ranges/topic", ["/tmp"]),
        ("ranges/group", [""]),
        ("sums/group", [""]),
        ("ranges/position", [9]),
        ("ranges/partition", [1 << 31]),
        ("ranges/topic", [["orders"] * (SUMS_MAX + 1)]),
    ],
)
def test_a_forged_batch_is_refused(path: str, value: Any) -> None:
    with pytest.raises(InvalidMessage, match="no batch of audit sums"):
        decode_sums(_changed(path, value))


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b"\xff", b"1", b"[" * 100_000, b'{"a":' * 5_000, b" " * (2 << 20)]
)
def test_what_is_no_batch_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode_sums(value)


def test_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_sums(_changed("slotwheel-audit", 2))

"""Conditions as texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.policy.levels import check_times
from slotwheel.reading.search.query import (
    ContentMatcher,
    PageKey,
    Query,
    parse_where,
)
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.rows import Header, header_column

NOW = 1_800_000_000_000


def test_conditions_of_every_kind() -> None:
    found = parse_where(
        (
            *("topic=orders", "topic=mails", "key=a=b", "key_base64=/w==", "key="),
            *("header:source=web", "header:empty=", "from=1800000000000"),
            *("name=order-17", "name=a=b"),
            *("to=2027-01-15T08:00:01Z", "id=g.1.2.0000000a"),
        ),
        NOW,
    )
    assert found == Query(
        ids=("g.1.2.0000000a",),
        topics=("orders", "mails"),
        keys=(b"a=b", b"\xff", b""),
        names=("order-17", "a=b"),
        headers=(("source", b"web"), ("empty", b"")),
        from_ms=1_800_000_000_000,
        to_ms=1_800_000_001_000,
    )
    assert parse_where((), NOW) == Query()


def test_one_of_several_names_is_enough_and_headers_must_hold_as_well() -> None:
    given: list[list[Header]] = [
        [(NAME_HEADER, b"a"), ("x", b"1")],
        [("x", b"a"), (NAME_HEADER, b"b")],
        [("x", b"a")],
        [(NAME_HEADER, b"c"), ("x", b"1")],
        [],
    ]
    rows = pa.table({"headers": header_column(given), "topic": ["t"] * len(given)})

    def found(**query: Any) -> list[int]:
        mask = ContentMatcher(Query(**query)).matches(rows)
        return [] if mask is None else np.flatnonzero(mask).tolist()

    assert found(names=("a",)) == [0]
    assert found(names=("b", "c", "z")) == [1, 3]
    assert found(names=("a", "b", "c"), headers=(("x", b"1"),)) == [0, 3]
    assert found(names=("z",)) == []
    assert found(headers=(("x", b"a"),)) == [1, 2]
    assert Query(names=("a",)).columns == {"headers"}
    assert not Query(names=("a",)).is_empty


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "topic", "topic=", "id=", "header:=x", "header:source", "colour=red"),
        *("from=", "to=", "key_base64=a", "key_base64=*"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        parse_where([text], NOW)
    assert repr(text) in str(refused.value)
    assert "header:NAME=TEXT" in str(refused.value)


@pytest.mark.parametrize("name", ["from", "to"])
@pytest.mark.parametrize(
    ("text", "probably"),
    [
        ("1800000000", "perhaps seconds: 2027-01-15"),
        ("1800000000000000", "perhaps microseconds: 2027-01-15"),
        ("1800000000000000000", "perhaps nanoseconds: 2027-01-15"),
        *(("0", "0 (1970"), ("-1", "got -1"), ("9223372036854775807", "got 9223372036854775807")),
        *(("-1800000000000", "before 2000"), ("1999-12-31T23:59:59Z", "before 2000")),
        *(("tomorrow", "not a time"), ("1e9", "not a time"), ("9" * 20, "before 2000")),
    ],
)
def test_a_time_in_another_unit_is_refused_with_what_it_probably_is(
    name: str, text: str, probably: str
) -> None:
    """Taken as 1970 it would find each message; a bulk cancel would cancel all of them."""
    with pytest.raises(InvalidConfiguration) as refused:
        parse_where([f"{name}={text}"], NOW)
    assert probably in str(refused.value)
    assert f"{name}={text}" in str(refused.value)
    if text.removeprefix("-").isdecimal():
        with pytest.raises(InvalidConfiguration, match="milliseconds"):
            check_times(**{f"{name}_ms": int(text), "from_ms" if name == "to" else "to_ms": None})


def test_times_that_people_write() -> None:
    found = parse_where(["from=2027-01-15T08:00:00", "to=+10m"], NOW)
    assert (found.from_ms, found.to_ms) == (1_800_000_000_000, NOW + 600_000)


def test_times_between_which_nothing_lies_and_times_that_are_given_twice() -> None:
    with pytest.raises(InvalidConfiguration, match="no time lies between"):
        parse_where([f"from={NOW}", f"to={NOW}"], NOW)
    with pytest.raises(InvalidConfiguration, match="not a condition"):
        parse_where([f"from={NOW}", f"from={NOW + 1}"], NOW)
    with pytest.raises(InvalidConfiguration, match="limit 10000"):
        parse_where(["topic=orders"] * 10_001, NOW)


def test_page_tokens() -> None:
    for key in (PageKey(0, 0), PageKey(-5, 7, "n-1"), PageKey((1 << 63) - 1, (1 << 63) - 1)):
        assert PageKey.parse(str(key)) == key
    for text in ("", "1", "1,", "1,-2", "1,2,a b", " 1,2", "1e3,2", f"{1 << 63},0", "9" * 5000):
        with pytest.raises(InvalidConfiguration, match="DUE,OFFSET"):
            PageKey.parse(text)


def test_what_is_no_text() -> None:
    assert parse_where(["key=\udcff"], NOW).keys == (b"\xff",)
    for condition in ("topic=\udcff", "header:\udcff=x"):
        with pytest.raises(InvalidConfiguration, match="UTF-8"):
            parse_where([condition], NOW)

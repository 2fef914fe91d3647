"""Conditions as texts."""

from __future__ import annotations

import pytest

from slotwheel.search.query import Query, page_text, parse_page, parse_where
from slotwheel.wheel.errors import InvalidConfiguration


def test_conditions_of_every_kind() -> None:
    found = parse_where(
        (
            *("topic=orders", "topic=mails", "key=a=b", "key_base64=/w==", "key="),
            *("header:source=web", "header:empty=", "from=1800000000000"),
            *("to=2027-01-15T08:00:01Z", "id=g.1.2.0000000a"),
        )
    )
    assert found == Query(
        ids=("g.1.2.0000000a",),
        topics=("orders", "mails"),
        keys=(b"a=b", b"\xff", b""),
        headers=(("source", b"web"), ("empty", b"")),
        from_ms=1_800_000_000_000,
        to_ms=1_800_000_001_000,
    )
    assert parse_where(()) == Query()


@pytest.mark.parametrize(
    "text",
    [
        *("", "orders", "topic", "topic=", "id=", "header:=x", "header:source", "colour=red"),
        *(
            "from=tomorrow",
            "from=2027-01-15T08:00:00",
            "from=",
            "to=1e9",
            "to=99999999999999999999",
        ),
        *("key_base64=a", "key_base64=*", "from=9223372036854775808"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        parse_where([text])
    assert repr(text) in str(refused.value)
    assert "header:NAME=TEXT" in str(refused.value)


def test_times_between_which_nothing_lies_and_times_that_are_given_twice() -> None:
    with pytest.raises(InvalidConfiguration, match="no time lies between"):
        parse_where(["from=2000", "to=2000"])
    with pytest.raises(InvalidConfiguration, match="not a condition"):
        parse_where(["from=2000", "from=3000"])
    with pytest.raises(InvalidConfiguration, match="limit 10000"):
        parse_where(["topic=orders"] * 10_001)


def test_page_tokens() -> None:
    for key in ((0, 0), (-5, 7), ((1 << 63) - 1, (1 << 63) - 1)):
        assert parse_page(page_text(key)) == key
    for text in ("", "1", "1,", "1,-1", "1,2,3", " 1,2", "1e3,2", f"{1 << 63},0", "9" * 5000):
        with pytest.raises(InvalidConfiguration, match="DUE,OFFSET"):
            parse_page(text)


def test_what_is_no_text() -> None:
    assert parse_where(["key=\udcff"]).keys == (b"\xff",)
    for condition in ("topic=\udcff", "header:\udcff=x"):
        with pytest.raises(InvalidConfiguration, match="UTF-8"):
            parse_where([condition])

"""Levels: what a time span may be, and which level a name or a number means."""

from __future__ import annotations

import pytest

from slotwheel.policy.levels import DEFAULT_LEVELS, LEVELS_MAX, level_ms, span_ms, spans_ms
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage

LEVELS = spans_ms(["5s", "10s", "1m"], "levels")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1ms", 1),
        ("500ms", 500),
        ("1s", 1000),
        (" 30 s ", 30_000),
        ("1.5h", 5_400_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("0.001s", 1),
        ("999999999d", 999_999_999 * 86_400_000),
    ],
)
def test_a_span_is_a_number_and_its_unit(text: str, ms: int) -> None:
    assert span_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "s",
        "0s",
        "0.4ms",
        "-1s",
        "+1s",
        "1e3s",
        "1,5s",
        ".5s",
        "1.s",
        "5 seconds",
        "1s 2s",
        "1m30s",
        "٣s",
        "²s",
        "nan s",
        "infs",
        "1_0s",
        "0x1s",
        "1s\x00",
        "9" * 10 + "s",
        "__import__('os')",
        "9" * 100000,
    ],
)
def test_what_is_no_span_is_named_with_what_would_be_one(text: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        span_ms(text)
    assert caught.value.got == repr(text[:80])
    assert caught.value.limit
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("level", "ms"),
    [("5s", 5000), ("1m", 60_000), ("1", 5000), ("3", 60_000), (" 10s ", 10_000), (" 2 ", 10_000)],
)
def test_a_level_by_its_name_or_its_number(level: str, ms: int) -> None:
    assert level_ms(LEVELS, level) == ms


@pytest.mark.parametrize(
    "level",
    [
        "",
        "0",
        "4",
        "-1",
        "1.0",
        "5",
        "30s",
        "5S",
        "٣",
        "1e0",
        "01",
        "0000000003",
        "0000000099",
        "9" * 10000,
        "5s,10s",
        "�",
    ],
)
def test_an_unknown_level_is_told_which_there_are(level: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        level_ms(LEVELS, level)
    assert "5s 10s 1m" in str(caught.value.limit)
    assert "1 to 3" in str(caught.value.limit)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "texts", [None, "5s", {}, {"5s": 1}, [], [5], [None], ["5s", ["1s"]], ["1s"] * (LEVELS_MAX + 1)]
)
def test_what_is_no_list_of_levels(texts: object) -> None:
    with pytest.raises(InvalidConfiguration, match="somewhere") as caught:
        spans_ms(texts, "somewhere")
    assert caught.value.got
    assert caught.value.limit
    assert caught.value.remedy


def test_the_default_levels_ascend() -> None:
    delays = list(spans_ms(list(DEFAULT_LEVELS), "levels").values())
    assert delays == sorted(delays)
    assert (len(delays), delays[0], delays[-1]) == (12, 5000, 7_200_000)

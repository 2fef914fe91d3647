"""Retry policies: how long after which attempt, how much jitter, and when there is no next one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.levels import LEVELS_MAX
from slotwheel.policy.retry import DEFAULT, RetryPolicy, find_policy
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError

THREE = RetryPolicy.literal("1s 2s 4s")
JITTERS: list[Any] = [-0.1, 1.1, True, "0.1", None, []]
TOPICS: list[Any] = ["", "a b", 5, True, ["t"], ".."]


def test_each_failed_attempt_has_its_delay_and_the_last_has_none() -> None:
    assert [THREE.delay_ms(failed, 0.5) for failed in range(1, 6)] == [1000, 2000, 4000, None, None]
    assert THREE.delay_ms(1_000_000, 0.0) is None


@given(
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1),
    delay=st.integers(1, 10**6),
)
def test_jitter_adds_at_most_its_share_and_takes_nothing(
    jitter: float, chance: float, delay: int
) -> None:
    policy = RetryPolicy.parse("p", {"levels": [f"{delay}ms"], "jitter": jitter})
    found = policy.delay_ms(1, chance)
    assert found is not None
    assert delay <= found <= delay * (1 + jitter)


def test_jitter_spreads_over_its_whole_share() -> None:
    policy = RetryPolicy.parse("p", {"levels": ["10s"], "jitter": 0.5})
    assert [policy.delay_ms(1, one) for one in (0.0, 0.5, 1.0)] == [10_000, 12_500, 15_000]


def test_a_policy_is_found_by_its_name_or_is_its_levels() -> None:
    policies = {"default": DEFAULT, "orders": RetryPolicy.parse("orders", {"levels": ["1s", "1s"]})}
    assert find_policy(policies, "orders").delays_ms == (1000, 1000)
    assert find_policy(policies, "1s 2s 4s") == THREE
    assert find_policy(policies, "  1s\t2s  4s ".strip()).name == "1s 2s 4s"
    assert find_policy(policies, "500ms").delays_ms == (500,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "order",
        "Orders",
        "1s 2",
        "1s,2s",
        "0s",
        "²",
        "٣s",
        "5",
        "\x00",
        "__import__('os')",
        "1s " * (LEVELS_MAX + 1),
        "9" * 100000,
    ],
)
def test_an_unknown_policy_is_told_which_there_are(text: str) -> None:
    with pytest.raises(InvalidMessage, match="no such retry policy") as caught:
        find_policy({"orders": THREE, "default": DEFAULT}, text)
    assert "default, orders" in str(caught.value.limit)
    assert caught.value.got == repr(text[:80])
    assert caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "1s 2s",
        {},
        {"jitter": 0.1},
        {"levels": ["1s"], "retries": 3},
        {"levels": "1s"},
        {"levels": []},
        {"levels": [1]},
        {"levels": ["soon"]},
        *({"levels": ["1s"], "jitter": one} for one in JITTERS),
        *({"levels": ["1s"], "jitter": float(one)} for one in ("nan", "inf")),
        *({"levels": ["1s"], "dead-letters": one} for one in TOPICS),
    ],
)
def test_what_is_no_policy_gets_an_error_that_says_all(fields: Any) -> None:
    with pytest.raises(SlotwheelError) as caught:
        RetryPolicy.parse("p", fields)
    assert caught.value.got is not None
    assert caught.value.limit
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["", "1s", "a b", "a" * 101, "-x", ".", "ä", "a\n"])
def test_a_name_that_could_be_taken_for_levels_is_none(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="name of a policy") as caught:
        RetryPolicy.parse(name, {"levels": ["1s"]})
    assert caught.value.remedy


def test_a_policy_reads_as_it_was_written() -> None:
    fields = {"levels": ["1s", " 2s"], "jitter": 0.25, "dead-letters": "buried"}
    policy = RetryPolicy.parse("p", fields)
    assert policy.to_dict() == {**fields, "levels": ["1s", "2s"]}
    assert RetryPolicy.parse("p", policy.to_dict()) == policy
    assert RetryPolicy.parse("p", {"levels": ["1s"]}).to_dict() == {"levels": ["1s"]}

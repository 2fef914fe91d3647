"""What a failed record becomes: attempts counted, the origin set once, errors kept, the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.failure import (
    Failure,
    Origin,
    attempt_of,
    bad_attempt,
    buried,
    failed,
    retry_topic,
)
from slotwheel.policy.retry import RetryPolicy
from slotwheel.wheel.checks import is_reserved
from slotwheel.wheel.errors import InvalidMessage
from slotwheel.wheel.rows import Header

NOW = 1_900_000_000_000
POLICY = RetryPolicy.literal("1s 2s 4s")
FIRST = Origin("orders", 3, 77)
DELIVERED: list[Header] = [
    ("slotwheel-id", b"default.1.2.3"),
    ("slotwheel-due-ms", b"1"),
    ("slotwheel-created-ms", b"2"),
]


def fail(
    headers: Sequence[Header],
    error: str = "broke",
    origin: Origin | None = FIRST,
    policy: RetryPolicy = POLICY,
) -> Failure:
    return failed(headers, policy, "billing", error, origin, NOW, 0.0)


def delivered_again(headers: Sequence[Header], number: int) -> list[Header]:
    """As the wheel delivers the retry, under an id of its own."""
    return [*headers, ("slotwheel-id", b"retry-%d" % number), *DELIVERED[1:]]


NAMED: list[Header] = [
    ("slotwheel-name", b"n"),
    ("a", b"1"),
    ("slotwheel-if-exists", b"keep"),
]


def test_a_retry_has_no_name_and_a_letter_has_it_at_rest() -> None:
    """A retry with the name would replace the message that has the name by now, and a letter the
    letter before it."""
    again = fail([*NAMED, *DELIVERED])
    assert [name for name, _ in again.headers if "name" in name or "exists" in name] == []
    assert ("a", b"1") in again.headers
    letter = buried([*NAMED, *DELIVERED], "buried", "billing", "broke", FIRST)
    assert letter.headers[:3] == [
        ("slotwheel-dead-name", b"n"),
        ("a", b"1"),
        ("slotwheel-dead-if-exists", b"keep"),
    ]


def test_the_first_failure() -> None:
    own: list[Header] = [("a", b"1"), ("a", None), ("b", b"\xff")]
    found = fail([*own, *DELIVERED])
    assert (found.topic, found.delay_ms, found.reason) == ("billing-retry", 1000, "")
    assert found.headers[:3] == own
    assert dict(found.headers[3:]) == {
        "slotwheel-origin-topic": b"orders",
        "slotwheel-origin-partition": b"3",
        "slotwheel-origin-offset": b"77",
        "slotwheel-origin-id": b"default.1.2.3",
        "slotwheel-retry-group": b"billing",
        "slotwheel-retry-first-error": b"broke",
        "slotwheel-retry-last-error": b"broke",
        "slotwheel-retry-attempt": b"2",
        "slotwheel-retry-policy": b"1s 2s 4s",
    }
    assert len(found.headers) == 3 + 9
    assert not [name for name, _ in found.headers if is_reserved(name)]


@pytest.mark.parametrize("with_id", [True, False])
def test_attempts_are_counted_the_origin_stays_and_in_the_end_it_is_buried(with_id: bool) -> None:
    headers: list[Header] = [("own", b"x"), *(DELIVERED if with_id else [])]
    for number, delay_ms in enumerate((1000, 2000, 4000), 1):
        assert attempt_of(headers) == number
        found = fail(headers, f"error {number}", Origin("billing-retry", 0, number))
        assert (found.topic, found.delay_ms) == ("billing-retry", delay_ms)
        said = dict(found.headers)
        assert len(said) == len(found.headers), "a header stands there twice"
        assert said["slotwheel-retry-attempt"] == b"%d" % (number + 1)
        assert said["slotwheel-origin-offset"] == b"1"
        assert said.get("slotwheel-origin-id") == (b"default.1.2.3" if with_id else None)
        assert said["slotwheel-retry-first-error"] == b"error 1"
        assert said["slotwheel-retry-last-error"] == b"error %d" % number
        headers = delivered_again(found.headers, number)
    letter = fail(headers, "error 4", Origin("billing-retry", 0, 4))
    said = dict(letter.headers)
    assert (letter.topic, letter.delay_ms) == ("slotwheel-dead-letters", 0)
    assert letter.reason == "retries-used-up"
    assert letter.headers[0] == ("own", b"x")
    assert "slotwheel-retry-attempt" not in said, "a copy would go on counting"
    assert said["slotwheel-dead-attempts"] == b"4"
    assert said["slotwheel-retry-first-error"] == b"error 1"
    assert said["slotwheel-retry-last-error"] == said["slotwheel-dead-error"] == b"error 4"
    assert said["slotwheel-origin-topic"] == b"billing-retry"
    assert said["slotwheel-origin-offset"] == b"1"
    assert said["slotwheel-dead-reason"] == b"retries-used-up"
    assert said["slotwheel-dead-topic"] == b"billing-retry"
    assert said["slotwheel-dead-source"] == b"billing-retry/0/4"
    assert said["slotwheel-dead-group"] == b"billing"
    assert "slotwheel-dead-stage" not in said
    assert "slotwheel-id" not in said


def test_a_policy_may_have_a_dead_letter_topic_of_its_own() -> None:
    policy = RetryPolicy.parse("p", {"levels": ["1s"], "dead-letters": "billing-dead"})
    headers: list[Header] = [("slotwheel-retry-attempt", b"2")]
    assert fail(headers, policy=policy).topic == "billing-dead"
    assert fail([], policy=policy).topic == "billing-retry"


@pytest.mark.parametrize(
    ("expires_ms", "again"), [(NOW + 999, False), (NOW + 1000, False), (NOW + 1001, True)]
)
def test_no_attempt_comes_when_the_message_has_expired(expires_ms: int, again: bool) -> None:
    expires: Header = ("slotwheel-expires-ms", b"%d" % expires_ms)
    found = fail([expires])
    said = dict(found.headers)
    if again:
        assert (found.reason, said["slotwheel-expires-ms"]) == ("", expires[1])
    else:
        assert (found.reason, found.delay_ms) == ("expired", 0)
        assert said["slotwheel-dead-expires-ms"] == expires[1]
        assert said["slotwheel-dead-reason"] == b"expired"
        assert "slotwheel-expires-ms" not in said, "the letter would expire, too"


def test_a_letter_does_not_expire_by_ttl_either() -> None:
    ttl, policy = b"%c" % 5 * 8, RetryPolicy.literal("1s")
    again = dict(fail([("ttl", ttl)], policy=policy).headers)
    assert again["ttl"] == ttl
    letter = dict(fail([("slotwheel-retry-attempt", b"2"), ("ttl", ttl)], policy=policy).headers)
    assert letter["slotwheel-dead-ttl"] == ttl
    assert "ttl" not in letter


@pytest.mark.parametrize(
    "value", [None, b"", b"0", b"-1", b"1.0", b"two", b"\xff", " ٣".encode(), b"1000001", b"9" * 99]
)
def test_where_the_count_of_attempts_is_none_it_is_the_first(value: bytes | None) -> None:
    headers: list[Header] = [("slotwheel-retry-attempt", value)]
    bad = bad_attempt(headers)
    assert bad is not None
    assert "slotwheel-retry-attempt" in str(bad)
    assert bad.limit
    assert bad.remedy
    assert attempt_of(headers) == 1
    again = dict(fail(headers).headers)
    assert (again["slotwheel-retry-attempt"], again["slotwheel-origin-offset"]) == (b"2", b"77")
    assert dict(bury(headers).headers)["slotwheel-dead-attempts"] == b"1"


def test_a_copied_letter_has_a_new_life() -> None:
    """Somebody sends it back as it lies in the dead-letter topic, with the count of a former
    format, too: attempt 1, its own origin and errors, and no more headers however often."""
    own: list[Header] = [("own", b"1"), ("__connect.errors.topic", b"of another connector")]
    headers, lengths = own, []
    for number in range(6):
        letter = bury([*headers, *DELIVERED], Origin("orders", 0, number)).headers
        lengths.append(len(letter))
        headers = [*letter, ("slotwheel-retry-attempt", b"3")]
        assert attempt_of(headers) == 1
        again = fail(headers, "new", Origin("orders", 0, 100)).headers
        said = dict(again)
        assert again[:2] == own
        assert len(said) == len(again)
        assert not [name for name in said if name.startswith("slotwheel-dead-")]
        assert said["slotwheel-origin-offset"] == b"100"
        assert said["slotwheel-retry-first-error"] == b"new"
        assert said["slotwheel-retry-attempt"] == b"2"
    assert len(set(lengths)) == 1


def bury(headers: Sequence[Header], origin: Origin | None = FIRST) -> Failure:
    return buried(headers, "buried", "billing", "no use", origin, "letters")


def test_the_application_buries_at_any_attempt() -> None:
    found = bury([("own", None), ("slotwheel-retry-attempt", b"3"), *DELIVERED])
    said = dict(found.headers)
    assert (found.topic, found.delay_ms, found.reason) == ("letters", 0, "buried")
    assert found.headers[0] == ("own", None)
    assert said["slotwheel-dead-attempts"] == b"3"
    assert said["slotwheel-dead-source"] == b"orders/3/77"
    assert said["__connect.errors.stage"] == b"consumer"


def test_a_letter_says_of_which_record_it_is_made_if_that_is_another_one() -> None:
    headers: list[Header] = [
        ("slotwheel-origin-topic", b"orders"),
        ("slotwheel-origin-partition", b"0"),
        ("slotwheel-origin-offset", b"1"),
        ("slotwheel-retry-attempt", b"4"),
    ]
    place = Origin("delays", 2, 9)
    found = failed(headers, POLICY, "g", "e", None, NOW, 0.0, stage="intake", source=place)
    said = dict(found.headers)
    assert said["slotwheel-dead-source"] == b"delays/2/9"
    assert said["slotwheel-origin-topic"] == b"orders"
    assert said["slotwheel-dead-stage"] == b"intake"


ORIGIN: list[Header] = [
    ("slotwheel-origin-topic", b"orders"),
    ("slotwheel-origin-partition", b"0"),
    ("slotwheel-origin-offset", b"1"),
]


@pytest.mark.parametrize("missing", range(3))
@pytest.mark.parametrize("instead", [[], [None], [b""], [b"\xff"], [b"-1"], [b"x" * 1000]])
def test_an_origin_that_only_headers_can_tell_has_to_be_whole(
    missing: int, instead: list[bytes | None]
) -> None:
    name = ORIGIN[missing][0]
    headers = [one for one in ORIGIN if one[0] != name] + [(name, value) for value in instead]
    if missing == 0 and instead and instead[0]:  # any bytes may name a topic of others
        assert fail(headers, origin=None).topic == "billing-retry"
        return
    with pytest.raises(InvalidMessage, match="without its origin") as caught:
        fail(headers, origin=None)
    assert name in str(caught.value.got)
    assert len(str(caught.value)) < 1000
    assert caught.value.remedy


@pytest.mark.parametrize("missing", range(3))
def test_an_origin_that_somebody_made_up_in_part_is_the_record_at_hand(missing: int) -> None:
    """Anybody may send such headers; a consumer must be able to go on behind such a message."""
    headers = [one for number, one in enumerate(ORIGIN) if number != missing]
    for found in (fail(headers), bury(headers)):
        said = dict(found.headers)
        assert said["slotwheel-origin-topic"] == b"orders"
        assert said["slotwheel-origin-partition"] == b"3"
        assert said["slotwheel-origin-offset"] == b"77"


def test_a_null_origin_is_none_and_does_not_stay() -> None:
    headers: list[Header] = [
        ("slotwheel-origin-topic", None),
        ("slotwheel-origin-id", None),
        ("slotwheel-retry-first-error", None),
        *DELIVERED,
    ]
    found = fail(headers)
    assert len({name for name, _ in found.headers}) == len(found.headers)
    again = dict(fail(delivered_again(found.headers, 1), origin=Origin("x", 9, 9)).headers)
    assert again["slotwheel-origin-topic"] == b"orders"
    assert again["slotwheel-origin-id"] == b"default.1.2.3"
    assert again["slotwheel-retry-first-error"] == b"broke"


def test_errors_are_cut_and_always_text() -> None:
    found = dict(fail([], "ä" * 600).headers)
    assert found["slotwheel-retry-last-error"] == ("ä" * 500).encode()
    assert dict(fail([], "half \ud800").headers)["slotwheel-retry-last-error"] == b"half ?"
    assert dict(fail([], "").headers)["slotwheel-retry-first-error"] == b""


def test_the_topic_of_a_group() -> None:
    assert retry_topic("billing") == "billing-retry"


NAMES = st.sampled_from(
    ["own", "", "slotwheel-retry-group", "slotwheel-retry-policy", "slotwheel-origin-id"]
    + ["slotwheel-retry-first-error", "slotwheel-retry-last-error", "slotwheel-dead-reason"]
    + ["slotwheel-id", "slotwheel-due-ms", "slotwheel-expires-ms", "slotwheel-redelivered-id"]
    + [name for name, _ in ORIGIN]
)
VALUES = st.one_of(st.none(), st.binary(max_size=4), st.sampled_from([b"1", b"7", b"eu"]))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.integers(1, 4))
def test_whatever_stands_there_a_failure_is_counted_once_and_others_headers_stay(
    headers: list[Header], attempt: int
) -> None:
    before = [("slotwheel-retry-attempt", b"%d" % attempt), *headers]
    found = fail(before)
    said = dict(found.headers)
    first = any(name == "slotwheel-dead-reason" for name, _ in headers)
    counted = 1 if first else attempt
    if found.reason:
        assert said["slotwheel-dead-attempts"] == b"%d" % counted
    else:
        assert attempt_of(found.headers) == counted + 1
    names = [name for name, _ in found.headers]
    assert [one for one in found.headers if one[0] == "own"] == [
        one for one in headers if one[0] == "own"
    ]
    for name in ("slotwheel-retry-group", *(n for n, _ in ORIGIN)):
        assert names.count(name) == 1
    assert not {"slotwheel-id", "slotwheel-due-ms"}.intersection(names)

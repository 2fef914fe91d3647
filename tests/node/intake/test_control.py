"""Levels, routes and retries on the delay topic: the rows they become, or the dead letter."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.node.intake.delay_topic import DelayTopicIntake
from slotwheel.node.intake.records import ConsumerRecords, rows_of
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC as DEAD
from slotwheel.policy.policyset import PolicySet
from slotwheel.wheel.checks import check_input
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.rows import Header
from slotwheel.wheel.schema import times
from support.events import ToldEvents
from support.fakewheel import FakeWheel
from support.listreader import ListReader
from support.waiting import eventually

NOW = 1_700_000_000_000
SENT = NOW - 400
"""Timestamp of the records."""
CONFIG = WheelConfig(message_bytes_max=2000, batch_bytes_max=40_000, batch_rows_max=10)
POLICIES = PolicySet.from_toml(
    """
    levels = ["5s", "1m"]
    policies.orders = { levels = ["1s", "2s"], dead-letters = "orders-dead" }
    policies.jittery = { levels = ["10s"], jitter = 0.5 }
    policies.far = { levels = ["3h"] }
    [[routes.three]]
    to = ["a", "b", "c"]
    [[routes.regions]]
    where = { header = "region", equals = "eu" }
    to = ["eu", "audit"]
    [[routes.regions]]
    where = { header = "region", equals = "us" }
    to = ["us", "audit"]
    [[routes.eleven]]
    to = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10"]
    """,
    "test",
)
TOPIC: Header = ("slotwheel-topic", b"orders")
DUE: Header = ("slotwheel-due-ms", b"%d" % (NOW + 5))
THREE: Header = ("slotwheel-route", b"three")
LEVEL: Header = ("slotwheel-delay-level", b"5s")


def records(*headers: list[Header], value: bytes = b"v", sent_ms: int = SENT) -> ConsumerRecords:
    n = len(headers)
    offsets = list(range(100, 100 + n))
    return ConsumerRecords(offsets, [sent_ms] * n, [b"k"] * n, [value] * n, list(headers))


def rows(found: ConsumerRecords, config: WheelConfig = CONFIG) -> list[dict[str, Any]]:
    taken = rows_of(found, "delays/3", config, NOW, settings=POLICIES)
    batch = check_input(taken.rows, config, NOW, reserved=True)
    result = []
    for row, due in zip(batch.to_pylist(), times(batch, "due").tolist(), strict=True):
        pairs = [(pair["key"], pair["value"]) for pair in row["headers"]]
        result.append(row | {"due": due, "headers": pairs})
    return result


# -- levels


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(b"5s", 5000), (b"1m", 60_000), (b"2", 60_000), (b" 1 ", 5000)]
)
def test_a_level_counts_from_the_records_timestamp(level: bytes, delay_ms: int) -> None:
    (row,) = rows(records([TOPIC, ("slotwheel-delay-level", level), ("x", b"y")]))
    assert (row["topic"], row["due"]) == ("orders", SENT + delay_ms)
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [("x", b"y")])


def test_a_level_with_a_time_to_live() -> None:
    (row,) = rows(records([TOPIC, LEVEL, ("slotwheel-ttl-ms", b"7")]))
    assert row["headers"] == [("slotwheel-expires-ms", b"%d" % (SENT + 5007))]


# -- routes


def test_a_route_makes_a_row_for_each_topic_with_all_headers() -> None:
    own: list[Header] = [("a", b"1"), ("a", None)]
    found = rows(records([own[0], THREE, LEVEL, own[1]], [TOPIC, DUE]))
    assert [row["topic"] for row in found] == ["a", "b", "c", "orders"]
    for row in found[:3]:
        assert (row["due"], row["key"], row["value"]) == (SENT + 5000, b"k", b"v")
        assert (row["headers"], row["partition"]) == (own, None)


def test_of_a_route_only_the_topic_that_is_missing_gets_a_letter() -> None:
    found = records([THREE, LEVEL], [TOPIC, DUE])
    taken = rows_of(found, "delays/3", CONFIG, NOW, settings=POLICIES, absent={"b"})
    made = taken.rows.to_pylist()
    assert [row["topic"] for row in made] == ["a", DEAD, "c", "orders"]
    assert ("slotwheel-dead-topic", b"b") in [tuple(one.values()) for one in made[1]["headers"]]
    assert taken.dead == 1


def test_a_route_decides_by_headers() -> None:
    route: Header = ("slotwheel-route", b"regions")
    found = rows(records([route, DUE, ("region", b"us")], [route, DUE, ("region", b"eu")]))
    assert [row["topic"] for row in found] == ["us", "audit", "eu", "audit"]


def test_a_message_that_is_too_large_for_a_topic_is_stored_for_none() -> None:
    large: Header = ("x", b"y" * 2000)
    before, letter, behind = rows(records([TOPIC, DUE], [THREE, DUE, large], [TOPIC, DUE]))
    assert (before["topic"], letter["topic"], behind["topic"]) == ("orders", DEAD, "orders")
    said = dict(letter["headers"])
    assert said["slotwheel-dead-reason"] == b"bad-record"
    assert b"too large" in said["slotwheel-dead-error"]
    assert "slotwheel-dead-headers-bytes" in said


def test_a_route_of_more_topics_than_a_batch_has_rows() -> None:
    (letter,) = rows(records([("slotwheel-route", b"eleven"), DUE]))
    assert letter["topic"] == DEAD
    error = dict(letter["headers"])["slotwheel-dead-error"]
    assert b"11 topics" in error
    assert b"10 topics" in error


def test_a_route_whose_rows_are_together_too_large() -> None:
    config = WheelConfig(message_bytes_max=20_000, batch_bytes_max=40_000)
    (letter,) = rows(records([THREE, DUE], value=bytes(15_000)), config)
    assert letter["topic"] == DEAD
    assert b"3 topics" in dict(letter["headers"])["slotwheel-dead-error"]
    assert letter["value"] == bytes(15_000)


class Policies:
    current = POLICIES


def test_all_rows_of_a_record_are_in_one_append_however_batches_are_cut() -> None:
    wheel, events = FakeWheel(config=CONFIG), ToldEvents()
    each: list[list[Header]] = [
        [THREE, DUE],
        [TOPIC, DUE],
        [("slotwheel-route", b"eleven"), DUE],
        [THREE, ("slotwheel-due-ms", b"soon")],
    ]
    content = records(*each * 25)
    content.values[:] = [b"%d" % number for number in range(100)]
    intake = DelayTopicIntake(
        wheel,
        lambda: ListReader(content, chunk=200),
        topics=["delays"],
        events=events,
        policies=Policies(),  # type: ignore[arg-type]
        clock=lambda: NOW,
    )
    stop = threading.Event()
    thread = threading.Thread(target=intake.run, args=[stop])
    thread.start()
    try:
        eventually(lambda: [one.position for one in intake.states()] == [199])
    finally:
        stop.set()
        thread.join(60)
    assert "delay-topic-failed" not in events.names
    found: dict[bytes, list[tuple[int, str]]] = {}
    for number, batch in enumerate(wheel.batches):
        assert batch.num_rows <= CONFIG.batch_rows_max
        for row in batch.to_pylist():
            found.setdefault(row["value"], []).append((number, row["topic"]))
    for number in range(100):
        places, topics = zip(*found[b"%d" % number], strict=True)
        assert len(set(places)) == 1, f"record {number} lies in several entries"
        assert list(topics) == [["a", "b", "c"], ["orders"], [DEAD], [DEAD]][number % 4]


# -- retries

GROUP: Header = ("slotwheel-retry-group", b"billing")
ORIGIN: list[Header] = [
    ("slotwheel-origin-topic", b"orders"),
    ("slotwheel-origin-partition", b"0"),
    ("slotwheel-origin-offset", b"17"),
]
DELIVERED: list[Header] = [
    ("slotwheel-id", b"default.1.2.3"),
    ("slotwheel-due-ms", b"%d" % (NOW - 900)),
    ("slotwheel-created-ms", b"%d" % (NOW - 1900)),
]
FIRST: list[Header] = [GROUP, *ORIGIN, ("slotwheel-error", b"no stock")]


def retry(policy: bytes | None) -> Header:
    return ("slotwheel-retry", policy)


def test_a_failed_record_comes_again_by_its_policy() -> None:
    own: list[Header] = [("a", b"1"), ("a", None), ("b", b"\xff")]
    (row,) = rows(records([*own, *DELIVERED, *FIRST, retry(b"orders")]))
    assert (row["topic"], row["due"]) == ("billing-retry", NOW + 1000)
    assert (row["key"], row["value"]) == (b"k", b"v")
    assert row["headers"][:3] == own
    assert dict(row["headers"][3:]) == {
        **dict(ORIGIN),
        "slotwheel-origin-id": b"default.1.2.3",
        "slotwheel-retry-group": b"billing",
        "slotwheel-retry-attempt": b"2",
        "slotwheel-retry-policy": b"orders",
        "slotwheel-retry-first-error": b"no stock",
        "slotwheel-retry-last-error": b"no stock",
    }


def test_a_retry_is_not_buried_for_a_topic_that_seems_to_be_missing() -> None:
    found = records([*FIRST, retry(b"orders")], [TOPIC, DUE])
    absent = {"billing-retry", "orders"}
    taken = rows_of(found, "delays/3", CONFIG, NOW, settings=POLICIES, absent=absent)
    assert [row["topic"] for row in taken.rows.to_pylist()] == ["billing-retry", DEAD]
    assert taken.dead == 1


def test_a_copy_of_a_retry_with_two_headers_more_is_the_next_retry() -> None:
    """What a consumer in any language does from the second failure on."""
    (row,) = rows(records([*DELIVERED, *FIRST, retry(b"orders")]))
    again = [*row["headers"], *DELIVERED, retry(b"orders"), ("slotwheel-error", b"still none")]
    (row,) = rows(records(again))
    said = dict(row["headers"])
    assert (row["topic"], row["due"]) == ("billing-retry", NOW + 2000)
    assert said["slotwheel-retry-attempt"] == b"3"
    assert said["slotwheel-retry-first-error"] == b"no stock"
    assert said["slotwheel-retry-last-error"] == b"still none"
    assert said["slotwheel-origin-offset"] == b"17"
    (letter,) = rows(records([*row["headers"], *DELIVERED, retry(b"orders")]))
    said = dict(letter["headers"])
    assert (letter["topic"], letter["due"]) == ("orders-dead", NOW)
    assert said["slotwheel-dead-reason"] == b"retries-used-up"
    assert said["slotwheel-dead-stage"] == b"intake"
    assert said["slotwheel-dead-source"] == b"delays/3/100"
    assert said["slotwheel-dead-topic"] == b"billing-retry"
    assert said["slotwheel-dead-attempts"] == b"3"
    assert "slotwheel-retry-attempt" not in said
    assert said["slotwheel-retry-last-error"] == b""


def test_levels_instead_of_a_policy() -> None:
    (row,) = rows(records([*FIRST, retry(b"500ms 1h")]))
    assert row["due"] == NOW + 500
    assert dict(row["headers"])["slotwheel-retry-policy"] == b"500ms 1h"
    (row,) = rows(records([*FIRST, retry(b"default")]))
    assert row["due"] == NOW + 5000


def test_jitter_is_drawn_for_each_record() -> None:
    found = rows(records(*[[*FIRST, retry(b"jittery")]] * 10))
    delays = [row["due"] - NOW for row in found]
    assert all(10_000 <= delay <= 15_000 for delay in delays)
    assert len(set(delays)) > 3


def test_copied_headers_of_a_delivery_are_refused_without_the_retry() -> None:
    """Only the retry says that these are a copy, and not made up."""
    for one in DELIVERED[::2]:
        (letter,) = rows(records([TOPIC, DUE, one]))
        assert letter["topic"] == DEAD
        assert b"reserved" in dict(letter["headers"])["slotwheel-dead-error"]


def test_an_expired_message_is_not_tried_again() -> None:
    expires: Header = ("slotwheel-expires-ms", b"%d" % (NOW + 1000))
    (letter,) = rows(records([*FIRST, expires, retry(b"orders")]))
    assert letter["topic"] == "orders-dead"
    said = dict(letter["headers"])
    assert said["slotwheel-dead-reason"] == b"expired"
    assert said["slotwheel-dead-expires-ms"] == expires[1]


BAD: list[tuple[list[Header], bytes]] = [
    ([*FIRST, retry(b"unknown")], b"no such retry policy; got 'unknown'; expected one of"),
    ([*FIRST, retry(b"")], b"no such retry policy"),
    ([*FIRST, retry(None)], b"no such retry policy"),
    ([*FIRST, retry(b"\xff")], b"unreadable header slotwheel-retry"),
    ([*FIRST, retry(b"orders"), retry(b"orders")], b"header slotwheel-retry given twice"),
    ([*FIRST, retry(b"far")], b"due beyond the horizon"),
    ([*FIRST, retry(b"900000000d")], b"due beyond the horizon"),
    ([*FIRST[1:], retry(b"orders")], b"a retry without its consumer group"),
    ([("slotwheel-retry-group", None), *FIRST[1:], retry(b"orders")], b"consumer group"),
    ([("slotwheel-retry-group", b""), *FIRST[1:], retry(b"orders")], b"consumer group"),
    ([("slotwheel-retry-group", b"\xff"), *FIRST[1:], retry(b"orders")], b"unreadable header"),
    ([("slotwheel-retry-group", b"a b"), *FIRST[1:], retry(b"orders")], b"illegal topic name"),
    ([("slotwheel-retry-group", b"g" * 244), *FIRST[1:], retry(b"orders")], b"illegal topic"),
    ([GROUP, retry(b"orders")], b"a retry without its origin"),
    *(
        ([GROUP, *(one for one in ORIGIN if one is not gone), retry(b"orders")], b"origin")
        for gone in ORIGIN
    ),
    ([*FIRST, ("slotwheel-retry-attempt", b"x"), retry(b"orders")], b"slotwheel-retry-attempt"),
    ([*FIRST, TOPIC, retry(b"orders")], b"other headers that say where or when"),
    ([*FIRST, THREE, retry(b"orders")], b"other headers that say where or when"),
    ([*FIRST, LEVEL, retry(b"orders")], b"other headers that say where or when"),
    ([*FIRST, ("slotwheel-delay-ms", b"1"), retry(b"orders")], b"slotwheel-delay-ms"),
    ([*FIRST, ("slotwheel-partition", b"1"), retry(b"orders")], b"slotwheel-partition"),
    ([*FIRST, ("slotwheel-ttl-ms", b"1"), retry(b"orders")], b"slotwheel-ttl-ms"),
    ([*FIRST, ("slotwheel-other", b"1"), retry(b"orders")], b"reserved header"),
    ([TOPIC, DUE, ("slotwheel-dead-topic", b"t")], b"reserved header"),
    ([TOPIC, DUE, ("slotwheel-error", b"x")], b"slotwheel-error without slotwheel-retry"),
    ([GROUP, ("slotwheel-bury", b"x")], b"a retry without its origin"),
    ([*ORIGIN, ("slotwheel-bury", b"x")], b"a retry without its consumer group"),
    ([*FIRST, TOPIC, ("slotwheel-bury", b"x")], b"slotwheel-bury and other headers"),
    ([*FIRST, retry(b"unknown"), ("slotwheel-bury", b"x")], b"no such retry policy"),
    ([TOPIC, ("slotwheel-delay-level", b"7s")], b"no such level; got '7s'; expected one of 5s 1m"),
    ([TOPIC, ("slotwheel-delay-level", b"0000000002")], b"no such level"),
    ([TOPIC, ("slotwheel-delay-level", None)], b"no such level"),
    ([TOPIC, ("slotwheel-delay-level", b"\xff")], b"unreadable header slotwheel-delay-level"),
    ([TOPIC, LEVEL, DUE], b"both slotwheel-due-ms and slotwheel-delay-level"),
    ([TOPIC, LEVEL, ("slotwheel-delay-ms", b"1")], b"slotwheel-delay-ms and slotwheel-delay-level"),
    ([TOPIC, THREE, DUE], b"both slotwheel-topic and slotwheel-route"),
    ([("slotwheel-route", b"four"), DUE], b"no such route; got 'four'; expected one of eleven"),
    ([("slotwheel-route", b"\xff"), DUE], b"unreadable header slotwheel-route"),
    ([("slotwheel-route", None), DUE], b"no header slotwheel-topic"),
    ([("slotwheel-route", b"regions"), DUE], b"route regions: no rule matches"),
    ([THREE, DUE, ("slotwheel-partition", b"1")], b"both slotwheel-route and slotwheel-partition"),
    ([THREE], b"no due time"),
]


@pytest.mark.parametrize(("headers", "error"), BAD, ids=lambda _: "bad")
def test_a_bad_record_is_a_dead_letter_with_the_reason_and_holds_nobody_up(
    headers: list[Header], error: bytes
) -> None:
    before, letter, behind = rows(records([TOPIC, DUE], headers, [THREE, LEVEL]))[:3]
    assert (before["topic"], behind["topic"]) == ("orders", "a")
    assert (letter["topic"], letter["due"]) == (DEAD, NOW)
    assert (letter["key"], letter["value"]) == (b"k", b"v")
    assert letter["headers"][: len(headers)] == headers
    said = dict(letter["headers"][len(headers) :])
    assert error in said["slotwheel-dead-error"]
    asked_again = any(name in ("slotwheel-retry", "slotwheel-bury") for name, _ in headers)
    reason = b"unusable-retry" if asked_again else b"bad-record"
    assert said["slotwheel-dead-reason"] == reason
    assert said["slotwheel-dead-stage"] == b"intake"
    assert said["slotwheel-dead-source"] == b"delays/3/101"


@pytest.mark.parametrize("sent_ms", [-1, 0, NOW - 86_400_000, SENT, NOW, NOW + 60_000])
def test_a_retry_waits_its_delay_from_its_arrival_whatever_timestamp_it_has(sent_ms: int) -> None:
    """A copy of the failed record has that one's timestamp in many clients."""
    (row,) = rows(records([*DELIVERED, *FIRST, retry(b"orders")], sent_ms=sent_ms))
    assert (row["topic"], row["due"]) == ("billing-retry", NOW + 1000)


@pytest.mark.parametrize(
    ("more", "topic"),
    [([], DEAD), ([retry(b"default")], DEAD), ([retry(b"orders")], "orders-dead")],
)
@pytest.mark.parametrize("attempt", [None, b"2"])
def test_a_record_is_buried_at_once_by_a_header(
    more: list[Header], topic: str, attempt: bytes | None
) -> None:
    before: list[Header] = [] if attempt is None else [("slotwheel-retry-attempt", attempt)]
    expires: Header = ("slotwheel-expires-ms", b"%d" % (NOW + 1000))
    bury: Header = ("slotwheel-bury", b"no such customer")
    asked = [("own", b"1"), expires, *DELIVERED, *before, GROUP, *ORIGIN, *more, bury]
    (letter,) = rows(records(asked, sent_ms=-1))
    assert (letter["topic"], letter["due"]) == (topic, NOW)
    assert (letter["key"], letter["value"]) == (b"k", b"v")
    said = dict(letter["headers"])
    assert "slotwheel-bury" not in said
    assert "slotwheel-retry" not in said
    assert said["own"] == b"1"
    assert said["slotwheel-dead-expires-ms"] == expires[1]
    assert said["slotwheel-dead-reason"] == b"buried"
    assert said["slotwheel-dead-error"] == b"no such customer"
    assert said["slotwheel-dead-stage"] == b"intake"
    assert said["slotwheel-dead-group"] == b"billing"
    assert said["slotwheel-dead-topic"] == b"billing-retry"
    assert said["slotwheel-dead-attempts"] == (attempt or b"1")
    assert "slotwheel-retry-attempt" not in said
    assert [said[name] for name, _ in ORIGIN] == [value for _, value in ORIGIN]


@pytest.mark.parametrize("sent_ms", [-1, 0, -(1 << 63), 1_700_000_000, (1 << 63) - 1])
def test_a_record_without_a_timestamp(sent_ms: int) -> None:
    """None, and what is none: nothing is computed with it."""
    (letter,) = rows(records([TOPIC, LEVEL], sent_ms=sent_ms))
    assert b"without a timestamp" in dict(letter["headers"])["slotwheel-dead-error"]
    assert letter["due"] == NOW


@pytest.mark.parametrize("off_ms", [60_000, 3_600_000, -60_000])
def test_a_timestamp_far_from_the_clock_is_named_and_none_lies_ahead_of_the_reading(
    off_ms: int,
) -> None:
    """Producers whose clocks are ahead, and behind."""
    given = records([TOPIC, LEVEL], [*FIRST, retry(b"1s")], [TOPIC, DUE], sent_ms=NOW + off_ms)
    wanted = [min(NOW, NOW + off_ms) + 5000, NOW + 1000, NOW + 5]
    assert [row["due"] for row in rows(given)] == wanted
    assert rows_of(given, "delays/3", CONFIG, NOW, settings=POLICIES).off == (off_ms,)


def test_a_letter_that_has_become_too_large_is_buried_without_its_value() -> None:
    """What is used up has headers more than the record; it may be that which is too large."""
    last: list[Header] = [*FIRST, ("slotwheel-retry-attempt", b"3"), retry(b"orders")]
    (letter,) = rows(records(last, value=bytes(1600)))
    said = dict(letter["headers"])
    assert (letter["topic"], letter["value"]) == (DEAD, None)
    assert said["slotwheel-dead-value-bytes"] == b"1600"
    assert said["slotwheel-dead-stage"] == b"intake"


NAMES = st.sampled_from(
    [name for name, _ in (TOPIC, DUE, THREE, LEVEL, GROUP, *ORIGIN, *DELIVERED)]
    + [
        "slotwheel-retry",
        "slotwheel-bury",
        "slotwheel-error",
        "slotwheel-delay-ms",
        "slotwheel-ttl-ms",
    ]
    + ["slotwheel-partition", "slotwheel-retry-attempt", "slotwheel-expires-ms", "own", "region"]
    + ["slotwheel-dead-stage", "slotwheel-dead-reason", "\ud800"]
)
VALUES = st.one_of(
    st.none(),
    st.sampled_from([b"orders", b"three", b"regions", b"5s", b"1s 2s", b"1", b"eu", b"\xff", b""]),
    st.sampled_from([b"%d" % (NOW + 5), b"0000000099", b"9" * 30, b"-1", b"x" * 2500]),
)


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=7), min_size=1, max_size=4))
def test_whatever_records_say_they_become_rows_that_the_wheel_takes(
    content: list[list[Header]],
) -> None:
    found = rows(records(*content))
    assert len(found) >= len(content)

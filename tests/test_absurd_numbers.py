"""What has no time, no end, or is no number: refused or passed through, never computed with."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotwheel import InvalidMessage, Message
from slotwheel.cli.fields import delivered_fields
from slotwheel.client.columns import Limits, sort_messages
from slotwheel.client.message import flatten
from slotwheel.consumer.clock import RemoteClock
from slotwheel.consumer.failing import Cause, Failing
from slotwheel.consumer.message import Received
from slotwheel.node.intake.records import ConsumerRecords, rows_of
from slotwheel.policy.retry import RetryPolicy
from slotwheel.wheel.checks import check_input, is_reserved, is_time, started
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.expiry import EXPIRES_HEADER, EXPIRES_LIMIT_MS
from slotwheel.wheel.rows import Header, from_columns
from slotwheel.wheel.schema import times

NOW = 1_800_000_000_000
NUMBERS = [
    *(-(1 << 63), -(1 << 62), -NOW, -1, 0, 1, NOW // 1000, NOW, NOW * 1000, NOW * 1_000_000),
    *(1 << 62, 10**18 - 1, 10**18, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30),
]
ABSURD: list[Any] = [
    *NUMBERS,
    *map(float, NUMBERS),
    *(math.nan, math.inf, -math.inf, Decimal("NaN"), 1e308, True, "", "NaN", "9" * 5000, "3 weeks"),
    *(timedelta.max, timedelta.min, datetime.max.replace(tzinfo=UTC), datetime.min, b"3", [3]),
]
NAMES = [
    *("slotwheel-due-ms", "slotwheel-delay-ms", "slotwheel-delay-level", "slotwheel-ttl-ms"),
    *("slotwheel-expires-ms", "slotwheel-partition", "slotwheel-retry-attempt", "ttl"),
    *("slotwheel-origin-partition", "slotwheel-origin-offset", "slotwheel-created-ms"),
    *("slotwheel-retry", "slotwheel-retry-group", "slotwheel-origin-topic", "slotwheel-id"),
    *("slotwheel-dead-reason", "slotwheel-dead-stage", "slotwheel-retry-first-error", "own"),
]
numbers = st.sampled_from(NUMBERS) | st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.one_of(
    st.none(),
    st.binary(max_size=9),
    numbers.map(lambda number: b"%d" % number),
    numbers.map(lambda number: struct.pack(">q", max(-(1 << 63), min(number, (1 << 63) - 1)))),
)
headers = st.lists(st.tuples(st.sampled_from(NAMES), texts), max_size=6)
FAILING = Failing("billing", RetryPolicy.literal("1s 2s"), "dead", RemoteClock(None))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:30])
def test_a_message(value: Any) -> None:
    """Each time and span of a message: its own error, or due times and expiries in their format."""
    limits = Limits(horizon_ms=7_200_000)
    for given_as in (
        *({"due": value}, {"delay": value}, {"due": NOW, "ttl": value}),
        *({"delay": 1, "ttl": value}, {"due": NOW, "expires": value}),
        *({"delay": 1, "expires": value}, {"delay": value, "ttl": value}),
    ):
        good, message = Message("t", b"", delay=1), Message("t", b"", **given_as)
        found = sort_messages([good, message, good], NOW, limits)
        assert found.errors.keys() <= {1}
        assert all(isinstance(error, InvalidMessage) for error in found.errors.values())
        assert found.rows is not None
        rows = started(found.rows, NOW)
        due = times(rows, "due")
        assert 0 <= due.min() <= due.max() <= NOW + 7_201_000
        if 1 in found.errors:
            continue
        flat = flatten(message)
        for name, text in flat.headers:
            assert name == EXPIRES_HEADER
            assert text is not None
            assert 0 < int(text) < EXPIRES_LIMIT_MS


@given(numbers, headers)
@example(-1, [("ttl", struct.pack(">q", 30))])
@example(0, [("ttl", struct.pack(">q", 30))])
@example(NOW, [("ttl", struct.pack(">q", (1 << 63) - 1))])
@example(NOW, [("ttl", struct.pack(">q", -1))])
def test_a_consumer_reads_what_strangers_wrote(timestamp_ms: int, given: list[Header]) -> None:
    """No header ends its loop, and what it computes of them has its own format."""
    message = Received("orders", 0, 5, b"k", b"v", given, timestamp_ms)
    assert message.attempt >= 1
    expires_ms = message.expires_ms
    assert expires_ms is None or is_time(expires_ms)
    said = [message.id, message.due_ms, message.origin, message.origin_id]
    assert len([*said, message.first_error, message.last_error, message.nbytes]) == 7
    made: list[Any] = [
        *(FAILING.again(message, Cause("e")), FAILING.letter(message, "buried", Cause("e"))),
        FAILING.for_delay_topic(message, Cause("e"), "1s", "delays"),
    ]
    for one in made:
        found = [text for name, text in one.headers if name == EXPIRES_HEADER]
        assert len(found) <= 1
        assert all(text is not None and is_time(int(text)) for text in found)
    # A node takes it: nothing comes again and again.
    for retry in made[:2]:
        kept = [pair for pair in retry.headers if not is_reserved(pair[0])]
        if EXPIRES_HEADER not in dict(kept):
            rows = from_columns([NOW], ["t"], [None], [None], [None], [kept])
            check_input(rows, WheelConfig(), NOW)


@given(numbers, headers)
def test_a_record_of_a_delay_topic(timestamp_ms: int, given: list[Header]) -> None:
    sent = [("slotwheel-topic", b"t"), *given]
    records = ConsumerRecords([7], [timestamp_ms], [b"k"], [b"v"], [sent])
    taken = rows_of(records, "delays/0", WheelConfig(), NOW)
    rows = check_input(taken.rows, WheelConfig(), NOW, reserved=True)
    assert all(0 <= due <= NOW + 7_200_000 for due in times(rows, "due").tolist())


@pytest.mark.parametrize("number", NUMBERS)
def test_lateness_is_computed_of_times_alone(number: int) -> None:
    for place in range(3):
        given_ms: list[Any] = [NOW, NOW, NOW]
        given_ms[place] = number
        found = delivered_fields(1, None, given_ms[0], given_ms[1], given_ms[2], {})
        assert (found["due_ms"], found["created_ms"], found["delivered_ms"]) == tuple(given_ms)
        assert found["lateness_ms"] is None or abs(found["lateness_ms"]) <= NOW

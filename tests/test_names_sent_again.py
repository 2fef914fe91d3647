"""A name stands for the message that has left: whatever sends that one again sends it without.

Each way is its own code from the headers of a delivered message to rows for a wheel. In that wheel
another message has the name by now, on the same topic, and it must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.consumer.clock import RemoteClock
from slotwheel.consumer.failing import Cause, Failing
from slotwheel.consumer.message import OutputRecord, Received
from slotwheel.consumer.outbox import _row
from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.node.intake.records import ConsumerRecords, rows_of
from slotwheel.policy.deadletters import BURIED, DEAD_LETTER_TOPIC, EXPIRED, TOPIC
from slotwheel.policy.headers import BURY, ERROR, GROUP, OF_A_NAME, RETRY
from slotwheel.policy.policyset import PolicySet
from slotwheel.policy.retry import RetryPolicy
from slotwheel.reading.letters.again import as_messages, to_input
from slotwheel.reading.letters.letters import letters_of
from slotwheel.replay.redeliver import as_before
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from slotwheel.wheel.rows import Header, from_columns, header_column
from slotwheel.wheel.schema import ROW, Int64s, times
from support.deadlab import dump_of
from support.wheels import NOW, Node

NAME: list[Header] = [(NAME_HEADER, b"order-17"), (IF_EXISTS_HEADER, b"replace")]
ID = b"default.1800000000000.3.f1a9c07d2b86e457"
DELIVERED: list[Header] = [
    ("a", b"1"),
    *NAME,
    ("slotwheel-id", ID),
    ("slotwheel-due-ms", b"1800000000000"),
    ("slotwheel-created-ms", b"1799999999000"),
]
FAILING = Failing("billing", RetryPolicy.literal("1s 2s"), DEAD_LETTER_TOPIC, RemoteClock(None))
CAUSE = Cause("no money")


def received() -> Received:
    return Received("orders", 0, 7, b"k", b"v", list(DELIVERED), NOW)


def of_output(output: OutputRecord) -> list[tuple[str, Sequence[Header]]]:
    """What a consumer stores through a node."""
    record = _row(received(), output).record
    assert isinstance(record.headers, list)
    return [(record.topic, record.headers)]


def of_delay_topic(headers: Sequence[Header]) -> list[tuple[str, Sequence[Header]]]:
    """What a node makes of a record of a delay topic."""
    records = ConsumerRecords([1], [NOW], [b"k"], [b"v"], [list(headers)])
    made = rows_of(records, "delays/0", WheelConfig(), NOW, settings=PolicySet())
    return [pairs_of(row) for row in made.rows.to_pylist()]


def pairs_of(row: dict[str, object]) -> tuple[str, Sequence[Header]]:
    headers = row["headers"]
    assert isinstance(headers, list)
    return str(row["topic"]), [(pair["key"], pair["value"]) for pair in headers]


def by_retry() -> list[tuple[str, Sequence[Header]]]:
    failure = FAILING.again(received(), CAUSE)
    return of_output(OutputRecord(failure.topic, b"v", b"k", failure.headers))


def by_burial() -> list[tuple[str, Sequence[Header]]]:
    failure = FAILING.letter(received(), BURIED, CAUSE)
    return of_output(OutputRecord(failure.topic, b"v", b"k", failure.headers))


def by_retry_over_a_delay_topic() -> list[tuple[str, Sequence[Header]]]:
    output = FAILING.for_delay_topic(received(), CAUSE, "1s 2s", "delays")
    assert dict(output.headers)[NAME_HEADER] == b"order-17"  # as other languages may copy it
    return of_delay_topic(output.headers)


def by_burial_over_a_delay_topic() -> list[tuple[str, Sequence[Header]]]:
    output = FAILING.for_delay_topic(received(), CAUSE, "1s 2s", "delays")
    kept = [pair for pair in output.headers if pair[0] not in (RETRY, ERROR)]
    assert GROUP in dict(kept)
    return of_delay_topic([*kept, (BURY, b"given up")])


def by_letter_of_a_delay_topic() -> list[tuple[str, Sequence[Header]]]:
    return of_delay_topic([("a", b"1"), *NAME, ("slotwheel-topic", b"orders")])  # without a time


def redriven(letter: Sequence[Header]) -> list[tuple[str, Sequence[Header]]]:
    letters = letters_of(dump_of([letter], [b"v"]))
    again = to_input(as_messages(letters, None), _due(1))
    return [pairs_of(row) for row in again.to_pylist()]


def by_redrive_of_what_expired() -> list[tuple[str, Sequence[Header]]]:
    rows = from_columns([NOW], ["orders"], [None], [b"k"], [b"v"], [DELIVERED[:3]])
    stored = {"offset": pa.array([3]), "created": rows.column("due")}
    stored["cancels"] = pa.nulls(1, pa.int64())
    [(_, letter)] = [pairs_of(row) for row in _letters(rows, stored).to_pylist()]
    assert dict(letter)[NAME_HEADER] == b"order-17"  # a letter is the whole message
    return redriven(letter)


def _letters(rows: pa.RecordBatch, stored: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = [stored[name] if name in stored else rows.column(name) for name in ROW.names]
    row = pa.RecordBatch.from_arrays(columns, schema=ROW)
    return DeadLetters(None, None)._letters(row, [EXPIRED])  # type: ignore[arg-type]


def by_redrive_of_what_was_buried() -> list[tuple[str, Sequence[Header]]]:
    [(_, letter)] = by_burial()
    aimed = [(name, b"orders" if name == TOPIC else value) for name, value in letter]
    return redriven(aimed)


def by_redelivery() -> list[tuple[str, Sequence[Header]]]:
    headers = as_before(header_column([DELIVERED[:3]]))
    return [("orders", [(pair["key"], pair["value"]) for pair in headers[0].as_py()])]


def _due(count: int) -> Int64s:
    return times(from_columns([NOW] * count, ["t"], [None], [None], [None], [[]]), "due")


WAYS: dict[str, tuple[Callable[[], list[tuple[str, Sequence[Header]]]], str]] = {
    "a consumer's next attempt": (by_retry, "billing-retry"),
    "a consumer's dead letter": (by_burial, DEAD_LETTER_TOPIC),
    "an attempt that another language asks for": (by_retry_over_a_delay_topic, "billing-retry"),
    "a burial that another language asks for": (by_burial_over_a_delay_topic, DEAD_LETTER_TOPIC),
    "a letter of a delay topic": (by_letter_of_a_delay_topic, DEAD_LETTER_TOPIC),
    "a redrive of what expired": (by_redrive_of_what_expired, "orders"),
    "a redrive of what was buried": (by_redrive_of_what_was_buried, "orders"),
    "slotwheel replay --redeliver": (by_redelivery, "orders"),
}
"""Each way, and the topic to which it leads."""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_again_has_no_name_and_replaces_nobody(way: str, tmp_path: Path) -> None:
    make, topic = WAYS[way]
    [(to_topic, headers)] = make()
    assert to_topic == topic
    assert ("a", b"1") in headers
    assert not OF_A_NAME & dict(headers).keys()
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW)
    named = from_columns([NOW + 60_000], [topic], [None], [None], [b"next"], [NAME])
    again = from_columns([NOW + 60_000], [topic], [None], [b"k"], [b"v"], [headers])
    later = node.wheel.append(named, NOW)
    node.sync()
    sent = node.wheel.append_source(again, NOW, source=1, first=0, last=0)
    node.sync()
    assert list(sent.result(0).named) == []
    found = node.wheel.named(topic, "order-17")
    assert found is not None
    assert found.offset == later.result(0).base_offset
    assert node.wheel.status().pending == 2
    node.close()


def test_a_route_takes_the_name_in_each_of_its_topics(tmp_path: Path) -> None:
    settings = PolicySet.from_toml('[routes]\ntwo = [{to = ["orders", "payments"]}]', "policies")
    control = [("slotwheel-route", b"two"), ("slotwheel-delay-ms", b"60000")]
    records = ConsumerRecords([1], [NOW], [b"k"], [b"v"], [[*NAME, *control]])
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW)
    for taken in (0, 1):
        made = rows_of(records, "delays/0", WheelConfig(), NOW, settings=settings)
        sent = node.wheel.append_source(made.rows, NOW, source=1, first=taken, last=taken)
        node.sync()
        assert [answer.row for answer in sent.result(0).named] == [0, 1] * taken
    found = [node.wheel.named(topic, "order-17") for topic in ("orders", "payments")]
    assert [message_id and message_id.offset for message_id in found] == [2, 3]
    assert node.wheel.status().pending == 2
    node.close()

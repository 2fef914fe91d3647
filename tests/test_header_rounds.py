"""A message that dies and is sent again, and again: no round makes its headers longer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slotwheel.policy.deadletters import DELIVERY, REFUSED, letter_headers
from slotwheel.policy.failure import Origin, attempt_of, buried, failed
from slotwheel.policy.retry import RetryPolicy
from slotwheel.reading.letters.again import as_messages
from slotwheel.reading.letters.letters import letters_of
from slotwheel.wheel.rows import Header, from_columns
from slotwheel.wheel.schema import TIME

OWN: list[Header] = [
    *(("own", b"1"), ("own", None), ("ttl", bytes(8))),
    ("__connect.errors.topic", b"of another connector"),
]


def delivered(headers: list[Header], number: int) -> list[Header]:
    names = ("slotwheel-id", "slotwheel-due-ms", "slotwheel-created-ms")
    values = (b"default.1.%d.0000000a" % number, b"1", b"1")
    return [*headers, *zip(names, values, strict=True)]


def redriven(letter: list[Header]) -> list[Header]:
    row = from_columns([0], ["dead"], [None], [b"k"], [b"v"], [letter])
    record = {
        "record_partition": pa.array([0], pa.int32()),
        "position": pa.array([5], pa.int64()),
        "delivered": pa.array([5], TIME),
        **{name: row.column(name) for name in ("key", "value", "headers")},
    }
    [again] = as_messages(letters_of(pa.record_batch(record)), None).to_pylist()
    return [(one["key"], one["value"]) for one in again["headers"]]


@pytest.mark.parametrize("by", ["consumer", "retries", "sink"])
def test_six_redrives_and_burials(by: str) -> None:
    policy = RetryPolicy.literal("1s")
    headers = list(OWN)
    letters, messages = [], []
    for number in range(6):
        here = Origin("orders", 0, number)
        read = delivered(headers, 10 * number)
        assert attempt_of(read) == 1
        if by == "sink":
            added = letter_headers(DELIVERY, REFUSED, "no such topic", b"orders", partition=3)
            letter = [*headers, *added]
        elif by == "consumer":
            letter = buried(read, "buried", "billing", "no", here).headers
        else:
            again = failed(read, policy, "billing", "no", here, None, 0.0).headers
            read = delivered(again, 10 * number + 1)
            letter = failed(read, policy, "billing", "no", here, None, 0.0).headers
        letters.append(len(letter))
        headers = redriven(delivered(letter, 10 * number + 2))
        messages.append(len(headers))
        said = dict(headers)
        assert said["slotwheel-redelivered-id"] == b"default.1.%d.0000000a" % (10 * number + 2)
    # With the first redrive the id of the letter comes beside the message's own headers.
    assert set(letters[1:]) == {letters[0] + 1}
    assert set(messages) == {len(OWN) + 1}

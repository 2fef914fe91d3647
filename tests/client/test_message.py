"""Messages and their due times, and batches in which each bad row is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import InvalidBatch, InvalidMessage, Message
from slotwheel.client.columns import Limits, conform, pieces, sort_messages
from slotwheel.client.message import due_of, flatten
from slotwheel.wheel.checks import started
from slotwheel.wheel.delay import due_times
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.schema import INPUT, TIME, times

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("due", "delay", "expected"),
    [
        (NOW, None, NOW),
        (datetime(2026, 11, 20, 18, tzinfo=UTC), None, 1_795_197_600_000),
        (datetime(2026, 11, 20, 18, tzinfo=timezone(timedelta(hours=2))), None, 1_795_190_400_000),
        # A fraction of a millisecond is rounded up: never early.
        (datetime(2026, 11, 20, 18, 0, 0, 1, tzinfo=UTC), None, 1_795_197_600_001),
        (None, 30, NOW + 30_000),
        (None, 0, NOW),
        (None, -1.5, NOW - 1500),
        (None, 0.007, NOW + 7),
        (None, 0.0071, NOW + 8),
        (None, timedelta(seconds=1, microseconds=1), NOW + 1001),
        (None, timedelta(seconds=-1), NOW - 1000),
        *((None, text, NOW + 3000) for text in ("3s", "3", " 3 s ", "3000ms", "0.05m")),
        *((None, text, NOW) for text in ("0", "0s")),
    ],
)
def test_due(due: Any, delay: Any, expected: int) -> None:
    assert due_times([due_of(due, delay)], NOW) == [expected]


@pytest.mark.parametrize(
    ("due", "delay", "text"),
    [
        (None, None, "neither due nor delay"),
        (NOW, 1, "both due and delay"),
        (datetime(2026, 11, 20), None, "without a time zone"),
        ("2026-11-20", None, "unusable due time"),
        (1.5, None, "unusable due time"),
        (True, None, "not a time"),
        (1 << 70, None, "unusable due time"),
        (None, float("nan"), "unusable delay"),
        (None, float("inf"), "unusable delay"),
        (None, 1e12, "unusable delay"),
        (-1, None, "due before 1970"),
        (-(1 << 62), None, "due before 1970"),
        (None, True, "not a delay"),
        (None, [3], "not a delay"),
        (None, b"3s", "not a delay"),
        *((None, text, "not a time span as 3s") for text in ("", "s", "3 weeks", "-3s", "1e3")),
    ],
)
def test_unusable_due(due: Any, delay: Any, text: str) -> None:
    with pytest.raises(InvalidMessage, match=text):
        due_of(due, delay)


LASTING: list[tuple[dict[str, Any], int]] = [
    ({"ttl": 2}, NOW + 3000),
    ({"ttl": "2s"}, NOW + 3000),
    ({"ttl": 0.0011}, NOW + 1002),
    ({"ttl": timedelta(milliseconds=1)}, NOW + 1001),
    ({"expires": NOW + 1001}, NOW + 1001),
    ({"expires": datetime(2026, 11, 20, 18, tzinfo=UTC)}, 1_795_197_600_000),
]


@pytest.mark.parametrize(("given", "expected"), LASTING)
def test_when_a_message_expires(given: dict[str, Any], expected: int) -> None:
    """With a due time, and with a delay that begins at the node: alone and in a batch the same,
    behind the message's own headers."""
    wanted = [("h", b"1"), (EXPIRES_HEADER, b"%d" % expected)]
    due = Message("t", b"v", headers={"h": b"1"}, due=NOW + 1000, **given)
    assert flatten(due).headers == wanted
    delayed = replace(due, due=None, delay=1)
    found = sort_messages([Message("t", b"v", delay=1), due, delayed], NOW, LIMITS)
    assert found.rows is not None
    rows = started(found.rows, NOW)
    assert times(rows, "due").tolist() == [NOW + 1000] * 3
    pairs = [[(one["key"], one["value"]) for one in row] for row in headers_of(rows)]
    assert pairs == [[], wanted, wanted]


def headers_of(rows: pa.RecordBatch) -> Any:
    return rows.column("headers").to_pylist()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ttl": 0}, "no time to live; got 0 ms; expected at least 1 ms"),
        ({"ttl": -1}, "no time to live"),
        ({"ttl": timedelta(seconds=-1)}, "no time to live"),
        ({"ttl": float("nan")}, "unusable time to expire"),
        ({"ttl": "soon"}, "unusable time to expire"),
        ({"ttl": 1e30}, "unusable time to expire"),
        ({"expires": NOW + 1000}, "expires before it is due"),
        ({"expires": NOW - 1}, "expires before it is due"),
        ({"expires": datetime(2027, 11, 20)}, "without a time zone"),
        ({"expires": 1.5}, "unusable time to expire"),
        ({"expires": 1 << 70}, "unusable time to expire"),
        ({"expires": 10**18}, "unusable time to expire"),
        ({"ttl": 1e15}, "unusable time to expire"),
        ({"expires": NOW + 2000, "ttl": 1}, "both expires and ttl"),
        ({"headers": {EXPIRES_HEADER: "soon"}}, "unreadable time"),
        ({"headers": {EXPIRES_HEADER: "9" * 15}, "ttl": 1}, "header twice"),
    ],
)
def test_a_message_that_cannot_expire_so_fails_alone(given: dict[str, Any], text: str) -> None:
    good, bad = Message("t", b"v", delay=1, ttl=1), Message("t", b"v", due=NOW + 1000, **given)
    found = sort_messages([good, bad, good], NOW, LIMITS)
    assert list(found.errors) == [1]
    assert text in str(found.errors[1])
    with pytest.raises(InvalidMessage) as caught:
        flatten(bad)
    assert text in str(caught.value)


def test_no_headers_may_be_none() -> None:
    nothing: Any = None
    message = Message("t", b"v", headers=nothing, delay=1)
    assert flatten(message).headers == []
    assert sort_messages([message], NOW, LIMITS).errors == {}


BAD = [
    Message("", b"v", delay=1),
    Message("a/b", b"v", delay=1),
    Message("..", b"v", delay=1),
    Message(None, b"v", delay=1),  # type: ignore[arg-type]
    Message("t", 5, delay=1),  # type: ignore[arg-type]
    Message("t", b"v", key=5, delay=1),  # type: ignore[arg-type]
    Message("t", b"v", partition=-1, delay=1),
    Message("t", b"v", partition=1 << 31, delay=1),
    Message("t", b"v", headers=[("k",)], delay=1),  # type: ignore[list-item]
    Message("t", b"v", headers=[(None, b"v")], delay=1),  # type: ignore[list-item]
    Message("t", b"v", headers=7, delay=1),  # type: ignore[arg-type]
    Message("t", "\ud800", delay=1),
    Message("t", b"v"),
    Message("t", b"v", delay=1, due=1),
    Message("t", b"v", due=-1),
    Message("t", b"v" * 1001, delay=1),
    Message("t", b"v", key=b"k" * 500, headers=[("h", b"v" * 500)], delay=1),
    Message("t", b"v", delay=7202),
]
RESERVED = Message("t", b"v", headers={"mine": "1", "slotwheel-id": "x"}, delay=1)
BAD.insert(0, RESERVED)
LIMITS = Limits(message_bytes=1000, horizon_ms=7_200_000)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_message_fails_alone(number: int) -> None:
    good = Message("t", "text", key=b"k", headers={"h": None}, partition=3, delay=1)
    found = sort_messages([good, BAD[number], good], NOW, LIMITS)
    assert list(found.errors) == [1]
    assert isinstance(found.errors[1], InvalidMessage)
    assert found.kept is not None
    assert found.kept.tolist() == [0, 2]
    assert found.rows is not None
    assert found.rows.num_rows == 2
    assert due_times(found.due[[0, 2]], NOW).tolist() == [NOW + 1000] * 2


@pytest.mark.parametrize("number", range(len(BAD) - 3))
def test_bad_message_is_refused_by_itself(number: int) -> None:
    assert raised_by(BAD[number]).remedy


def test_all_bad() -> None:
    found = sort_messages(BAD, NOW, LIMITS)
    assert found.rows is None
    assert sorted(found.errors) == list(range(len(BAD)))


def test_a_reserved_header_is_named() -> None:
    for error in (sort_messages([RESERVED], NOW, LIMITS).errors[0], raised_by(RESERVED)):
        assert "reserved header name; got slotwheel-id; expected" in str(error)
        assert "Leave it out" in str(error)


def raised_by(message: Message) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        flatten(message)
    return caught.value


def test_content_is_kept_byte_for_byte() -> None:
    messages = [
        Message("t", b"\x00\xff", b"", [("a", b"1"), ("a", None), ("b", b"")], due=5),
        Message("t", None, None, {}, due=6),
        Message("t", bytearray(b"x"), "ü", {"ß": "ü"}, 2, due=7),
    ]
    found = sort_messages(messages, NOW, LIMITS)
    assert found.errors == {}
    assert found.rows is not None
    rows = found.rows.to_pylist()
    assert [row["value"] for row in rows] == [b"\x00\xff", None, b"x"]
    assert [row["key"] for row in rows] == [b"", None, "ü".encode()]
    assert rows[0]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "b", "value": b""},
    ]
    assert rows[2]["headers"] == [{"key": "ß", "value": "ü".encode()}]
    assert [row["partition"] for row in rows] == [None, None, 2]
    flat = [flatten(message) for message in messages]
    assert [(f.key, f.value) for f in flat] == [(r["key"], r["value"]) for r in rows]


def table(**columns: Any) -> pa.Table:
    due = pa.array([1, 2], TIME)
    return pa.table({"due": due, "topic": ["a", "b"], "value": [b"x", b"y"]} | columns)


def test_table_takes_the_schema_of_the_wheel() -> None:
    found = conform(table())
    assert found.schema.equals(INPUT)
    assert found.column("headers").to_pylist() == [[], []]
    micros = pa.array([1001, 2000], pa.timestamp("us", "UTC"))
    assert conform(table(due=micros)).column("due").cast(pa.int64()).to_pylist() == [2, 2]
    assert conform(table(due=pa.array([7, 8]))).column("due").cast(pa.int64()).to_pylist() == [7, 8]
    words = pa.array(["a", "b"]).dictionary_encode()
    assert conform(table(topic=words)).column("topic").to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"extra": [1, 2]}, "nothing else"),
        ({"topic": [None, "b"]}, "null in column 'topic'"),
        ({"topic": [[1], [2]]}, "wrong type"),
        ({"headers": [[{"key": None, "value": b"v"}], []]}, "'headers' has the wrong type"),
        ({"due": pa.array([1, 2], pa.timestamp("ms"))}, "time zone"),
        ({"due": pa.array([None, 2], TIME)}, "null in column 'due'"),
        ({"partition": [1 << 40, 1]}, "'partition' has the wrong type"),
    ],
)
def test_wrong_table(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidBatch, match=text) as caught:
        conform(table(**columns))
    assert caught.value.remedy


def test_table_without_a_needed_column() -> None:
    with pytest.raises(InvalidBatch, match="wrong schema"):
        conform(table().drop_columns(["value"]))


def test_pieces_keep_both_limits_and_the_order() -> None:
    rows = 1000
    big = conform(
        pa.table({"due": range(rows), "topic": ["t"] * rows, "value": [b"x" * 100] * rows})
    )
    found = list(pieces(big, 300, 20_000))
    due = np.concatenate([times(part, "due") for part in found])
    assert due.tolist() == list(range(rows))
    assert max(part.num_rows for part in found) <= 300
    assert max(part.nbytes for part in found) <= 20_000
    assert len(list(pieces(big, 10_000, 1))) == rows  # one row goes whatever its size

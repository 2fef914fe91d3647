"""Latency by step, topic and bucket, against a plain model."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.trace.chains.departures import LEFT, Departures
from slotwheel.trace.chains.latency import Latency, LatencyStep, latencies
from slotwheel.trace.events import EVENT, EventKind, EventSender, with_sender

_GROUP = "g"
_SENDER = EventSender("s")
_TIMES = st.integers(0, 50)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.sampled_from(["orders", "mail"]),
            "group": st.sampled_from([_GROUP, "other"]),
            "due": _TIMES,
            "created": _TIMES,
            "left": st.none() | _TIMES,
            "state": st.sampled_from(["delivered", "delivered", "expired"]),
            "sent": st.none() | _TIMES,
            "got": st.none() | _TIMES,
            "took": st.none() | st.integers(0, 5000),
            "error": st.sampled_from([None, "no"]),
        }
    ),
    max_size=30,
)


def _events(messages: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    rows = []
    for offset, one in enumerate(messages):
        parts = {"group": one["group"], "due": one["due"], "offset": offset, "check": 1}
        common = {"number": 0, "id": parts, "topic": one["topic"], "error": one["error"]}
        common["took_us"] = one["took"]
        if one["sent"] is not None:
            rows.append({**common, "at": one["sent"], "kind": EventKind.PRODUCED})
        if one["got"] is not None:
            rows.append({**common, "at": one["got"], "kind": EventKind.PROCESSED})
        rows.append({"number": 0, "at": 1, "kind": EventKind.COMMITTED, "topic": one["topic"]})
    halves = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return [with_sender(_SENDER, pa.RecordBatch.from_pylist(one, schema=EVENT)) for one in halves]


def _departures(messages: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    rows = [
        {"due": one["due"], "offset": at, "created": one["created"], "at": one["left"]}
        | {"topic": one["topic"], "state": one["state"]}
        for at, one in enumerate(messages)
        if one["left"] is not None and one["group"] == _GROUP
    ]
    return [pa.RecordBatch.from_pylist(rows, schema=LEFT)]


def _model(messages: list[dict[str, Any]], interval: int) -> list[Latency]:
    found: dict[tuple[str, int, LatencyStep], list[float]] = defaultdict(list)
    for one in messages:

        def note(step: LatencyStep, ms: float, one: dict[str, Any] = one) -> None:
            found[one["topic"], one["due"] // interval * interval, step].append(ms)

        left = one["left"] if one["group"] == _GROUP and one["state"] == "delivered" else None
        ready = one["due"] if left is None else max(one["due"], one["created"])
        if left is not None:
            note(LatencyStep.WHEEL, left - ready)
        if one["sent"] is not None and one["took"] is not None and one["error"] is None:
            note(LatencyStep.SEND, one["took"] / 1000)
        if one["got"] is not None:
            note(LatencyStep.ARRIVAL, one["got"] - ready)
            if left is not None:
                note(LatencyStep.BROKER, one["got"] - left)
            if one["took"] is not None:
                note(LatencyStep.CONSUMER, one["took"] / 1000)
    order = list(LatencyStep)
    made = []
    for (topic, bucket, step), ms in found.items():
        ms.sort()
        p50, p95, p99 = (ms[math.ceil(len(ms) * part) - 1] for part in (0.5, 0.95, 0.99))
        made.append(Latency(topic, bucket, step, len(ms), p50, p95, p99, ms[-1]))
    return sorted(made, key=lambda one: (one.topic, one.bucket_ms, order.index(one.step)))


@given(_MESSAGES, st.sampled_from([1, 7, 100]))
def test_latencies_are_those_of_a_plain_model(
    messages: list[dict[str, Any]], interval: int
) -> None:
    left = Departures(_GROUP, _departures(messages))
    assert latencies(_events(messages), left, interval) == _model(messages, interval)


def test_of_a_message_that_left_twice_the_first_time_counts() -> None:
    row = {"due": 10, "offset": 5, "created": 1, "topic": "orders", "state": "delivered"}
    left = pa.RecordBatch.from_pylist([{**row, "at": 40}, {**row, "at": 20}], schema=LEFT)
    parts = {"group": _GROUP, "due": 10, "offset": 5, "check": 1}
    got = {"number": 0, "at": 50, "kind": EventKind.PROCESSED, "id": parts, "topic": "orders"}
    events = with_sender(_SENDER, pa.RecordBatch.from_pylist([got], schema=EVENT))
    found = latencies([events], Departures(_GROUP, [left]), 1000)
    by_step = {one.step: (one.messages, one.max) for one in found}
    assert by_step == {
        LatencyStep.WHEEL: (2, 30),
        LatencyStep.ARRIVAL: (1, 40),
        LatencyStep.BROKER: (1, 30),
    }

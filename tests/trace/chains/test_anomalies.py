"""Anomalies of many messages, against a plain model."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.trace.chains.anomalies import AnomalyLimits, anomalies
from slotwheel.trace.chains.departures import LEFT, Departures
from slotwheel.trace.chains.fields import anomaly_fields
from slotwheel.trace.chains.lookup import AnomalyQuery, LatencyQuery, TraceLookup
from slotwheel.trace.events import EVENT, STORED, EventKind, EventSender, with_sender
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from slotwheel.wheel.ids import IdMint, MessageId
from support.traced import event, id_parts, stored

_NOW = 1_000
_LIMITS = AnomalyLimits(late_ms=20, backlog_ms=30, stuck_ms=900)
_IDS = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["g", "other"]),
        "due": st.integers(0, 3),
        "offset": st.integers(0, 3),
        "check": st.just(1),
    }
)
_EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.just(0),
            "at": st.integers(0, 200),
            "kind": st.sampled_from(list(EventKind)),
            "id": st.none() | _IDS,
            "topic": st.sampled_from(["orders", "mail"]),
            "partition": st.integers(0, 1),
            "offset": st.integers(0, 2),
            "group": st.sampled_from([None, "billing", "audit"]),
            "attempt": st.none() | st.integers(1, 3),
            "error": st.sampled_from([None, "no", "expired"]),
            "count": st.none() | st.integers(1, 9),
        }
    ),
    max_size=40,
)
_LEFT = st.lists(
    st.fixed_dictionaries(
        {
            "due": st.integers(0, 3),
            "offset": st.integers(0, 3),
            "created": st.none() | st.integers(0, 40),
            "at": st.integers(0, 100),
            "state": st.sampled_from(["delivered", "expired", "dead", "cancelled"]),
            "topic": st.sampled_from(["orders", None]),
        }
    ),
    max_size=10,
    unique_by=lambda one: one["offset"],
)


def _model(events: list[dict[str, Any]], left: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    answers: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    held: list[tuple[Any, dict[str, Any]]] = []
    by_place = {("g", one["due"], one["offset"]): one for one in left}
    for one in events:
        parts = one["id"]
        message = parts and (parts["group"], parts["due"], parts["offset"])
        whose = message or (one["topic"], one["partition"], one["offset"]), one["group"]
        if one["kind"] == "retried":
            found["retry", one["at"], one["attempt"]] += 1
        elif one["kind"] == "dead":
            found["expired" if one["error"] == "expired" else "dead", one["at"], None] += 1
        elif one["kind"] == "dropped":
            found["gap", one["at"], one["count"]] += 1
        elif one["kind"] == "received":
            held.append((whose, one))
        elif one["kind"] == "processed":
            answers[whose].append(one)
    for (message, _), repeated in answers.items():
        at, gone = min(one["at"] for one in repeated), by_place.get(message)
        if gone is not None and gone["state"] == "delivered" and at - gone["at"] > 30:
            found["backlog", at, at - gone["at"]] += 1
        if len(repeated) > 1:
            found["repeat", repeated[-1]["at"], len(repeated)] += 1
    for whose, one in held:
        if whose not in answers and _NOW - one["at"] > 900:
            found["stuck", one["at"], _NOW - one["at"]] += 1
    for one in left:
        late = one["at"] - max(one["due"], one["created"] or 0)
        if one["state"] in ("expired", "dead"):
            found[one["state"], one["at"], None] += 1
        elif one["state"] == "delivered" and late > 20:
            found["late", one["at"], late] += 1
    return found


@given(_EVENTS, _LEFT)
def test_anomalies_are_those_of_a_plain_model(
    events: list[dict[str, Any]], left: list[dict[str, Any]]
) -> None:
    rows = pa.RecordBatch.from_pylist(events, schema=EVENT)
    table = pa.Table.from_batches([with_sender(EventSender("s"), rows)])
    gone = Departures("g", [pa.RecordBatch.from_pylist(left, schema=LEFT)])
    made = anomalies(table, gone, _NOW, _LIMITS).to_pylist()
    assert [one["at"] for one in made] == sorted(one["at"] for one in made)
    assert Counter((one["kind"], one["at"], one["amount"]) for one in made) == _model(events, left)


def test_only_the_first_answer_says_how_long_a_message_lay_on_its_topic() -> None:
    of: dict[str, Any] = {"kind": "processed", "id": id_parts(3), "topic": "orders"}
    rows = [event(0, 134, group="billing", **of), event(1, 1_346_510, group="billing", **of)]
    rows.append(event(2, 1_346_506, group="audit", **of))
    row = {"due": 5, "offset": 3, "at": 110, "state": "delivered", "topic": "orders"}
    gone = Departures("g", [pa.RecordBatch.from_pylist([row], schema=LEFT)])
    found = list(anomaly_fields(anomalies(stored(rows), gone, 1 << 40, AnomalyLimits())))
    assert [(one["kind"], one["group"], one["text"]) for one in found] == [
        ("backlog", "audit", "it lay on its topic for 22 min 26 s"),
        ("repeat", "billing", "billing has answered for it 2 times"),
    ]


def test_events_without_id_and_place_are_not_of_one_message() -> None:
    rows = [
        {"number": at, "at": at, "kind": EventKind.PROCESSED, "topic": "orders", "group": "billing"}
        for at in range(3)
    ]
    rows += [{"number": 3, "at": 3, "kind": EventKind.RECEIVED, "topic": "orders"}]
    batch = with_sender(EventSender("s"), pa.RecordBatch.from_pylist(rows, schema=EVENT))
    found = anomalies(pa.Table.from_batches([batch]), Departures(), 1 << 40, _LIMITS)
    assert not found.num_rows


def test_gaps_are_shown_whatever_the_topic_as_what_is_missing_may_be_of_it(tmp_path: Path) -> None:
    events = [
        event(0, 5, kind="retried", topic="orders"),
        event(1, 6, kind="retried", topic="mail"),
        event(2, 7, kind="dropped", count=4),
    ]
    write_segment(tmp_path, SegmentName(0, 0), SegmentAbout(hour=1, topic="t"), stored(events))
    with TraceLookup(tmp_path, None) as lookup:
        found = lookup.anomalies(AnomalyQuery("orders", 0, 10), 20)
        assert found.counts == {"gap": 1, "retry": 1}
        assert not lookup.latency(LatencyQuery("orders", 0, 10, 1), 20).latencies


def test_latency_of_all_topics_is_that_of_messages_and_not_of_what_is_said_of_them(
    tmp_path: Path,
) -> None:
    own = "slotwheel-audit", "slotwheel-trace", "letters-redriven"
    rows = [
        event(at, at, id=id_parts(at), took_us=9, topic=topic)
        for at, topic in enumerate(("orders", "letters", *own))
    ]
    write_segment(tmp_path, SegmentName(0, 0), SegmentAbout(hour=1, topic="t"), stored(rows))
    with TraceLookup(tmp_path, None, "letters") as lookup:
        found = lookup.latency(LatencyQuery(None, 0, 10, 1), 20).latencies
        assert [one.topic for one in found] == ["letters", "orders"]
        for topic in own:
            assert [
                one.topic for one in lookup.latency(LatencyQuery(topic, 0, 10, 1), 20).latencies
            ] == [topic]


def test_what_the_wheel_alone_knows_has_whole_ids() -> None:
    mint = IdMint("g", b"k" * 16)
    row = {"due": 10, "offset": 3, "created": 1, "at": 90, "state": "dead", "topic": "orders"}
    gone = Departures("g", [pa.RecordBatch.from_pylist([row], schema=LEFT)], mint)
    [found] = anomaly_fields(anomalies(STORED.empty_table(), gone, _NOW, _LIMITS))
    assert mint.genuine(MessageId.parse(found["id"]))

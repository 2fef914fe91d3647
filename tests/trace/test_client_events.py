"""What a client's events say of each message, against its receipts."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from slotwheel import Client, InvalidMessage, Message
from slotwheel.trace import Tracer
from slotwheel.wheel.errors import InvalidMessage as Refused
from slotwheel.wheel.schema import times
from support.fakewheel import FakeWheel, served
from support.tracing import KeptEvents
from support.waiting import now_ms


@pytest.fixture
def kept() -> KeptEvents:
    return KeptEvents()


@pytest.fixture
def tracer(kept: KeptEvents) -> Iterator[Tracer]:
    made = Tracer(kept)
    yield made
    made.close()


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def address(wheel: FakeWheel) -> Iterator[str]:
    with served(wheel) as address:
        yield address


def test_each_message_has_one_event_with_its_id_and_its_time(
    address: str, tracer: Tracer, kept: KeptEvents
) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    began_ms = now_ms()
    with Client(address, observer=tracer) as client:
        single = [
            client.send(
                "orders",
                b"secret",
                key=b"k%d" % number,
                headers={"traceparent": parent, "tag": "red"},
                delay=5,
            )
            for number in range(3)
        ]
        many = client.send_many(Message("bills", b"v", key=None, delay=5) for _ in range(100))
        ids = [one.id for one in single] + many.result()
    ended_ms = now_ms()
    events = kept.of(tracer, "produced")
    assert sorted(one["id"] for one in events) == sorted(ids)
    mine = {one["id"]: one for one in events}
    for number, receipt in enumerate(single):
        event = mine[receipt.id]
        assert (event["topic"], event["key"], event["error"]) == ("orders", b"k%d" % number, None)
        assert (event["traceparent"], event["tag"], event["origin"]) == (parent, "red", None)
        assert 0 <= event["took_us"] < 60_000_000
        assert began_ms <= event["at"].timestamp() * 1000 <= ended_ms
    assert all(b"secret" not in str(one).encode() for one in events)


def test_rows_that_the_node_refuses_have_its_error_and_their_neighbours_their_ids(
    wheel: FakeWheel, address: str, tracer: Tracer, kept: KeptEvents
) -> None:
    def refuse(rows: pa.RecordBatch) -> None:
        for row, topic in enumerate(rows.column("topic").to_pylist()):
            if topic == "bad":
                raise Refused("this one not", row=row)

    wheel.before_append = refuse
    with Client(address, observer=tracer) as client:
        topics = ["good", "bad", "good", "good", "bad"]
        receipts = client.send_many(
            Message(topic, b"v", key=b"%d" % number, delay=5 - number)
            for number, topic in enumerate(topics)
        )
        outcomes = receipts.outcomes()
    events = {one["key"]: one for one in kept.of(tracer, "produced")}
    assert len(events) == 5
    for number, outcome in enumerate(outcomes):
        event = events[b"%d" % number]
        if isinstance(outcome, str):
            assert (event["id"], event["error"]) == (outcome, None)
        else:
            assert event["id"] is None
            assert "this one not" in event["error"]
    assert sum(len(times(rows, "due")) for rows in wheel.batches) == 3


def test_what_nobody_took_has_the_error_of_its_receipt(tracer: Tracer, kept: KeptEvents) -> None:
    with Client("127.0.0.1:1", timeout_s=0.3, observer=tracer) as client:
        receipt = client.send("orders", b"v", key=b"k", delay=1)
        error = receipt.error()
    (event,) = kept.of(tracer, "produced")
    assert event["id"] is None
    assert event["error"] == str(error)[:500]


def test_a_message_that_is_refused_at_once_has_no_event(
    address: str, tracer: Tracer, kept: KeptEvents
) -> None:
    with Client(address, observer=tracer) as client, pytest.raises(InvalidMessage):
        client.send("no topic!", b"v", delay=1)
    assert kept.of(tracer) == []


def test_without_ids_events_have_none(address: str, tracer: Tracer, kept: KeptEvents) -> None:
    with Client(address, acks="0", observer=tracer) as client:
        client.send("orders", b"v", delay=1)
        client.flush()
    (event,) = kept.of(tracer, "produced")
    assert (event["id"], event["error"]) == (None, None)

"""The Flight server: receipts, limits, back-pressure, life and end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from slotwheel.intake.flight import FlightIntake
from slotwheel.intake.ports import IntakeEvents
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import AddressInUse, InvalidMessage, NotRunning, Overloaded
from slotwheel.wheel.protocol import (
    IN_FLIGHT_MAX,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    encode_json,
)
from slotwheel.wheel.request import RequestKey
from support.exchange import Exchange, action, rows
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms

FORGED = "default.1.2.00000000"


class Events(IntakeEvents):
    """Keeps what the intake tells."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        self.calls.append(("appended", rows, nbytes, seconds))

    def refused(self, code: str, rows: int) -> None:
        self.calls.append(("refused", code, rows))

    def event(self, name: str, **fields: object) -> None:
        self.calls.append(("event", name, fields))

    def alarm(self, name: str, **fields: object) -> None:
        self.calls.append(("alarm", name, fields))


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def server(wheel: FakeWheel, events: Events) -> Iterator[FlightIntake]:
    made = FlightIntake(
        wheel, "127.0.0.1:0", events=events, room_timeout_s=0.3, streams_max=4, quiet_s=3600
    )
    yield made
    made.close()


def test_receipts_come_in_order_with_checks(server: FlightIntake, wheel: FakeWheel) -> None:
    exchange = Exchange(server).begin()
    batches = [rows(*[b"x"] * (n + 1)) for n in range(IN_FLIGHT_MAX)]
    for sequence, batch in enumerate(batches):
        exchange.send(batch, sequence)
    base = 0
    for sequence, batch in enumerate(batches):
        answer = exchange.answer()
        assert isinstance(answer, StoredBatch)
        count = batch.num_rows
        assert (answer.sequence, answer.base_offset, answer.count) == (sequence, base, count)
        due = batch.column("due").cast(pa.int64()).to_numpy()
        expected = wheel.mint.checks(due, np.arange(base, base + count, dtype=np.int64))
        assert answer.checks.tolist() == expected.tolist()
        base += count
    exchange.close()


def test_who_is_committed_first_still_is_answered_in_order(
    server: FlightIntake, wheel: FakeWheel
) -> None:
    commits_s = iter((0.4, 0.0, 0.2, 0.0))
    wheel.before_append = lambda _rows: setattr(wheel, "commit_s", next(commits_s))
    exchange = Exchange(server).begin()
    for sequence in range(4):
        exchange.send(rows(b"x"), sequence)
    assert [exchange.answer().sequence for _ in range(4)] == [0, 1, 2, 3]
    exchange.close()


def test_a_batch_twice_is_stored_once(server: FlightIntake, wheel: FakeWheel) -> None:
    batch = rows(b"once")
    first, second = Exchange(server).begin(), Exchange(server).begin()
    first.send(batch, 3)
    answer = first.answer()
    second.send(batch, 3)
    again = second.answer()
    assert isinstance(answer, StoredBatch)
    assert isinstance(again, StoredBatch)
    assert again.base_offset == answer.base_offset
    assert wheel.values() == [b"once"]
    first.close()
    second.close()


def test_producer_zero_is_not_protected(server: FlightIntake, wheel: FakeWheel) -> None:
    exchange = Exchange(server, AppendCommand(0)).begin()
    for _ in range(2):
        exchange.send(rows(b"same"), 0)
        assert isinstance(exchange.answer(), StoredBatch)
    assert len(wheel.values()) == 2
    exchange.close()


def test_refused_batch_costs_only_itself(
    server: FlightIntake, wheel: FakeWheel, events: Events
) -> None:
    exchange = Exchange(server).begin()
    exchange.send(rows(b"a"), 0)
    exchange.send(rows(b"b", b"c", due=now_ms() + 10_000_000), 1)
    exchange.send(rows(b"d"), 2)
    assert isinstance(exchange.answer(), StoredBatch)
    refused = exchange.answer()
    assert isinstance(refused, RefusedBatch)
    assert type(refused.error) is InvalidMessage
    assert refused.error.row == 0
    assert isinstance(exchange.answer(), StoredBatch)
    exchange.close()
    assert wheel.values() == [b"a", b"d"]
    assert [call[0] for call in events.calls] == ["appended", "refused", "appended"]
    assert events.calls[1] == ("refused", "invalid-message", 2)
    assert events.calls[0][1] == 1


def test_no_more_than_five_are_unanswered(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.4
    exchange = Exchange(server).begin()
    for sequence in range(IN_FLIGHT_MAX + 3):
        exchange.send(rows(b"x"), sequence)
    time.sleep(0.2)
    assert len(wheel.batches) == IN_FLIGHT_MAX
    for _ in range(IN_FLIGHT_MAX + 3):
        assert isinstance(exchange.answer(), StoredBatch)
    exchange.close()


def test_requests_are_no_part_of_the_five(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.commit_s = 1.0
    exchange = Exchange(server).begin()
    asked = [RequestKey.of(str(number), b"x", now_ms()) for number in range(50)]
    for number, one in enumerate(asked):
        exchange.send(rows(b"x"), number, one)
    for number in range(50):
        answer = exchange.answer()
        assert isinstance(answer, StoredBatch)
        assert (answer.sequence, answer.shift_ms) == (number, 0)
        assert len(wheel.batches) == 50
    exchange.close()


def test_a_repeated_request_is_answered_as_the_first_time(
    server: FlightIntake, wheel: FakeWheel
) -> None:
    base, due = now_ms(), now_ms() + 60_000
    exchange = Exchange(server).begin()
    exchange.send(rows(b"x", due=due), 5, RequestKey.of("k", b"x", base))
    first = exchange.answer()
    assert isinstance(first, StoredBatch)
    other = Exchange(server, AppendCommand(8)).begin()
    other.send(rows(b"x", due=due + 700), 6, RequestKey.of("k", b"x", base + 700))
    again = other.answer()
    assert isinstance(again, StoredBatch)
    assert (again.base_offset, again.shift_ms) == (first.base_offset, -700)
    assert again.checks.tolist() == first.checks.tolist()
    other.send(rows(b"y", due=due), 7, RequestKey.of("k", b"y", base))
    refused = other.answer()
    assert isinstance(refused, RefusedBatch)
    assert refused.sequence == 7
    assert type(refused.error) is InvalidMessage
    assert "Idempotency-Key" in str(refused.error)
    other.send(rows(b"z"), 0)
    assert isinstance(other.answer(), StoredBatch)
    assert wheel.values() == [b"x", b"z"]
    exchange.close()
    other.close()


def test_requests_that_fill_a_batch_wait(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=32_000)
    wheel.commit_s = 0.4
    exchange = Exchange(server).begin()
    for number in range(10):
        asked = RequestKey.of(str(number), b"x", now_ms())
        exchange.send(rows(b"x" * 9_000), number, asked)
    eventually(lambda: len(wheel.batches) == 4)
    assert exchange.answer().sequence == 0
    assert len(wheel.batches) < 10
    for number in range(1, 10):
        assert exchange.answer().sequence == number
    exchange.close()


def test_back_pressure_before_overloaded(server: FlightIntake, wheel: FakeWheel) -> None:
    exchange = Exchange(server).begin()
    wheel.has_room.clear()
    threading.Timer(0.1, wheel.has_room.set).start()
    exchange.send(rows(b"waits"), 0)
    assert isinstance(exchange.answer(), StoredBatch)
    wheel.has_room.clear()
    exchange.send(rows(b"refused"), 1)
    answer = exchange.answer()
    assert isinstance(answer, RefusedBatch)
    assert type(answer.error) is Overloaded
    wheel.has_room.set()
    exchange.send(rows(b"refused"), 1)
    assert isinstance(exchange.answer(), StoredBatch)
    assert wheel.values() == [b"waits", b"refused"]
    exchange.close()


def test_acks_zero_answers_only_errors(server: FlightIntake, wheel: FakeWheel) -> None:
    exchange = Exchange(server, AppendCommand(7, "0")).begin()
    exchange.send(rows(b"a"), 0)
    exchange.send(rows(b""), 1)
    exchange.send(rows(b"late", due=now_ms() + 10_000_000), 2)
    answer = exchange.answer()
    assert isinstance(answer, RefusedBatch)
    assert answer.sequence == 2
    assert wheel.values() == [b"a", b""]
    exchange.close()


def test_streams_are_bounded_and_come_free(server: FlightIntake) -> None:
    open_ones = [Exchange(server).begin() for _ in range(4)]
    for sequence, exchange in enumerate(open_ones):
        exchange.send(rows(b"x"), sequence)
        exchange.answer()
    one_more = Exchange(server)
    with pytest.raises(flight.FlightError) as caught:
        one_more.begin().answer()
    assert json.loads(caught.value.extra_info)["code"] == "overloaded"
    for exchange in open_ones:
        exchange.close()
    again = Exchange(server).begin()
    again.send(rows(b"x"), 9)
    assert isinstance(again.answer(), StoredBatch)
    again.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_quiet_connection_makes_room(wheel: FakeWheel, host: str) -> None:
    with closing(FlightIntake(wheel, f"{host}:0", streams_max=2, quiet_s=0.0)) as server:
        silent = Exchange(server, host=host).begin()
        eventually(lambda: len(server._calls.streams) == 1)
        second = Exchange(server, host=host).begin()
        second.send(rows(b"2"), 0)
        assert isinstance(second.answer(), StoredBatch)
        third = Exchange(server, host=host).begin()
        third.send(rows(b"3"), 1)
        assert isinstance(third.answer(), StoredBatch)
        with pytest.raises(flight.FlightError):
            silent.answer()
        second.send(rows(b"4"), 2)  # it was less quiet
        assert isinstance(second.answer(), StoredBatch)
        second.close()
        third.close()
    assert wheel.values() == [b"2", b"3", b"4"]


def test_a_busy_connection_is_not_cut(wheel: FakeWheel) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def take_long(_rows: pa.RecordBatch) -> None:
        begun.set()
        go_on.wait(60)

    wheel.before_append = take_long
    server = FlightIntake(wheel, "127.0.0.1:0", streams_max=1, quiet_s=0.0)
    try:
        busy = Exchange(server).begin()
        busy.send(rows(b"1"), 0)
        assert begun.wait(60)
        refused = Exchange(server)
        with pytest.raises(flight.FlightError, match="too many open streams"):
            refused.begin().answer()
        go_on.set()
        assert isinstance(busy.answer(), StoredBatch)
        busy.close()
    finally:
        go_on.set()
        server.close()


def test_defect_in_the_wheel_is_an_answer_and_an_alarm(
    server: FlightIntake, wheel: FakeWheel, events: Events
) -> None:
    def fail(batch: pa.RecordBatch) -> None:
        raise ZeroDivisionError("a defect")

    wheel.before_append = fail
    exchange = Exchange(server).begin()
    exchange.send(rows(b"x"), 0)
    answer = exchange.answer()
    assert isinstance(answer, RefusedBatch)
    assert "whether it is stored is not known" in str(answer.error)
    assert any(call[:2] == ("alarm", "append-failed") for call in events.calls)
    wheel.before_append = None
    exchange.send(rows(b"y"), 1)
    assert isinstance(exchange.answer(), StoredBatch)
    exchange.close()


def test_hello(server: FlightIntake) -> None:
    answer = action(server, "hello", encode_json({}))
    assert abs(answer.pop("now_ms") - now_ms()) < 5000
    assert answer == {
        "slotwheel": 1,
        "group": "default",
        "limits": {
            "horizon_ms": 7_200_000,
            "message_bytes": 1_000_000,
            "batch_rows": 65_536,
            "batch_bytes": 16_777_216,
            "in_flight": 5,
            "requests": 256,
        },
    }
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        assert {found.type for found in client.list_actions()} == {
            "hello",
            "cancel",
            "reschedule",
            "status",
            "page",
            "step-down",
            "policies",
            "acknowledge",
            "clock",
            "register",
            "forget",
        }


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("hello", b'{"slotwheel": 2}', "unsupported-version"),
        ("hello", b"", "invalid-batch"),
        ("nonsense", encode_json({}), "invalid-batch"),
        ("cancel", encode_json({}), "invalid-message"),
        ("cancel", encode_json({"ids": []}), "invalid-message"),
        ("cancel", encode_json({"ids": "x"}), "invalid-message"),
        ("cancel", encode_json({"ids": ["x"] * 10_001}), "invalid-message"),
        ("cancel", encode_json({"ids": ["x"]}), "unknown-id"),
        ("cancel", encode_json({"ids": [None]}), "unknown-id"),
        ("cancel", encode_json({"ids": [FORGED]}), "unknown-id"),
        ("reschedule", encode_json({"id": 5}), "unknown-id"),
        ("reschedule", encode_json({"id": FORGED}), "invalid-message"),
        (
            "reschedule",
            encode_json({"id": FORGED, "due_ms": True}),
            "invalid-message",
        ),
        (
            "reschedule",
            encode_json({"id": FORGED, "due_ms": 1 << 99}),
            "invalid-message",
        ),
        ("reschedule", encode_json({"id": FORGED, "due_ms": 5}), "unknown-id"),
    ],
)
def test_bad_action(server: FlightIntake, name: str, body: bytes, code: str) -> None:
    assert action(server, name, body)["code"] == code
    assert action(server, "status", encode_json({}))["status"]["pending"] == 0


def test_port_taken(server: FlightIntake, wheel: FakeWheel) -> None:
    with pytest.raises(AddressInUse, match=str(server.port)):
        FlightIntake(wheel, f"127.0.0.1:{server.port}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            FlightIntake(wheel, f"127.0.0.1:{port}")
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        FlightIntake(wheel, "192.0.2.1:7200")


def test_end_answers_what_was_read_and_does_not_wait_for_idle_clients(wheel: FakeWheel) -> None:
    server = FlightIntake(wheel, "127.0.0.1:0")
    idle, busy = Exchange(server).begin(), Exchange(server).begin()
    idle.send(rows(b"a"), 0)
    idle.answer()
    wheel.commit_s = 0.3
    busy.send(rows(b"b"), 1)
    eventually(lambda: len(wheel.batches) == 2)
    ending = threading.Thread(target=server.close)
    ending.start()
    assert isinstance(busy.answer(), StoredBatch)
    ending.join(30)
    assert not ending.is_alive()
    again = FlightIntake(wheel, f"127.0.0.1:{server.port}")  # the port is free
    again.close()


def test_end_does_not_wait_for_commits_that_never_come(wheel: FakeWheel) -> None:
    """Without a majority of the peers, say. What is left behind would end the process badly."""
    wheel.commit_s = 3600
    server = FlightIntake(wheel, "127.0.0.1:0")
    waiting = Exchange(server).begin()
    for sequence in range(IN_FLIGHT_MAX):
        waiting.send(rows(b"x"), sequence)
    eventually(lambda: len(wheel.batches) == IN_FLIGHT_MAX)
    ending = threading.Thread(target=server.close)
    ending.start()
    for sequence in range(IN_FLIGHT_MAX):
        answer = waiting.answer()
        assert isinstance(answer, RefusedBatch)
        assert answer.sequence == sequence
        assert type(answer.error) is NotRunning
    ending.join(30)
    assert not server._calls.streams

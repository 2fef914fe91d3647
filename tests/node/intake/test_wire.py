"""What a node does with what comes over the wire: batches, actions, and their answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import Client, Overloaded
from slotwheel.node.intake import wire
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import AddressInUse, InvalidMessage, NotRunning, from_wire
from slotwheel.wheel.plain import encode_records
from slotwheel.wheel.protocol import (
    IN_FLIGHT_MAX,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    encode_json,
    encode_request,
    encode_sequence,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wire.frames import Kind, decode_action, encode_frame, encode_hello
from support.events import ToldEvents
from support.exchange import Exchange, RawClient, action, action_frame, batch_frame, rows
from support.fakewheel import FakeWheel
from support.ports import free_address
from support.served import ServedIntake
from support.waiting import PATIENCE_S, eventually, now_ms
from support.wheels import opened

FORGED = "default.1.2.00000000"
LARGE = bytes(wire.SMALL_BYTES)  # in a batch, this is left to the syncer


@pytest.fixture
def events() -> ToldEvents:
    return ToldEvents()


@pytest.fixture
def server(wheel: FakeWheel, events: ToldEvents) -> Iterator[ServedIntake]:
    made = ServedIntake(wheel, "127.0.0.1:0", events=events, room_timeout_s=0.3, quiet_s=3600)
    yield made
    made.close()


@pytest.fixture
def exchange(server: ServedIntake) -> Iterator[Exchange]:
    with Exchange(server) as made:
        yield made


def by_the_syncer(append_all: Any, batches: Any, now: int, *, wake: bool) -> Any:
    """Commits at once what is left to the syncer."""
    assert wake
    return append_all(batches, now)


# Batches


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("value", [b"x", LARGE])
def test_receipts_come_in_order_with_checks(
    wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch, commits: bool, value: bytes
) -> None:
    """``commits``: the wire's thread commits by itself, as it does in a node."""
    commit = wheel.commit if commits else None
    batches = [rows(*[value] * (n + 1)) for n in range(IN_FLIGHT_MAX)]
    with contextlib.closing(ServedIntake(wheel, "127.0.0.1:0", commit=commit)) as server:
        if value is LARGE:
            monkeypatch.setattr(wheel, "append_all", partial(by_the_syncer, wheel.append_all))
        with Exchange(server) as exchange:
            for sequence, batch in enumerate(batches):
                exchange.send(batch, sequence)
            base = 0
            for sequence, batch in enumerate(batches):
                answer, count = exchange.stored(), batch.num_rows
                assert (answer.sequence, answer.base_offset) == (sequence, base)
                due = batch.column("due").cast(pa.int64()).to_numpy()
                expected = wheel.mint.checks(due, np.arange(base, base + count, dtype=np.int64))
                assert answer.checks.tolist() == expected.tolist()
                base += count
    assert len(wheel.values()) == base


def test_who_is_committed_first_still_is_answered_in_order(
    exchange: Exchange, wheel: FakeWheel
) -> None:
    commits_s = iter((0.4, 0.0, 0.2, 0.0))
    wheel.before_append = lambda _rows: setattr(wheel, "commit_s", next(commits_s))
    for sequence in range(4):
        exchange.send(rows(b"x"), sequence)
    assert [exchange.answer().sequence for _ in range(4)] == [0, 1, 2, 3]


def test_a_batch_twice_is_stored_once(server: ServedIntake, wheel: FakeWheel) -> None:
    with Exchange(server) as first, Exchange(server) as second:
        first.send(rows(b"once"), 3)
        answer = first.stored()
        second.send(rows(b"once"), 3)
        assert second.stored().base_offset == answer.base_offset
    assert wheel.values() == [b"once"]


def test_producer_zero_is_not_protected(server: ServedIntake, wheel: FakeWheel) -> None:
    with Exchange(server, AppendCommand(0)) as exchange:
        for _ in range(2):
            exchange.send(rows(b"same"), 0)
            exchange.stored()
    assert len(wheel.values()) == 2


@pytest.mark.parametrize("value", [b"", LARGE])
def test_a_refused_batch_costs_only_itself(
    server: ServedIntake, exchange: Exchange, wheel: FakeWheel, events: ToldEvents, value: bytes
) -> None:
    exchange.send(rows(b"a" + value), 0)
    exchange.send(rows(b"b" + value, b"c", due=now_ms() + 10_000_000), 1)
    exchange.send(rows(b"d" + value), 2)
    exchange.stored()
    refused = exchange.refused()
    assert type(refused.error) is InvalidMessage
    assert (refused.sequence, refused.error.row) == (1, 0)
    exchange.stored()
    assert [one[:1] for one in wheel.values()] == [b"a", b"d"]
    told = [("appended", 1), ("invalid-message", 2), ("appended", 1)]
    assert [(name, fields["rows"]) for name, fields in events.told] == told


def test_no_more_than_five_are_unanswered(exchange: Exchange, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.001
    wheel.may_commit.clear()
    for sequence in range(IN_FLIGHT_MAX + 3):
        exchange.send(rows(b"x"), sequence)
    eventually(lambda: len(wheel.batches) == IN_FLIGHT_MAX)
    time.sleep(0.2)  # the next ones could come now
    assert len(wheel.batches) == IN_FLIGHT_MAX
    wheel.may_commit.set()
    for _ in range(IN_FLIGHT_MAX + 3):
        exchange.stored()


def test_requests_are_no_part_of_the_five(exchange: Exchange, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.001
    wheel.may_commit.clear()
    for number in range(50):
        exchange.send(rows(b"x"), number, RequestKey.of(str(number), b"x", now_ms()))
    eventually(lambda: len(wheel.batches) == 50)  # and none is answered
    wheel.may_commit.set()
    for number in range(50):
        answer = exchange.stored()
        assert (answer.sequence, answer.shift_ms) == (number, 0)
    assert len(wheel.batches) == 50


def test_a_repeated_request_is_answered_as_the_first_time(
    server: ServedIntake, exchange: Exchange, wheel: FakeWheel
) -> None:
    base, due = now_ms(), now_ms() + 60_000
    exchange.send(rows(b"x", due=due), 5, RequestKey.of("k", b"x", base))
    first = exchange.stored()
    with Exchange(server, AppendCommand(8)) as other:
        other.send(rows(b"x", due=due + 700), 6, RequestKey.of("k", b"x", base + 700))
        again = other.stored()
        assert (again.base_offset, again.shift_ms) == (first.base_offset, -700)
        assert again.checks.tolist() == first.checks.tolist()
        other.send(rows(b"y", due=due), 7, RequestKey.of("k", b"y", base))
        refused = other.refused()
        assert refused.sequence == 7
        assert type(refused.error) is InvalidMessage
        assert "Idempotency-Key" in str(refused.error)
        other.send(rows(b"z"), 0)
        other.stored()
    assert wheel.values() == [b"x", b"z"]


def test_requests_that_fill_a_batch_wait(exchange: Exchange, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_bytes_max=32_000)
    wheel.commit_s = 0.01
    wheel.may_commit.clear()
    for number in range(10):
        asked = RequestKey.of(str(number), b"x", now_ms())
        exchange.send(rows(b"x" * 9_000), number, asked)
    eventually(lambda: len(wheel.batches) == 4)
    wheel.may_commit.set()
    for number in range(10):
        assert exchange.answer().sequence == number
    assert wheel.under_way_max == 4


@pytest.mark.parametrize("value", [b"", LARGE])
def test_room_is_waited_for(wheel: FakeWheel, value: bytes) -> None:
    wheel.has_room.clear()
    with (
        contextlib.closing(ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=60)) as server,
        Exchange(server) as exchange,
    ):
        threading.Timer(0.1, wheel.has_room.set).start()
        exchange.send(rows(b"waits", value), 0)
        exchange.stored()
    assert wheel.values()[::2] == [b"waits"]


@pytest.mark.parametrize("value", [b"", LARGE])
def test_where_no_room_comes_a_batch_is_refused(
    exchange: Exchange, wheel: FakeWheel, value: bytes
) -> None:
    wheel.has_room.clear()
    exchange.send(rows(b"refused", value), 0)
    assert type(exchange.refused().error) is Overloaded
    wheel.has_room.set()
    exchange.send(rows(b"again", value), 0)
    exchange.stored()
    assert wheel.values()[::2] == [b"again"]


def test_a_batch_that_waits_for_room_is_tried_again_only_when_there_is_some(
    wheel: FakeWheel,
) -> None:
    wheel.has_room.clear()
    with (
        contextlib.closing(ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=60)) as server,
        Exchange(server) as exchange,
    ):
        exchange.send(rows(b"waits"), 0)
        eventually(lambda: bool(wheel.early))
        for _ in range(50):  # each is a turn
            Exchange(server).close()
        assert len(wheel.early) == 1
        wheel.has_room.set()
        exchange.stored()


def test_acks_zero_answers_only_errors(server: ServedIntake, wheel: FakeWheel) -> None:
    with Exchange(server, AppendCommand(7, "0")) as exchange:
        exchange.send(rows(b"a"), 0)
        exchange.send(rows(b""), 1)
        exchange.send(rows(b"late", due=now_ms() + 10_000_000), 2)
        assert exchange.refused().sequence == 2
    assert wheel.values() == [b"a", b""]


def test_a_defect_in_the_wheel_is_an_answer_and_an_alarm(
    exchange: Exchange, wheel: FakeWheel, events: ToldEvents
) -> None:
    def fail(_batch: pa.RecordBatch) -> None:
        raise ZeroDivisionError("a defect")

    wheel.before_append = fail
    exchange.send(rows(b"x"), 0)
    assert "whether it is stored is not known" in str(exchange.refused().error)
    assert [name for name, _ in events.alarms] == ["append-failed"]
    wheel.before_append = None
    exchange.send(rows(b"y"), 1)
    exchange.stored()


def test_each_connection_gets_the_answers_to_its_own_batches(tmp_path: Path) -> None:
    """Good, bad, empty and repeated ones of many connections are appended in one turn."""
    kinds = ("good", "bad", "empty", "again", "good")
    now = now_ms()
    with (
        opened(tmp_path, WheelConfig(disk_reserve_bytes=0), now) as node,
        contextlib.ExitStack() as stack,
    ):
        server = ServedIntake(node.wheel, "127.0.0.1:0", commit=lambda: node.wheel.write_pending(0))
        stack.callback(server.close)
        clients = [
            stack.enter_context(Exchange(server, AppendCommand(10 + number)))
            for number in range(20)
        ]
        sent: list[tuple[Exchange, list[tuple[str, list[bytes]]]]] = []
        with server.alone:
            for number, client in enumerate(clients):
                mine: list[tuple[str, list[bytes]]] = []
                for place in range(4):
                    kind = kinds[(number + place) % len(kinds)]
                    values = [b"%d %d %d" % (number, place, row) for row in range(place + 1)]
                    batch = rows(*values)
                    if kind == "bad":
                        batch = pa.concat_batches([batch, rows(b"far", due=now + 10**9)])
                    body = b"" if kind == "empty" else batch.serialize().to_pybytes()
                    for _ in range(2 if kind == "again" else 1):
                        client.send_bytes(batch_frame(body, encode_sequence(place)))
                        mine.append((kind, values))
                sent.append((client, mine))
        stored: dict[int, bytes] = {}
        for client, mine in sent:
            for kind, values in mine:
                answer = client.answer()
                if kind in ("bad", "empty"):
                    assert isinstance(answer, RefusedBatch)
                    assert answer.error.row == (len(values) if kind == "bad" else None)
                    continue
                assert isinstance(answer, StoredBatch)
                assert answer.count == len(values)
                for row, value in enumerate(values, answer.base_offset):
                    assert stored.setdefault(row, value) == value
        kept = [
            value
            for piece in node.wheel._storage.tail.pieces
            for value in piece.rows.column("value").to_pylist()
        ]
        assert stored == dict(enumerate(kept))


# Who connects


@pytest.mark.parametrize("asked", [False, True], ids=["welcome", "hello"])
def test_a_node_says_what_it_is_at_first_and_when_it_is_asked(
    exchange: Exchange, asked: bool
) -> None:
    said = exchange.ask("hello", encode_json({})) if asked else exchange.welcome
    assert abs(said.pop("now_ms") - now_ms()) < 5000
    assert said == {
        "slotwheel": 2,
        "group": "default",
        "draining": False,
        "limits": {
            "horizon_ms": 7_200_000,
            "message_bytes": 1_000_000,
            "batch_rows": 65_536,
            "batch_bytes": 16_777_216,
            "in_flight": 5,
            "requests": 256,
        },
    }


HELLOS = {
    b"": "invalid-batch",
    b"\x00" * 100: "invalid-batch",
    b"[" * 16_000: "invalid-batch",
    encode_json({}): "invalid-batch",
    encode_json({"producer": "ffffffffffffffff"}): "invalid-batch",
    encode_json({"producer": "1", "acks": "2"}): "invalid-batch",
    b'{"slotwheel": 99, "producer": "1"}': "unsupported-version",
    b"SWPEER1 and more": "invalid-configuration",
}


@pytest.mark.parametrize("hello", HELLOS)
def test_a_wrong_hello_is_answered_with_the_reason(server: ServedIntake, hello: bytes) -> None:
    with RawClient(server, encode_hello(hello)) as client:
        assert client.error().code == HELLOS[hello]
        assert client.ended()


def test_what_stands_behind_a_wrong_hello_is_not_done(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    batch = batch_frame(rows(b"x"), encode_sequence(0))
    with RawClient(server, encode_hello(b"{}") + batch) as client:
        assert client.error().code == "invalid-batch"
        assert client.ended()
    assert wheel.values() == []


def test_an_address_that_is_taken_or_not_here_is_named(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    with pytest.raises(AddressInUse, match=f"{server.port}.*--listen"):
        ServedIntake(wheel, f"127.0.0.1:{server.port}")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressInUse, match=str(port)):
            ServedIntake(wheel, f"127.0.0.1:{port}")
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        ServedIntake(wheel, "192.0.2.1:7200")


def test_an_address_of_ipv6_is_served(wheel: FakeWheel) -> None:
    with (
        contextlib.closing(ServedIntake(wheel, "[::1]:0")) as server,
        Exchange(server, host="::1") as exchange,
    ):
        exchange.send(rows(b"6"), 0)
        exchange.stored()
    assert wheel.values() == [b"6"]


USELESS = {"nothing": None, "empty batches": rows(), "what is refused": rows(b"refuse")}


@pytest.mark.parametrize("useless", USELESS)
def test_who_stores_nothing_keeps_nobody_out(wheel: FakeWheel, useless: str) -> None:
    stop = threading.Event()

    def refuse(batch: pa.RecordBatch) -> None:
        if batch.num_rows and batch["value"][0].as_py() == b"refuse":
            raise InvalidMessage("refused")

    wheel.before_append = refuse

    def go_on_sending() -> None:
        for sequence in itertools.count():
            for client in useless_ones:
                if USELESS[useless] is not None:
                    client.send(USELESS[useless], sequence)
                    client.answer()
            if stop.wait(0.02):
                break

    def quiet_s() -> list[float]:
        return [one.quiet_s for one in server.server.sessions()]

    made = ServedIntake(wheel, "127.0.0.1:0", connections_max=4, quiet_s=0.5)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(made))
        useful, *useless_ones = (stack.enter_context(Exchange(server)) for _ in range(4))
        sending = threading.Thread(target=go_on_sending)
        sending.start()
        try:
            eventually(lambda: min(quiet_s()) >= 0.5)
            useful.send(rows(b"x"), 1)
            useful.stored()
        finally:
            stop.set()
            sending.join()
        newcomer = stack.enter_context(Exchange(server))
        newcomer.send(rows(b"mine"), 1)
        newcomer.stored()
        useful.send(rows(b"x"), 2)
        useful.stored()  # it was not in the way


@pytest.mark.parametrize("waits_for", ["receipt", "action"])
def test_who_waits_for_an_answer_is_not_quiet(
    wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor()

    def late(*_given: object, **_more: object) -> list[CancelAnswer]:
        begun.set()
        go_on.wait(60)
        return []

    def store_late(given: Any, now: int, *, wake: bool) -> list[Any]:
        outcomes: list[Any] = append_all(given, now)
        return [pool.submit(receipt, one) for one in outcomes]

    def receipt(outcome: Any) -> Any:
        return late() or outcome.result(60)

    append_all: Any = wheel.append_all
    if waits_for == "receipt":
        monkeypatch.setattr(wheel, "append_all", store_late)
    wheel.cancel = late  # type: ignore[method-assign]
    with (
        pool,
        contextlib.closing(
            ServedIntake(wheel, "127.0.0.1:0", connections_max=1, quiet_s=0.0)
        ) as server,
        Exchange(server) as busy,
    ):
        if waits_for == "receipt":
            busy.send(rows(b"1"), 0)
        else:
            busy.send_bytes(action_frame("cancel", encode_json({"ids": ["x"]})))
        assert begun.wait(60)
        with pytest.raises(Overloaded, match="too many connections"):
            Exchange(server)
        go_on.set()
        assert busy.frame().kind == (Kind.ANSWER if waits_for == "receipt" else Kind.RESULT)
        with Exchange(server) as newcomer:
            newcomer.send(rows(b"2"), 0)
            newcomer.stored()


def test_a_client_that_finds_no_room_in_time_knows_why(wheel: FakeWheel) -> None:
    made = ServedIntake(wheel, "127.0.0.1:0", connections_max=1, quiet_s=3600)
    with (
        contextlib.closing(made) as server,
        Exchange(server),
        Client(f"127.0.0.1:{server.port}", timeout_s=1.0) as client,
    ):
        with pytest.raises(Overloaded, match="too many connections"):
            client.status()
        error = client.send("t", b"x", delay=60).error(30)
        assert isinstance(error, Overloaded), error


# Actions


BAD_ACTIONS = [
    ("nonsense", encode_json({}), "invalid-batch"),
    ("status", b"", "invalid-batch"),
    ("status", b"[]", "invalid-batch"),
    ("status", b"[" * 100_000, "invalid-batch"),
    ("status", b'{"slotwheel": 1}', "unsupported-version"),
    ("status", b'{"slotwheel": true}', "unsupported-version"),
    ("cancel", encode_json({}), "invalid-message"),
    ("cancel", encode_json({"ids": []}), "invalid-message"),
    ("cancel", encode_json({"ids": "x"}), "invalid-message"),
    ("cancel", encode_json({"ids": ["x"] * 10_001}), "invalid-message"),
    ("cancel", encode_json({"ids": ["x"]}), "unknown-id"),
    ("cancel", encode_json({"ids": [None]}), "unknown-id"),
    ("cancel", encode_json({"ids": [FORGED]}), "unknown-id"),
    ("reschedule", encode_json({"id": 5}), "unknown-id"),
    ("reschedule", encode_json({"id": FORGED}), "invalid-message"),
    ("reschedule", encode_json({"id": FORGED, "due_ms": True}), "invalid-message"),
    ("reschedule", encode_json({"id": FORGED, "due_ms": 1 << 99}), "invalid-message"),
    ("reschedule", encode_json({"id": FORGED, "due_ms": 5}), "unknown-id"),
    ("cancel", encode_json({"topic": "t"}), "invalid-message"),
    ("cancel", encode_json({"name": "n"}), "invalid-message"),
    ("cancel", encode_json({"topic": "t", "name": 5}), "invalid-message"),
    ("cancel", encode_json({"topic": "t", "name": "n", "ids": [FORGED]}), "invalid-message"),
    ("cancel", encode_json({"topic": "no/topic", "name": "n"}), "invalid-message"),
    ("cancel", encode_json({"topic": "t", "name": "n" * 201}), "invalid-message"),
    ("reschedule", encode_json({"topic": "t", "name": "a\nb", "due_ms": 5}), "invalid-message"),
    ("reschedule", encode_json({"id": FORGED, "topic": "t", "name": "n"}), "invalid-message"),
    ("named", encode_json({}), "invalid-message"),
    ("named", encode_json({"topic": "t", "name": ""}), "invalid-message"),
    ("page", encode_json({"path": "/nowhere"}), "invalid-message"),
]


def test_a_bad_action_is_refused_and_the_connection_goes_on(exchange: Exchange) -> None:
    for number, (name, body, code) in enumerate(BAD_ACTIONS, 100):
        assert exchange.ask(name, body, number)["code"] == code, (name, body[:80])
        assert exchange.ask("status", encode_json({}))["status"]["pending"] == 0
    exchange.send(rows(b"x"), 0)
    exchange.stored()


@pytest.mark.parametrize("metadata", [b"", b"1234567"])
def test_an_action_that_cannot_be_answered_ends_its_connection(
    server: ServedIntake, metadata: bytes
) -> None:
    with Exchange(server) as client:
        client.send_bytes(bytes([Kind.ACTION, 0, len(metadata), 0]) + bytes(4) + metadata)
        assert client.error().code == "invalid-batch"
        assert client.ended()


def test_actions_are_answered_when_they_are_done_and_are_bounded(
    wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ACTIONS_MAX", 6)
    go_on = threading.Event()
    begun: list[object] = []

    def late(*_given: object, **_more: object) -> list[CancelAnswer]:
        begun.append(1)
        go_on.wait(60)
        return []

    wheel.cancel = late  # type: ignore[method-assign]
    waits = [action_frame("cancel", encode_json({"ids": ["x"]}), number) for number in range(6)]
    with (
        contextlib.closing(ServedIntake(wheel, "127.0.0.1:0")) as server,
        Exchange(server) as many,
        Exchange(server) as other,
    ):
        many.send_bytes(b"".join(waits[:5]))
        eventually(lambda: len(begun) == 5)
        assert many.ask("status", encode_json({}), 77)["status"]["pending"] == 0
        other.send_bytes(waits[5])
        eventually(lambda: len(begun) == 6)
        refused = from_wire(other.ask("status", encode_json({}), 78))
        assert isinstance(refused, Overloaded)
        assert "6" in str(refused.limit)
        other.send(rows(b"x"), 0)
        other.stored()  # batches need no place among the actions
        go_on.set()
        numbers = [decode_action(many.frame().metadata)[0] for _ in range(5)]
        assert sorted(numbers) == [0, 1, 2, 3, 4]
        assert decode_action(other.frame().metadata)[0] == 5
        assert "status" in other.ask("status", encode_json({}))


def test_one_connection_has_eight_actions_at_a_time(wheel: FakeWheel) -> None:
    go_on = threading.Event()
    begun: list[object] = []

    def late(*_given: object, **_more: object) -> list[CancelAnswer]:
        begun.append(1)
        go_on.wait(60)
        return []

    wheel.cancel = late  # type: ignore[method-assign]
    cancel = encode_json({"ids": ["x"]})
    with (
        contextlib.closing(ServedIntake(wheel, "127.0.0.1:0")) as server,
        Exchange(server) as many,
    ):
        frames = [action_frame("cancel", cancel, number) for number in range(20)]
        many.send_bytes(b"".join(frames))
        eventually(lambda: len(begun) == 8)
        assert action(server, "status", encode_json({}))["status"]["pending"] == 0
        assert len(begun) == 8
        go_on.set()
        numbers = [decode_action(many.frame().metadata)[0] for _ in range(20)]
        assert sorted(numbers) == list(range(20))


def test_a_defect_in_an_action_is_its_answer_and_an_alarm(
    exchange: Exchange, wheel: FakeWheel, events: ToldEvents
) -> None:
    def fail(*_given: object, **_more: object) -> list[CancelAnswer]:
        raise ZeroDivisionError("a defect")

    wheel.cancel = fail  # type: ignore[method-assign]
    told = exchange.ask("cancel", encode_json({"ids": ["x"]}))
    assert "whether it was done is not known" in told["message"]
    assert [name for name, _ in events.alarms] == ["action-failed"]
    assert "status" in exchange.ask("status", encode_json({}))


def test_a_client_that_leaves_while_its_action_is_done_leaves_nothing(wheel: FakeWheel) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def late(*_given: object, **_more: object) -> list[CancelAnswer]:
        begun.set()
        go_on.wait(60)
        return []

    wheel.cancel = late  # type: ignore[method-assign]
    with contextlib.closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        with Exchange(server) as client:
            client.send_bytes(action_frame("cancel", encode_json({"ids": ["x"]})))
            assert begun.wait(60)
        go_on.set()
        eventually(lambda: server.server.open == 0)
        assert "status" in action(server, "status", encode_json({}))


# Ending


@pytest.mark.parametrize("commits", [True, False])
def test_closing_answers_what_was_read_and_waits_for_no_idle_client(
    wheel: FakeWheel, commits: bool
) -> None:
    commit = wheel.commit if commits else None
    server = ServedIntake(wheel, free_address(), commit=commit)
    with Exchange(server) as idle, Exchange(server) as busy:
        idle.send(rows(b"a"), 0)
        idle.stored()
        wheel.commit_s = 0.3
        busy.send(rows(b"b"), 1)
        eventually(lambda: len(wheel.batches) == 2)
        ending = threading.Thread(target=server.close, args=(10,))
        ending.start()
        busy.stored()
        assert busy.ended()
        assert idle.ended()
        ending.join(60)
        assert not ending.is_alive()
    ServedIntake(wheel, f"127.0.0.1:{server.port}").close()  # the port is free


def test_closing_does_not_wait_for_commits_that_never_come(wheel: FakeWheel) -> None:
    """Without a majority of the peers, say."""
    wheel.commit_s = 3600
    server = ServedIntake(wheel, "127.0.0.1:0")
    with Exchange(server) as waiting:
        for sequence in range(IN_FLIGHT_MAX):
            waiting.send(rows(b"x"), sequence)
        eventually(lambda: len(wheel.batches) == IN_FLIGHT_MAX)
        ending = threading.Thread(target=server.close, args=(0.2,))
        ending.start()
        for sequence in range(IN_FLIGHT_MAX):
            answer = waiting.refused()
            assert answer.sequence == sequence
            assert type(answer.error) is NotRunning
            assert answer.error.uncertain
        ending.join(60)
        assert not ending.is_alive()


def test_who_comes_while_the_node_ends_is_told_so(wheel: FakeWheel) -> None:
    wheel.commit_s = 0.001
    wheel.may_commit.clear()
    server = ServedIntake(wheel, "127.0.0.1:0")
    with Exchange(server) as busy:
        busy.send(rows(b"b"), 1)
        eventually(lambda: len(wheel.batches) == 1)
        ending = threading.Thread(target=server.close, args=(PATIENCE_S,))
        ending.start()
        eventually(server._closing.is_set)
        with pytest.raises(NotRunning, match="shutting down"):
            Exchange(server)
        wheel.may_commit.set()
        busy.stored()
        ending.join(60)


def test_results_are_json_objects_of_this_version(exchange: Exchange) -> None:
    exchange.send_bytes(action_frame("status", encode_json({}), 9))
    frame = exchange.frame()
    assert (frame.kind, decode_action(frame.metadata)) == (Kind.RESULT, (9, ""))
    assert json.loads(bytes(frame.body))["slotwheel"] == 2


def test_what_a_client_sent_before_it_closed_is_stored(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    """Batches, and plain rows behind more actions than are carried out at a time."""
    body = encode_records([(now_ms(), b"t", None, None, b"plain", ())])
    sent = [action_frame("status", encode_json({}), number) for number in range(20)]
    for number in range(20):
        metadata = encode_request(number, None, 1)
        sent.append(encode_frame(Kind.ROWS, metadata, len(body)) + body)
        sent.append(batch_frame(rows(b"batch"), encode_sequence(number)))
    with Exchange(server, AppendCommand(0)) as client:
        client.send_bytes(b"".join(sent))
    eventually(lambda: sorted(wheel.values()) == [b"batch"] * 20 + [b"plain"] * 20)
    eventually(lambda: server.server.open == 0)


@pytest.mark.parametrize("many", [b"batch", LARGE], ids=["small", "large"])
def test_frames_of_a_connection_are_stored_in_the_order_in_which_they_came(
    server: ServedIntake, exchange: Exchange, wheel: FakeWheel, many: bytes
) -> None:
    """Plain rows and batches that one turn reads: messages of one due time leave in the order of
    their offsets, and their sender has sent them in this one."""
    body = encode_records([(now_ms() + 60_000, b"t", None, None, b"plain", ())])
    sent = []
    for number in range(IN_FLIGHT_MAX):
        metadata = encode_request(2 * number, None, 1)
        sent.append(encode_frame(Kind.ROWS, metadata, len(body)) + body)
        sent.append(batch_frame(rows(many), encode_sequence(2 * number + 1)))
    with server.alone:
        exchange.send_bytes(b"".join(sent))
    for _ in sent:
        exchange.stored()
    assert wheel.values() == [b"plain", many] * IN_FLIGHT_MAX


def test_what_waits_for_room_is_bounded_for_all_clients_together(
    wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise a client that a busy machine keeps from sending for so long is cut off.
    monkeypatch.setattr("slotwheel.wire.server.STUCK_S", PATIENCE_S)
    wheel.config = WheelConfig(batch_bytes_max=1 << 20, tail_bytes_max=4 << 20)
    wheel.has_room.clear()
    many = range(12)
    with (
        contextlib.closing(
            ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=300, commit=wheel.commit)
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(Exchange(server, AppendCommand(n + 1))) for n in many]
        frame = batch_frame(rows(bytes(900_000)), encode_sequence(0))
        sending = [threading.Thread(target=one.send_bytes, args=[frame]) for one in clients]
        for one in sending[:5]:
            one.start()
        eventually(lambda: len(server._blocked) == 5)
        for one in sending[5:]:
            one.start()
        # Begun together, a sixth frame's first part may take the room that the fifth one needs.
        eventually(lambda: len(server.server._queue) == len(many) - 5)
        assert 4_500_000 <= server.server._nbytes <= 6_500_000
        with Exchange(server) as other:
            other.send_bytes(action_frame("status", encode_json({})))
            assert other.frame().kind == Kind.RESULT
        wheel.has_room.set()
        for client in clients:
            client.stored()
        for one in sending:
            one.join()
        eventually(lambda: server.server._nbytes == 0)
    assert len(wheel.values()) == len(many)

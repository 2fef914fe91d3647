"""The way in on a node with peers: a standby refuses and says who to ask, a deposed master ends."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyarrow import flight

from slotwheel.intake.flight import FlightIntake
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.errors import NotMaster, from_wire
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.protocol import NO_BATCH, AppendCommand, RefusedBatch, StoredBatch, encode_json
from support.exchange import Exchange, action, rows
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms

MASTER = "10.0.0.1:7200"


class Peers:
    """What the node's driver would say."""

    def __init__(self) -> None:
        self.seen = {
            "role": "standby",
            "epoch": 7,
            "master": "a",
            "master_address": MASTER,
            "commit": 12,
            "peers": [{"id": "a"}, {"id": "b"}],
        }
        self.asked: list[float] = []

    def group(self) -> dict[str, Any]:
        return self.seen

    def step_down(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        return True


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel(serving=False, master=MASTER)


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
def server(wheel: FakeWheel, peers: Peers) -> Iterator[FlightIntake]:
    made = FlightIntake(wheel, "127.0.0.1:0", group=peers.group, step_down=peers.step_down)
    yield made
    made.close()


def reason(exchange: Exchange, *, begin: bool = False) -> NotMaster:
    """Why the stream ended; it may end before it was begun."""
    with pytest.raises(flight.FlightError) as caught:
        (exchange.begin() if begin else exchange).answer()
    with contextlib.suppress(flight.FlightError):  # or it says so on stderr later
        exchange.writer.close()
    error = from_wire(json.loads(caught.value.extra_info))
    assert isinstance(error, NotMaster)
    return error


def test_a_standby_refuses_a_stream_at_once(server: FlightIntake, wheel: FakeWheel) -> None:
    assert reason(Exchange(server), begin=True).master == MASTER
    assert wheel.early == []


def test_without_a_master_there_is_no_hint(server: FlightIntake, peers: Peers) -> None:
    peers.seen |= {"master": None, "master_address": None}
    assert reason(Exchange(server), begin=True).master == ""


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cancel", {"ids": ["default.1.2.00000000"]}),
        ("reschedule", {"id": "default.1.2.00000000", "due_ms": 5}),
        ("step-down", {"timeout_s": 1}),
        ("policies", {}),  # its own may be older than those that another peer has shown
    ],
)
def test_what_only_a_master_can_do(
    server: FlightIntake, peers: Peers, name: str, fields: dict[str, Any]
) -> None:
    error = from_wire(action(server, name, encode_json(fields)))
    assert isinstance(error, NotMaster)
    assert error.master == MASTER
    assert peers.asked == []


def test_hello_and_status_say_who_is_who(
    server: FlightIntake, wheel: FakeWheel, peers: Peers
) -> None:
    hello = action(server, "hello", encode_json({}))
    assert (hello["role"], hello["epoch"], hello["master"]) == ("standby", 7, "a")
    assert (hello["master_address"], hello["serving"]) == (MASTER, False)
    wheel.serving = True
    assert action(server, "hello", encode_json({}))["serving"] is True
    assert action(server, "status", encode_json({}))["replication"] == peers.seen


def test_a_deposed_master_answers_and_ends(server: FlightIntake, wheel: FakeWheel) -> None:
    wheel.serving = True
    exchange = Exchange(server).begin()
    exchange.send(rows(b"kept"), 0)
    assert isinstance(exchange.answer(), StoredBatch)
    wheel.serving = False
    exchange.send(rows(b"refused"), 1)
    answer = exchange.answer()
    assert isinstance(answer, RefusedBatch)
    assert isinstance(answer.error, NotMaster)
    assert (answer.sequence, answer.error.master) == (1, MASTER)
    assert reason(exchange).master == MASTER
    assert wheel.values() == [b"kept"]


def test_a_quiet_client_is_told_that_the_master_was_deposed(
    server: FlightIntake, wheel: FakeWheel
) -> None:
    wheel.serving = True
    exchange = Exchange(server).begin()
    eventually(lambda: len(server._calls.streams) == 1)
    wheel.serving = False
    server.depose()
    answer = exchange.answer()
    assert isinstance(answer, RefusedBatch)
    assert isinstance(answer.error, NotMaster)
    assert (answer.sequence, answer.error.master) == (NO_BATCH, MASTER)
    exchange.close()


@pytest.mark.parametrize(("acks", "early"), [("all", False), ("1", True)])
def test_acks_1_does_not_wait_for_a_majority(
    server: FlightIntake, wheel: FakeWheel, acks: str, early: bool
) -> None:
    wheel.serving = True
    exchange = Exchange(server, AppendCommand(7, acks)).begin()
    exchange.send(rows(b"x"), 0)
    assert isinstance(exchange.answer(), StoredBatch)
    assert wheel.early == [early]
    exchange.close()


def test_step_down(server: FlightIntake, wheel: FakeWheel, peers: Peers) -> None:
    wheel.serving = True
    answer = action(server, "step-down", encode_json({"timeout_s": 2.5}))
    assert (answer["done"], answer["master"], peers.asked) == (True, "a", [2.5])
    wrong: object
    for wrong in (None, "1", 0, -1, 1e9, []):
        assert action(server, "step-down", encode_json({"timeout_s": wrong}))["code"] == (
            "invalid-message"
        )
    assert peers.asked == [2.5]


def test_a_node_without_peers_has_nobody_to_step_down_for() -> None:
    with contextlib.closing(FlightIntake(FakeWheel(), "127.0.0.1:0")) as server:
        told = action(server, "step-down", encode_json({"timeout_s": 1}))
        assert "no peers" in told["message"]
        assert "role" not in action(server, "hello", encode_json({}))
        assert "replication" not in action(server, "status", encode_json({}))


def test_a_reschedule_that_was_on_its_way_is_not_called_refused(peers: Peers) -> None:
    begun = threading.Event()

    class Deposed(FakeWheel):
        def reschedule(
            self, message_id: MessageId, due_ms: int, now_ms: int, timeout_s: float = 10.0
        ) -> tuple[CancelAnswer, MessageId | None]:
            begun.set()
            raise NotMaster(master=MASTER)

    wheel = Deposed()
    with contextlib.closing(FlightIntake(wheel, "127.0.0.1:0", group=peers.group)) as server:
        one = {"id": str(wheel.mint.one(now_ms() + 60_000, 3)), "due_ms": now_ms() + 1}
        told = action(server, "reschedule", encode_json(one))
    assert begun.is_set()
    assert told["code"] == "not-running"
    assert "not known" in told["message"]

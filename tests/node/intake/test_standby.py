"""The way in on a node with peers: a standby refuses and says who to ask, a deposed master ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slotwheel.node.intake.wire import SMALL_BYTES
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.errors import NotMaster, from_wire
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.protocol import NO_BATCH, AppendCommand, encode_json
from support.exchange import Exchange, action, rows
from support.fakewheel import FakeWheel
from support.served import ServedIntake
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
def server(wheel: FakeWheel, peers: Peers) -> Iterator[ServedIntake]:
    made = ServedIntake(wheel, "127.0.0.1:0", group=peers.group, step_down=peers.step_down)
    yield made
    made.close()


def test_a_standby_refuses_a_batch_and_names_the_master(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    with Exchange(server) as exchange:
        exchange.send(rows(b"x"), 0)
        error = exchange.error()
        assert isinstance(error, NotMaster)
        assert error.master == MASTER
        assert exchange.ended()
    assert wheel.early == []


def test_without_a_master_there_is_no_hint(server: ServedIntake, peers: Peers) -> None:
    peers.seen |= {"master": None, "master_address": None}
    with Exchange(server) as exchange:
        exchange.send(rows(b"x"), 0)
        error = exchange.error()
        assert isinstance(error, NotMaster)
        assert error.master == ""


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cancel", {"ids": ["default.1.2.00000000"]}),
        ("reschedule", {"id": "default.1.2.00000000", "due_ms": 5}),
        ("cancel", {"topic": "t", "name": "n"}),
        ("reschedule", {"topic": "t", "name": "n", "due_ms": 5}),
        ("named", {"topic": "t", "name": "n"}),
        ("step-down", {"timeout_s": 1}),
        ("policies", {}),  # its own may be older than those that another peer has shown
    ],
)
def test_what_only_a_master_can_do(
    server: ServedIntake, peers: Peers, name: str, fields: dict[str, Any]
) -> None:
    error = from_wire(action(server, name, encode_json(fields)))
    assert isinstance(error, NotMaster)
    assert error.master == MASTER
    assert peers.asked == []


def test_welcome_and_status_say_who_is_who(
    server: ServedIntake, wheel: FakeWheel, peers: Peers
) -> None:
    with Exchange(server) as exchange:
        seen = exchange.welcome
        assert (seen["role"], seen["epoch"], seen["master"]) == ("standby", 7, "a")
        assert (seen["master_address"], seen["serving"]) == (MASTER, False)
    wheel.serving = True
    with Exchange(server) as exchange:
        assert exchange.welcome["serving"] is True
        assert exchange.ask("status", encode_json({}))["replication"] == peers.seen


def test_a_deposed_master_answers_what_was_read_and_ends(
    server: ServedIntake, wheel: FakeWheel
) -> None:
    wheel.serving = True
    with Exchange(server) as exchange:
        exchange.send(rows(b"kept"), 0)
        exchange.stored()
        wheel.serving = False
        exchange.send(rows(b"refused"), 1)
        answer = exchange.refused()
        assert isinstance(answer.error, NotMaster)
        assert (answer.sequence, answer.error.master) == (1, MASTER)
        assert isinstance(exchange.error(), NotMaster)
        assert exchange.ended()
    assert wheel.values() == [b"kept"]


def test_deposing_tells_quiet_clients_and_ends_what_waits(wheel: FakeWheel, peers: Peers) -> None:
    wheel.serving = True
    made = ServedIntake(wheel, "127.0.0.1:0", group=peers.group, room_timeout_s=3600)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(contextlib.closing(made))
        quiet, small, large, new = (stack.enter_context(Exchange(server)) for _ in range(4))
        for exchange in (quiet, small, large):
            exchange.send(rows(b"x"), 0)
            exchange.stored()
        wheel.has_room.clear()
        small.send(rows(b"no room"), 1)
        large.send(rows(bytes(SMALL_BYTES)), 1)
        eventually(lambda: len(server._blocked) == 2)
        wheel.serving = False
        server.depose()
        answer = quiet.refused()
        assert isinstance(answer.error, NotMaster)
        assert (answer.sequence, answer.error.master) == (NO_BATCH, MASTER)
        wheel.has_room.set()
        for exchange in (small, large):
            refused = {exchange.refused().sequence, exchange.refused().sequence}
            assert refused == {1, NO_BATCH}
            assert isinstance(exchange.error(), NotMaster)
        assert isinstance(new.error(), NotMaster), "it comes again, to the new master"
        assert new.ended()
        assert not server._blocked


@pytest.mark.parametrize(("acks", "early"), [("all", False), ("1", True)])
def test_acks_1_does_not_wait_for_a_majority(
    server: ServedIntake, wheel: FakeWheel, acks: str, early: bool
) -> None:
    wheel.serving = True
    with Exchange(server, AppendCommand(7, acks)) as exchange:
        exchange.send(rows(b"x"), 0)
        exchange.stored()
    assert wheel.early == [early]


def test_step_down(server: ServedIntake, wheel: FakeWheel, peers: Peers) -> None:
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
    with contextlib.closing(ServedIntake(FakeWheel(), "127.0.0.1:0")) as server:
        told = action(server, "step-down", encode_json({"timeout_s": 1}))
        assert "no peers" in told["message"]
        with Exchange(server) as exchange:
            assert "role" not in exchange.welcome
        assert "replication" not in action(server, "status", encode_json({}))


def test_a_reschedule_that_was_on_its_way_is_not_called_refused(peers: Peers) -> None:
    begun = threading.Event()

    class Deposed(FakeWheel):
        def reschedule(self, *_: object, **__: object) -> tuple[CancelAnswer, MessageId | None]:
            begun.set()
            raise NotMaster(master=MASTER)

    wheel = Deposed()
    with contextlib.closing(ServedIntake(wheel, "127.0.0.1:0", group=peers.group)) as server:
        one = {"id": str(wheel.mint.one(now_ms() + 60_000, 3)), "due_ms": now_ms() + 1}
        told = action(server, "reschedule", encode_json(one))
    assert begun.is_set()
    assert told["code"] == "not-running"
    assert "not known" in told["message"]


@pytest.mark.parametrize("name", ["cancel", "reschedule"])
def test_what_was_done_by_a_name_on_its_way_is_not_called_refused(peers: Peers, name: str) -> None:
    """Its client would do it again at the next master, perhaps to the message that has the name
    since."""
    begun = threading.Event()

    class Deposed(FakeWheel):
        def cancel_named(self, *_: object, **__: object) -> tuple[CancelAnswer, MessageId | None]:
            begun.set()
            raise NotMaster(master=MASTER)

        def reschedule_named(
            self, *_: object, **__: object
        ) -> tuple[CancelAnswer, MessageId | None, MessageId | None]:
            begun.set()
            raise NotMaster(master=MASTER)

    with contextlib.closing(ServedIntake(Deposed(), "127.0.0.1:0", group=peers.group)) as server:
        fields = {"topic": "t", "name": "n", "due_ms": now_ms() + 1}
        told = action(server, name, encode_json(fields))
    assert begun.is_set()
    assert (told["code"], told["uncertain"]) == ("not-running", True)
    assert "not known" in told["message"]

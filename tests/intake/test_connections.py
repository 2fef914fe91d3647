"""Connections are bounded: quiet ones make room, and who finds none is told so."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from pyarrow import flight

from slotwheel import Client, Overloaded
from slotwheel.intake import connections
from slotwheel.intake.connections import Connections, address_of
from slotwheel.intake.flight import FlightIntake
from support.fakewheel import FakeWheel, eventually

LIMIT = 6


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def server(opened: contextlib.ExitStack, *, quiet_s: float) -> FlightIntake:
    made = FlightIntake(FakeWheel(), "127.0.0.1:0", connections_max=LIMIT, quiet_s=quiet_s)
    opened.callback(made.close)
    return made


def connect(opened: contextlib.ExitStack, port: int) -> socket.socket:
    return opened.enter_context(socket.create_connection(("127.0.0.1", port), 10))


def is_shut(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        while one.recv(1 << 16):  # HTTP/2 greets everybody
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_who_finds_no_room_is_told_so_and_served_when_there_is(
    opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REFUSE_S", 60.0)
    node = server(opened, quiet_s=3600)
    inside = [connect(opened, node.port) for _ in range(LIMIT)]
    eventually(lambda: len(node._connections._inside) == LIMIT)
    one_more = opened.enter_context(flight.FlightClient(f"grpc://127.0.0.1:{node.port}"))
    one_more.wait_for_available(10)
    eventually(lambda: len(node._connections._refused) == 1)
    with pytest.raises(flight.FlightError) as caught:
        list(one_more.do_action(flight.Action("status", b'{"slotwheel": 1}')))
    told = json.loads(caught.value.extra_info)
    assert told["code"] == "overloaded"
    assert told["limit"] == str(LIMIT)
    assert "open files" in told["remedy"]
    inside[0].close()
    eventually(lambda: not node._connections._refused)
    assert list(one_more.do_action(flight.Action("status", b'{"slotwheel": 1}')))


def test_who_is_refused_is_shut_after_a_moment_and_the_others_stay(
    opened: contextlib.ExitStack,
) -> None:
    node = server(opened, quiet_s=3600)
    inside = [connect(opened, node.port) for _ in range(LIMIT)]
    eventually(lambda: len(node._connections._inside) == LIMIT)
    refused = [connect(opened, node.port) for _ in range(3)]
    eventually(lambda: all(is_shut(one) for one in refused))
    assert not any(is_shut(one) for one in inside)


def test_the_quietest_connection_makes_room(opened: contextlib.ExitStack) -> None:
    node = server(opened, quiet_s=0.2)
    first = connect(opened, node.port)
    eventually(lambda: address_of_socket(first) in seen(node))
    others = [connect(opened, node.port) for _ in range(LIMIT - 1)]
    with Client(f"127.0.0.1:{node.port}") as client:
        assert client.send("t", b"x", delay=60).result(30)
    assert is_shut(first)
    assert not all(is_shut(one) for one in others)


def test_a_client_that_finds_no_room_in_time_knows_why(opened: contextlib.ExitStack) -> None:
    node = server(opened, quiet_s=3600)
    for _ in range(LIMIT):
        connect(opened, node.port)
    eventually(lambda: len(node._connections._inside) == LIMIT)
    with Client(f"127.0.0.1:{node.port}", timeout_s=2.0) as client:
        with pytest.raises(Overloaded, match="too many connections"):
            client.status()
        error = client.send("t", b"x", delay=60).error(30)
        assert isinstance(error, Overloaded), error


def test_a_peer_is_let_in_whatever_the_limit() -> None:
    found = Connections(2, 3600)
    here = {("::1", port): 0.0 for port in (1, 2, 3)}
    assert found._judge(here, 0.0) == set()
    assert found._refused == {("::1", 3): 0.0}
    found.admit("ipv6:%5B::1%5D:3")
    assert found._judge(here, 60.0) == set()
    assert found._refused == {}


def seen(node: FlightIntake) -> set[tuple[str, int]]:
    return set(node._connections._inside)


def address_of_socket(one: socket.socket) -> tuple[str, int]:
    return address_of("ipv4:{}:{}".format(*one.getsockname()))

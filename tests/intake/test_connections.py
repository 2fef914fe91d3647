"""Connections are bounded: quiet ones make room, and who finds none is told so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyarrow import flight

from slotwheel import Client, Overloaded
from slotwheel.intake import connections
from slotwheel.intake.connections import Connections, address_of
from slotwheel.intake.flight import FlightIntake
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.protocol import PEER_ACTION
from support.fakewheel import FakeWheel
from support.waiting import eventually

LIMIT = 6


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack
    # No watcher may look at what the next test puts in the place of the kernel's list.
    eventually(lambda: all(one.name != "flight-connections" for one in threading.enumerate()))


def server(
    opened: contextlib.ExitStack, *, quiet_s: float, peers: Peers | None = None
) -> FlightIntake:
    made = FlightIntake(
        FakeWheel(), "127.0.0.1:0", connections_max=LIMIT, quiet_s=quiet_s, peers=peers
    )
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
    quiet = here | {("::1", 3): 7200.0, ("::1", 4): 0.0}
    assert found._judge(quiet, 60.0) == set(), "nor does it make room for anybody"


def test_a_peer_admitted_while_connections_are_listed_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Connections(0, 3600)
    admitting = threading.Thread(target=found.admit, args=("ipv4:127.0.0.1:5",))

    def sockets(*_: object) -> list[tuple[int, socket.socket]]:
        admitting.start()  # the list was made already
        admitting.join(0.3)
        return []

    monkeypatch.setattr(connections, "_sockets", sockets)
    with contextlib.suppress(Overloaded):
        found._over = True
        found.check("ipv4:127.0.0.1:6")
    admitting.join(10)
    assert found._judge({("127.0.0.1", 5): 0.0}, 0.0) == set()
    assert found._refused == {}


class Peers:
    """A ``PeerPort`` that lets in who says ``known``."""

    def greet(self, body: bytes) -> bytes:
        if not body.endswith(b"known"):
            raise InvalidConfiguration("not a peer")
        return b"welcome"

    def exchange(self, command: bytes, reader: Any, writer: Any, cut: object) -> None:
        raise AssertionError

    def stream(self, ticket: bytes, cut: object) -> Any:
        raise AssertionError


def test_only_a_greeting_that_is_accepted_makes_a_peer(
    opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REFUSE_S", 60.0)
    node = server(opened, quiet_s=3600, peers=Peers())
    for _ in range(LIMIT):
        connect(opened, node.port)
    eventually(lambda: len(node._connections._inside) == LIMIT)
    guest = opened.enter_context(flight.FlightClient(f"grpc://127.0.0.1:{node.port}"))
    status = flight.Action("status", b'{"slotwheel": 1}')
    with pytest.raises(flight.FlightError, match="not a peer"):
        list(guest.do_action(flight.Action(PEER_ACTION, b"stranger")))
    eventually(lambda: node._connections._refused)
    with pytest.raises(flight.FlightError, match="too many connections"):
        list(guest.do_action(status))
    assert list(guest.do_action(flight.Action(PEER_ACTION, b"known")))
    assert list(guest.do_action(status))


@pytest.mark.parametrize("call", ["receipt", "cancel"])
def test_a_client_that_waits_for_its_answer_is_not_quiet(
    opened: contextlib.ExitStack, call: str
) -> None:
    node = server(opened, quiet_s=0.2)
    wheel: Any = node._wheel
    answer = threading.Event()
    opened.callback(answer.set)
    client = opened.enter_context(Client(f"127.0.0.1:{node.port}"))
    id_ = client.send("t", b"x", delay=60).result(30)
    pool = opened.enter_context(ThreadPoolExecutor())
    opened.callback(answer.set)
    served = getattr(wheel, "append" if call == "receipt" else "cancel")

    def late(*given: Any, **named: Any) -> Any:
        return answer.wait(60) and served(*given, **named)

    if call == "receipt":
        wheel.append = lambda *given, **named: pool.submit(lambda: late(*given, **named).result())
        waits: Any = client.send("t", b"y", delay=60).result
    else:
        wheel.cancel = late
        waits = pool.submit(client.cancel, id_).result

    def busy() -> set[tuple[str, int]]:
        return {one for one, quiet_s in node._calls.quiet_s().items() if quiet_s < 0}

    eventually(busy)
    eventually(lambda: busy() <= seen(node))
    time.sleep(0.4)  # twice as long as one may be quiet
    for _ in range(3 * LIMIT):
        connect(opened, node.port)
        time.sleep(0.03)
    assert busy()
    assert busy() <= seen(node)
    answer.set()
    assert waits(30)


def test_below_the_limit_nobody_looks_and_who_is_known_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look() -> list[int]:
        raise AssertionError

    monkeypatch.setattr(connections, "_numbers", look)
    found = Connections(2, 3600)
    found.check("ipv4:127.0.0.1:5")
    found._over = True
    found._refused = {("127.0.0.1", 5): 0.0}
    with pytest.raises(Overloaded):
        found.check("ipv4:127.0.0.1:5")


def test_with_no_descriptor_left_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: object) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", none_left)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert len(connections._numbers()) == 1 << 16


def seen(node: FlightIntake) -> set[tuple[str, int]]:
    return set(node._connections._inside)


def address_of_socket(one: socket.socket) -> tuple[str, int]:
    return address_of("ipv4:{}:{}".format(*one.getsockname()))


def test_an_address_with_most_connections_leaves_one_to_another_address() -> None:
    found = Connections(3, 3600)
    mine = {("10.0.0.1", port): float(port) for port in (1, 2, 3)}
    assert found._judge(mine, 0.0) == set()
    assert found._judge(mine | {("10.0.0.1", 4): 0.0}, 0.0) == set()
    assert list(found._refused) == [("10.0.0.1", 4)]
    assert found._judge(mine | {("10.0.0.2", 5): 0.0}, 0.0) == {("10.0.0.1", 3)}
    both = {("10.0.0.1", 1): 1.0, ("10.0.0.1", 2): 2.0, ("10.0.0.2", 5): 0.0}
    assert found._judge(both | {("10.0.0.2", 6): 0.0}, 0.0) == set(), "one has two, one has one"

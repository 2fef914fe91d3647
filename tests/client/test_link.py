"""A client's connections: who answers there, how they are lost, and who reads them."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pyarrow import flight

from slotwheel import Client, Message, NodeUnreachable, UnsupportedVersion
from slotwheel.client import link as link_module
from slotwheel.client.link import Caller, Link
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.protocol import AppendCommand
from slotwheel.wire.frames import Kind, encode_frame
from support.echoserver import echoing, refuse
from support.fakewheel import FakeWheel
from support.served import ServedIntake
from support.waiting import eventually


@contextlib.contextmanager
def http_server() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def flight_server() -> Iterator[int]:
    """A node of an older version."""
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        yield server.port


@contextlib.contextmanager
def another_version() -> Iterator[int]:
    error = UnsupportedVersion("unknown version of the wire", got="version 1", limit="version 2")
    with echoing(refuse(error)) as server:
        yield server.port


@contextlib.contextmanager
def silent() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def answering(sent: bytes) -> Iterator[int]:
    """Says something to everybody, and ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve() -> None:
            listener.settimeout(0.05)
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65_536)
                        connection.sendall(sent)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


@contextlib.contextmanager
def closed() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield port


Opened = Callable[[], contextlib.AbstractContextManager[int]]
STRANGERS: dict[str, tuple[Opened, type[SlotwheelError], str]] = {
    "a web server": (http_server, NodeUnreachable, "no slotwheel node.*http://HOST:PORT"),
    "an older node": (flight_server, UnsupportedVersion, "Arrow Flight.*version 1.*matching"),
    "a newer node": (another_version, UnsupportedVersion, "version 1.*version 2"),
    "silence": (silent, NodeUnreachable, "no answer in time"),
    "nobody": (closed, NodeUnreachable, r"127\.0\.0\.1:\d+: connection refused"),
    "who hangs up": (lambda: answering(b""), NodeUnreachable, "closed by the other side"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_who_answers_there_instead_of_a_node_is_told(who: str) -> None:
    opened, kind, text = STRANGERS[who]
    with opened() as port, Client(f"127.0.0.1:{port}", timeout_s=1) as client:
        with pytest.raises(kind, match=text):
            client.status()
        error = client.send("t", b"", delay=1).error(30)
        assert isinstance(error, kind)
        with pytest.raises(kind, match=text):
            raise error


ODD_WELCOMES = {b"{]": "not a slotwheel", b'{"slotwheel": 2}': "hello is not readable"}


@pytest.mark.parametrize("welcome", ODD_WELCOMES)
def test_a_welcome_that_cannot_be_read_is_an_error(welcome: bytes) -> None:
    sent = encode_frame(Kind.WELCOME, b"", len(welcome)) + welcome
    with answering(sent) as port, Client(f"127.0.0.1:{port}", timeout_s=3600) as client:
        assert ODD_WELCOMES[welcome] in str(client.send("t", b"", delay=1).error(60))


@pytest.mark.parametrize("who", ["an older node", "a newer node"])
def test_a_node_of_another_version_is_not_tried_again(who: str) -> None:
    opened, kind, _ = STRANGERS[who]
    with opened() as port, Client(f"127.0.0.1:{port}", timeout_s=3600) as client:
        assert isinstance(client.send("t", b"", delay=1).error(60), kind)


def test_an_older_client_is_told_so_once(capfd: pytest.CaptureFixture[str]) -> None:
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    with contextlib.closing(ServedIntake(FakeWheel(), "127.0.0.1:0")) as server:
        address = f"grpc://127.0.0.1:{server.port}"
        with flight.FlightClient(address, generic_options=options) as client:
            call = flight.FlightCallOptions(timeout=30)
            action = flight.Action("hello", b'{"slotwheel": 1}')
            with pytest.raises(flight.FlightError, match="older slotwheel"):
                list(client.do_action(action, call))
        eventually(lambda: server.server.open == 0)


def test_a_client_follows_the_loss_of_its_link() -> None:
    wheel = FakeWheel()
    with (
        contextlib.closing(ServedIntake(wheel, "127.0.0.1:0", commit=wheel.commit)) as server,
        Client(f"127.0.0.1:{server.port}", timeout_s=20) as client,
    ):
        for number in range(5):
            client.send(Message("t", b"%d" % number, delay=60)).result(60)
            link = client._sender._link
            assert link is not None
            link.cut()
        receipts = client.send_many(Message("t", b"x", delay=60) for _ in range(20_000))
        assert len(receipts.result(60)) == 20_000
    assert wheel.values()[:5] == [b"%d" % number for number in range(5)]


def test_a_flush_reads_the_answers_itself(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_LOOK_S", 300.0)  # nobody else would read soon
    with Client(address, timeout_s=60) as client:
        client.send(Message("t", b"first", delay=60)).result(60)
        for number in range(20):
            client.send(Message("t", b"%d" % number, delay=60))
            client.flush(60)


def test_links_that_are_lost_while_they_are_closed(address: str) -> None:
    lost: list[SlotwheelError] = []

    def in_thread(read: Callable[[], None]) -> None:
        threading.Thread(target=read, daemon=True).start()

    def ignore(*_args: object) -> None: ...

    before = threading.active_count()
    for number in range(100):
        link = Link(
            address, AppendCommand(5), 10.0, ignore, lambda _, error: lost.append(error), in_thread
        )
        if number % 2:
            link.cut()
        busy_until = time.perf_counter() + random.uniform(0, 0.0006)
        while time.perf_counter() < busy_until:
            pass
        link.close()
    eventually(lambda: threading.active_count() <= before)
    assert all(isinstance(error, NodeUnreachable) for error in lost)


def test_a_call_takes_a_new_connection_when_the_node_has_closed_the_old_one() -> None:
    with contextlib.closing(ServedIntake(FakeWheel(), "127.0.0.1:0")) as server:
        caller = Caller(f"127.0.0.1:{server.port}")
        for _ in range(3):
            assert caller.call("status", {}, 10)["status"]["pending"] == 0
            assert server.server.open == 1
            with server.alone:
                for connection in list(server.server._connections.values()):
                    server.server.drop(connection)
            eventually(lambda: caller._idle[0].is_stale)
        caller.close()


def test_each_thread_that_calls_has_a_connection_meanwhile_and_they_are_used_again() -> None:
    wheel = FakeWheel()
    with contextlib.closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        caller = Caller(f"127.0.0.1:{server.port}")
        found: list[object] = []

        def call() -> None:
            found.extend(caller.call("status", {}, 30) for _ in range(20))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(found) == 80
        assert 1 <= server.server.open <= 4
        caller.close()
        eventually(lambda: server.server.open == 0)

"""What keeps a client out of Kafka, where nobody says it: listeners that are made up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from slotwheel.broker import reach
from support.stopwatch import Stopwatch

TLS = {"security.protocol": "SSL"}


@contextmanager
def listener(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serves each connection, one at a time, and closes it."""

    def run() -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as talking, suppress(OSError):
                    serve(talking)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield "{}:{}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def hang_up(talking: socket.socket) -> None:
    """A proxy whose broker is away."""


def plain_broker(talking: socket.socket) -> None:
    """Takes what a client without TLS sends, and closes where it is something else."""
    if talking.recv(4)[:2] == b"\0\0":
        talking.recv(1000)
        talking.sendall(b"\0\0\0\x0a" + b"\0\0\0\x01" + b"\0\x21" + b"\0\0\0\0")


@pytest.mark.parametrize(
    ("serve", "said", "kept_out"),
    [
        (hang_up, "closed the connection before TLS", False),
        (plain_broker, "does not speak TLS there", True),
    ],
)
def test_only_a_broker_that_speaks_without_tls_says_that_there_is_none(
    serve: Callable[[socket.socket], object], said: str, kept_out: bool
) -> None:
    with listener(serve) as address:
        assert said in reach.why_not(address, TLS, "timed out")
        assert reach.is_kept_out(address, TLS) == kept_out


def test_the_whole_way_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each step takes less than its limit."""
    monkeypatch.setattr(reach, "_ALL_S", 0.3)

    def trickle(talking: socket.socket) -> None:
        talking.sendall(b"\0\0\1\0")
        for _ in range(20):
            talking.sendall(b"x")
            time.sleep(0.1)

    with listener(trickle) as address:
        watch = Stopwatch()
        assert reach.why_not(address, {}, "timed out") == "timed out"
        assert watch.seconds < 1.5

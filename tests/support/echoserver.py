"""A server of the wire whose sessions answer each action with what it says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slotwheel.policy.places import who_leaves
from slotwheel.security.tls import TlsFiles
from slotwheel.wheel.errors import InvalidMessage, SlotwheelError
from slotwheel.wire.channel import Channel, Secure
from slotwheel.wire.frames import Frame, FrameLimits, Kind, decode_action, encode_result
from slotwheel.wire.server import Connection, Leave, Server

BODY_MAX = 1 << 20
WINDOW = 4


class EchoSession:
    """The action ``wrong`` is an error of the connection, ``defect`` a defect of the server."""

    limits: FrameLimits = {Kind.ACTION: (64, BODY_MAX)}
    welcome = b"welcome"

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.party = connection.host
        self.waiting: list[bytes] = []
        self.taken = 0
        self.ended = threading.Event()
        self.quiet_s = 1.0

    @property
    def reads(self) -> bool:
        return len(self.waiting) < WINDOW

    @property
    def idle(self) -> bool:
        return not self.waiting

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.waiting))

    def take(self, frame: Frame) -> None:
        number, name = decode_action(frame.metadata)
        if name == "wrong":
            raise InvalidMessage("wrong")
        if name == "defect":
            raise ZeroDivisionError("a defect")
        self.taken += 1
        self.waiting.append(encode_result(number, bytes(frame.body)))
        self.connection.resolved()

    def answers(self) -> list[bytes]:
        found, self.waiting = self.waiting, []
        return found

    def gone(self) -> None:
        self.ended.set()


class Securing:
    """The certificates by which all servers are secured that are made meanwhile, and how a client
    of them begins. Without them servers are plain."""

    tls: TlsFiles | None = None
    secure: Secure | None = None


class EchoServer:
    """``hello``: what is done with one, instead of a session. ``refusals``: of newcomers."""

    def __init__(self, hello: Callable[[Frame], Leave | None], **options: Any) -> None:
        self.alarms: list[str] = []
        self.refusals: list[SlotwheelError] = []
        self.secure = Securing.secure
        self.made: list[EchoSession] = []
        self.wait_s = 0.25
        self._hello = hello
        options = {"connections_max": 1000, "quiet_s": 3600.0, "bytes_max": 64 << 20, **options}
        options = {"tls": Securing.tls, "refused": self._refused, **options}
        self.server = Server("127.0.0.1", 0, self._greet, self, who_leaves, self._broken, **options)
        self.port = self.server.port

    def _greet(self, connection: Connection, hello: Frame) -> EchoSession | Leave:
        leave = self._hello(hello)
        if leave is not None:
            return leave
        self.made.append(EchoSession(connection))
        return self.made[-1]

    def _refused(self, _host: str, error: SlotwheelError) -> None:
        self.refusals.append(error)

    def _broken(self, error: Exception) -> None:
        self.alarms.append(repr(error))

    def work(self) -> None: ...


@contextmanager
def echoing(
    hello: Callable[[Frame], Leave | None] = lambda _: None, **options: Any
) -> Iterator[EchoServer]:
    made = EchoServer(hello, **options)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            made.server.turn()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.close(10)
        ended.set()
        thread.join(60)
        assert not thread.is_alive()


def refuse(error: SlotwheelError) -> Callable[[Frame], Leave | None]:
    def raise_it(_hello: Frame) -> Leave | None:
        raise error

    return raise_it


def serve_by(serve: Callable[[Channel], None]) -> Callable[[Frame], Leave | None]:
    """Hands a connection over whose hello is ``peer``."""
    return lambda hello: serve if bytes(hello.body) == b"peer" else None

"""A server of the wire that answers each frame at once: what the transport alone allows, without a
wheel, without a disk."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import Frame, FrameLimits, Kind, encode_frame
from slotwheel.wire.server import Connection, Server

from .servers.server import Sender

_ANSWER = bytes(36)
"""As long as a receipt of one message."""
_ENVELOPE_BYTES = 60
"""Of a record, besides its value."""


class _Echo:
    """A session."""

    welcome = b""
    party = ""
    reads = True
    quiet_s = -1.0

    def __init__(self, connection: Connection, _hello: Frame) -> None:
        self.limits: FrameLimits = {Kind.ROWS: (24, 1 << 20)}
        self._connection = connection
        self._taken = 0

    @property
    def idle(self) -> bool:
        return not self._taken

    @property
    def nbytes(self) -> int:
        return 0

    def take(self, _frame: Frame) -> None:
        self._taken += 1
        self._connection.resolved()

    def answers(self) -> list[bytes]:
        taken, self._taken = self._taken, 0
        return [encode_frame(Kind.ANSWER, b"", len(_ANSWER)) + _ANSWER] * taken

    def gone(self) -> None: ...


class _NoWork:
    wait_s = 0.25

    def work(self) -> None: ...


def _serve(port: Any, over: Any) -> None:
    server = Server(
        "127.0.0.1",
        0,
        _Echo,
        _NoWork(),
        lambda *_: None,
        lambda error: print(repr(error)),
        connections_max=10_000,
        bytes_max=64 << 20,
        quiet_s=60.0,
    )
    port.put(server.port)
    while not over.is_set():
        server.turn()


@dataclass(frozen=True)
class Echo:
    """Where it listens."""

    name: ClassVar[str] = "a bare exchange"
    port: int

    def sender(self) -> Sender:
        return _Sender(self.port)


class _Sender:
    def __init__(self, port: int) -> None:
        self._channel = Channel.open(f"127.0.0.1:{port}", b"", {Kind.ANSWER: (0, 100)}, 60.0)

    def send(self, values: Sequence[bytes], _due_ms: Sequence[int]) -> None:
        for value in values:
            self._channel.send(Kind.ROWS, bytes(8), bytes(_ENVELOPE_BYTES) + value)
            self._channel.receive()

    def close(self) -> None:
        self._channel.close()


@contextmanager
def echo() -> Iterator[Echo]:
    """Errors: ``queue.Empty`` when it does not start."""
    context = multiprocessing.get_context("spawn")
    port: Any = context.Queue()
    over = context.Event()
    process = context.Process(target=_serve, args=(port, over), daemon=True)
    process.start()
    try:
        yield Echo(port.get(timeout=60))
    finally:
        over.set()
        process.join(10)
        process.kill()

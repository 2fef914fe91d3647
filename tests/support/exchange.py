"""The bare wire, as a client that is not ours could speak it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable
from typing import Any, Protocol, Self

import pyarrow as pa

from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.protocol import (
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    encode_sequence,
)
from slotwheel.wheel.request import RequestKey
from slotwheel.wire.channel import Secure
from slotwheel.wire.frames import (
    WHOLE,
    Frame,
    FrameLimits,
    FrameReader,
    Kind,
    decode_action,
    encode_action,
    encode_frame,
    encode_hello,
    error_of,
)
from support.securesocket import SecureSocket
from support.waiting import now_ms
from support.wheels import batch


class Listening(Protocol):
    port: int


_ANY: FrameLimits = dict.fromkeys(Kind, ((1 << 16) - 1, 1 << 31))


class RawClient:
    """A connection that says nothing by itself. ``node``: what listens, or its address;
    ``source``: from which address of this machine. With ``secure`` of the node, or of its own, it
    begins by a handshake of TLS."""

    def __init__(
        self,
        node: Listening | str,
        *sent: bytes,
        host: str = "127.0.0.1",
        source: str | None = None,
        secure: Secure | None = None,
    ) -> None:
        where = _split(node) if isinstance(node, str) else (host, node.port)
        come_from = None if source is None else (source, 0)
        plain = socket.create_connection(where, 30, source_address=come_from)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secure = secure or getattr(node, "secure", None)
        self.socket: Any = plain if secure is None else SecureSocket(plain, secure("localhost"))
        self._frames = FrameReader(_ANY, greeted=True)
        for one in sent:
            self.send_bytes(one)

    def send_bytes(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # ended already
            self.socket.sendall(data)

    def frame(self) -> Frame:
        """The next frame. Errors: ``EOFError`` when the connection ends."""
        while (frame := self._frames.next()) is None:
            room = self._frames.room
            with contextlib.suppress(ConnectionError):
                if room is not None:
                    if count := self.socket.recv_into(room):
                        self._frames.received(count)
                        continue
                elif received := self.socket.recv(65_536):
                    self._frames.feed(received)
                    continue
            raise EOFError
        return frame

    def error(self) -> SlotwheelError:
        """Why the connection ends."""
        frame = self.frame()
        assert (frame.kind, decode_action(frame.metadata)[0]) == (Kind.ERROR, WHOLE)
        return error_of(frame)

    def rest(self) -> bytes:
        """What comes until the connection ends, byte by byte."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while received := self.socket.recv(65_536):
                found += received
        return found

    def ended(self) -> bool:
        """Whether the connection ends without another frame."""
        try:
            self.frame()
        except EOFError:
            return True
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exchange(RawClient):
    """A client that was welcomed. ``command``: its hello."""

    def __init__(
        self,
        node: Listening | str,
        command: AppendCommand | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        hello = (command or AppendCommand(7)).encode()
        super().__init__(node, encode_hello(hello), host=host)
        frame = self.frame()
        if frame.kind == Kind.ERROR:
            self.close()
            raise error_of(frame)
        self.welcome: dict[str, Any] = json.loads(bytes(frame.body))

    def send(self, rows: pa.RecordBatch, sequence: int, request: RequestKey | None = None) -> None:
        self.send_bytes(batch_frame(rows, encode_sequence(sequence, request)))

    def answer(self) -> StoredBatch | RefusedBatch:
        """The next answer. Errors: what ends the connection."""
        frame = self.frame()
        if frame.kind == Kind.ERROR:
            raise error_of(frame)
        assert frame.kind == Kind.ANSWER
        return decode_answer(bytes(frame.body))

    def stored(self) -> StoredBatch:
        answer = self.answer()
        assert isinstance(answer, StoredBatch), answer
        return answer

    def refused(self) -> RefusedBatch:
        answer = self.answer()
        assert isinstance(answer, RefusedBatch), answer
        return answer

    def ask(self, name: str, body: bytes, number: int = 1) -> dict[str, Any]:
        """The result of an action, or its error."""
        self.send_bytes(action_frame(name, body, number))
        frame = self.frame()
        assert decode_action(frame.metadata)[0] == number
        assert frame.kind in (Kind.RESULT, Kind.ERROR)
        return dict(json.loads(bytes(frame.body)))


def batch_frame(body: pa.RecordBatch | bytes, metadata: bytes) -> bytes:
    data = body if isinstance(body, bytes) else body.serialize().to_pybytes()
    return encode_frame(Kind.BATCH, metadata, len(data)) + data


def action_frame(name: str, body: bytes, number: int = 1) -> bytes:
    return encode_frame(Kind.ACTION, encode_action(number, name), len(body)) + body


def rows(*values: bytes, due: int | None = None) -> pa.RecordBatch:
    when = now_ms() + 60_000 if due is None else due
    return batch([(when, "t", value) for value in values])


def action(node: Listening | str, name: str, body: bytes) -> dict[str, Any]:
    """The result, or the error, of an action over a connection of its own."""
    with Exchange(node) as exchange:
        return exchange.ask(name, body)


def close_all(ends: Iterable[RawClient]) -> None:
    for one in ends:
        one.close()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)

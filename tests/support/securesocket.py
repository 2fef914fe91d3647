"""A socket over TLS for tests, which several threads may use: one may send while another reads."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from slotwheel.security.tls import TlsStream
from slotwheel.wheel.errors import SlotwheelError


class SecureSocket:
    """What a client of the wire does with a socket, over ``stream``. The handshake is made when it
    is first used. An error of TLS is a ``ConnectionResetError``. ``piece``: so many bytes of
    ciphertext are sent at once."""

    def __init__(self, plain: socket.socket, stream: TlsStream, piece: int = 1 << 20) -> None:
        self.plain = plain
        self._stream = stream
        self._piece = piece
        self._sending = threading.Lock()
        self._shaking = threading.Lock()
        self._peeked = b""

    def _shake_hands(self) -> None:
        with self._shaking:
            if self._stream.is_ready:
                return
            try:
                while not self._stream.shake_hands():
                    self._send(self._stream.outgoing())
                    self._feed()
            except SlotwheelError as error:
                raise ConnectionResetError(str(error)) from None
            self._send(self._stream.outgoing())

    def _send(self, sealed: bytes) -> None:
        for begin in range(0, len(sealed), self._piece):
            self.plain.sendall(sealed[begin : begin + self._piece])

    def _feed(self) -> None:
        received = self.plain.recv(65_536)
        if not received:
            raise ConnectionResetError
        self._stream.feed(received)

    def sendall(self, data: bytes) -> None:
        self._shake_hands()
        with self._sending:
            self._send(self._stream.seal(data))

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)

    def recv(self, bytes_max: int, flags: int = 0) -> bytes:
        self._shake_hands()
        try:
            while True:
                got = self._peeked or self._stream.read(bytes_max)
                if got is not None:
                    self._peeked = got if flags & socket.MSG_PEEK else b""
                    return got
                received = self.plain.recv(65_536)
                if not received:
                    return b""
                self._stream.feed(received)
        except SlotwheelError as error:
            raise ConnectionResetError(str(error)) from None

    def recv_into(self, room: memoryview) -> int:
        got = self.recv(len(room))
        room[: len(got)] = got
        return len(got)

    def shutdown(self, how: int) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._send(self._stream.end())
        self.plain.shutdown(how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

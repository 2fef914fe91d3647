"""Connections with TLS: from the first byte to the first request, and the bytes from then on.

Theory: an event loop's own TLS ends both directions of a connection at once, and knows neither a
limit of handshakes nor who it was that spoke no TLS. So TLS is a protocol of our own between the
socket and ``HttpConnection``, which has the same limits, and closes in the same order, whether its
bytes are encrypted or not.

    socket <--ciphertext--> TlsGuest (TlsStream) <--plain bytes--> HttpConnection

Rules
- Until its handshake is over, a connection has ``HANDSHAKE_S`` and ``HANDSHAKE_BYTES_MAX``, and is
  one of ``HANDSHAKES_MAX``: one more ends the oldest one of the address that has most of them. So
  strangers who connect and say nothing keep no place from who has a certificate.
- A handshake takes a millisecond, so a turn of the loop goes on with one of them (``turns.py``). Of
  256 that come at once, the last would else keep every request waiting for a quarter of a second.
- Who begins without TLS gets one answer without TLS, which says so, and nothing of what it sent is
  read. No redirect: the token in its request has been on the way for everybody to read already.
- The reason of a refusal is for our log. A stranger gets the alert of TLS and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Protocol

from ..security.tls import TlsFiles, TlsStream
from ..wheel.errors import SlotwheelError
from .connection import TLS_STREAM, ConnectionServer, HttpConnection
from .errors import HttpError

HANDSHAKE_S = 5.0
HANDSHAKE_BYTES_MAX = 16 << 10
HANDSHAKES_MAX = 256
_HANDSHAKE = 0x16
"""How TLS begins: the type of a handshake's record (RFC 8446, 5.1)."""
_RECORD_BYTES = 16 << 10
_GUESTS = "handshakes"
"""All whose handshake is not over are one party: a stranger has as many addresses as he likes."""


class TlsServer(ConnectionServer, Protocol):
    """The part of a server that its connections with TLS share. ``handshakes``: those whose
    handshake is not over, the oldest first. ``note_refusal``: takes an address and the reason for
    which its connection had no request."""

    handshakes: dict[TlsGuest, None]

    def note_refusal(self, host: str, reason: str) -> None: ...


class TlsTransport:
    """The transport of an ``HttpConnection`` with TLS: it takes plain bytes, and ``raw`` sends
    ciphertext."""

    def __init__(self, raw: asyncio.Transport, stream: TlsStream) -> None:
        self._raw = raw
        self._stream = stream
        self.has_ended = False
        """True once the end was sent; what comes from then on is not decrypted any more."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._stream if name == TLS_STREAM else self._raw.get_extra_info(name, default)

    def write(self, data: bytes) -> None:
        if not (self.has_ended or self._raw.is_closing()):
            self._raw.write(self._stream.seal(data))

    def write_eof(self) -> None:
        """Send the end of TLS and then that of TCP; the other side may go on sending."""
        if not (self.has_ended or self._raw.is_closing()):
            self.has_ended = True
            self._raw.write(self._stream.end())
            self._raw.write_eof()

    def close(self) -> None:
        if not (self.has_ended or self._raw.is_closing()):
            self.has_ended = True
            self._raw.write(self._stream.end())
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()


class TlsGuest(asyncio.Protocol):
    """A connection that has come to a port with TLS. ``host``: of the other side."""

    def __init__(self, server: TlsServer, tls: TlsFiles) -> None:
        self.host = ""
        self._server = server
        self._stream = tls.accept()
        self._http: HttpConnection | None = None
        """It has the connection from the end of the handshake on."""
        self._is_plain = False
        """True for a side that speaks no TLS: its bytes go to ``_http`` as they come."""
        self._nbytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._raw = transport
        address = transport.get_extra_info("peername")
        self.host = str(address[0]) if isinstance(address, tuple) else ""
        handshakes = self._server.handshakes
        if len(handshakes) >= HANDSHAKES_MAX:
            (crowd, _), *_ = Counter(guest.host for guest in handshakes).most_common(1)
            oldest = next(guest for guest in handshakes if guest.host == crowd)
            oldest.give_up(f"more than {HANDSHAKES_MAX} handshakes at a time")
        handshakes[self] = None
        loop = asyncio.get_running_loop()
        reason = f"the handshake of TLS took longer than {HANDSHAKE_S:g} s"
        self._timer = loop.call_later(HANDSHAKE_S, self.give_up, reason)

    def give_up(self, reason: str) -> None:
        """End a connection whose handshake is not over."""
        self._server.note_refusal(self.host, reason)
        self._leave_handshakes()
        self._raw.abort()

    def _leave_handshakes(self) -> None:
        self._timer.cancel()
        self._server.handshakes.pop(self, None)

    def connection_lost(self, error: Exception | None) -> None:
        self._leave_handshakes()
        if self._http is not None:
            self._http.connection_lost(error)
            self._http = None

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._raw.is_closing():
            return
        if self._http is None:
            if self._nbytes or data[0] == _HANDSHAKE:
                self._wait_for_turn(data)
                return
            self._refuse_plain()
        http = self._http
        assert http is not None
        if self._is_plain or self._transport.has_ended:
            http.data_received(data)
            return
        try:
            self._decrypt(data, http)
        except SlotwheelError as error:
            self._fail(error)

    def _wait_for_turn(self, data: bytes) -> None:
        """Keep bytes of the handshake, and receive no more of them until its turn."""
        self._nbytes += len(data)
        self._stream.feed(data)
        self._raw.pause_reading()
        self._server.turns.take(_GUESTS, self._shake_hands)

    def _shake_hands(self) -> None:
        """Go on with the handshake, in its turn."""
        if self._raw.is_closing():
            return
        try:
            is_over = self._stream.shake_hands()
            self._send_outgoing()
            if is_over:
                self._leave_handshakes()
                self._transport = TlsTransport(self._raw, self._stream)
                self._http = http = HttpConnection(self._server)
                self._raw.resume_reading()
                http.connection_made(self._transport)  # type: ignore[arg-type]
                self._decrypt(b"", http)  # a request may have come with the handshake's end
            elif self._nbytes > HANDSHAKE_BYTES_MAX:
                self.give_up(f"a handshake of TLS with more than {HANDSHAKE_BYTES_MAX} bytes")
            else:
                self._raw.resume_reading()
        except SlotwheelError as error:
            self._fail(error)

    def _refuse_plain(self) -> None:
        self._server.note_refusal(self.host, "a request without TLS")
        self._leave_handshakes()
        self._is_plain = True
        self._http = HttpConnection(self._server)
        self._http.connection_made(self._raw)
        self._http.refuse(
            HttpError(
                400,
                "the request came without TLS to a port of TLS, and was not read",
                limit="https://",
                remedy="Write https:// in the address. A token that was sent along is no secret"
                " any more: make another one",
            )
        )

    def _decrypt(self, data: bytes, http: HttpConnection) -> None:
        """Errors: as of ``TlsStream``."""
        stream = self._stream
        stream.feed(data)
        while (plain := stream.read(_RECORD_BYTES)) is not None:
            if not plain:
                self._transport.close()
                return
            http.data_received(plain)
            if self._transport.has_ended or self._raw.is_closing():
                return
        self._send_outgoing()

    def _send_outgoing(self) -> None:
        if self._stream.has_outgoing:
            self._raw.write(self._stream.outgoing())

    def _fail(self, error: SlotwheelError) -> None:
        """End a connection after the alert that says why."""
        reason = f"{error.message}: {error.got}" if error.got else error.message
        self._server.note_refusal(self.host, reason)
        self._leave_handshakes()
        self._send_outgoing()
        self._raw.close()

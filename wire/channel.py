"""A channel: one connection whose two ends have said hello, used by threads that wait.

Clients, peers and whoever fetches a snapshot open one; a node's server hands one over to whoever
serves a peer. One thread sends at a time and one receives. A channel lives until its first error
and is never repaired.

Nothing waits without a limit: ``receive`` has a time, and a ``send`` that blocks, because the other
side reads nothing, ends by ``shut``, which any thread may call. What TCP knows of the other machine
(``progress``) tells a slow network from a machine that lost its power, of which TCP itself says
nothing for minutes.

A channel is plain or secured by TLS (``TlsChannel``) from its first byte to its last. The two
differ in how bytes are sent and received, so a plain one asks nowhere whether it is secured.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..wheel.errors import InvalidBatch, NodeUnreachable, SlotwheelError
from ..wheel.files import Bytes
from ..wheel.protocol import split_address
from .frames import (
    OF_NODE,
    WHOLE,
    Frame,
    FrameLimits,
    FrameReader,
    Kind,
    decode_action,
    encode_error,
    encode_frame,
    encode_hello,
    error_of,
)

if TYPE_CHECKING:  # OpenSSL takes 5 MB, which who speaks no TLS does not need
    from ..security.tls import PeerCertificate, TlsStream

_RECEIVED_MAX = 32 << 10
"""Bytes received at once, besides large bodies: Python allocates so much each time."""
_SECURED_BYTES = 64 << 10
"""Bytes of TLS received at once."""
_RECORD_BYTES = 16 << 10
"""The most plain bytes of one record of TLS."""
_SEALED_AT_ONCE = 256 << 10
"""Plain bytes that are made TLS before the first of them is sent: so much more memory a send takes.
"""
_LAST_WORD_S = 1.0
_REMEDY = "Check the address, and that the node runs"

_TIME = struct.Struct("@ll")  # C's struct timeval: seconds, microseconds

# Part of Linux' struct tcp_info, include/uapi/linux/tcp.h.
_INFO = struct.Struct(
    "="
    "24xI"  # tcpi_unacked: packets sent and not acknowledged
    "28xI"  # tcpi_last_ack_recv: when something was last acknowledged, ms ago
    "60xQ"  # tcpi_bytes_acked
    "16xI"  # tcpi_notsent_bytes
)
assert _INFO.size == 148


Secure = Callable[[str], "TlsStream"]
"""Begins the stream of TLS to the host that was connected to. Errors: ``InvalidConfiguration``."""


@dataclass(frozen=True, slots=True)
class TcpProgress:
    """TCP's progress with what was written. ``acknowledged``: bytes that the other machine has.
    ``queued``: more bytes wait than can be in flight. ``unacknowledged_s``: the other machine has
    not answered for so long, if something is in flight."""

    acknowledged: int = 0
    queued: bool = False
    unacknowledged_s: float = 0.0


class Channel:
    """A connection. ``welcome``: the body of the other side's, if it was opened here.
    ``limits``: of the frames that may come; it may be set anew. ``is_secure``: TLS is on."""

    is_secure = False

    def __init__(self, sock: socket.socket, frames: FrameReader) -> None:
        """Adopt a connection, of which ``frames`` has what was received so far."""
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._frames = frames
        self._sending = threading.Lock()
        self._waits_ms = 0  # how long the kernel waits for something to receive; 0: without end
        self.welcome = b""

    @classmethod
    def open(
        cls,
        address: str,
        hello: bytes,
        limits: FrameLimits,
        timeout_s: float,
        *,
        welcome_s: float = 0.0,
        secure: Secure | None = None,
    ) -> Channel:
        """Connect to ``host:port``, say hello (its body, JSON) and read the welcome; then frames
        within ``limits`` may come, and errors. ``welcome_s``: so much longer than ``timeout_s`` the
        welcome may take, which a node sends between two writes to its disk, while its kernel
        answers at once whoever connects. ``secure``: TLS is on, and the other side has proven who
        it is before anything is said to it.

        Errors: ``NodeUnreachable``; ``UnsupportedVersion`` when an older node listens there;
        ``InvalidConfiguration`` when the sides do not agree on TLS; what the node answers."""
        end = time.monotonic() + timeout_s + welcome_s
        try:
            host, port = split_address(address)
            stream = None if secure is None else secure(host)
            sock = socket.create_connection((host, port), timeout_s)
        except ValueError as error:  # ``UnicodeError``, too
            raise NodeUnreachable(
                "not an address", got=repr(address), limit="host:port", remedy=str(error)
            ) from None
        except OSError as error:
            raise unreachable(error, address) from None
        frames = FrameReader(OF_NODE, greeted=True)
        if stream is None:
            channel = cls(sock, frames)
        else:
            _shake_hands(sock, stream, end, address)
            channel = TlsChannel(sock, frames, stream)
        try:
            try:
                channel._send([encode_hello(hello)])
            except OSError as error:
                if stream is None:
                    raise unreachable(error, address) from None
                # The other side may have refused the certificate: what it said is still to be read.
            frame = channel.receive(max(0.0, end - time.monotonic()))
            if frame is None:
                raise unreachable(TimeoutError(), address)
            if frame.kind != Kind.WELCOME:
                raise InvalidBatch("not a welcome", got=Kind(frame.kind).name)
        except BaseException:
            channel.close()
            raise
        channel.welcome = bytes(frame.body)
        channel.limits = limits
        return channel

    @property
    def certificate(self) -> PeerCertificate | None:
        """The certificate that the other side has proven."""
        return None

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names that the other side has proven; empty without TLS or a certificate."""
        return () if self.certificate is None else self.certificate.names

    @property
    def limits(self) -> FrameLimits:
        return self._frames.limits

    @limits.setter
    def limits(self, limits: FrameLimits) -> None:
        self._frames.limits = {**limits, Kind.ERROR: OF_NODE[Kind.ERROR]}

    def send(self, kind: int, metadata: bytes = b"", *body: Bytes) -> None:
        """Send a frame; blocks while the other side reads nothing. Errors: ``NodeUnreachable``."""
        self._write([encode_frame(kind, metadata, sum(map(len, body))), *body])

    def _write(self, parts: list[Bytes]) -> None:
        with self._sending:
            try:
                self._send(parts)
            except OSError as error:
                raise unreachable(error) from None
            except BaseException:  # interrupted: half a frame may be written
                self.shut()
                raise

    def fail(self, error: SlotwheelError) -> None:
        """Tell the other side why the connection ends, within a moment. What still comes is thrown
        away: while something is unread, the kernel ends a connection by a reset, which may overtake
        the last word. Not while another thread receives."""
        end = time.monotonic() + _LAST_WORD_S
        self._socket.settimeout(_LAST_WORD_S)
        self._write([encode_error(WHOLE, error)])
        self.end_sending()
        with contextlib.suppress(OSError):
            while (left_s := end - time.monotonic()) > 0:  # in all, for one byte a second as well
                self._socket.settimeout(left_s)
                if not self._socket.recv(_RECEIVED_MAX):
                    break

    def _send(self, parts: list[Bytes]) -> None:
        sent = self._socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._socket.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        """The next frame; None when none is whole within ``timeout_s``. Errors: what ends the
        connection: ``NodeUnreachable``, ``InvalidBatch`` when the other side sends what it may not,
        an error that it sent."""
        try:
            frame = self._frames.next() or self._next(timeout_s)
        except OSError as error:
            raise unreachable(error) from None
        except SlotwheelError:
            raise
        except BaseException:  # interrupted: what was received may be lost
            self.shut()
            raise
        return self._checked(frame)

    def _next(self, timeout_s: float | None) -> Frame | None:
        """Wait for the next frame; None: it does not come in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._wait_at_most(timeout_s)
            try:
                self._receive()
            except BlockingIOError:
                return None
            frame = self._frames.next()
            if frame is not None:
                return frame
            if end is not None:
                timeout_s = end - time.monotonic()
                if timeout_s <= 0:  # else a byte now and then would keep the caller for ever
                    return None

    def _wait_at_most(self, timeout_s: float | None) -> None:
        """Set how long the kernel waits, so that a thread waits in the call that receives. Of two
        calls, a poll and a receive, each gives the interpreter away and has to get it back, which
        takes longer than the rest where many threads wait. A long time is rounded up by 0.1 s at
        most: it is the same for many calls, and need not be set again."""
        wait_ms = 0
        if timeout_s is not None:
            step_ms = 100 if timeout_s > 1 else 1
            wait_ms = step_ms * max(1, math.ceil(timeout_s * 1000 / step_ms))
        if wait_ms != self._waits_ms:
            wait = _TIME.pack(wait_ms // 1000, wait_ms % 1000 * 1000)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            self._waits_ms = wait_ms

    def receive_more(self) -> Frame | None:
        """The next frame of what was received; None: it is not whole. Errors: as of ``receive``."""
        return self._checked(self._frames.next())

    @staticmethod
    def _checked(frame: Frame | None) -> Frame | None:
        if frame is None or frame.kind != Kind.ERROR:
            return frame
        if decode_action(frame.metadata)[0] == WHOLE:
            raise error_of(frame)
        return frame

    def _receive(self) -> None:
        """Receive once into the reader of frames. Errors: ``OSError``, ``NodeUnreachable``."""
        room = self._frames.room
        if room is None:
            received = self._socket.recv(_RECEIVED_MAX)
            count = len(received)
            self._frames.feed(received)
        else:
            count = self._socket.recv_into(room)
            self._frames.received(count)
        if not count:
            raise _closed()

    @property
    def is_stale(self) -> bool:
        """True if something has come, though nothing was asked: mostly, that it was closed."""
        if not self._frames.empty:
            return True
        try:
            self._socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def progress(self) -> TcpProgress:
        with contextlib.suppress(OSError, struct.error):  # closed, or an older kernel
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            unacked, ack_ms_ago, acknowledged, unsent = _INFO.unpack(info)
            waits = unacked or unsent
            return TcpProgress(acknowledged, unsent > 0, ack_ms_ago / 1000 if waits else 0.0)
        return TcpProgress()

    def end_sending(self) -> None:
        """Tell the other side that nothing more comes; what it sends can still be read."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def shut(self) -> None:
        """End the connection at once, from any thread: who sends or receives gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and free everything. Not while another thread uses it."""
        self._socket.close()


class TlsChannel(Channel):
    """A channel whose handshake of TLS is over.

    A thread that waits in ``recv`` holds no lock. Ciphertext is made and sent under one lock, so it
    leaves in the order in which it was made. An answer to a key update leaves at once if nobody
    sends, else with the next frame.
    """

    is_secure = True

    def __init__(self, sock: socket.socket, frames: FrameReader, stream: TlsStream) -> None:
        super().__init__(sock, frames)
        self._stream = stream
        self._received = memoryview(bytearray(_SECURED_BYTES))

    @property
    def certificate(self) -> PeerCertificate | None:
        return self._stream.certificate

    def _send(self, parts: list[Bytes]) -> None:
        if sum(map(len, parts)) <= _RECORD_BYTES:  # one record costs less than two
            self._socket.sendall(self._stream.seal(b"".join(parts)))
            return
        for part in parts:
            plain = memoryview(part)
            for begin in range(0, len(plain), _SEALED_AT_ONCE):
                self._socket.sendall(self._stream.seal(plain[begin : begin + _SEALED_AT_ONCE]))

    def _receive(self) -> None:
        """Pass on what is there, or receive once: nothing may be whole then."""
        try:
            if self._stream.has_unread and self._pass_on():
                return
            count = self._socket.recv_into(self._received)
            if not count:
                raise _closed()
            self._pass_on(self._received[:count])
        finally:
            if self._stream.has_outgoing:
                self._flush()

    def _pass_on(self, received: Bytes = b"") -> bool:
        """Pass plain bytes on to the reader of frames. ``received``: ciphertext that has just come.
        Returns False if there are none."""
        room = self._frames.room
        if room is None:
            plain = self._stream.read(_RECEIVED_MAX, received)
            if plain is None:
                return False
            if not plain:
                raise _closed()
            self._frames.feed(plain)
            return True
        count = self._stream.read_into(room, received)
        if count < 0:
            return False
        if not count:
            raise _closed()
        self._frames.received(count)
        return True

    def _flush(self) -> None:
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):  # whoever reads or sends next finds it, too
                    self._socket.sendall(self._stream.outgoing())
            finally:
                self._sending.release()

    @property
    def is_stale(self) -> bool:
        return self._stream.has_unread or super().is_stale

    def end_sending(self) -> None:
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._socket.send(self._stream.end(), socket.MSG_DONTWAIT)
            finally:
                self._sending.release()
        super().end_sending()


def _shake_hands(sock: socket.socket, stream: TlsStream, end: float, address: str) -> None:
    """Go through the handshake until the time ``end``; close the socket if it fails. Errors:
    ``NodeUnreachable``, ``InvalidConfiguration``."""
    try:
        while not _shake(sock, stream):
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
            received = sock.recv(_SECURED_BYTES)
            if not received:
                raise _closed("in the handshake of TLS")
            stream.feed(received)
    except OSError as error:
        sock.close()
        raise unreachable(error, address) from None
    except BaseException:
        sock.close()
        raise


def _shake(sock: socket.socket, stream: TlsStream) -> bool:
    """Go on with the handshake, and send what that gives. Returns True once it is over."""
    try:
        is_over = stream.shake_hands()
    except SlotwheelError:
        with contextlib.suppress(OSError):
            sock.sendall(stream.outgoing())  # why
        raise
    sock.sendall(stream.outgoing())
    return is_over


def _closed(when: str = "") -> NodeUnreachable:
    text = "the connection was closed by the other side"
    return NodeUnreachable(f"{text} {when}" if when else text, remedy=_REMEDY)


def unreachable(error: OSError, address: str = "") -> NodeUnreachable:
    """The error of this package for a failed connection."""
    if isinstance(error, TimeoutError):
        text = "no answer in time"
    elif isinstance(error, socket.gaierror):
        text = "its host's name is not known"
    else:
        text = (os.strerror(error.errno) if error.errno else str(error)).lower()
    where = f"{address}: " if address else ""
    return NodeUnreachable(f"node not reachable: {where}{text}", remedy=_REMEDY)

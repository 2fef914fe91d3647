"""A channel: one connection whose two ends have said hello, used by threads that wait.

Clients, peers and whoever fetches a snapshot open one; a node's server hands one over to whoever
serves a peer. One thread sends at a time and one receives. A channel lives until its first error
and is never repaired.

Nothing waits without a limit: ``receive`` has a time, and a ``send`` that blocks, because the other
side reads nothing, ends by ``shut``, which any thread may call. What TCP knows of the other machine
(``progress``) tells a slow network from a machine that lost its power, of which TCP itself says
nothing for minutes.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Self

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

_RECEIVED_MAX = 32 << 10
"""Bytes received at once, besides large bodies: Python allocates so much each time."""
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
    ``limits``: of the frames that may come; it may be set anew."""

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
    ) -> Self:
        """Connect to ``host:port``, say hello (its body, JSON) and read the welcome; then frames
        within ``limits`` may come, and errors. ``welcome_s``: so much longer than ``timeout_s`` the
        welcome may take, which a node sends between two writes to its disk, while its kernel
        answers at once whoever connects.

        Errors: ``NodeUnreachable``; ``UnsupportedVersion`` when an older node listens there; what
        the node answers."""
        end = time.monotonic() + timeout_s + welcome_s
        try:
            sock = socket.create_connection(split_address(address), timeout_s)
        except ValueError as error:  # ``UnicodeError``, too
            raise NodeUnreachable(
                "not an address", got=repr(address), limit="host:port", remedy=str(error)
            ) from None
        except OSError as error:
            raise unreachable(error, address) from None
        channel = cls(sock, FrameReader(OF_NODE, greeted=True))
        try:
            try:
                sock.sendall(encode_hello(hello))
            except OSError as error:
                raise unreachable(error, address) from None
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
                timeout_s = max(0.0, end - time.monotonic())

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
            raise NodeUnreachable("the connection was closed by the other side", remedy=_REMEDY)

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

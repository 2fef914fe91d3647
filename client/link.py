"""A link to a node: one connection of the wire, over which batches go.

A link connects only to a node that accepts appends: with peers, to the master.

Theory: waking a thread costs more than sending a small batch. So a thread that waits for a receipt
may read the answers itself (``read_while``). The reader's thread reads when no other waits: it is
woken by a batch that was written for it, and by a thread that stops reading while a batch is
unanswered; else it looks once a second for an answer, or the end of the link.

Rules: one thread reads at a time, and one writes. A link lives until its first error, also when a
reader or writer is interrupted half-way, and is never repaired; the reader's thread reports it.
The sender makes a new one and sends unanswered batches again, so nothing here retries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..security.secretplace import SecretPlace
from ..wheel.errors import NodeUnreachable, NotMaster, SlotwheelError
from ..wheel.protocol import (
    HELLO,
    JSON_BYTES_MAX,
    NO_BATCH,
    AppendCommand,
    RefusedBatch,
    decode_answer,
    decode_json,
    encode_json,
    encode_request,
    encode_sequence,
)
from ..wheel.request import RequestKey
from ..wire.channel import Channel, Secure, unreachable
from ..wire.frames import FrameLimits, Kind, decode_action, encode_action, error_of
from .hello import OF_APPENDS, Hello, hello_body, hello_of
from .transport import LinkPort, OnAnswer, OnLost, OpenLink, ReadInThread

if TYPE_CHECKING:
    from ..security.tls import TlsFiles

_LOOK_S = 0.1
"""A thread that waits for bytes looks after so long, s, if it still has to."""
_IDLE_LOOK_S = 1.0
_CLOSE_S = 1.0
_IDLE_MAX = 16
"""The most channels of a ``Caller`` that are kept for later."""
_OF_ACTIONS: FrameLimits = {Kind.RESULT: (8, 16 * JSON_BYTES_MAX)}


class Link(LinkPort):
    """An open connection. Errors on construction: those of ``Channel.open``, ``NotMaster``."""

    takes_records = True

    def __init__(
        self,
        address: str,
        command: AppendCommand,
        timeout_s: float,
        on_answer: OnAnswer,
        on_lost: OnLost,
        read_in_thread: ReadInThread,
        *,
        secure: Secure | None = None,
        token: SecretPlace | None = None,
    ) -> None:
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._answers = command.acks != "0"
        self.error: SlotwheelError | None = None
        self._closed = False
        self._reading = threading.Lock()
        self._wanted = threading.Event()  # the reader's thread is needed
        self._reported = threading.Event()
        self._reader: threading.Thread | None = None
        self._written = self._answered = 0
        body = hello_body(command, token)
        self._channel = Channel.open(address, body, OF_APPENDS, timeout_s, secure=secure)
        try:
            hello = hello_of(self._channel.welcome)
            hello.check_master()
        except BaseException:
            self._channel.close()
            raise
        self.group, self.limits, self.epoch = hello.group, hello.limits, hello.epoch
        read_in_thread(self._read)

    def write(
        self,
        rows: pa.RecordBatch,
        sequence: int,
        request: RequestKey | None = None,
        *,
        read: bool = True,
    ) -> None:
        """Send a batch; blocks while the node reads nothing. ``read``: the reader's thread has to
        read the answer, as no caller waits for it. Errors: ``SlotwheelError``."""
        body = memoryview(rows.serialize())
        self._send(Kind.BATCH, encode_sequence(sequence, request), body, read=read)

    def write_records(
        self, records: bytes, count: int, sequence: int, request: RequestKey | None, *, read: bool
    ) -> None:
        self._send(Kind.ROWS, encode_request(sequence, request, count), records, read=read)

    def _send(self, kind: Kind, metadata: bytes, body: bytes | memoryview, *, read: bool) -> None:
        if self.error is not None:
            raise self.error
        self._written += 1
        try:
            self._channel.send(kind, metadata, body)
        except SlotwheelError as error:
            self._wanted.set()
            self._reported.wait(0.5)  # the reading side gets the reason
            raise self._lose(error) from None
        except BaseException:
            self._lose(NodeUnreachable("sending was interrupted"))
            raise
        if read:
            self._wanted.set()

    def read_while(self, waiting: Callable[[], bool], timeout_s: float | None) -> None:
        """Read answers in the caller's thread while ``waiting()``, for ``timeout_s`` at most.
        Returns earlier if another thread reads, or the link is lost."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            end = None if timeout_s is None else time.monotonic() + timeout_s
            while waiting() and self.error is None and not self._closed:
                left_s = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
                if left_s <= 0:
                    break
                self._receive(left_s)
        finally:
            self._reading.release()
            if self._unanswered or self.error is not None:
                self._wanted.set()

    def cut(self) -> None:
        """End the link at once; a blocked ``write`` returns with an error."""
        self._channel.shut()
        self._wanted.set()

    def close(self) -> None:
        """End the link, wait a moment for the reading thread, and free everything."""
        self._closed = True
        if self._answers:
            self.cut()
        else:  # its last batches may still be on their way
            self._channel.end_sending()
            self._wanted.set()
        if threading.current_thread() is not self._reader and not self._reported.wait(_CLOSE_S):
            self.cut()
            self._reported.wait(_CLOSE_S)
        self._channel.close()

    @property
    def _unanswered(self) -> bool:
        return self._answers and self._answered < self._written

    def _lose(self, error: SlotwheelError) -> SlotwheelError:
        """Cut the link. Returns the reason for which it is lost: the first error."""
        if self.error is None:
            self.error = error
        self.cut()
        return self.error

    def _read(self) -> None:
        self._reader = threading.current_thread()
        while self.error is None:
            self._wanted.wait(_LOOK_S if self._closed else _IDLE_LOOK_S)
            self._wanted.clear()
            if not self._reading.acquire(blocking=self._closed):
                continue  # the thread that waits reads
            try:
                while self._receive(self._patience_s):
                    pass
            finally:
                self._reading.release()
            if self._unanswered:  # a thread that waits may have found this one reading
                self._wanted.set()
        self._reported.set()
        if not self._closed:
            self._on_lost(self, self.error)

    @property
    def _patience_s(self) -> float:
        return _LOOK_S if self._unanswered or self._closed else 0.0

    def _receive(self, wait_s: float) -> bool:
        """Handle frames that come within ``wait_s``. Returns True when more may come soon. One
        thread at a time calls it."""
        try:
            frame = self._channel.receive(wait_s)
            if frame is None:
                return self._unanswered
            while frame is not None:
                self._handle(bytes(frame.body))
                frame = self._channel.receive_more()
            return True
        except SlotwheelError as error:
            self._lose(error)
        except BaseException:  # interrupted: a part of a frame may be lost
            self._lose(NodeUnreachable("reading was interrupted"))
            raise
        return False

    def _handle(self, body: bytes) -> None:
        answer = decode_answer(body)
        if isinstance(answer, RefusedBatch) and (
            answer.sequence == NO_BATCH or isinstance(answer.error, NotMaster)
        ):
            raise answer.error  # all batches are sent again, perhaps to another node
        self._answered += 1
        self._on_answer(answer)


class Caller:
    """Calls of one node, by any threads: each has a channel to itself, kept for the next call."""

    def __init__(
        self, address: str, secure: Secure | None = None, token: SecretPlace | None = None
    ) -> None:
        self._address = address
        self._secure = secure
        self._token = token
        self._lock = threading.Lock()
        self._idle: list[Channel] = []
        self._closed = False

    def greet(self, timeout_s: float) -> Hello:
        """The node's current hello. Errors: ``SlotwheelError``."""
        channel = self._take()
        if channel is not None:
            return hello_of(self._ask(channel, HELLO, {}, timeout_s))
        channel = self._open(timeout_s)
        hello = hello_of(channel.welcome)
        self._keep(channel)
        return hello

    def call(self, action: str, fields: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send an action. Returns the answer's fields. Errors: the node's, ``NodeUnreachable``."""
        end = time.monotonic() + timeout_s
        channel = self._take() or self._open(timeout_s)
        left_s = max(0.0, end - time.monotonic())
        return decode_json(self._ask(channel, action, fields, left_s))

    def _ask(
        self, channel: Channel, action: str, fields: dict[str, Any], timeout_s: float
    ) -> bytes:
        """The answer's body. Afterwards the channel is kept, or closed. Errors: as of ``call``;
        ``NodeUnreachable`` is ``uncertain``, as the node may have done what it was asked for."""
        try:
            channel.send(Kind.ACTION, encode_action(1, action), encode_json(fields))
            frame = channel.receive(timeout_s)
            if frame is None:
                raise unreachable(TimeoutError(), self._address)
            answers_this = decode_action(frame.metadata)[0] == 1
            if frame.kind not in (Kind.RESULT, Kind.ERROR) or not answers_this:
                raise NodeUnreachable("an answer to something else", got=str(frame.metadata))
        except NodeUnreachable as error:
            channel.close()
            raise error.perhaps_done() from None
        except BaseException:
            channel.close()
            raise
        self._keep(channel)
        if frame.kind == Kind.ERROR:
            raise error_of(frame)
        return bytes(frame.body)

    def _open(self, timeout_s: float) -> Channel:
        body = hello_body(AppendCommand(), self._token)
        return Channel.open(self._address, body, _OF_ACTIONS, timeout_s, secure=self._secure)

    def _take(self) -> Channel | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                channel = self._idle.pop()
            if not channel.is_stale:
                return channel
            channel.close()

    def _keep(self, channel: Channel) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(channel)
                return
        channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()


class WireTransport:
    """Links and calls to nodes. ``tls``: TLS is on, by these files. ``token``: the file with the
    token of the hellos, which is read for each connection, so that a new one counts at once."""

    def __init__(self, tls: TlsFiles | None = None, token: SecretPlace | None = None) -> None:
        self.tls = tls
        self.token = token
        self.secure: Secure | None = None if tls is None else tls.dial

    @property
    def open_link(self) -> OpenLink:
        return partial(Link, secure=self.secure, token=self.token)

    def connect(self, address: str) -> Caller:
        return Caller(address, self.secure, self.token)

    def greet(self, connection: Caller, timeout_s: float, *, of_master: bool) -> None:
        hello = connection.greet(timeout_s)
        if of_master:
            hello.check_master()

    def call(
        self, connection: Caller, action: str, fields: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        return connection.call(action, fields, timeout_s)

    def epoch_of_master(self, address: str, timeout_s: float) -> int:
        """The epoch of the master that a node knows; 0: it knows none, or does not answer."""
        caller = self.connect(address)
        try:
            hello = caller.greet(timeout_s)
        except SlotwheelError:
            return 0
        finally:
            caller.close()
        return hello.epoch if hello.serving or hello.master else 0

    def end(self, connection: Caller) -> None:
        connection.close()

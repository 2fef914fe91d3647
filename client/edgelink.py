"""A link to the append edge of a node: one plain TCP connection.

Theory: waking a thread costs more than sending a small batch. So whoever waits for a receipt may
read the answers by itself (``read_while``). The reader's thread reads when nobody waits: it is
woken by a batch that was written for it, and by whoever stops reading while something is
unanswered; else it looks once a second whether the node has ended the link, or has anything to say.

Rules: one thread reads at a time, and one writes. A link lives until its first error, also when a
reader or writer is interrupted half-way, and is never repaired; the reader's thread reports it. It
is not used before the edge has answered that it is the one of the node that named it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from ..wheel.errors import NodeUnreachable, NotMaster, SlotwheelError
from ..wheel.packets import PacketReader, encode_hello, encode_packet
from ..wheel.protocol import (
    JSON_BYTES_MAX,
    NO_BATCH,
    AppendCommand,
    RefusedBatch,
    decode_answer,
    encode_sequence,
)
from ..wheel.request import RequestKey
from .hello import Hello
from .transport import LinkPort, OnAnswer, OnLost, ReadInThread

_LOOK_S = 0.1
"""Who waits for bytes looks so often whether it still has to."""
_IDLE_LOOK_S = 1.0
_CLOSE_S = 1.0
_CONNECT_S = 1.0
"""A port that a firewall keeps silent costs this time."""
_RECEIVED_MAX = 256 << 10
_ANSWER_BYTES_MAX = 64 + 8 * JSON_BYTES_MAX


class EdgeLink(LinkPort):
    """One connection, open on construction. Errors: ``OSError``, ``SlotwheelError``: it is not
    open, and no batch was sent by it."""

    def __init__(
        self,
        host: str,
        hello: Hello,
        timeout_s: float,
        command: AppendCommand,
        on_answer: OnAnswer,
        on_lost: OnLost,
        read_in_thread: ReadInThread,
    ) -> None:
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._answers = command.acks != "0"
        self.group, self.limits, self.epoch = hello.group, hello.limits, hello.epoch
        self.error: SlotwheelError | None = None
        self._closed = False
        self._packets = PacketReader(_ANSWER_BYTES_MAX, 0, greeted=True)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._wanted = threading.Event()  # the reader's thread is needed
        self._reported = threading.Event()
        self._reader: threading.Thread | None = None
        self._written = self._answered = 0
        connect_s = min(timeout_s, _CONNECT_S)
        self._socket = socket.create_connection((host, hello.append_port), connect_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(replace(command, token=hello.append_token), time.monotonic() + timeout_s)
            self._socket.settimeout(None)
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        except BaseException:
            self._socket.close()
            raise
        read_in_thread(self._read)

    def _greet(self, command: AppendCommand, deadline: float) -> None:
        """Errors: as of the constructor."""
        self._socket.sendall(encode_hello(command))
        while (packet := self._packets.next()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer to the hello")
            self._socket.settimeout(left_s)
            received = self._socket.recv(_RECEIVED_MAX)
            if not received:
                raise NodeUnreachable("the node ended the stream")
            self._packets.feed(received)
        answer = decode_answer(packet.metadata)
        if isinstance(answer, RefusedBatch):
            raise answer.error
        if answer.sequence != NO_BATCH:
            raise NodeUnreachable("no answer to the hello", got=f"one to batch {answer.sequence}")
        if (packet := self._packets.next()) is not None:  # it was deposed just now
            self._handle(packet.metadata)

    def write(
        self,
        rows: pa.RecordBatch,
        sequence: int,
        request: RequestKey | None = None,
        *,
        read: bool = True,
    ) -> None:
        """Send a batch; blocks while the node reads nothing. ``read``: the answer is to be read,
        without anybody who waits for it. Errors: ``SlotwheelError``."""
        body = memoryview(rows.serialize())
        head = encode_packet(encode_sequence(sequence, request), len(body))
        with self._writing:
            if self.error is not None:
                raise self.error
            try:
                self._written += 1
                sent = self._socket.sendmsg([head, body])
                if sent < len(head):
                    self._socket.sendall(head[sent:])
                if sent < len(head) + len(body):
                    self._socket.sendall(body[max(0, sent - len(head)) :])
            except OSError as error:
                self._wanted.set()
                self._reported.wait(0.5)  # the reading side gets the reason
                raise self._lose(_broken(error)) from None
            except BaseException:  # interrupted: half a packet may be written
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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wanted.set()

    def close(self) -> None:
        """End the link, wait a moment for the reading thread, and free everything."""
        self._closed = True
        if self._answers:
            self.cut()
        else:  # its last batches may still be on their way
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._wanted.set()
        if threading.current_thread() is not self._reader and not self._reported.wait(_CLOSE_S):
            self.cut()
            self._reported.wait(_CLOSE_S)
        self._socket.close()

    @property
    def _unanswered(self) -> bool:
        return self._answers and self._answered < self._written

    def _lose(self, error: SlotwheelError) -> SlotwheelError:
        """The reason why the link is lost: the first one."""
        if self.error is None:
            self.error = error
        self.cut()
        return self.error

    def _read(self) -> None:
        """The reader's thread."""
        self._reader = threading.current_thread()
        while self.error is None:
            self._wanted.wait(_LOOK_S if self._closed else _IDLE_LOOK_S)
            self._wanted.clear()
            if not self._reading.acquire(blocking=self._closed):
                continue  # whoever waits reads
            try:
                while self._receive(self._patience_s):
                    pass
            finally:
                self._reading.release()
            if self._unanswered:  # whoever waits for it may have found this thread reading
                self._wanted.set()
        self._reported.set()
        if not self._closed:
            self._on_lost(self, self.error)

    @property
    def _patience_s(self) -> float:
        return _LOOK_S if self._unanswered or self._closed else 0.0

    def _receive(self, wait_s: float) -> bool:
        """Handle what comes within ``wait_s``; whether there may be more soon. One thread at a
        time."""
        try:
            if not self._poll.poll(wait_s * 1000):
                return self._unanswered
            received = self._socket.recv(_RECEIVED_MAX)
            if not received:
                raise NodeUnreachable("the node ended the stream")
            self._packets.feed(received)
            while (packet := self._packets.next()) is not None:
                self._handle(packet.metadata)
            return True
        except SlotwheelError as error:
            self._lose(error)
        except OSError as error:
            self._lose(_broken(error))
        except BaseException:  # interrupted: what was received may be lost
            self._lose(NodeUnreachable("reading was interrupted"))
            raise
        return False

    def _handle(self, metadata: bytes) -> None:
        answer = decode_answer(metadata)
        if isinstance(answer, RefusedBatch) and (
            answer.sequence == NO_BATCH or isinstance(answer.error, NotMaster)
        ):
            raise answer.error  # all of it is sent again, perhaps to another node
        self._answered += 1
        self._on_answer(answer)


def _broken(error: OSError) -> NodeUnreachable:
    return NodeUnreachable(
        f"node not reachable: {error}", remedy="Check the address, and that the node runs"
    )

"""One append exchange: batches in, receipts out, in order and pipelined.

Theory: reading, appending and answering overlap. The Flight handler's thread reads a batch, appends
it to the wheel (which checks, copies and queues it for the next group commit) and reads the next; a
second thread waits for the futures in the same order and writes receipts as they resolve. It is
woken when a future resolves, not when a batch is read: waking it for nothing costs two switches a
batch.

    handler thread:   read -> append -> read -> append -> ...
                                |            |
                                 (window: sequence, future)
                                |            |
    receipts thread:         wait -> write receipt -> wait -> ...

Rules:
- At most ``IN_FLIGHT_MAX`` batches are read and not answered; besides, ``REQUESTS_IN_FLIGHT_MAX``
  requests, while they are smaller than one full batch together. The next is not even read, so flow
  control of the transport stops the sender and memory stays bounded.
- A request is appended under its own producer, and may come again on any exchange.
- A batch that cannot be accepted is answered with an error, and the stream goes on. Only an error
  that leaves nothing to answer to (no sequence, broken framing, a wrong schema) ends the stream.
- A refused batch is freed: errors are stripped of their traceback, whose frames refer to it.
- On a deposed master a stream ends: batches that wait are answered ``NotMaster``, and a quiet
  client gets an answer to no batch (``NO_BATCH``), so that it connects to the new master by itself.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..wheel.checks import check_names, wrong_type
from ..wheel.errors import InvalidBatch, NotMaster, NotRunning, Overloaded, SlotwheelError
from ..wheel.protocol import (
    IN_FLIGHT_MAX,
    NO_BATCH,
    REQUESTS_IN_FLIGHT_MAX,
    AppendCommand,
    decode_sequence,
    encode_refused,
    encode_stored,
)
from ..wheel.request import RequestKey
from ..wheel.schema import INPUT
from .ports import Clock, IntakeEvents, WheelPort

_POLL_S = 0.25
_ROOM_RETRY_S = 0.02


@dataclass(frozen=True, slots=True)
class _Pending:
    sequence: int
    rows: int
    nbytes: int
    received: float
    outcome: Future[Any] | SlotwheelError
    request: RequestKey | None


class _Window:
    """What was read and is not answered. ``bytes_max``: of a full batch."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches = self._requests = self._requests_bytes = 0
        self._freed = threading.Condition()

    def wait_for_room(self, timeout_s: float) -> bool:
        with self._freed:
            return self._freed.wait_for(self._has_room, timeout_s)

    def _has_room(self) -> bool:
        return (
            self._batches < IN_FLIGHT_MAX
            and self._requests < REQUESTS_IN_FLIGHT_MAX
            and self._requests_bytes < self._bytes_max
        )

    def count(self, one: int, nbytes: int, *, request: bool) -> None:
        """``one`` batch more, or if it is -1, less."""
        with self._freed:
            if request:
                self._requests += one
                self._requests_bytes += one * nbytes
            else:
                self._batches += one
            self._freed.notify()


class AppendStream:
    """Serves one exchange until the client has written its last batch or has left."""

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        events: IntakeEvents,
        command: AppendCommand,
        reader: Any,
        writer: Any,
        *,
        closing: threading.Event,
        ending: threading.Event,
        room_timeout_s: float,
        peer: str = "",
        gone: Callable[[], bool] = lambda: False,
        has_peers: bool = False,
    ) -> None:
        self.peer = peer
        self._gone = gone  # whether the client ended the call, or its connection is lost
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._command = command
        # Without peers, an append is committed when it is durable here.
        self._early = {"early": True} if has_peers and command.acks == "1" else {}
        self._reader = reader
        self._writer = writer
        self._closing = closing  # no further batch is accepted
        self._ending = ending  # nothing is waited for any more
        self._room_timeout_s = room_timeout_s
        self._window = _Window(wheel.config.batch_bytes_max)
        self._pending: deque[_Pending | NotMaster | None] = deque()  # in the order of the answers
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # the first pending may be ready
        self._read = 0  # batches read; counted by the handler's thread alone
        self._answered = 0  # batches answered; by the receipts' thread alone
        self._client_gone = False
        self._active_s = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether every batch that was read is answered."""
        return self._read == self._answered

    @property
    def quiet_s(self) -> float:
        """Seconds since it became idle; -1 while it is not."""
        return time.monotonic() - self._active_s if self.idle else -1.0

    def depose(self, error: NotMaster) -> None:
        """Answer the client that this is not the master any more. From any thread."""
        self._pending.append(error)
        self.wake()

    def wake(self, _resolved: object = None) -> None:
        """Wake the receipts' thread: something may be ready. From any thread."""
        self._wakes.put(None)

    def run(self) -> None:
        """Serve the exchange. Errors: ``SlotwheelError`` that ended it, after all answers."""
        try:
            schema = self._reader.schema
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise InvalidBatch(
                f"the stream does not begin with a schema: {str(error)[:300]}",
                remedy="Build it with an Arrow library",
            ) from None
        check_schema(schema)
        receipts = threading.Thread(target=self._write_answers, name="flight-receipts", daemon=True)
        receipts.start()
        try:
            while self._read_one():
                pass
        finally:
            self._pending.append(None)
            self.wake()
            receipts.join()

    def _read_one(self) -> bool:
        while not self._window.wait_for_room(_POLL_S):
            if self._client_gone:
                return False
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return False
        except (pa.ArrowException, OSError) as error:
            if self._gone():
                return False
            raise InvalidBatch(
                f"the stream is not valid Arrow data: {str(error)[:300]}",
                remedy="Build it with an Arrow library",
            ) from None
        received = time.perf_counter()
        metadata = chunk.app_metadata
        sequence, request = decode_sequence(None if metadata is None else metadata.to_pybytes())
        batch = chunk.data
        del chunk
        rows = 0 if batch is None else batch.num_rows
        nbytes = 0 if batch is None else batch.get_total_buffer_size()
        self._active_s = time.monotonic()
        self._read += 1
        self._window.count(1, nbytes, request=request is not None)
        outcome = self._append(batch, nbytes, sequence, request)
        self._pending.append(_Pending(sequence, rows, nbytes, received, outcome, request))
        if isinstance(outcome, Future) and not self._ending.is_set():
            outcome.add_done_callback(self.wake)
        else:
            self.wake()
        if isinstance(outcome, NotMaster):
            raise outcome
        return True

    def _append(
        self,
        batch: pa.RecordBatch | None,
        nbytes: int,
        sequence: int,
        request: RequestKey | None,
    ) -> Future[Any] | SlotwheelError:
        try:
            if batch is None:
                raise InvalidBatch("metadata without a batch", remedy="Send both in one message")
            self._check_size(nbytes)
            if request is not None:
                return self._append_when_there_is_room(batch, request.producer, request.sequence)
            producer = self._command.producer
            return self._append_when_there_is_room(batch, producer, sequence if producer else -1)
        except SlotwheelError as error:
            return stripped(error)
        except Exception as error:  # a bug, or the disk's error: the stream must go on
            return self._unexpected(error)

    def _append_when_there_is_room(
        self, batch: pa.RecordBatch, producer: int, sequence: int
    ) -> Future[Any]:
        deadline = time.monotonic() + self._room_timeout_s
        while True:
            if self._closing.is_set():
                raise NotRunning("the node is shutting down", remedy="Try again in a moment")
            try:
                return self._wheel.append(
                    batch,
                    self._clock(),
                    producer=producer,
                    sequence=sequence,
                    **self._early,
                )
            except Overloaded:
                began = time.monotonic()
                if began >= deadline or not self._wheel.wait_for_room(deadline - began):
                    raise
                if time.monotonic() - began < _ROOM_RETRY_S:
                    self._closing.wait(_ROOM_RETRY_S)  # there was room; something else is missing

    def _check_size(self, nbytes: int) -> None:
        # Counted on the buffers as received, before their content is read. The wheel checks the
        # exact limit against the exact size later; padding is allowed a tenth.
        limit = self._wheel.config.batch_bytes_max
        if nbytes > limit + limit // 10:
            raise InvalidBatch(
                "batch too large",
                got=f"{nbytes} bytes",
                limit=f"{limit} bytes",
                remedy="Send smaller batches",
            )

    def _write_answers(self) -> None:
        while (item := self._next_answer()) is not None:
            if isinstance(item, NotMaster):
                self._send_deposed(item)
                continue
            try:
                answer = self._answer(item)
                if answer is not None and not self._client_gone:
                    self._writer.write_metadata(pa.py_buffer(answer))
            except Exception:  # the client left; its batches are stored all the same
                self._client_gone = True
            self._active_s = time.monotonic()
            self._answered += 1
            self._window.count(-1, item.nbytes, request=item.request is not None)

    def _next_answer(self) -> _Pending | NotMaster | None:
        """Wait until the first pending item can be answered, and remove it."""
        while not (self._pending and self._is_ready(self._pending[0])):
            self._wakes.get()
        return self._pending.popleft()

    def _is_ready(self, item: _Pending | NotMaster | None) -> bool:
        if item is None or isinstance(item, NotMaster) or not isinstance(item.outcome, Future):
            return True
        return item.outcome.done() or self._ending.is_set()

    def _send_deposed(self, error: NotMaster) -> None:
        try:
            self._writer.write_metadata(pa.py_buffer(encode_refused(NO_BATCH, error)))
        except Exception:
            self._client_gone = True

    def _answer(self, item: _Pending) -> bytes | None:
        try:
            if isinstance(item.outcome, SlotwheelError):
                raise item.outcome
            receipt = self._result(item.outcome)
        except SlotwheelError as error:
            self._events.refused(error.code, item.rows)
            return encode_refused(item.sequence, stripped(error))
        except Exception as error:
            return encode_refused(item.sequence, self._unexpected(error))
        self._events.appended(receipt.count, item.nbytes, time.perf_counter() - item.received)
        if self._command.acks == "0":
            return None
        base = receipt.base_offset
        offsets = np.arange(base, base + receipt.count, dtype=np.int64)
        checks = self._wheel.mint.checks(receipt.due, offsets)
        shift_ms = None if item.request is None else item.request.shift_ms(receipt.sequence)
        return encode_stored(item.sequence, base, receipt.created_ms, checks, shift_ms)

    @staticmethod
    def _result(future: Future[Any]) -> Any:
        if future.done():
            return future.result()
        raise NotRunning(
            "the node is shutting down; whether the batch is stored is not known yet",
            remedy="Send it again with the same producer and sequence",
        )

    def _unexpected(self, error: Exception) -> SlotwheelError:
        self._events.alarm("append-failed", error=repr(error))
        return SlotwheelError(
            "the node failed on this batch; whether it is stored is not known",
            got=type(error).__name__,
            remedy="The node's log has the cause",
        )


def check_schema(schema: pa.Schema) -> None:
    """Refuse a stream whose schema cannot become ``INPUT``, before any batch of it is read."""
    check_names(schema.names)
    for field in schema:
        wanted = INPUT.field(field.name)
        try:
            # A dictionary would be kept for the whole life of the stream, whatever its size.
            castable = not pa.types.is_dictionary(field.type)
            pa.nulls(0, field.type).cast(wanted.type)
        except pa.ArrowException:
            castable = False
        if not castable:
            raise wrong_type(field, wanted, f"Send '{field.name}' as {wanted.type}")


def stripped(error: SlotwheelError) -> SlotwheelError:
    """The error without its frames, which would keep the batch in memory."""
    error.__traceback__ = None
    error.__context__ = None
    error.__cause__ = None
    return error

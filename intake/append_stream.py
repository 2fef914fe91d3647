"""An append exchange over Flight: one thread reads, one answers.

Theory: reading, appending and answering overlap. The Flight handler's thread reads a batch, appends
it and reads the next; a second thread writes the answers as they become ready, in order
(``exchange.py`` has the rules). It is woken when a future resolves, not when a batch is read:
waking it for nothing costs two switches a batch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ..wheel.arrowclaims import is_plain_type
from ..wheel.checks import check_names, wrong_type
from ..wheel.errors import InvalidBatch, NotMaster
from ..wheel.protocol import AppendCommand
from ..wheel.schema import INPUT
from .door import Door
from .exchange import AppendExchange
from .ports import Clock, IntakeEvents, WheelPort

_POLL_S = 0.25
_ROOM_RETRY_S = 0.02


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
        door: Door | None = None,
    ) -> None:
        self.peer = peer
        self._gone = gone  # whether the client ended the call, or its connection is lost
        self._wheel = wheel
        self._reader = reader
        self._writer = writer
        self._closing = closing
        self._exchange = AppendExchange(
            wheel,
            clock,
            events,
            command,
            closing=closing,
            ending=ending,
            room_timeout_s=room_timeout_s,
            resolved=self.wake,
            has_peers=has_peers,
            door=door,
        )
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # an answer may be ready
        self._freed = threading.Condition()  # notified when there may be room
        self._read_to_the_end = False
        self._client_gone = False

    @property
    def idle(self) -> bool:
        """Whether every batch that was read is answered."""
        return self._exchange.idle

    @property
    def quiet_s(self) -> float:
        """As of ``AppendExchange``."""
        return self._exchange.quiet_s

    def depose(self, error: NotMaster) -> None:
        """Answer the client that this is not the master any more. From any thread."""
        self._exchange.depose(error)

    def wake(self) -> None:
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
            self._read_to_the_end = True
            self.wake()
            receipts.join()
            # The exchange refers to this stream, too: without it what was read would stay in memory
            # until Python looks for such circles.
            self._reader = self._writer = None

    def _read_one(self) -> bool:
        with self._freed:
            while not self._freed.wait_for(lambda: self._exchange.has_room, _POLL_S):
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
        metadata = chunk.app_metadata
        batch = chunk.data
        del chunk
        self._exchange.read(batch, None if metadata is None else metadata.to_pybytes())
        del batch
        self._exchange.append()
        while self._exchange.waits:
            self._wait_for_room()
            self._exchange.append()
        return True

    def _wait_for_room(self) -> None:
        began = time.monotonic()
        left_s = max(0.0, self._exchange.room_left_s)
        if self._wheel.wait_for_room(left_s) and time.monotonic() - began < _ROOM_RETRY_S:
            self._closing.wait(_ROOM_RETRY_S)  # there was room; something else is missing

    def _write_answers(self) -> None:
        while (answer := self._next_answer()) is not None:
            try:
                if answer[0] is not None and not self._client_gone:
                    self._writer.write_metadata(pa.py_buffer(answer[0]))
            except Exception:  # the client left; its batches are stored all the same
                self._client_gone = True
            with self._freed:
                self._freed.notify()

    def _next_answer(self) -> tuple[bytes | None] | None:
        """Wait for the next answer. None: there will be no more."""
        while (answer := self._exchange.next_answer()) is None:
            if self._read_to_the_end and self._exchange.idle:
                return None
            self._wakes.get()
        return answer


def check_schema(schema: pa.Schema) -> None:
    """Refuse a stream whose schema cannot become ``INPUT``, before any batch of it is read."""
    check_names(schema.names)
    for field in schema:
        wanted = INPUT.field(field.name)
        try:
            castable = is_plain_type(field.type)
            pa.nulls(0, field.type).cast(wanted.type)
        except pa.ArrowException:
            castable = False
        if not castable:
            raise wrong_type(field, wanted, f"Send '{field.name}' as {wanted.type}")

"""One open exchange to one peer: messages are written to it, and beats read from it report which
arrived.

Theory: a Flight exchange is a stream each way. Messages go one way only; the other way carries
*beats*, the count of messages the receiver has read. Beats tell a slow link from a dead one: TCP
accepts megabytes for a machine that lost its power, and reports nothing for minutes. Within a large
message TCP is asked: whether the other machine acknowledges more of it, or is silent.

Rules
- An exchange lives until its first error and is never repaired.
- Flight finishes a stream in the thread that reads, and finishing it there and elsewhere at once
  aborts the process. So an exchange ends by ``cut``; the reading thread sees that, and only then
  ``end`` frees what is left.
- Nothing waits without a limit: the first call has a timeout, a blocked write ends by ``cut``.
  Flight's own cancel does not end a write of which TCP has accepted a part; shutting the socket
  does.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from ...wheel.errors import InvalidBatch, NodeUnreachable, SlotwheelError
from ...wheel.protocol import (
    PEER_ACTION,
    channel_options,
    close_all,
    encode_json,
    translate,
    translated,
)
from .handshake import Greeting
from .sockets import Connection, TcpProgress, connecting
from .wire import ENTRIES

PING = b"SWPG"
"""Sent in place of a message when there is none: a sign that the link is up."""
#  0       4            12
#  +-------+------------+
#  | magic | taken, u64 |
#  +-------+------------+
_BEAT = struct.Struct(
    "<"
    "4s"  # magic: "SWPB"
    "Q"  # messages and pings of this exchange that the receiver has read
)
_BEAT_MAGIC = b"SWPB"
assert _BEAT.size == 12

GREETING_TIMEOUT_S = 0.5
_OPTIONS = channel_options(reconnect_ms_min=500, reconnect_ms_max=500)
_GOODBYE_S = 1.0


def encode_beat(acknowledged: int) -> bytes:
    return _BEAT.pack(_BEAT_MAGIC, acknowledged)


def connect(address: str) -> Any:
    """A Flight client for ``host:port``; connects on its first call."""
    with translated():
        return flight.FlightClient(f"grpc://{address}", generic_options=_OPTIONS)


def greet(client: Any, greeting: Greeting) -> Greeting:
    """Send our greeting; returns that of the node there. Errors: ``SlotwheelError``."""
    action = flight.Action(PEER_ACTION, greeting.encode())
    with translated():
        options = flight.FlightCallOptions(timeout=GREETING_TIMEOUT_S)
        results = list(client.do_action(action, options))
        return Greeting.decode(results[0].body.to_pybytes() if results else b"")


@contextlib.contextmanager
def calling(address: str, greeting: Greeting) -> Iterator[tuple[Any, Connection]]:
    """A Flight client after the greeting, and the connection under it. Both are used by the caller
    alone, and closed at the end. Errors: ``SlotwheelError``."""
    client, connection = connect(address), Connection()
    try:
        with connecting(address) as connection:
            greet(client, greeting)
        yield client, connection
    finally:
        close_all(client)
        connection.close()


def refusal(error: Exception) -> flight.FlightServerError:
    """An error as it is sent to a peer: text for people and all fields, if it is one of ours."""
    info = encode_json(error.to_wire()) if isinstance(error, SlotwheelError) else b""
    return flight.FlightServerError(str(error), extra_info=info)


class Exchange:
    """An exchange, open on construction. ``on_change``: called in the reading thread after each
    beat and once after the end.

    Errors: ``SlotwheelError``: ``NodeUnreachable``, or the peer's refusal.
    """

    def __init__(
        self,
        address: str,
        greeting: Greeting,
        check: Callable[[Greeting], None],
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self.error: SlotwheelError | None = None
        """Why it ended."""
        self.ended = False
        self.received_at = clock()
        self._unbeaten: deque[tuple[int, float]] = deque()  # (bytes, when written)
        self._acknowledged = 0
        self.unbeaten_bytes = 0
        self._lock = threading.Lock()
        self._moved = self.received_at  # when TCP was last seen to move
        self._sent = TcpProgress()
        with connecting(address) as self._connection:
            self._open(address, greeting, check)
        self._thread = threading.Thread(
            target=self._read, name=f"peer-beats-{greeting.to}", daemon=True
        )
        self._thread.start()

    def _open(self, address: str, greeting: Greeting, check: Callable[[Greeting], None]) -> None:
        self._client = connect(address)
        try:
            self.peer = greet(self._client, greeting)
            check(self.peer)
            with translated():
                descriptor = flight.FlightDescriptor.for_command(greeting.encode())
                self._writer, self._reader = self._client.do_exchange(descriptor)
                self._writer.begin(ENTRIES)
        except BaseException:
            close_all(self._client)
            raise

    def write(self, header: bytes, batch: pa.RecordBatch | None = None, nbytes: int = 0) -> None:
        """Send one message; blocks while the peer reads nothing. One thread at a time.

        Errors: ``SlotwheelError`` when the exchange has ended, for any reason.
        """
        with self._lock:
            self._unbeaten.append((nbytes, self._clock()))
            self.unbeaten_bytes += nbytes
        try:
            if batch is None:
                self._writer.write_metadata(pa.py_buffer(header))
            else:
                self._writer.write_with_metadata(batch, pa.py_buffer(header))
        except (pa.ArrowException, OSError) as error:
            # The reading side gets the reason why the stream ended.
            self._thread.join(_GOODBYE_S / 2)
            raise self.error or translate(error) from None

    def silence(self) -> tuple[float, float]:
        """For how many seconds something has been in flight without a beat and without TCP moving a
        long queue (0.0 if nothing is in flight); and for how many the peer's machine is silent.
        Call it regularly, from one thread."""
        before, self._sent = self._sent, self._connection.sending()
        with self._lock:
            now = self._clock()
            if self._sent.queued and self._sent.acknowledged != before.acknowledged:
                self._moved = now
            if not self._unbeaten:
                return 0.0, 0.0
            silent_s = now - max(self.received_at, self._moved, self._unbeaten[0][1])
            return silent_s, self._sent.unacknowledged_s

    def cut(self) -> None:
        """End the exchange at once, from any thread; a blocked ``write`` returns with an error."""
        self._reader.cancel()
        self._connection.shut()

    def end(self) -> None:
        """Wait a moment for the reading thread to end, and free all. In the thread that writes."""
        self._reader.cancel()
        self._thread.join(_GOODBYE_S)
        close_all(self._writer, self._client)
        self._connection.close()

    def _read(self) -> None:
        try:
            while True:
                metadata = self._reader.read_chunk().app_metadata
                self._beat(b"" if metadata is None else metadata.to_pybytes())
                self._on_change()
        except StopIteration:
            self.error = NodeUnreachable("the peer ended the exchange")
        except SlotwheelError as ours:
            self.error = ours
        except (pa.ArrowException, OSError) as theirs:
            self.error = translate(theirs)
        self.ended = True
        self._on_change()

    def _beat(self, data: bytes) -> None:
        magic, acknowledged = _BEAT.unpack(data) if len(data) == _BEAT.size else (b"", 0)
        with self._lock:
            if magic != _BEAT_MAGIC or not 0 <= acknowledged - self._acknowledged <= len(
                self._unbeaten
            ):
                raise InvalidBatch("not a peer's answer", got=repr(data[:32]))
            self.received_at = self._clock()
            for _ in range(acknowledged - self._acknowledged):
                self.unbeaten_bytes -= self._unbeaten.popleft()[0]
            self._acknowledged = acknowledged

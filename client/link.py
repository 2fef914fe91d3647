"""One connection to a node: the hello, the append exchange, and the thread that reads answers.

A link connects only to a node that accepts appends: with peers, to the master.

Theory: a link lives until its first error and is never repaired; the sender makes a new one and
sends unanswered batches again. So nothing here retries.

When a stream ends, Flight finishes both directions of it in the reading thread. To finish writing
in another thread at that moment aborts the whole process. So a link whose batches are answered, or
given up, ends by ``cut``, which may be called at any time; only one without answers (``acks="0"``)
finishes its writing, for its last batches may still be in flight.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import pyarrow as pa
from pyarrow import flight

from ..wheel.errors import NodeUnreachable, NotMaster, SlotwheelError
from ..wheel.protocol import (
    HELLO,
    AppendCommand,
    RefusedBatch,
    channel_options,
    close_all,
    decode_answer,
    decode_json,
    encode_json,
    encode_sequence,
    split_address,
    translate,
    translated,
)
from ..wheel.request import RequestKey
from ..wheel.schema import INPUT
from .columns import Limits
from .edgelink import EdgeLink
from .hello import Hello
from .message import clock_ms
from .transport import LinkPort, OnAnswer, OnLost, OpenLink, ReadInThread

# gRPC gives up connecting after the shortest pause between two attempts. It is longer than the time
# limit of a link's first call, so that this one decides how slow a node may be.
_OPTIONS = channel_options(reconnect_ms_min=5000, reconnect_ms_max=5000)
_log = logging.getLogger("slotwheel.client")

_AVOID_S = 60.0
"""How long, s, an append edge is not tried again that could not be used."""
_avoided: dict[str, float] = {}
"""Until when, monotonic, by token: so one of a node that was started again is tried at once."""

_GOODBYE_S = 0.2
_CLOSE_S = 1.0


def connect(address: str) -> Any:
    """A Flight client for ``host:port``; connects on its first call."""
    try:
        return flight.FlightClient(f"grpc://{address}", generic_options=_OPTIONS)
    except (pa.ArrowException, OSError) as error:
        raise NodeUnreachable(
            "not an address", got=repr(address), limit="host:port", remedy=str(error)[:200]
        ) from None


def call(client: Any, action: str, fields: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Call one action. Errors: those that the node answers, ``NodeUnreachable``."""
    body = flight.Action(action, encode_json(fields))
    options = flight.FlightCallOptions(timeout=timeout_s)
    with translated():
        results = list(client.do_action(body, options))
        return decode_json(results[0].body.to_pybytes() if results else b"")


class FlightLink(LinkPort):
    """One append exchange over ``client``, open on construction. ``read_in_thread``: runs a
    function in another thread; this one calls ``on_answer``, and ``on_lost`` once, with the reason,
    unless ``close`` was called first.

    ``error``: that reason, once it is known. ``epoch``: the master's, 0 without peers.

    ``client`` belongs to it then. Errors: ``NodeUnreachable``.
    """

    def __init__(
        self,
        client: Any,
        hello: Hello,
        command: AppendCommand,
        on_answer: OnAnswer,
        on_lost: OnLost,
        read_in_thread: ReadInThread,
    ) -> None:
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._closed = False
        self._writing = threading.Lock()
        self._ending = threading.Lock()
        self._cut = False
        self._answers = command.acks != "0"
        self._read_to_the_end = threading.Event()
        self._reads_in: threading.Thread | None = None
        self.error: SlotwheelError | None = None
        self._writer: Any = None
        self._client = client
        self.group, self.limits, self.epoch = hello.group, hello.limits, hello.epoch
        try:
            with translated():
                descriptor = flight.FlightDescriptor.for_command(command.encode())
                self._writer, self._reader = self._client.do_exchange(descriptor)
                self._writer.begin(INPUT)
        except BaseException:
            if self._writer is not None:
                self._reader.cancel()
            close_all(self._writer)
            raise
        read_in_thread(self._read)

    def write(
        self,
        rows: pa.RecordBatch,
        sequence: int,
        request: RequestKey | None = None,
        *,
        read: bool = True,  # noqa: ARG002
    ) -> None:
        """Send a batch; blocks while the node reads nothing. Errors: ``SlotwheelError``."""
        metadata = pa.py_buffer(encode_sequence(sequence, request))
        try:
            with self._writing:
                self._writer.write_with_metadata(rows, metadata)
        except (pa.ArrowException, OSError) as error:
            # The reading side gets the reason why the stream ended.
            self._read_to_the_end.wait(0.5)
            raise self.error or translate(error) from None

    def cut(self) -> None:
        """End the link at once; a blocked ``write`` returns with an error."""
        locked = self._ending.acquire(timeout=_GOODBYE_S)
        self._cut = True
        if locked:
            self._ending.release()
        self._reader.cancel()

    def close(self) -> None:
        """End the link, wait a moment for the reading thread, and free everything."""
        self._closed = True
        if self._answers:
            self.cut()
        else:
            self._send_done()
        we_read = threading.current_thread() is self._reads_in
        if not we_read and not self._read_to_the_end.wait(_CLOSE_S):
            self.cut()
            self._read_to_the_end.wait(_CLOSE_S)
        close_all(self._writer, self._client)

    def _send_done(self) -> None:
        with contextlib.suppress(pa.ArrowException, OSError), self._writing, self._ending:
            if not self._cut and not self._read_to_the_end.is_set():
                self._writer.done_writing()

    def _read(self) -> None:
        error: SlotwheelError
        self._reads_in = threading.current_thread()
        try:
            while True:
                chunk = self._reader.read_chunk()
                metadata = chunk.app_metadata
                if metadata is None:
                    continue
                answer = decode_answer(metadata.to_pybytes())
                if isinstance(answer, RefusedBatch) and isinstance(answer.error, NotMaster):
                    self.cut()  # all of it is sent again, to another node
                    raise answer.error
                self._on_answer(answer)
        except StopIteration:
            error = NodeUnreachable("the node ended the stream")
        except SlotwheelError as ours:
            error = ours
        except (pa.ArrowException, OSError) as theirs:
            error = translate(theirs)
        self.error = error
        self._read_to_the_end.set()
        if not self._closed:
            self._on_lost(self, error)


def say_hello(client: Any, timeout_s: float) -> Hello:
    """Errors: those that the node answers, ``NodeUnreachable``."""
    fields = call(client, HELLO, {}, timeout_s)
    alone = "role" not in fields
    try:
        limits = fields["limits"]
        return Hello(
            str(fields["group"]),
            Limits(
                message_bytes=int(limits["message_bytes"]),
                batch_rows=int(limits["batch_rows"]),
                batch_bytes=int(limits["batch_bytes"]),
                horizon_ms=int(limits["horizon_ms"]),
                clock_ahead_ms=int(fields["now_ms"]) - clock_ms(),
                requests=int(limits.get("requests", 0)),
            ),
            alone or bool(fields["serving"]),
            0 if alone else int(fields["epoch"]),
            "" if alone else str(fields["master_address"] or ""),
            int(fields.get("append_port", 0)),
            str(fields.get("append_token", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SlotwheelError("the node's hello is not readable", got=repr(error)) from None


def open_link(
    address: str,
    command: AppendCommand,
    timeout_s: float,
    on_answer: OnAnswer,
    on_lost: OnLost,
    read_in_thread: ReadInThread,
) -> LinkPort:
    """Connect to a node that accepts appends: to its append edge, if it has one that answers, else
    by Flight. Errors: ``NodeUnreachable``, ``NotMaster``, ``UnsupportedVersion``, and
    others that a node answers."""
    client = connect(address)
    ours = (command, on_answer, on_lost, read_in_thread)
    try:
        hello = say_hello(client, timeout_s)
        hello.check_master()
        if hello.append_port and time.monotonic() >= _avoided.get(hello.append_token, 0.0):
            try:
                link = EdgeLink(split_address(address)[0], hello, timeout_s, *ours)
            except NotMaster:
                raise
            except (OSError, SlotwheelError) as error:
                _avoid(address, hello, error)
            else:
                close_all(client)
                return link
        return FlightLink(client, hello, *ours)
    except BaseException:
        close_all(client)
        raise


def _avoid(address: str, hello: Hello, error: Exception) -> None:
    now_s = time.monotonic()
    for token in [token for token, until_s in [*_avoided.items()] if until_s < now_s]:
        _avoided.pop(token, None)  # several clients may do so at once
    _avoided[hello.append_token] = now_s + _AVOID_S
    _log.warning(
        "slotwheel client: the append edge of the node at %s, port %d, cannot be used (%s): sending"
        " by Flight, which is slower for single messages",
        address,
        hello.append_port,
        error,
    )


class FlightTransport:
    """Links and calls to nodes, by Flight."""

    @property
    def open_link(self) -> OpenLink:
        return open_link

    def connect(self, address: str) -> Any:
        return connect(address)

    def greet(self, connection: Any, timeout_s: float, *, of_master: bool) -> None:
        hello = say_hello(connection, timeout_s)
        if of_master:
            hello.check_master()

    def call(
        self, connection: Any, action: str, fields: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        return call(connection, action, fields, timeout_s)

    def epoch_of_master(self, address: str, timeout_s: float) -> int:
        return epoch_of_master(address, timeout_s)

    def end(self, connection: Any) -> None:
        close_all(connection)


def epoch_of_master(address: str, timeout_s: float) -> int:
    """The epoch of the master that a node knows; 0: it knows none, or does not answer."""
    client: Any = None
    try:
        client = connect(address)
        hello = say_hello(client, timeout_s)
    except SlotwheelError:
        return 0
    finally:
        close_all(client)
    return hello.epoch if hello.serving or hello.master else 0

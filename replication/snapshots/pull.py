"""A snapshot from one peer to another: a stream of chunks into files that are not in use yet.

Theory: entries that a follower needs may be no longer in any journal. Then it asks the master for
all slot files and the state (``wheel/peers/snapshot.py``) with one Flight call, on a connection of
its own, and the driver installs a complete snapshot. A stream that breaks is requested again, with
what was received of it by then: only the missing part of each file is sent.

The ticket is the greeting, a line feed, and the engine's request. A row of the stream is ``(second,
position, data)``; the first has the second ``HEADER`` and is the snapshot's header, with the bytes
of all its files as its position. Flight tells the end of a stream from its loss, and ``finish``
checks that the files are complete.

Rules: a reader that receives nothing for ``STALL_S`` is cut off, for its snapshot keeps the
master's cleaner from deleting; so is a sender that sends nothing. One stream a peer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from pyarrow import flight

from ...wheel.errors import InvalidBatch, NodeUnreachable, SlotwheelError, SyncFailed
from ...wheel.peers.snapshot import SnapshotSource
from ...wheel.peers.snapshot_request import SnapshotRequest
from ...wheel.peers.snapshot_sink import SnapshotSink
from ...wheel.protocol import translate, translated
from ..transport.exchange import calling, refusal
from ..transport.handshake import Greeting
from ..transport.sockets import Connection

HEADER = -1
STALL_S = 10.0
PROGRESS_S = 1.0
CHUNKS = pa.schema([("second", pa.int64()), ("position", pa.int64()), ("data", pa.large_binary())])


EmitEvent = Callable[..., None]
"""(name, **fields): an event for the log."""


class _Serving:
    def __init__(self, peer: str, cut: Callable[[], object], now: float) -> None:
        self.peer = peer
        self.cut = cut
        self.moved = now
        self.over = False
        self.sent_bytes = 0


class SnapshotServer:
    """The master's side. ``snapshot``: opens a source, and closes it. ``alarm``: for a person."""

    def __init__(
        self,
        snapshot: Callable[[SnapshotRequest], AbstractContextManager[SnapshotSource]],
        event: EmitEvent,
        alarm: EmitEvent,
        clock: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._event = event
        self._alarm = alarm
        self._clock = clock
        self._lock = threading.Lock()
        self._serving: dict[str, _Serving] = {}

    def stream(self, theirs: Greeting, asked: bytes, cut: Callable[[], object]) -> Any:
        """Flight's data stream for a peer. Errors: ``Damaged``, ``UnsupportedVersion``."""
        request = SnapshotRequest.decode(asked)
        mine = _Serving(theirs.node_id, cut, self._clock())
        with self._lock:
            older = self._serving.get(theirs.node_id)
            self._serving[theirs.node_id] = mine
        if older is not None:
            older.over = True
            older.cut()
        return flight.GeneratorStream(CHUNKS, self._chunks(request, mine))

    def watch(self) -> None:
        """Cut streams whose reader has stalled. Call it regularly."""
        with self._lock:
            stalled = [one for one in self._serving.values() if self._clock() - one.moved > STALL_S]
        for one in stalled:
            one.over = True
            one.cut()

    def stop(self) -> None:
        with self._lock:
            left = list(self._serving.values())
        for one in left:
            one.over = True

    def _chunks(self, request: SnapshotRequest, mine: _Serving) -> Iterator[pa.RecordBatch]:
        peer = mine.peer
        try:
            with self._snapshot(request) as source:
                self._event("snapshot-sends", peer=peer, index=source.index, bytes=source.nbytes)
                yield chunk_row(HEADER, source.nbytes, source.header())
                for second, position, data in source.chunks():
                    if mine.over:
                        raise flight.FlightUnavailableError("a newer request, or the end")
                    mine.moved = self._clock()
                    mine.sent_bytes += len(data)
                    yield chunk_row(second, position, data)
        except (SlotwheelError, OSError) as error:
            self._alarm("snapshot-failed", peer=peer, error=str(error))
            raise refusal(error) from None
        finally:
            self._event("snapshot-sent", peer=peer, bytes=mine.sent_bytes)
            with self._lock:
                if self._serving.get(peer) is mine:
                    del self._serving[peer]


class SnapshotFetch:
    """The follower's side: one attempt, in a thread of its own.

    ``done(fetch)`` is called there at the end: ``update`` is the result of ``finish``, or ``error``
    is why there is none. After ``abandon``, ``done`` is not called, and the sink is not used any
    more.
    """

    def __init__(
        self,
        peer: str,
        address: str,
        greeting: Greeting,
        sink: SnapshotSink,
        done: Callable[[SnapshotFetch], None],
        event: EmitEvent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.peer = peer
        self.update: Any = None
        self.error: Exception | None = None
        self._address = address
        self._greeting = greeting
        self._sink = sink
        self._done = done
        self._event = event
        self._clock = clock
        self._lock = threading.Lock()  # held while the sink is used
        self._abandoned = False
        self._reader: Any = None
        self._connection = Connection()
        self._waits_since: float | None = None
        self._logged_at = clock()
        self._thread = threading.Thread(target=self._run, name="peer-snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes received, bytes expected."""
        return self._sink.received, self._sink.expected

    def is_stalled(self) -> bool:
        """Whether the peer has sent nothing for long. Time that this side needs is not counted."""
        since = self._waits_since
        return since is not None and self._clock() - since > STALL_S

    def abandon(self) -> None:
        """Give the fetch up, from any thread."""
        self._abandoned = True
        reader = self._reader
        if reader is not None:
            reader.cancel()
        self._connection.shut()  # before the call is answered there is no reader to cancel
        with self._lock:  # a thread that uses the sink finishes first
            self._sink.close()

    def _run(self) -> None:
        try:
            update = self._fetch()
        except Exception as error:
            self.error = error
            with contextlib.suppress(OSError, NodeUnreachable):
                self._end(error)
        else:
            self.update = update
        if not self._abandoned:
            self._done(self)

    def _end(self, error: Exception) -> None:
        """End an attempt. The received files stay for the next one, unless their room is needed,
        the fetch is not, or they may not be durable. Errors: ``NodeUnreachable`` after
        ``abandon``."""
        with self._use() as sink:
            sink.close()
        left = isinstance(error, (OSError, LookupError, SyncFailed))
        removing = self._sink.discard()
        while left:  # one file at a time, so that ``abandon`` does not wait for all of them
            with self._use():
                left = next(removing, self) is not self

    def _fetch(self) -> Any:
        request = self._sink.begin(self._check_wanted)
        with calling(self._address, self._greeting) as (client, self._connection):
            self._check_wanted()  # before this, ``abandon`` had no socket to shut
            self._waits_since = self._clock()
            with translated():
                ticket = self._greeting.encode() + b"\n" + request.encode()
                self._reader = client.do_get(flight.Ticket(ticket))
            try:
                self._receive()
                with self._use() as sink:
                    return sink.finish()
            except BaseException:
                self._reader.cancel()  # otherwise the sender would go on
                raise

    def _receive(self) -> None:
        has_header = False
        while True:
            self._waits_since = self._clock()
            try:
                batch = self._reader.read_chunk().data
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                raise translate(error) from None
            finally:
                self._waits_since = None
            for second, position, data in chunk_rows(batch):
                with self._use() as sink:
                    if has_header:
                        sink.chunk(second, position, data)
                    else:
                        sink.header(bytes(data))
                        has_header = True
                        self._progress()
            if self._clock() - self._logged_at >= PROGRESS_S:
                self._progress()

    def _progress(self) -> None:
        self._logged_at = self._clock()
        received, expected = self.progress
        self._event("snapshot-progress", peer=self.peer, bytes=received, of_bytes=expected)

    @contextlib.contextmanager
    def _use(self) -> Iterator[SnapshotSink]:
        with self._lock:
            self._check_wanted()
            yield self._sink

    def _check_wanted(self) -> None:
        if self._abandoned:
            raise NodeUnreachable("the snapshot was given up")


def chunk_row(second: int, position: int, data: bytes) -> pa.RecordBatch:
    columns = [
        pa.array([second], pa.int64()),
        pa.array([position], pa.int64()),
        pa.array([data], pa.large_binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHUNKS)


def chunk_rows(batch: pa.RecordBatch) -> Iterator[tuple[int, int, memoryview]]:
    """The chunks of a batch: second, position, data. Errors: ``InvalidBatch``."""
    try:
        if batch is None or batch.schema.types != CHUNKS.types:
            raise InvalidBatch("not a part of a snapshot")
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidBatch(f"a broken part of a snapshot: {str(error)[:200]}") from None
    seconds, positions = batch.column(0).to_pylist(), batch.column(1).to_pylist()
    for row, data in enumerate(batch.column(2)):
        if seconds[row] is None or positions[row] is None or not data.is_valid:
            raise InvalidBatch("a part of a snapshot with nothing in it")
        yield seconds[row], positions[row], memoryview(data.as_buffer())

"""A snapshot from one peer to another: parts of files that go into files not in use yet.

Theory: entries that a follower needs may be no longer in any journal. Then it asks the master for
all slot files and the state (``wheel/peers/snapshot.py``) on a channel of its own, and the driver
installs a complete snapshot. A channel that breaks is opened again, and the request says what was
received by then: only the missing part of each file is sent.

The first part has ``HEADER`` in the place of a slot, and is the snapshot's header, with the bytes
of all its files as its position. ``finish`` checks that the files are complete.

Rules: a fetch that receives nothing for ``STALL_S`` is given up, or a peer behind a dead link would
wait for ever. One fetch a peer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

from ...wheel.errors import NodeUnreachable, SlotwheelError, SyncFailed
from ...wheel.peers.snapshot import SnapshotSource
from ...wheel.peers.snapshot_request import SnapshotRequest
from ...wheel.peers.snapshot_sink import SnapshotSink
from ...wire.channel import Channel, Secure
from ...wire.frames import Kind
from ..transport.exchange import open_channel
from ..transport.handshake import Greeting
from ..transport.parts import HEADER, PARTS, SendPart, receive_part

STALL_S = 10.0
PROGRESS_S = 1.0


EmitEvent = Callable[..., None]
"""(name, **fields): an event for the log."""
OpenSnapshot = Callable[[SnapshotRequest], AbstractContextManager[SnapshotSource]]


def send_snapshot(
    snapshot: OpenSnapshot,
    event: EmitEvent,
    alarm: EmitEvent,
    theirs: Greeting,
    asked: bytes,
    send: SendPart,
) -> None:
    """Send a snapshot that was asked for. Errors: ``Damaged``, ``UnsupportedVersion``,
    ``OSError``, ``NodeUnreachable``: the peer has left."""
    request, peer, sent = SnapshotRequest.decode(asked), theirs.node_id, 0
    try:
        with snapshot(request) as source:
            event("snapshot-sends", peer=peer, index=source.index, bytes=source.nbytes)
            send(HEADER, source.nbytes, source.header())
            for slot, position, data in source.chunks():
                send(slot, position, data)
                sent += len(data)
    except NodeUnreachable:
        raise
    except (SlotwheelError, OSError) as error:
        alarm("snapshot-failed", peer=peer, error=str(error))
        raise
    finally:
        event("snapshot-sent", peer=peer, bytes=sent)


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
        secure: Secure | None = None,
    ) -> None:
        self._secure = secure
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
        self._channel: Channel | None = None
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
        """True if the peer has sent nothing for long. Time that this side needs is not counted."""
        since = self._waits_since
        return since is not None and self._clock() - since > STALL_S

    def abandon(self) -> None:
        """Give the fetch up, from any thread."""
        self._abandoned = True
        channel = self._channel
        if channel is not None:
            channel.shut()
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
        they are not, or they may not be durable. Errors: ``NodeUnreachable`` after ``abandon``."""
        with self._use() as sink:
            sink.close()
        left = isinstance(error, (OSError, LookupError, SyncFailed))
        removing = self._sink.discard()
        while left:  # one file at a time, so that ``abandon`` does not wait for all of them
            with self._use():
                left = next(removing, self) is not self

    def _fetch(self) -> Any:
        request = self._sink.begin(self._check_wanted)
        with closing(open_channel(self._address, self._greeting, PARTS, self._secure)) as channel:
            self._channel = channel
            self._check_wanted()  # before this, ``abandon`` had no channel to shut
            self._waits_since = self._clock()
            channel.send(Kind.REQUEST, b"", request.encode())
            self._receive(channel)
            with self._use() as sink:
                return sink.finish()

    def _receive(self, channel: Channel) -> None:
        has_header = False
        while True:
            self._waits_since = self._clock()
            try:
                part = receive_part(channel)
            finally:
                self._waits_since = None
            if part is None:
                return
            with self._use() as sink:
                if has_header:
                    sink.chunk(part.slot, part.position, part.data)
                else:
                    sink.header(bytes(part.data))
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

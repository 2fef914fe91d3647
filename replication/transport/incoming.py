"""Messages of peers: checked, decoded and verified in the thread that received them.

Theory: Flight gives each exchange a thread. It reads one message after the other, verifies the
entries beside it (a CRC an entry, outside the interpreter lock where it matters), and passes it to
the driver. Beats are sent now and then, and after each ping at once. Passing on never blocks; when
more is received than the journal could write, the bulk exchange waits *after* the message, beating
all the while, so that the sender can tell a slow disk from a dead link.

Rules: a caller without a valid greeting gets the reason and no further. A malformed message ends
its exchange, never more. A newer exchange of the same peer ends the older one, which a machine that
lost its power would otherwise leave open for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ...wheel.errors import InvalidBatch, SlotwheelError
from ...wheel.journal.entry import Entry
from ..rules.messages import PeerMessage
from . import wire
from .exchange import PING, encode_beat
from .handshake import SLOT, SNAPSHOT, Greeting, PeerInstances, check_greeting

SILENT_S = 10.0
"""An exchange without even a ping for so long, s, is cut."""
_ROOM_POLL_S = 0.01
_BEAT_S = 0.2
_BEAT_BYTES = 1 << 20
"""A beat is sent after so much time, or so many bytes, whichever is first."""

MakeGreeting = Callable[[str, str], Greeting]
"""(to, lane) to this node's greeting."""
Receive = Callable[[PeerMessage, Sequence[Entry]], None]


class IncomingEvents(Protocol):
    def refused(self, node_id: str, error: SlotwheelError) -> None:
        """A caller was refused; ``node_id``: as it gave it, empty when unreadable."""

    def broken(self, node_id: str, error: SlotwheelError) -> None:
        """A peer sent a malformed message."""


@dataclass(slots=True, eq=False)
class _Open:
    greeting: Greeting
    cut: Callable[[], object]
    received_at: float
    count: int = 0
    beat_at: float = float("-inf")
    beat_bytes: int = 0
    """Bytes received since the last beat."""
    over: threading.Event = field(default_factory=threading.Event)


class Incoming:
    """The exchanges that peers opened to this node; implements ``intake.ports.PeerPort``. ``room``:
    whether more entries can be accepted now. ``snapshot`` and ``slot``: make Flight's data stream
    for a peer's fetch, from the part of its ticket behind the greeting."""

    def __init__(
        self,
        identity: MakeGreeting,
        instances: PeerInstances,
        receive: Receive,
        room: Callable[[], bool],
        snapshot: Callable[[Greeting, bytes, Callable[[], object]], Any],
        slot: Callable[[bytes], Any],
        events: IncomingEvents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._instances = instances
        self._receive = receive
        self._room = room
        self._snapshot = snapshot
        self._slot = slot
        self._events = events
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], _Open] = {}
        self._stopping = False

    def greet(self, body: bytes) -> bytes:
        """Answer a greeting. Errors: ``InvalidConfiguration``, ``UnsupportedVersion``."""
        theirs = self._let_in(body)
        return self._identity(theirs.node_id, theirs.lane).encode()

    def stream(self, ticket: bytes, cut: Callable[[], object]) -> Any:
        """Flight's data stream for a ticket. Errors: as of ``greet``, ``snapshot`` and ``slot``."""
        greeting, _, request = ticket.partition(b"\n")
        theirs = self._let_in(greeting)
        if theirs.lane == SLOT:
            return self._slot(request)
        if theirs.lane != SNAPSHOT:
            raise InvalidBatch("unknown ticket", got=theirs.lane, limit=f"{SNAPSHOT}, {SLOT}")
        return self._snapshot(theirs, request, cut)

    def exchange(self, command: bytes, reader: Any, writer: Any, cut: Callable[[], object]) -> None:
        """Read an exchange to its end. Errors: those of ``greet``; ``InvalidBatch``,
        ``Damaged``."""
        greeting = self._let_in(command)
        key = (greeting.node_id, greeting.lane)
        mine = _Open(greeting, cut, self._clock())
        with self._lock:
            older = self._open.get(key)
            self._open[key] = mine
        if older is not None:
            older.over.set()
            older.cut()
        try:
            while not self._stopping and not mine.over.is_set():
                if not self._receive_one(mine, reader, writer):
                    break
        except SlotwheelError as error:
            self._events.broken(greeting.node_id, error)
            raise
        finally:
            with self._lock:
                if self._open.get(key) is mine:
                    del self._open[key]
                last = all(node_id != greeting.node_id for node_id, _ in self._open)
            if last:
                self._instances.gone(greeting.node_id, greeting.instance)

    def watch(self) -> None:
        """Cut exchanges whose peer is silent. Call it regularly."""
        now = self._clock()
        with self._lock:
            silent = [one for one in self._open.values() if now - one.received_at > SILENT_S]
        for one in silent:
            one.over.set()
            one.cut()

    def stop(self) -> None:
        self._stopping = True
        with self._lock:
            left = list(self._open.values())
        for one in left:
            one.over.set()
            one.cut()

    def _let_in(self, body: bytes) -> Greeting:
        node_id = ""
        try:
            theirs = Greeting.decode(body)
            node_id = theirs.node_id
            check_greeting(self._identity(node_id, theirs.lane), theirs)
            self._instances.admit(node_id, theirs.instance, self._clock())
        except SlotwheelError as error:
            self._events.refused(node_id, error)
            raise
        return theirs

    def _receive_one(self, mine: _Open, reader: Any, writer: Any) -> bool:
        """Read one message and pass it on. Returns whether another may follow."""
        try:
            chunk = reader.read_chunk()
        except pa.ArrowInvalid as error:
            raise InvalidBatch(
                f"not an exchange of peers: {str(error)[:300]}",
                remedy="Run the same version of slotwheel on every peer",
            ) from None
        except (StopIteration, pa.ArrowException, OSError):
            return False  # it ended, was cut, or its connection is lost
        mine.received_at = self._clock()
        self._instances.touch(mine.greeting.node_id, mine.greeting.instance, mine.received_at)
        metadata = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
        is_ping = metadata == PING
        if not is_ping:
            self._hand_on(mine, metadata, chunk.data)
        try:
            if chunk.data is not None and not self._room():
                self._wait_for_room(mine, writer)
            mine.count += 1
            due = mine.received_at - mine.beat_at >= _BEAT_S or mine.beat_bytes >= _BEAT_BYTES
            if is_ping or due:
                self._beat(mine, writer)
        except (pa.ArrowException, OSError):
            return False
        return True

    def _beat(self, mine: _Open, writer: Any) -> None:
        mine.beat_at = mine.received_at
        mine.beat_bytes = 0
        writer.write_metadata(pa.py_buffer(encode_beat(mine.count)))

    def _hand_on(self, mine: _Open, header: bytes, batch: pa.RecordBatch | None) -> None:
        greeting = mine.greeting
        entries: Sequence[Entry] = ()
        if batch is not None:
            entries = wire.unpack_entries(batch, f"peer {greeting.node_id}")
        message = wire.decode(header, entries)
        sender = (message.sender, message.to, message.store)
        if sender != (greeting.node_id, greeting.to, greeting.store):
            raise InvalidBatch(
                "a message that is not from the peer that sent it",
                got=f"{message.sender} to {message.to}",
                limit=f"{greeting.node_id} to {greeting.to}",
                remedy="Run the same version of slotwheel on every peer",
            )
        if batch is not None:
            mine.beat_bytes += batch.nbytes
        self._receive(message, entries)

    def _wait_for_room(self, mine: _Open, writer: Any) -> None:
        while not self._room() and not mine.over.is_set() and not self._stopping:
            mine.received_at = self._clock()
            if mine.received_at - mine.beat_at >= _BEAT_S:
                self._beat(mine, writer)
            mine.over.wait(_ROOM_POLL_S)

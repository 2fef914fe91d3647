"""Connections of peers: a greeting is checked, and then its lane served in a thread of its own.

Theory: on a lane for messages, a thread reads one after the other, verifies the entries behind
it (a CRC an entry, outside the interpreter lock where it matters), and passes it to the driver.
Beats are sent now and then, and at once to whoever asks. Passing on never blocks; when more is
received than the journal could write, the bulk lane waits *after* the message, beating all the
while, so that the sender can tell a slow disk from a dead link. On a lane for a snapshot or a slot,
one request is read, and answered with chunks and an end.

Rules: a caller without a valid greeting gets the reason and no thread, or strangers would take all
there may be. A malformed message ends its channel, never more. A newer channel of the same peer and
lane ends the older one, which a machine that lost its power would otherwise leave open for ever. A
snapshot keeps the cleaner from deleting, so whoever reads nothing of it is cut off, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ...wheel.errors import InvalidBatch, NodeUnreachable, NotRunning, SlotwheelError
from ...wheel.files import Bytes
from ...wheel.journal.entry import Entry
from ...wire.channel import Channel
from ...wire.frames import Frame, Kind
from ..rules.messages import PeerMessage
from .encoding import decode, unpack_entries
from .exchange import MESSAGES, encode_beat
from .handshake import SNAPSHOT, Greeting, PeerInstances, check_greeting, check_proof
from .parts import REQUESTS, SendPart, send_part

SILENT_S = 10.0
"""A channel is cut on which nothing comes for so long, s, or of which nothing is read."""
_ROOM_POLL_S = 0.01
_BEAT_S = 0.2
_BEAT_BYTES = 4 << 20
"""A beat is sent after so much time, or so many bytes, whichever is first."""

MakeGreeting = Callable[[str, str], Greeting]
"""(to, lane) to this node's greeting."""
Receive = Callable[[PeerMessage, Sequence[Entry]], None]
SendSnapshot = Callable[[Greeting, bytes, SendPart], None]
"""Sends the parts that a peer's request asks for; returns at the end of them."""
SendSlot = Callable[[bytes, SendPart], None]


class IncomingEvents(Protocol):
    def refused(self, node_id: str, error: SlotwheelError) -> None:
        """A caller was refused; ``node_id``: as it gave it, empty when unreadable."""

    def greeted(self, theirs: Greeting) -> None:
        """A peer was let in."""

    def broken(self, node_id: str, error: SlotwheelError) -> None:
        """A peer sent a malformed message."""


@dataclass(slots=True, eq=False)
class _Open:
    greeting: Greeting
    channel: Channel
    waits_since: float | None = None
    """The time since which it waits for the peer to send, or to read; None: it does not wait."""
    count: int = 0
    beat_at: float = float("-inf")
    beat_bytes: int = 0
    """Bytes received since the last beat."""
    over: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        self.over.set()
        self.channel.shut()


class Incoming:
    """The channels that peers opened to this node; implements ``intake.ports.PeerPort``.
    ``room()``: more entries can be accepted now."""

    def __init__(
        self,
        identity: MakeGreeting,
        instances: PeerInstances,
        receive: Receive,
        room: Callable[[], bool],
        snapshot: SendSnapshot,
        slot: SendSlot,
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

    def admit(self, hello: bytes, names: Sequence[str] | None = None) -> Callable[[Channel], None]:
        """Check a greeting, at once. ``names``: those that the caller's certificate has proven;
        None: there is no TLS. Returns what serves its channel. Errors: ``InvalidConfiguration``,
        ``UnsupportedVersion``: the peer is refused."""
        return partial(self._serve, self._let_in(hello, names))

    def _serve(self, theirs: Greeting, channel: Channel) -> None:
        """Answer a greeting, and serve its lane to the end. Errors: ``InvalidBatch``, ``Damaged``:
        the peer sent what it may not; those of a snapshot or a slot."""
        channel.limits = MESSAGES.get(theirs.lane, REQUESTS)
        link = _Open(theirs, channel, waits_since=self._clock())
        key = (theirs.node_id, theirs.lane)
        with self._lock:
            if self._stopping:
                return
            older = self._open.get(key)
            self._open[key] = link
        if older is not None:
            older.end()
        try:
            channel.send(Kind.WELCOME, b"", self._identity(theirs.node_id, theirs.lane).encode())
            if theirs.lane in MESSAGES:
                self._receive_all(link)
            else:
                self._answer(link)
        finally:
            with self._lock:
                if self._open.get(key) is link:
                    del self._open[key]
                left = {lane for node_id, lane in self._open if node_id == theirs.node_id}
            if theirs.lane in MESSAGES and not left & MESSAGES.keys():
                self._instances.gone(theirs.node_id, theirs.instance)

    def watch(self) -> None:
        """Cut channels whose peer is silent, or reads nothing. Call it regularly."""
        before = self._clock() - SILENT_S
        with self._lock:
            waiting = [(link, link.waits_since) for link in self._open.values()]
        for link, since in waiting:
            if since is not None and since < before:
                link.end()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            left = list(self._open.values())
        for link in left:
            link.end()

    def _let_in(self, body: bytes, names: Sequence[str] | None) -> Greeting:
        node_id = ""
        try:
            theirs = Greeting.decode(body)
            node_id = theirs.node_id
            if names is not None:
                check_proof(theirs, names)
            check_greeting(self._identity(node_id, theirs.lane), theirs)
            self._instances.admit(node_id, theirs.instance, self._clock())
            self._events.greeted(theirs)
        except SlotwheelError as error:
            self._events.refused(node_id, error)
            raise
        return theirs

    # -- a lane for messages ---------------------------------------------------------------------

    def _receive_all(self, link: _Open) -> None:
        try:
            while not link.over.is_set():
                self._receive_one(link)
        except NodeUnreachable:
            raise  # it ended, was cut, or its connection is lost
        except SlotwheelError as error:
            self._events.broken(link.greeting.node_id, error)
            raise

    def _receive_one(self, link: _Open) -> None:
        frame = self._next(link)
        now = self._clock()
        self._instances.touch(link.greeting.node_id, link.greeting.instance, now)
        asked = frame.kind == Kind.BEAT
        if not asked:
            self._hand_on(link, frame)
        if frame.body and not self._room():
            self._wait_for_room(link)
        link.count += 1
        if asked or now - link.beat_at >= _BEAT_S or link.beat_bytes >= _BEAT_BYTES:
            self._beat(link, now)

    def _next(self, link: _Open) -> Frame:
        link.waits_since = self._clock()
        frame = link.channel.receive()
        link.waits_since = None
        assert frame is not None, "nothing was to end the waiting"
        return frame

    def _beat(self, link: _Open, now: float) -> None:
        link.beat_at = link.waits_since = now
        link.beat_bytes = 0
        link.channel.send(Kind.BEAT, encode_beat(link.count))
        link.waits_since = None

    def _hand_on(self, link: _Open, frame: Frame) -> None:
        greeting = link.greeting
        entries = unpack_entries(frame.body, f"peer {greeting.node_id}")
        message = decode(frame.metadata, entries)
        sender = (message.sender, message.to, message.store)
        if sender != (greeting.node_id, greeting.to, greeting.store):
            raise InvalidBatch(
                "a message that is not from the peer that sent it",
                got=f"{message.sender} to {message.to}",
                limit=f"{greeting.node_id} to {greeting.to}",
                remedy="Run the same version of slotwheel on every peer",
            )
        link.beat_bytes += len(frame.body)
        self._receive(message, entries)

    def _wait_for_room(self, link: _Open) -> None:
        while not self._room() and not link.over.is_set():
            now = self._clock()
            if now - link.beat_at >= _BEAT_S:
                self._beat(link, now)
            link.over.wait(_ROOM_POLL_S)

    # -- a lane for a snapshot or a slot ---------------------------------------------------------

    def _answer(self, link: _Open) -> None:
        request = bytes(self._next(link).body)

        def send(slot: int, position: int, data: Bytes) -> None:
            link.waits_since = self._clock()
            send_part(link.channel, slot, position, data)
            link.waits_since = None

        try:
            if link.greeting.lane == SNAPSHOT:
                self._snapshot(link.greeting, request, send)
            else:
                self._slot(request, send)
        except (LookupError, OSError) as error:
            raise NotRunning(str(error), remedy="It is asked again in a moment") from None
        link.channel.send(Kind.END)

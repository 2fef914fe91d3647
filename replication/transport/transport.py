"""Mailboxes between peers over the wire: send messages, and receive those of others.

Theory: each ordered pair of peers has links of its own: A's messages to B go over exchanges that A
opened, B's answers over those that B opened. So no thread waits for an answer on a connection, a
network that is cut one way only looks like what it is, and a message needs no number.

    driver -- send --> Outbox ----> lane "control" --> exchange --> B's server
                  \\-> Shipments -> lane "bulk" ----> exchange -->    |
                         ^ load(first, last, bytes)                  v
                        wheel                        B's Incoming -> receive -> B's driver

Rules: ``send`` never blocks and never fails; messages that cannot be sent are lost, as Raft allows,
and only entries that will not arrive are reported to the driver (``unsent``). Trouble with one peer
costs no other peer anything. Alarms about one peer are raised at most twice a minute.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ...wheel.errors import SlotwheelError
from ...wheel.journal.entry import Entry
from ...wire.channel import Secure
from ..rules.group import Group
from ..rules.messages import Append, PeerMessage
from .exchange import Exchange
from .handshake import BULK, CONTROL, Greeting, PeerInstances, check_greeting, is_refusal
from .incoming import Incoming, SendSlot, SendSnapshot
from .lane import REFUSED_PAUSE_S, Lane
from .outbox import LoadEntries, Outbox, Shipments

if TYPE_CHECKING:
    from ...security.tls import TlsFiles

WATCH_S = 0.25
ALARM_EVERY_S = 30.0
OTHER_ALARM_S = 2.0
"""An alarm with another reason about the same peer may follow after so long, s."""


class ReplicationEvents(Protocol):
    """Receives the events of replication. Names of events and alarms are stable."""

    def event(self, name: str, **fields: object) -> None: ...
    def alarm(self, name: str, **fields: object) -> None: ...


class Receiver(Protocol):
    """The driver, as its transport sees it. Called from the transport's threads; never blocks."""

    def receive(self, message: PeerMessage, entries: Sequence[Entry]) -> None: ...
    def unsent(self, peer: str, index: int) -> None:
        """Entries from ``index`` on will not arrive (0: all that the peer did not acknowledge)."""

    def room(self) -> bool:
        """True if more entries of the master can be accepted now."""


class Transport:
    """All links of one node. Thread-safe.

    ``store``: this node's store id. ``key``: the fingerprint of the group's key, empty while it is
    not known. ``load``: see ``outbox.LoadEntries``. ``snapshot``, ``slot``: answer the request of a
    peer. ``address_of``: where to connect to, when that is not what the group's list says (tests).
    ``tls``: TLS is on, by these files, and each peer proves its node id.
    """

    def __init__(
        self,
        group: Group,
        group_name: str,
        store: bytes,
        receiver: Receiver,
        load: LoadEntries,
        snapshot: SendSnapshot,
        slot: SendSlot,
        *,
        key: Callable[[], str] = str,
        events: ReplicationEvents,
        address_of: Callable[[str], str] | None = None,
        tls: TlsFiles | None = None,
        refused_pause_s: float = REFUSED_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._group_name = group_name
        self._store = store
        self._key = key
        self._events = events
        self.address_of = address_of or group.peers.__getitem__
        self._tls = tls
        self._clients_at: dict[str, str] = {}  # as the others have said in their greetings
        self._clock = clock
        self._receiver = receiver
        self.instance = secrets.token_hex(8)
        self._instances = PeerInstances()
        self._raised: dict[tuple[str, str], tuple[float, str]] = {}
        self._raised_lock = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="peer-watch", daemon=True)
        self.incoming = Incoming(
            self.identity,
            self._instances,
            receiver.receive,
            receiver.room,
            snapshot,
            slot,
            self,
            clock,
        )
        self._outboxes: dict[str, Outbox] = {}
        self._shipments: dict[str, Shipments] = {}
        self._control: dict[str, Lane] = {}
        self._bulk: dict[str, Lane] = {}
        for peer in group.others:
            self._add(peer, load, refused_pause_s)
        self._lanes = (*self._control.values(), *self._bulk.values())

    def _add(self, peer: str, load: LoadEntries, refused_pause_s: float) -> None:
        outbox = Outbox(self._clock)
        shipments = Shipments(
            load,
            lambda index: self._receiver.unsent(peer, index),
            lambda error: self.alarm("peer-load-failed", peer, error),
        )
        control = self._lane(peer, CONTROL, outbox, lambda: True, refused_pause_s)
        bulk = self._lane(peer, BULK, shipments, lambda: control.is_up, refused_pause_s)
        self._outboxes[peer], self._shipments[peer] = outbox, shipments
        self._control[peer], self._bulk[peer] = control, bulk

    def _lane(
        self,
        peer: str,
        name: str,
        box: Outbox | Shipments,
        may_open: Callable[[], bool],
        refused_pause_s: float,
    ) -> Lane:
        def open_exchange(on_change: Callable[[], None]) -> Exchange:
            return Exchange(
                self.address_of(peer),
                self.identity(peer, name),
                self._check_answer,
                on_change,
                self._clock,
                self.secure_to(peer),
            )

        return Lane(
            peer,
            name,
            box,
            open_exchange,
            self,
            may_open,
            refused_pause_s=refused_pause_s,
            clock=self._clock,
        )

    def identity(self, to: str, lane: str) -> Greeting:
        """This node's greeting for a peer."""
        return Greeting(
            group=self._group_name,
            node_id=self._group.me,
            to=to,
            instance=self.instance,
            store=self._store,
            peers=self._group.peers,
            key=self._key(),
            promise_ms=round(self._group.timing.promise_s * 1000),
            lane=lane,
            delivery=self._group.delivery,
            clients_at=self._group.clients_at or "",
        )

    def secure_to(self, peer: str) -> Secure | None:
        """Begins TLS to a peer, which has to prove its node id, wherever it is; None: without."""
        tls = self._tls
        return None if tls is None else lambda _host: tls.dial(peer)

    def clients_at(self, node_id: str) -> str:
        """Where clients reach a peer, ``host:port``; empty while it is not known."""
        if self._group.clients_at is None:
            return self._group.peers[node_id]
        if node_id == self._group.me:
            return self._group.clients_at
        return self._clients_at.get(node_id, "")

    # -- for the driver --------------------------------------------------------------------------

    def start(self) -> None:
        self._watcher.start()
        for lane in self._lanes:
            lane.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End all links; wait until their threads have ended, but not longer than ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        self._stopping.set()
        for lane in self._lanes:
            lane.stop()
        self.incoming.stop()
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))

    def send(self, message: PeerMessage) -> None:
        """Put a message into its mailbox."""
        if isinstance(message, Append):
            self._shipments[message.to].put(message)
            self._bulk[message.to].wake()
        else:
            self._outboxes[message.to].put(message)
            self._control[message.to].wake()

    def forget_shipments(self) -> None:
        """This node is not the master any more: drop entries that are queued."""
        for shipments in self._shipments.values():
            shipments.forget()

    def is_up(self, peer: str) -> bool:
        return self._control[peer].is_up and self._bulk[peer].is_up

    def status(self, peer: str) -> dict[str, object]:
        """The state of the links to a peer, in plain values."""
        control, bulk = self._control[peer], self._bulk[peer]
        error = control.error or bulk.error
        return {
            "connected": self.is_up(peer),
            "error": "" if error is None else str(error),
            "sent_messages": control.sent_messages + bulk.sent_messages,
            "sent_bytes": bulk.sent_bytes,
            "connects": control.opened,
        }

    # -- events of lanes (LaneEvents) --------------------------------------------------------------

    def up(self, lane: Lane) -> None:
        if lane.name == CONTROL:
            self._bulk[lane.peer].wake()
            self._events.event("peer-connected", peer=lane.peer, address=self.address_of(lane.peer))

    def down(self, lane: Lane, error: SlotwheelError) -> None:
        if not (self._control[lane.peer].is_up or self._bulk[lane.peer].is_up):
            self._instances.gone(lane.peer, lane.instance)
        if lane.name == CONTROL:
            self._events.event("peer-lost", peer=lane.peer, error=str(error))
        else:
            self._receiver.unsent(lane.peer, 0)
        if error.code not in _QUIET:
            self.alarm("peer-link-broken", lane.peer, error)

    def failed(self, lane: Lane, error: SlotwheelError) -> None:
        if is_refusal(error):
            self.alarm("peer-refuses", lane.peer, error)

    # -- events of incoming calls (IncomingEvents) -------------------------------------------------

    def refused(self, node_id: str, error: SlotwheelError) -> None:
        self.alarm("peer-refused", node_id, error)

    def greeted(self, theirs: Greeting) -> None:
        self._clients_at[theirs.node_id] = theirs.clients_at

    def broken(self, node_id: str, error: SlotwheelError) -> None:
        self.alarm("peer-message-broken", node_id, error)

    # --------------------------------------------------------------------------------------------

    def _check_answer(self, theirs: Greeting) -> None:
        ours = self.identity(theirs.node_id, theirs.lane)
        check_greeting(ours, theirs)
        self._instances.admit(theirs.node_id, theirs.instance, self._clock())
        self.greeted(theirs)

    def alarm(self, name: str, peer: str, error: Exception) -> None:
        """Raise an alarm, unless one about this peer is recent; another reason may follow soon. All
        callers that are no peers count as one: a stranger may give any name, and would otherwise
        fill the log with a line for each."""
        now, text = self._clock(), str(error)
        subject = name, peer if peer in self._control else ""
        with self._raised_lock:
            at, before = self._raised.get(subject, (-ALARM_EVERY_S, text))
            if now - at < (ALARM_EVERY_S if text == before else OTHER_ALARM_S):
                return
            self._raised[subject] = now, text
        self._events.alarm(name, peer=peer, error=text)

    def _stands(self, lane: Lane) -> bool:
        """False if the certificate of the peer at its other end does not count any more."""
        exchange = lane.exchange
        return self._tls is None or exchange is None or self._tls.stands(exchange.certificate)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_S):
            for lane in self._lanes:
                if lane.is_silent() or not self._stands(lane):
                    lane.cut()
            self.incoming.watch()


_QUIET = frozenset({"node-unreachable", "not-running"})
"""Codes of errors that are only events: no person has to act."""

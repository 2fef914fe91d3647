"""The port of peers: each thing that can be said there, by each caller who is not that peer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from slotwheel.node.intake.peerport import PeerServer
from slotwheel.replication.rules.messages import (
    Ack,
    Append,
    EntryMeta,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)
from slotwheel.replication.transport import encoding
from slotwheel.replication.transport.handshake import (
    BULK,
    CONTROL,
    LANES,
    SLOT,
    SNAPSHOT,
    Greeting,
    PeerInstances,
)
from slotwheel.replication.transport.incoming import Incoming
from slotwheel.security.tls import Tls, TlsFiles
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.protocol import ACTIONS, AppendCommand, encode_json, encode_sequence
from slotwheel.wire.channel import Secure
from slotwheel.wire.frames import Kind, encode_frame, encode_hello
from support.certificates import Authority
from support.denying import plain, to
from support.events import ToldEvents
from support.exchange import RawClient, action_frame, batch_frame
from support.mailboxes import entries_from
from support.waiting import eventually

STORE = b"b" * 16
ADDRESSES = {name: f"{name}.example:7201" for name in "abc"}
HEAD: Mapping[str, Any] = {"sender": "b", "to": "a", "store": STORE, "epoch": 7}
ENTRIES = entries_from(1, 2, epoch=7)
ALIKE = [b"B", b"b.example", b"b\0", b"b ", b"*", b""]
MESSAGES: list[PeerMessage] = [
    RequestVote(**HEAD, last_index=9, last_epoch=7),
    Vote(**HEAD, granted=True),
    Append(**HEAD, prev_index=0, prev_epoch=0, entries=(EntryMeta(7),) * 2, commit=2, sent_at=0.0),
    Heartbeat(**HEAD, commit=2, sent_at=0.0),
    Ack(**HEAD, durable=2, verified=2),
    SnapshotOffer(**HEAD, sent_at=0.0),
    TakeOver(**HEAD),
]


class Meeting(PeerServer):
    """The port of peer a, with the thread that turns it. ``received``: all that was passed on."""

    def __init__(self, tls: TlsFiles) -> None:
        self.received: list[object] = []
        self.events = ToldEvents()
        self.incoming = Incoming(
            lambda to, lane: greeting("a", to, lane),
            PeerInstances(),
            lambda message, entries: self.received.append((message, entries)),
            lambda: True,
            lambda _greeting, request, _send: self.received.append(request),
            lambda request, _send: self.received.append(request),
            self,
        )
        super().__init__("127.0.0.1:0", tls, self.incoming, self.events)
        self._served = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._served:
            self.turn()

    def end(self) -> None:
        self.incoming.stop()
        self.close(1.0)
        self._served = False
        self._thread.join(60)

    # What Incoming tells

    def refused(self, node_id: str, error: SlotwheelError) -> None: ...
    def greeted(self, theirs: Greeting) -> None: ...
    def broken(self, node_id: str, error: SlotwheelError) -> None: ...


def greeting(node_id: str, to: str, lane: str) -> Greeting:
    store = node_id.encode() * 16
    return Greeting("hidden-group", node_id, to, "1" * 16, store, ADDRESSES, lane=lane)


def frame(message: PeerMessage) -> bytes:
    body = b"".join(encoding.pack_entries(ENTRIES)) if isinstance(message, Append) else b""
    return encode_frame(Kind.MESSAGE, encoding.encode(message), len(body)) + body


def sayings(node_id: str) -> dict[str, bytes]:
    """All that can be said there, by whoever calls itself ``node_id``."""
    hello = encode_hello(AppendCommand(7, token="swt_gateway").encode())
    said = {f"action {name}": hello + action_frame(name, encode_json({})) for name in ACTIONS}
    said["batch"] = hello + batch_frame(to("orders"), encode_sequence(0))
    said["plain rows"] = hello + plain(0, "orders")
    said["nothing before a message"] = frame(MESSAGES[0])
    for lane in LANES:
        greeted = encode_hello(greeting(node_id, "a", lane).encode())
        said[lane] = greeted
        said[f"{lane} beat"] = greeted + encode_frame(Kind.BEAT, b"", 0)
    for message in MESSAGES:
        lane = BULK if isinstance(message, Append) else CONTROL
        greeted = encode_hello(greeting(node_id, "a", lane).encode())
        said[type(message).__name__] = greeted + frame(message)
    for lane in (SNAPSHOT, SLOT):
        greeted = encode_hello(greeting(node_id, "a", lane).encode())
        said[f"{lane} request"] = greeted + encode_frame(Kind.REQUEST, b"", 16) + bytes(16)
    return said


@pytest.fixture(scope="module")
def by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Authority]:
    folder = tmp_path_factory.mktemp("authorities")
    return {name: Authority(folder, name) for name in ("peers", "clients", "foreign")}


@pytest.fixture
def meeting(by: dict[str, Authority]) -> Iterator[Meeting]:
    tls = TlsFiles(by["peers"].issue("a"), accepts=True, requires_certificate=True)
    made = Meeting(tls)
    yield made
    made.end()


def callers(by: dict[str, Authority]) -> dict[str, tuple[Tls | None, str]]:
    """The certificate of each caller, None without TLS, and the node id in its greeting."""
    peers, clients = by["peers"], by["clients"]
    return {
        "without TLS": (None, "b"),
        "nobody": (Tls(ca=peers.ca), "b"),
        "a client": (clients.issue("billing.example"), "b"),
        "a client called as the peer": (clients.issue("b", file="client-b"), "b"),
        "a gateway": (clients.issue("gateway.example"), "gateway.example"),
        "another authority's": (by["foreign"].issue("b", file="foreign-b"), "b"),
        "expired": (peers.issue("b", expired=True, file="expired-b"), "b"),
        "another peer": (peers.issue("c"), "b"),
        "names as the peer's": (peers.issue_raw([(0x82, name) for name in ALIKE], "b"), "b"),
        "a peer that is no member": (peers.issue("x"), "x"),
        "the node itself": (peers.issue("a", file="again-a"), "a"),
    }


def secure(by: dict[str, Authority], tls: Tls | None) -> Secure | None:
    if tls is None:
        return None
    own = Tls(ca=by["peers"].ca, cert=tls.cert, key=tls.key)
    files = TlsFiles(own, dials=True, compares_node_ids=True)
    return lambda _host: files.dial("a")


def test_the_messages_of_the_table_are_all_that_there_are() -> None:
    kinds = {kind.__name__ for kind in PeerMessage.__subclasses__()}
    assert {type(message).__name__ for message in MESSAGES} == kinds


def test_nobody_but_the_peer_gets_anything_at_the_port_of_peers(
    meeting: Meeting, by: dict[str, Authority]
) -> None:
    for caller, (tls, node_id) in callers(by).items():
        proof = secure(by, tls)
        for what, said in sayings(node_id).items():
            with RawClient(meeting, said, secure=proof) as client:
                got = client.rest()
            assert not meeting.received, (caller, what)
            assert b"hidden-group" not in got, (caller, what)
            assert b"c.example" not in got, (caller, what)
            assert got[:1] != bytes([Kind.WELCOME]), (caller, what)
    assert "connected" not in meeting.events.names
    assert not meeting.events.alarms


def test_a_peers_certificate_is_not_a_clients(meeting: Meeting, by: dict[str, Authority]) -> None:
    """It may not append there: nobody has looked at its rights."""
    proof = secure(by, by["peers"].issue("b"))
    for what, said in sayings("b").items():
        if what.startswith(("action", "batch", "plain", "nothing")):
            with RawClient(meeting, said, secure=proof) as client:
                assert b"hidden-group" not in client.rest(), what
    assert not meeting.received


def test_the_peer_itself_is_heard(meeting: Meeting, by: dict[str, Authority]) -> None:
    """Or the tests above would show nothing."""
    with RawClient(
        meeting, sayings("b")["Heartbeat"], secure=secure(by, by["peers"].issue("b"))
    ) as peer:
        assert peer.frame().kind == Kind.WELCOME
        eventually(lambda: len(meeting.received) == 1)

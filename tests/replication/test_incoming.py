"""What a peer sends, with errors in it: nothing but what was sent is ever passed on, and nothing is
raised but an error that can be told to the peer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.replication.rules.messages import Ack, Append, EntryMeta, PeerMessage
from slotwheel.replication.snapshots.transfer import send_snapshot
from slotwheel.replication.transport.encoding import encode, pack_entries
from slotwheel.replication.transport.handshake import (
    BULK,
    CONTROL,
    LANES,
    SNAPSHOT,
    Greeting,
    PeerInstances,
)
from slotwheel.replication.transport.incoming import Incoming
from slotwheel.wheel.errors import NodeUnreachable, SlotwheelError
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.peers.snapshot_request import HeldSlot, SnapshotRequest
from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import OF_NEWCOMER, FrameReader, Kind, encode_frame, encode_hello
from support.mailboxes import entries_from, store_of

PEERS = {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}
ACK = Ack("a", "b", store_of("a"), 1, durable=3, verified=3)
ENTRIES = entries_from(1, 3)
APPEND = Append("a", "b", store_of("a"), 1, 0, 1, (EntryMeta(1),) * 3, 0, 0.0)
REQUEST = SnapshotRequest({5: HeldSlot(7, 8), 9: HeldSlot(10, 11)})
Passed = tuple[PeerMessage, Sequence[Entry]]


def greeting(me: str, to: str, lane: str) -> Greeting:
    return Greeting("g", me, to, "i", store_of(me), PEERS, promise_ms=800, lane=lane)


class Served:
    """One channel that a peer opened, sent ``data`` on, and closed."""

    def __init__(self, lane: str, data: bytes) -> None:
        self.passed: list[Passed] = []
        self.requests: list[SnapshotRequest] = []
        self.error: SlotwheelError | None = None
        incoming = Incoming(
            partial(greeting, "b"),
            PeerInstances(),
            lambda message, entries: self.passed.append((message, list(entries))),
            lambda: True,
            partial(send_snapshot, cast(Any, self.open), self.tell, self.tell),
            lambda _request, _send: None,
            self,
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname())
            mine = server.accept()[0]
        hello = greeting("a", "b", lane).encode()
        frames = FrameReader(OF_NEWCOMER)
        frames.feed(encode_hello(hello))
        assert frames.next() is not None
        with contextlib.closing(peer), contextlib.closing(Channel(mine, frames)) as channel:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            try:
                incoming.admit(hello)(channel)
            except SlotwheelError as error:
                self.error = error

    def greeted(self, theirs: Greeting) -> None: ...

    def open(self, request: SnapshotRequest) -> Any:
        self.requests.append(request)
        raise LookupError("nothing is here")

    def tell(self, *_: object, **__: object) -> None: ...
    def refused(self, node_id: str, error: SlotwheelError) -> None: ...
    def broken(self, node_id: str, error: SlotwheelError) -> None: ...


def frame(kind: int, metadata: bytes = b"", body: bytes = b"") -> bytes:
    return encode_frame(kind, metadata, len(body)) + body


SENT = {
    CONTROL: frame(Kind.MESSAGE, encode(ACK)) + frame(Kind.BEAT) + frame(Kind.MESSAGE, encode(ACK)),
    BULK: frame(Kind.BEAT) + frame(Kind.MESSAGE, encode(APPEND), b"".join(pack_entries(ENTRIES))),
    SNAPSHOT: frame(Kind.REQUEST, b"", REQUEST.encode()),
}
PASSED: dict[str, list[Passed]] = {
    CONTROL: [(ACK, []), (ACK, [])],
    BULK: [(APPEND, ENTRIES)],
    SNAPSHOT: [],
}


@pytest.mark.parametrize("lane", SENT)
def test_what_is_sent_is_passed_on(lane: str) -> None:
    served = Served(lane, SENT[lane])
    assert served.passed == PASSED[lane]
    assert served.requests == [REQUEST] * (lane == SNAPSHOT)


@given(st.sampled_from(sorted(SENT)), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_changed_on_the_way_is_not_passed_on(lane: str, data: st.DataObject) -> None:
    sent = bytearray(SENT[lane])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sent) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "end"]))
        if change == "flip":
            sent[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "cut":
            del sent[at : at + data.draw(st.integers(1, 20))]
        elif change == "insert":
            sent[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        else:
            del sent[at:]
        if not sent:
            break
    served = Served(lane, bytes(sent))
    assert all(one in PASSED[lane] for one in served.passed)
    assert all(one == REQUEST for one in served.requests)


@given(st.sampled_from(LANES), st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_passed_on_to_nobody(lane: str, noise: bytes) -> None:
    served = Served(lane, noise)
    assert (served.passed, served.requests) == ([], [])
    assert lane == "slot" or served.error is not None


@pytest.mark.parametrize("lane", LANES)
def test_a_peer_that_leaves_at_once_is_no_fault(lane: str) -> None:
    assert isinstance(Served(lane, b"").error, NodeUnreachable)

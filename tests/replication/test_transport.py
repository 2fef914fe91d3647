"""Links between peers over real servers: what arrives, and what happens when it does not."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.node import threads
from slotwheel.replication.rules.group import PEERS_MAX
from slotwheel.replication.rules.messages import Ack, Append, EntryMeta, Heartbeat, TakeOver, Vote
from slotwheel.replication.rules.timing import Timing
from slotwheel.replication.snapshots import slots
from slotwheel.replication.transport import incoming
from slotwheel.replication.transport.encoding import HEADER_BYTES_MAX, encode, pack_entries
from slotwheel.replication.transport.exchange import Exchange
from slotwheel.replication.transport.handshake import BULK, CONTROL, SLOT, SNAPSHOT, Greeting
from slotwheel.replication.transport.lane import LINK_SILENT_S, WINDOW_BYTES, Lane
from slotwheel.replication.transport.outbox import SHIPMENT_BYTES, Outbox
from slotwheel.replication.transport.parts import REQUEST_BYTES_MAX
from slotwheel.wheel.errors import InvalidConfiguration, NotRunning, SlotwheelError
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.journal.scan import ENTRY_BYTES_MAX
from slotwheel.wheel.peers.heal import SlotRows
from slotwheel.wheel.protocol import PEER_COMMAND
from slotwheel.wheel.slots.slot import DAY_S, slot_with
from slotwheel.wheel.state import Loss
from slotwheel.wire import server as server_module
from slotwheel.wire.channel import Channel, TcpProgress
from slotwheel.wire.frames import Kind, encode_frame
from support.mailboxes import Mailbox, entries_from, store_of
from support.ports import free_address
from support.proxy import Proxy
from support.stopwatch import Stopwatch
from support.waiting import eventually
from support.wheels import rows_at

Make = Callable[..., Mailbox]


@pytest.fixture
def peers() -> dict[str, str]:
    return {name: free_address() for name in "abc"}


@pytest.fixture
def make(peers: dict[str, str]) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name, **more: stack.enter_context(
            Mailbox(name, more.pop("peers", peers), **more)
        )


def ack(n: int, sender: str = "a", to: str = "b") -> Ack:
    return Ack(sender, to, store_of(sender), 1, durable=n, verified=n)


def append(first: int, last: int, epoch: int = 1, sender: str = "a", to: str = "b") -> Append:
    metas = tuple(EntryMeta(epoch) for _ in range(first, last + 1))
    return Append(sender, to, store_of(sender), epoch, first - 1, epoch, metas, 0, 0.0)


def connected(*boxes: Mailbox) -> None:
    names = {box.name for box in boxes}
    for box in boxes:
        for name in names - {box.name}:
            eventually(lambda box=box, name=name: box.transport.is_up(name))  # type: ignore[misc]


def test_messages_arrive_both_ways_in_order(make: Make) -> None:
    a, b = make("a"), make("b")
    connected(a, b)
    for n in range(200):
        a.transport.send(ack(n))
        b.transport.send(ack(n, "b", "a"))
    eventually(lambda: len(a.messages) == len(b.messages) == 200)
    assert [message.durable for message in b.of(Ack)] == list(range(200))
    assert a.messages[7] == ack(7, "b", "a")


def test_entries_are_loaded_when_they_leave_and_arrive_as_they_were(make: Make) -> None:
    a, b = make("a"), make("b")
    connected(a, b)
    for n in range(20):
        a.transport.send(append(10 * n + 1, 10 * n + 10))
    a.transport.send(append(201, 200))  # a probe: it has none
    eventually(lambda: len(b.messages) == 21)
    assert b.entries == entries_from(1, 200)
    assert b.messages[3] == append(31, 40)
    assert b.messages[20] == append(201, 200)


def test_a_message_is_cut_where_the_bytes_end(make: Make) -> None:
    def load(first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        assert bytes_max == SHIPMENT_BYTES
        return entries_from(first, min(last, first + 2))

    a, b = make("a", load=load), make("b")
    connected(a, b)
    a.transport.send(append(1, 8))
    a.transport.send(append(9, 9))
    eventually(lambda: len(b.messages) == 4)
    assert [(one.prev_index, one.last_index) for one in b.of(Append)] == [
        (0, 3),
        (3, 6),
        (6, 8),
        (8, 9),
    ]
    assert [entry.index for entry in b.entries] == list(range(1, 10))


def test_an_entry_of_16_mib_goes_in_one_piece(make: Make) -> None:
    big = entries_from(1, 1, 16 << 20)
    a, b = make("a", load=lambda *_: big), make("b")
    connected(a, b)
    a.transport.send(append(1, 1))
    eventually(lambda: b.messages)
    assert b.entries == big


def test_small_messages_overtake_entries(make: Make) -> None:
    gate = threading.Event()

    def load(first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        gate.wait(60)
        return entries_from(first, last, 3 << 20)

    a, b = make("a", load=load), make("b")
    connected(a, b)
    for index in range(1, 20):
        a.transport.send(append(index, index))
    a.transport.send(Heartbeat("a", "b", store_of("a"), 1, commit=7, sent_at=0.0))
    eventually(lambda: b.of(Heartbeat))
    assert not b.of(Append)
    gate.set()
    eventually(lambda: len(b.of(Append)) == 19)


def test_of_heartbeats_that_wait_only_the_newest_is_sent(make: Make) -> None:
    a = make("a")
    for n in range(1000):
        a.transport.send(Heartbeat("a", "b", store_of("a"), 1, commit=n, sent_at=0.0))
    a.transport.send(ack(1))
    b = make("b")
    eventually(lambda: b.of(Ack))
    assert [one.commit for one in b.of(Heartbeat)] in ([999], [])


def test_what_waited_too_long_for_its_link_is_not_sent(make: Make) -> None:
    a = make("a")
    a.transport.send(ack(1))
    time.sleep(1.1)
    b = make("b")
    connected(a, b)
    a.transport.send(ack(2))
    eventually(lambda: b.messages)
    assert b.messages == [ack(2)]


def test_a_receiver_that_stands_still_is_sent_a_bounded_amount_and_is_not_cut(make: Make) -> None:
    size = 2 << 20
    a, b = make("a", load=lambda first, last, _: entries_from(first, last, size)), make("b")
    connected(a, b)
    b.has_room.clear()
    for index in range(1, 61):
        a.transport.send(append(index, index))
    eventually(lambda: b.of(Append))
    time.sleep(LINK_SILENT_S + 0.5)
    assert len(a.loaded) <= WINDOW_BYTES // size + 1
    a.transport.send(ack(1))
    eventually(lambda: b.of(Ack))
    assert len(b.of(Append)) == 1
    b.has_room.set()
    eventually(lambda: len(b.of(Append)) == 60)
    assert a.transport.status("b")["connects"] == 1
    assert a.lost == []


@pytest.mark.parametrize("error", [LookupError(3), OSError("the disk is gone")])
def test_what_the_journal_does_not_give_is_reported_and_costs_no_link(
    make: Make, error: Exception
) -> None:
    """An alarm is raised where it cannot be read; none where it does not hold it any more."""

    def load(first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        if first < 5:
            raise error
        return entries_from(first, last)

    a, b = make("a", load=load), make("b")
    connected(a, b)
    a.transport.send(append(3, 4))
    a.transport.send(append(5, 6))
    eventually(lambda: b.entries)
    assert a.lost == [("b", 3)]
    assert a.events.alarmed("peer-load-failed", str(error)) is isinstance(error, OSError)


def test_entries_of_another_epoch_than_the_message_was_made_for_stay_here(make: Make) -> None:
    a, b = make("a", load=lambda first, last, _: entries_from(first, last, epoch=2)), make("b")
    connected(a, b)
    a.transport.send(append(1, 4, epoch=1))
    a.transport.send(append(5, 6, epoch=2))
    eventually(lambda: b.entries)
    assert [entry.index for entry in b.entries] == [5, 6]


def with_nine_under_way(make: Make) -> tuple[Mailbox, Mailbox, threading.Event]:
    """``a``, which has sent nine entries one by one to ``b``; they are loaded once the event is
    set."""
    gate = threading.Event()

    def load(first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        gate.wait(60)
        return entries_from(first, last)

    a, b = make("a", load=load), make("b")
    connected(a, b)
    for index in range(1, 10):
        a.transport.send(append(index, index))
    eventually(lambda: a.loaded)
    return a, b, gate


def test_shipments_are_forgotten_when_the_mastership_is(make: Make) -> None:
    a, b, gate = with_nine_under_way(make)
    a.transport.forget_shipments()
    gate.set()
    a.transport.send(append(50, 50))
    eventually(lambda: len(b.entries) == 2)
    assert [entry.index for entry in b.entries] == [1, 50]
    assert a.lost == []


def test_what_is_asked_for_again_is_sent_once(make: Make) -> None:
    a, b, gate = with_nine_under_way(make)
    a.transport.send(append(4, 3))  # the master probes again
    a.transport.send(append(4, 9))
    gate.set()
    a.transport.send(append(10, 10))
    eventually(lambda: len(b.entries) == 10)
    assert [entry.index for entry in b.entries] == list(range(1, 11))
    assert [(one.prev_index, one.last_index) for one in b.of(Append)][-2:] == [(3, 9), (9, 10)]


def test_a_restarted_peer_is_found_again_at_once(make: Make, peers: dict[str, str]) -> None:
    a = make("a")
    with Mailbox("b", peers) as b:
        connected(a, b)
    # Two connections end, each seen by a thread of its own: in either order.
    eventually(lambda: "peer-lost" in a.events.names and ("b", 0) in a.lost)
    again = make("b")
    began = Stopwatch()
    connected(a, again)
    assert began.seconds < 1.5
    a.transport.send(ack(3))
    a.transport.send(append(1, 2))
    eventually(lambda: len(again.messages) == 2)
    assert a.events.alarms == []


def test_a_cut_connection_is_made_again(make: Make, peers: dict[str, str]) -> None:
    b = make("b")
    with Proxy(b.server.port) as proxy:
        a = make("a", dial={"b": proxy.address})
        connected(a, b)
        for _ in range(3):
            proxy.cut()
            eventually(lambda: ("b", 0) in a.lost)
            began = Stopwatch()
            eventually(lambda: not a.transport.is_up("b") or proxy.connections > 2)
            connected(a, b)
            assert began.seconds < 1.5
            a.lost.clear()
        a.transport.send(append(1, 2))
        eventually(lambda: b.entries)


def test_a_connection_that_swallows_everything_is_cut_and_made_again(make: Make) -> None:
    b = make("b")
    with Proxy(b.server.port) as proxy:
        a = make("a", dial={"b": proxy.address}, load=lambda f, n, _: entries_from(f, n, 4 << 20))
        connected(a, b)
        proxy.stall()
        began = Stopwatch()
        for index in range(1, 6):  # this blocks the writing thread of the bulk lane
            a.transport.send(append(index, index))
        eventually(lambda: "peer-lost" in a.events.names)
        assert began.wall_s > LINK_SILENT_S - 0.1
        assert began.seconds < LINK_SILENT_S + 3.0
        eventually(lambda: ("b", 0) in a.lost)
        assert not a.transport.is_up("b")
        proxy.go_on()
        healed = Stopwatch()
        connected(a, b)
        assert healed.seconds < 2.5
        b.messages.clear()
        a.transport.send(ack(9))
        eventually(lambda: ack(9) in b.messages)


@pytest.mark.parametrize("lane", [CONTROL, BULK])
def test_a_lane_fails_alone(make: Make, lane: str) -> None:
    a, b = make("a"), make("b")
    connected(a, b)
    lanes = {CONTROL: a.transport._control["b"], BULK: a.transport._bulk["b"]}
    failing = lanes.pop(lane)
    (other,) = lanes.values()
    kept = other.exchange
    for again in range(2, 5):
        failing.cut()
        eventually(lambda again=again: failing.opened == again and failing.is_up)  # type: ignore[misc]
    assert (other.opened, other.exchange) == (1, kept)
    a.transport.send(ack(1))
    a.transport.send(append(1, 2))
    eventually(lambda: len(b.messages) == 2)


class Tcp:
    """What a channel says of TCP."""

    now = 100.0
    sent = TcpProgress()

    def progress(self) -> TcpProgress:
        return self.sent


def test_a_large_message_is_alive_as_long_as_tcp_takes_of_it(
    make: Make, peers: dict[str, str]
) -> None:
    make("b")
    tcp, said = Tcp(), greeting(peers)
    exchange = Exchange(peers["b"], said, lambda _: None, lambda: None, lambda: tcp.now)
    lane = Lane("b", BULK, Outbox(lambda: tcp.now), lambda _: exchange, None)  # type: ignore[arg-type]
    lane._exchange = exchange
    exchange._channel.progress = tcp.progress  # type: ignore[method-assign]
    exchange._unbeaten.append((4 << 20, tcp.now))
    exchange.unbeaten_bytes = 4 << 20
    try:
        for acknowledged in range(100):  # 4 MiB at 40 KiB a second
            tcp.sent = TcpProgress(acknowledged * 40_000, queued=True, unacknowledged_s=0.2)
            assert not lane.is_silent()
            tcp.now += 1
        tcp.now += LINK_SILENT_S
        tcp.sent = replace(
            tcp.sent, unacknowledged_s=LINK_SILENT_S
        )  # the machine has lost its power
        assert lane.is_silent()
        tcp.sent = replace(tcp.sent, queued=False, unacknowledged_s=0.0)  # it has all, and is busy
        assert not lane.is_silent()
        for _ in range(5):  # a ping now and then that its machine takes, but not the peer
            tcp.now += 1
            tcp.sent = replace(tcp.sent, acknowledged=tcp.sent.acknowledged + 20)
            silent = lane.is_silent()
        assert silent
    finally:
        exchange.end()


def test_tcp_is_asked_what_it_has_sent(make: Make) -> None:
    a, b = make("a"), make("b")
    connected(a, b)
    exchange = a.transport._bulk["b"].exchange
    assert exchange is not None
    before = exchange._channel.progress()
    a.transport.send(append(1, 1000))
    eventually(lambda: len(b.entries) == 1000)

    def all_is_acknowledged() -> bool:
        progress = exchange._channel.progress()
        return progress.acknowledged > before.acknowledged + 100_000 and not progress.queued

    eventually(all_is_acknowledged)


def test_a_lane_that_is_made_again_lets_no_other_node_of_that_id_in(
    make: Make, peers: dict[str, str]
) -> None:
    first, b = make("a"), make("b")
    connected(first, b)
    second = make("a", listen=free_address())
    eventually(lambda: b.events.alarmed("peer-refused", "two running nodes"))
    for _ in range(5):
        first.transport._control["b"].cut()
        time.sleep(0.3)
        assert not second.transport.is_up("b")
        eventually(lambda: first.transport.is_up("b"))


def test_trouble_with_one_peer_costs_the_others_nothing(make: Make) -> None:
    b, c = make("b"), make("c")
    with Proxy(b.server.port) as proxy:
        a = make("a", dial={"b": proxy.address}, load=lambda f, n, _: entries_from(f, n, 1 << 20))
        connected(a, b, c)
        proxy.stall()
        for index in range(1, 101):
            a.transport.send(append(index, index))
            a.transport.send(append(index, index, to="c"))
        began = Stopwatch()
        eventually(lambda: len(c.entries) == 100)
        assert began.seconds < 5.0
        proxy.go_on()


# -- who is not let in


def greeting(peers: dict[str, str], **changed: Any) -> Greeting:
    fields: dict[str, Any] = {
        "group": "g",
        "node_id": "a",
        "to": "b",
        "instance": "i",
        "store": store_of("a"),
        "peers": peers,
        "promise_ms": 800,
    }
    return Greeting(**(fields | changed))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"group_name": "other"}, "belongs to another wheel group"),
        ({"key": "11111111"}, "made by different groups"),
        ({"peers": "more"}, "different lists of peers"),
        ({"peers": "moved"}, "different lists of peers"),
        ({"peers": "strange"}, "is not among the peers"),
        ({"dial": "c"}, "connected to the wrong node"),
        ({"timing": Timing.of_promise(0.9)}, "wait differently long"),
        ({"delivery": "exactly-once"}, "deliver differently"),
    ],
)
def test_a_mismatch_is_told_on_both_sides_and_hurts_nobody(
    make: Make, peers: dict[str, str], changed: dict[str, Any], says: str
) -> None:
    b, c = make("b", key="22222222"), make("c", key="22222222")
    connected(b, c)
    name = "a"
    lists = {
        "more": peers | {"d": "127.0.0.1:1"},
        "moved": peers | {"c": "127.0.0.1:1"},
        "strange": {"x": peers["a"], "b": peers["b"], "c": peers["c"]},
    }
    if changed.get("peers") == "strange":
        name = "x"
    if "peers" in changed:
        changed = {"peers": lists[changed["peers"]]}
    dials_wrong = "dial" in changed
    if dials_wrong:
        changed = {"dial": {"b": peers["c"]}}
    a = make(name, **changed)
    eventually(lambda: a.events.alarmed("peer-refuses", says))
    refusing = c if dials_wrong else b
    eventually(lambda: refusing.events.alarmed("peer-refused", says))
    time.sleep(1.0)
    assert not a.transport.is_up("b")
    assert b.messages == c.messages == []
    eventually(lambda: b.transport.is_up("c") and c.transport.is_up("b"))
    # Retried five times a second here, told once.
    assert len([one for one in refusing.events.alarms if one[0] == "peer-refused"]) == 1


def test_strangers_with_many_names_write_no_line_each(make: Make) -> None:
    b = make("b")
    for number in range(500):
        greeting = replace(b.transport.identity("b", "control"), node_id=f"x{number}", to="b")
        with pytest.raises(InvalidConfiguration):
            b.transport.incoming.admit(greeting.encode())
    found = [one for one in b.events.alarms if one[0] == "peer-refused"]
    assert 1 <= len(found) < 50


def test_a_second_node_with_the_same_id_is_refused_while_the_first_lives(
    make: Make, peers: dict[str, str]
) -> None:
    b, c = make("b"), make("c")
    with Mailbox("a", peers) as first:
        connected(first, b, c)
        second = make("a", listen=free_address())
        eventually(lambda: second.events.alarmed("peer-refuses", "two running nodes"))
        eventually(lambda: b.events.alarmed("peer-refused", "two running nodes"))
        time.sleep(1.0)
        assert not second.transport.is_up("b")
        first.transport.send(ack(1))
        eventually(lambda: ack(1) in b.messages)
        assert first.transport.is_up("b")
    # The first one ended: now it may come in.
    eventually(lambda: second.transport.is_up("b"))


def refusal(peers: dict[str, str], hello: bytes) -> str:
    with pytest.raises(SlotwheelError) as refused:
        Channel.open(peers["b"], hello, {}, 30)
    return str(refused.value)


def test_a_node_that_calls_itself_like_the_one_it_calls(peers: dict[str, str], make: Make) -> None:
    b = make("b")
    said = greeting(peers, node_id="b", to="b").encode()
    assert "two running nodes have the same node id" in refusal(peers, said)
    assert b.events.alarmed("peer-refused", "two running nodes")


@pytest.mark.parametrize(
    "body",
    [
        PEER_COMMAND,
        PEER_COMMAND + b"{}",
        PEER_COMMAND + b"[" * 10_000,
        PEER_COMMAND + b'{"slotwheel-peer": 5}',
        PEER_COMMAND + b'{"slotwheel-peer": 4}',
        PEER_COMMAND + b'{"slotwheel-peer": 3}',
        PEER_COMMAND + b'{"slotwheel-peer": true}',
        PEER_COMMAND + b"\xff\xfe",
    ],
)
def test_hostile_greetings_are_refused(make: Make, peers: dict[str, str], body: bytes) -> None:
    b = make("b")
    text = refusal(peers, body)
    assert "greeting" in text or "another version" in text
    assert b.events.alarms


def test_who_is_refused_takes_none_of_the_threads(
    make: Make, peers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("b")
    monkeypatch.setattr(server_module, "CHANNELS_MAX", 0)
    assert "greeting" in refusal(peers, PEER_COMMAND)
    assert "wrong node" in refusal(peers, greeting(peers, to="c").encode())
    assert "too many connections of peers" in refusal(peers, greeting(peers).encode())


def test_a_peer_of_an_older_version_is_told_apart(make: Make, peers: dict[str, str]) -> None:
    """It speaks HTTP/2, and answers whoever connects with its settings first (RFC 9113)."""
    host, port = peers["b"].split(":")
    with socket.create_server((host, int(port))) as older:
        a = make("a")
        with older.accept()[0] as caller:
            caller.sendall(bytes(3) + b"\x04" + bytes(5))
            eventually(lambda: a.events.alarmed("peer-refuses", "Arrow Flight"))
        assert "expected version 1 of the wire" in str(a.transport.status("b")["error"])


@pytest.mark.parametrize(
    "field",
    ["group", "node", "to", "instance", "store", "peers", "lane", "promise_ms", "delivery"],
)
@pytest.mark.parametrize("value", [None, 3.5, "x" * 300, [], {"a": 1}])
def test_a_greeting_with_a_field_that_is_none_is_refused(
    make: Make, peers: dict[str, str], field: str, value: Any
) -> None:
    fields = json.loads(greeting(peers).encode()[len(PEER_COMMAND) :])
    fields[field] = value
    body = PEER_COMMAND + json.dumps(fields).encode()
    with pytest.raises(InvalidConfiguration, match="greeting"):
        Greeting.decode(body)


class Raw:
    """Speaks to a peer's server with bytes of the test's choice."""

    def __init__(self, peers: dict[str, str], lane: str = CONTROL) -> None:
        said = greeting(peers, lane=lane).encode()
        self.channel = Channel.open(peers["b"], said, {Kind.BEAT: (8, 0)}, 30)

    def ask(self) -> None:
        self.channel.send(Kind.BEAT)
        frame = self.channel.receive(30)
        assert frame is not None
        assert frame.kind == Kind.BEAT

    def error(self) -> str:
        try:
            while self.channel.receive(30):
                pass
        except SlotwheelError as error:
            return str(error)
        raise AssertionError("it goes on")


@pytest.fixture
def raw(peers: dict[str, str]) -> Iterator[Callable[..., Raw]]:
    made: list[Raw] = []

    def connect(lane: str = CONTROL) -> Raw:
        made.append(Raw(peers, lane))
        return made[-1]

    yield connect
    for one in made:
        one.channel.close()


@pytest.mark.parametrize("data", [b"", b"\0", b"x", bytes(48), b"SWPM" + b"\xff" * 60, b"x" * 2000])
def test_hostile_bytes_end_their_channel_and_nothing_else(
    make: Make, raw: Callable[..., Raw], data: bytes
) -> None:
    b, c = make("b"), make("c")
    connected(b, c)
    hostile = raw()
    hostile.channel.send(Kind.MESSAGE, data)
    text = hostile.error()
    assert "not a peer's message" in text or "unknown version" in text
    eventually(lambda: [name for name, _ in b.events.alarms] == ["peer-message-broken"])
    assert b.messages == []
    c.transport.send(ack(1, "c"))
    eventually(lambda: b.messages == [ack(1, "c")])


@pytest.mark.parametrize(
    ("lane", "kind", "metadata_bytes", "body_bytes"),
    [
        (CONTROL, Kind.MESSAGE, HEADER_BYTES_MAX + 1, 0),
        (CONTROL, Kind.MESSAGE, 48, 1),
        (BULK, Kind.MESSAGE, 48, ENTRY_BYTES_MAX + 1),
        (BULK, Kind.MESSAGE, 48, (1 << 32) - 1),
        (CONTROL, Kind.BEAT, 8, 0),
        (CONTROL, Kind.CHUNK, 16, 0),
        (CONTROL, Kind.BATCH, 8, 100),
        (CONTROL, 255, 0, 0),
        (SNAPSHOT, Kind.REQUEST, 0, REQUEST_BYTES_MAX + 1),
        (SNAPSHOT, Kind.MESSAGE, 48, 0),
        (SLOT, Kind.REQUEST, 1, 16),
    ],
)
def test_a_frame_beyond_its_limit_is_refused_before_it_is_there(
    make: Make, raw: Callable[..., Raw], lane: str, kind: int, metadata_bytes: int, body_bytes: int
) -> None:
    b = make("b")
    hostile = raw(lane)
    # Only the head is sent: whoever waited for the rest would not answer.
    head = encode_frame(kind, bytes(metadata_bytes), body_bytes)[:8]
    hostile.channel._socket.sendall(head)
    text = hostile.error()
    assert "a frame is too large" in text or "a frame that nobody may send here" in text
    assert b.messages == []


def test_a_damaged_entry_ends_its_channel(make: Make, raw: Callable[..., Raw]) -> None:
    b = make("b")
    hostile = raw(BULK)
    whole = bytearray(b"".join(pack_entries(entries_from(1, 1))))
    whole[80] ^= 1
    hostile.channel.send(Kind.MESSAGE, encode(append(1, 1)), whole)
    assert "expected entry CRC" in hostile.error()
    assert b.messages == []


def test_a_message_in_another_peers_name_is_refused(make: Make, raw: Callable[..., Raw]) -> None:
    b = make("b")
    for message in (
        ack(1, "c"),
        ack(1, "a", "c"),
        TakeOver("a", "b", store_of("c"), 1),
    ):
        hostile = raw()
        hostile.channel.send(Kind.MESSAGE, encode(message))
        assert "not from the peer that sent it" in hostile.error()
    assert b.messages == []


def test_the_reason_arrives_though_more_was_sent(make: Make, raw: Callable[..., Raw]) -> None:
    """What is unread would have the kernel reset the connection."""
    make("b")
    hostile = raw(BULK)
    entries = b"".join(pack_entries(entries_from(1, 1, 100_000)))
    hostile.channel._socket.sendall(
        encode_frame(Kind.MESSAGE, b"x")
        + encode_frame(Kind.MESSAGE, encode(append(1, 1)), len(entries))
        + entries
    )
    assert "not a peer's message" in hostile.error()


@pytest.mark.parametrize("lane", [CONTROL, SNAPSHOT])
def test_a_newer_channel_of_a_lane_ends_the_older_one(
    make: Make, raw: Callable[..., Raw], lane: str
) -> None:
    make("b")
    older = raw(lane)
    if lane == CONTROL:
        older.ask()
    newer = raw(lane)
    older.error()  # returns: it is over
    if lane == CONTROL:
        newer.ask()


def test_a_peer_that_says_nothing_is_cut(
    make: Make, raw: Callable[..., Raw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "SILENT_S", 0.3)
    make("b")
    for lane in (CONTROL, BULK, SNAPSHOT, SLOT):
        assert "closed by the other side" in raw(lane).error()


@pytest.mark.parametrize("request_bytes", [b"", b"x" * 15, b"x" * 17, b"x" * 16])
def test_a_request_for_no_slot_is_refused(
    make: Make, raw: Callable[..., Raw], request_bytes: bytes
) -> None:
    b = make("b")
    b.transport.incoming._slot = partial(slots.send_slot, lambda *_: SlotRows(5, [], []))
    hostile = raw(SLOT)
    hostile.channel.send(Kind.REQUEST, b"", request_bytes)
    assert "not a request for a slot" in hostile.error()


def test_a_slot_is_fetched(make: Make, peers: dict[str, str]) -> None:
    b = make("b")
    b.transport.incoming._slot = partial(
        slots.send_slot, lambda second, _: SlotRows(second, [], [])
    )
    rows = slots.fetch_slot(peers["b"], greeting(peers, lane=SLOT), 5, 100)
    assert (rows.slot, list(rows.blocks), rows.losses) == (5, [], [])


def test_the_rows_of_a_day_come_one_after_the_other(make: Make, peers: dict[str, str]) -> None:
    """And the connection ends when the rest of them is not wanted."""
    day = slot_with(86_400 * 20_000, DAY_S)
    losses = [Loss(day, 5, 2), Loss(86_400 * 20_000 + 7, 1, 0, at_most=True)]

    def blocks() -> Iterator[pa.RecordBatch]:
        for number in range(200):
            yield rows_at([(number, number)], pad=100_000)

    b = make("b")
    b.transport.incoming._slot = partial(
        slots.send_slot, lambda slot, _: SlotRows(slot, blocks(), losses)
    )
    rows = slots.fetch_slot(peers["b"], greeting(peers, lane=SLOT), day, 100)
    assert (rows.slot, rows.losses) == (day, losses)
    coming = iter(rows.blocks)
    offsets = [next(coming).column("offset").to_pylist() for _ in range(3)]
    assert offsets == [[0], [1], [2]]
    rows.close()
    with pytest.raises(StopIteration):
        next(coming)
    rows = slots.fetch_slot(peers["b"], greeting(peers, lane=SLOT), day, 100)
    assert [block.num_rows for block in rows.blocks] == [1] * 200


@pytest.mark.parametrize("error", [LookupError("not committed"), OSError("the disk is gone")])
def test_a_slot_that_is_not_there_now_is_asked_for_again(
    make: Make, peers: dict[str, str], error: Exception
) -> None:
    def rows(*_: int) -> SlotRows:
        raise error

    make("b").transport.incoming._slot = partial(slots.send_slot, rows)
    with pytest.raises(NotRunning, match=str(error)):
        slots.fetch_slot(peers["b"], greeting(peers, lane=SLOT), 5, 100)


def test_peers_that_all_hang_do_not_make_the_one_that_asks_them_seem_to() -> None:
    assert slots._TIMEOUT_S * (PEERS_MAX - 1) < threads.SILENT_MAX_S


def test_a_stop_with_a_blocked_link_takes_no_time(make: Make, peers: dict[str, str]) -> None:
    b = make("b")
    with Proxy(b.server.port) as proxy:
        a = make("a", dial={"b": proxy.address}, load=lambda f, n, _: entries_from(f, n, 4 << 20))
        connected(a, b)
        proxy.stall()
        for index in range(1, 6):
            a.transport.send(append(index, index))
        eventually(lambda: a.loaded)
        time.sleep(0.3)
        began = Stopwatch()
        a.transport.stop()
        assert began.seconds < 1.5
        left = [one.name for one in threading.enumerate() if one.name.startswith("peer-bulk-b")]
        assert [name for name in left if name == "peer-bulk-b"] == []
        proxy.go_on()


def busy_share(seconds: float) -> float:
    """Of a core, by all threads of this process."""
    began, wall = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - began) / (time.monotonic() - wall)


def test_an_idle_link_costs_next_to_nothing(make: Make) -> None:
    before = busy_share(0.7)  # threads of other tests may still be there
    boxes = [make(name) for name in "abc"]
    connected(*boxes)
    assert min(busy_share(0.7) for _ in range(3)) - before < 0.15
    assert all(box.transport.status(name)["connects"] == 1 for box in boxes[:1] for name in "bc")


def test_votes_cross_with_their_reason(make: Make) -> None:
    a, b = make("a"), make("b")
    connected(a, b)
    vote = Vote("a", "b", store_of("a"), 4, granted=False, reason="a master is alive")
    a.transport.send(vote)
    eventually(lambda: b.messages == [vote])

"""A snapshot from one peer to another: whole, broken off, given up, damaged, stalled."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from slotwheel.replication.snapshots import transfer
from slotwheel.replication.snapshots.transfer import SnapshotFetch, send_snapshot
from slotwheel.replication.transport import incoming
from slotwheel.replication.transport.exchange import open_channel
from slotwheel.replication.transport.handshake import SNAPSHOT, Greeting
from slotwheel.replication.transport.parts import PARTS, receive_part
from slotwheel.wheel.errors import Damaged, InvalidBatch, SlotwheelError, SyncFailed
from slotwheel.wheel.peers.snapshot_request import HeldSlot, SnapshotRequest
from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import Kind
from support.events import ToldEvents
from support.mailboxes import Mailbox
from support.ports import free_address
from support.proxy import Proxy
from support.waiting import PATIENCE_S, eventually


class Source:
    """Chunks of a mebibyte. ``break_at``: raises there."""

    def __init__(self, count: int, break_at: int = -1) -> None:
        self.index = 7
        self.count = count
        self.nbytes = count << 20
        self.break_at = break_at
        self.read = 0
        self.closed = threading.Event()
        self.asked: list[SnapshotRequest] = []

    def header(self) -> bytes:
        return b"header" * 1000

    def chunks(self) -> Iterator[tuple[int, int, bytes]]:
        for number in range(self.count):
            if number == self.break_at:
                raise Damaged("slots/5.arrows", 8, expected="this", found="that")
            self.read = number + 1
            yield 5 + number // 4, number % 4 << 20, bytes([number % 256]) * (1 << 20)

    @contextlib.contextmanager
    def __call__(self, request: SnapshotRequest) -> Iterator[Source]:
        self.asked.append(request)
        try:
            yield self
        finally:
            self.closed.set()


class Sink:
    def __init__(self, slow_s: float = 0.0) -> None:
        self.calls: list[Any] = []
        self.received = self.expected = 0
        self.slow_s = slow_s
        self.refuse: Exception | None = None
        self.request = SnapshotRequest({5: HeldSlot(7, 8)})

    def begin(self, step: Callable[[], object]) -> SnapshotRequest:
        step()
        self.calls.append("begin")
        return self.request

    def header(self, data: bytes) -> None:
        if self.refuse:
            raise self.refuse
        self.calls.append(data)

    def chunk(self, second: int, position: int, data: memoryview) -> None:
        time.sleep(self.slow_s)
        self.received += len(data)
        self.calls.append((second, position, len(data), data[0], data[-1]))

    def finish(self) -> str:
        self.calls.append("finish")
        return "update"

    def close(self) -> None:
        self.calls.append("close")

    def discard(self) -> Iterator[None]:
        self.calls.append("discard")
        yield


@pytest.fixture
def peers() -> dict[str, str]:
    return {name: free_address() for name in "ab"}


class Rig:
    """Peer a has the snapshot; ``fetch`` is what b does."""

    def __init__(self, peers: dict[str, str], source: Source) -> None:
        self.events = ToldEvents()
        self.a = Mailbox("a", peers)
        self.a.transport.incoming._snapshot = partial(
            send_snapshot, cast(Any, source), self.events.event, self.events.alarm
        )
        self.peers = peers
        self.ended = threading.Event()
        self.told = self.events.told

    def greeting(self, **changed: Any) -> Greeting:
        fields: dict[str, Any] = {
            "group": "g",
            "node_id": "b",
            "to": "a",
            "instance": "i",
            "store": b"b" * 16,
            "peers": self.peers,
            "promise_ms": 800,
            "lane": SNAPSHOT,
        }
        return Greeting(**(fields | changed))

    def fetch(self, sink: Sink, address: str | None = None, **changed: Any) -> SnapshotFetch:
        self.ended.clear()
        fetch = SnapshotFetch(
            "a",
            address or self.peers["a"],
            self.greeting(**changed),
            cast(Any, sink),
            lambda _: self.ended.set(),
            self.events.event,
        )
        fetch.start()
        return fetch

    def close(self) -> None:
        self.a.close()


@pytest.fixture
def rig(peers: dict[str, str]) -> Iterator[Callable[[Source], Rig]]:
    made: list[Rig] = []

    def make(source: Source) -> Rig:
        made.append(Rig(peers, source))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("count", [0, 1, 50])
def test_all_chunks_arrive_in_order_and_then_the_end(
    rig: Callable[[Source], Rig], count: int
) -> None:
    source = Source(count)
    made, sink = rig(source), Sink()
    fetch = made.fetch(sink)
    assert made.ended.wait(60)
    assert (fetch.error, fetch.update) == (None, "update")
    assert sink.calls == [
        "begin",
        b"header" * 1000,
        *((5 + n // 4, n % 4 << 20, 1 << 20, n, n) for n in range(count)),
        "finish",
    ]
    assert source.closed.wait(60)
    assert source.asked == [sink.request]
    eventually(lambda: ("snapshot-sent", {"peer": "b", "bytes": source.nbytes}) in made.told)


def test_a_request_may_name_very_many_files(rig: Callable[[Source], Rig]) -> None:
    """More than a day has seconds."""
    source = Source(1)
    made, sink = rig(source), Sink()
    sink.request = SnapshotRequest({second: HeldSlot(7, 8) for second in range(100_000)})
    fetch = made.fetch(sink)
    assert made.ended.wait(PATIENCE_S)
    assert (fetch.error, source.asked) == (None, [sink.request])


def test_damage_on_the_sender_is_told_and_nothing_is_finished(
    rig: Callable[[Source], Rig],
) -> None:
    source = Source(10, break_at=6)
    made, sink = rig(source), Sink()
    fetch = made.fetch(sink)
    assert made.ended.wait(60)
    assert "slots/5.arrows is damaged" in str(fetch.error)
    assert sink.calls[-1] == "close"  # the files before it need not come again
    assert "finish" not in sink.calls
    assert source.closed.wait(60)
    eventually(lambda: made.events.alarmed("snapshot-failed", "damaged"))


@pytest.mark.parametrize(
    "why",
    [
        LookupError("older than what is here"),
        OSError(errno.ENOSPC, "no room"),
        SyncFailed("nobody knows what is on the disk"),
    ],
)
def test_a_sink_that_refuses_ends_it(rig: Callable[[Source], Rig], why: Exception) -> None:
    source = Source(1000)
    made, sink = rig(source), Sink()
    sink.refuse = why
    fetch = made.fetch(sink)
    assert made.ended.wait(60)
    assert fetch.error is sink.refuse
    assert sink.calls[-2:] == ["close", "discard"]
    assert source.closed.wait(60)
    assert source.read < 1000


def test_a_connection_that_breaks_is_an_error_on_both_sides(
    rig: Callable[[Source], Rig], peers: dict[str, str]
) -> None:
    source = Source(2000)
    made, sink = rig(source), Sink(0.005)
    with Proxy(made.a.server.port) as proxy:
        fetch = made.fetch(sink, proxy.address)
        eventually(lambda: sink.received)
        proxy.cut()
        assert made.ended.wait(60)
        assert isinstance(fetch.error, SlotwheelError)
        assert sink.calls[-1] == "close"
        assert source.closed.wait(60)


@pytest.mark.parametrize("request_bytes", [b"", b"SWSNPREQ", b"x" * 1000])
def test_a_request_that_is_none_is_refused(
    rig: Callable[[Source], Rig], request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(1)
    made, sink = rig(source), Sink()
    monkeypatch.setattr(SnapshotRequest, "encode", lambda _: request_bytes)
    fetch = made.fetch(sink)
    assert made.ended.wait(60)
    assert "snapshot request is damaged" in str(fetch.error)
    assert source.asked == []


def test_what_takes_long_on_this_side_is_no_stall(
    rig: Callable[[Source], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.2)
    sink = Sink()
    stalled: list[bool] = []

    def slow(*_: object) -> SnapshotRequest:
        time.sleep(0.5)
        stalled.append(fetch.is_stalled())
        return sink.request

    sink.begin = sink.finish = slow  # type: ignore[assignment, method-assign]
    made = rig(Source(3))
    fetch = made.fetch(sink)
    assert made.ended.wait(60)
    assert stalled == [False, False]


def test_what_is_given_up_touches_nothing_more(rig: Callable[[Source], Rig]) -> None:
    source = Source(2000)
    made, sink = rig(source), Sink(0.005)
    fetch = made.fetch(sink)
    eventually(lambda: sink.received)
    fetch.abandon()
    count = len(sink.calls)
    assert sink.calls[-1] == "close"
    assert source.closed.wait(60)
    time.sleep(0.3)
    assert len(sink.calls) == count
    assert not made.ended.is_set()


def test_what_is_given_up_while_it_greets_asks_for_nothing(
    rig: Callable[[Source], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted, abandoned, really = threading.Event(), threading.Event(), open_channel

    def greet(*arguments: Any) -> Channel:
        channel = really(*arguments)
        greeted.set()
        abandoned.wait(60)
        return channel

    monkeypatch.setattr(transfer, "open_channel", greet)
    source = Source(1)
    made = rig(source)
    fetch = made.fetch(Sink())
    assert greeted.wait(60)
    fetch.abandon()
    abandoned.set()
    fetch._thread.join(60)
    assert source.asked == []
    assert not made.ended.is_set()


def test_what_is_given_up_does_not_wait_until_all_files_are_removed(
    rig: Callable[[Source], Rig],
) -> None:
    made, sink = rig(Source(1)), Sink()
    sink.refuse = OSError(errno.ENOSPC, "no room")
    removed = threading.Semaphore(0)

    def discard() -> Iterator[None]:
        for _ in range(3000):
            time.sleep(0.01)
            removed.release()
            yield

    sink.discard = discard  # type: ignore[method-assign]
    fetch = made.fetch(sink)
    assert removed.acquire(timeout=30)
    giving_up = threading.Thread(target=fetch.abandon, daemon=True)
    giving_up.start()
    giving_up.join(60)
    assert not giving_up.is_alive()


def test_a_newer_request_ends_the_older_one(rig: Callable[[Source], Rig]) -> None:
    source = Source(3000)
    made, first, second = rig(source), Sink(0.01), Sink()
    older = made.fetch(first)
    eventually(lambda: first.received)
    made.fetch(second)
    eventually(lambda: second.received)
    eventually(lambda: older.error is not None)
    assert "finish" not in first.calls
    assert made.ended.wait(60)


def test_a_reader_that_takes_nothing_is_cut_off(
    rig: Callable[[Source], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "SILENT_S", 0.5)
    source = Source(3000)
    made, sink = rig(source), Sink(1e9)
    gate = threading.Event()
    sink.chunk = lambda *_: gate.wait(60)  # type: ignore[assignment, method-assign]
    made.fetch(sink)
    assert source.closed.wait(60)
    assert 1 < source.read < 3000
    gate.set()


def test_a_sender_that_sends_nothing_is_noticed(
    rig: Callable[[Source], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STALL_S", 0.5)
    made, sink = rig(Source(3000)), Sink(0.005)
    with Proxy(made.a.server.port) as proxy:
        fetch = made.fetch(sink, proxy.address)
        eventually(lambda: sink.received)
        assert not fetch.is_stalled()
        proxy.stall()
        eventually(fetch.is_stalled)
        fetch.abandon()
        proxy.go_on()


def test_a_stranger_gets_no_snapshot(rig: Callable[[Source], Rig]) -> None:
    source = Source(1)
    made, sink = rig(source), Sink()
    fetch = made.fetch(sink, node_id="stranger")
    assert made.ended.wait(60)
    assert "not among the peers" in str(fetch.error)
    assert source.read == 0


@pytest.mark.parametrize(
    ("kind", "metadata", "body"),
    [
        (Kind.CHUNK, b"", b"data"),
        (Kind.CHUNK, bytes(15), b""),
        (Kind.CHUNK, bytes(17), b""),
        (Kind.END, b"", b"data"),
        (Kind.MESSAGE, b"", b""),
    ],
)
def test_parts_that_are_none_are_refused(
    rig: Callable[[Source], Rig], kind: int, metadata: bytes, body: bytes
) -> None:
    made = rig(Source(0))
    made.a.transport.incoming._answer = (  # type: ignore[method-assign]
        lambda link: link.channel.send(kind, metadata, body)
    )
    channel = open_channel(made.peers["a"], made.greeting(), PARTS)
    with contextlib.closing(channel), pytest.raises(InvalidBatch):
        receive_part(channel, 30)

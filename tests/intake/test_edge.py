"""The append edge: its connections, and what each kind of client gets for an answer."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.client import Client, Message, edgelink
from slotwheel.client.columns import Limits
from slotwheel.client.edgelink import EdgeLink
from slotwheel.client.hello import Hello
from slotwheel.client.link import FlightLink
from slotwheel.intake.edge import AppendEdge
from slotwheel.intake.flight import FlightIntake, check_free
from slotwheel.intake.ports import IntakeEvents
from slotwheel.node.threads import Threads
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import (
    AddressInUse,
    InvalidMessage,
    NotMaster,
    Overloaded,
    SlotwheelError,
)
from slotwheel.wheel.packets import MAGIC, PacketReader, encode_hello, encode_packet
from slotwheel.wheel.protocol import (
    IN_FLIGHT_MAX,
    NO_BATCH,
    AppendCommand,
    RefusedBatch,
    StoredBatch,
    decode_answer,
    encode_sequence,
)
from support.exchange import Exchange, action, rows
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms
from support.wheels import opened


@contextmanager
def served(
    wheel: FakeWheel, *, alarms: list[str] | None = None, commits: bool = True, **options: Any
) -> Iterator[FlightIntake]:
    """``commits``: the edge commits small batches by itself, as it does in a node. ``alarms``: gets
    those of its loop."""
    server = FlightIntake(
        wheel,
        "127.0.0.1:0",
        edge="127.0.0.1:0",
        commit=wheel.commit if commits else None,
        **{"room_timeout_s": 0.05, **options},
    )
    assert server.edge is not None
    kept = [] if alarms is None else alarms
    threads = Threads(lambda kind, error: kept.append(f"{kind} {error}"), lambda _error: None)
    threads.loop("append-edge", server.edge.turn)
    try:
        yield server
        assert not threads.unhealthy()
    finally:
        server.close()
        assert not threads.stop(time.monotonic() + 10, last="append-edge")
    assert kept is alarms or not kept


def command_for(server: FlightIntake, producer: int = 7) -> AppendCommand:
    assert server.edge is not None
    return AppendCommand(producer, token=server.edge.token)


class EdgeClient:
    """A client of the bare protocol. ``hello``: instead of one that is accepted."""

    def __init__(
        self, server: FlightIntake, hello: bytes | None = None, *, producer: int = 7
    ) -> None:
        fields = action(server, "hello", b'{"slotwheel": 1}')
        self.socket = socket.create_connection(("127.0.0.1", fields["append_port"]), 10)
        command = AppendCommand(producer, token=fields["append_token"])
        self.socket.sendall(encode_hello(command) if hello is None else hello)
        self._packets = PacketReader(1 << 20, 0, greeted=True)
        if hello is None:
            self.accepted()

    def accepted(self) -> None:
        answer = self.answer()
        if isinstance(answer, RefusedBatch):
            raise answer.error
        assert (answer.sequence, answer.count) == (NO_BATCH, 0)

    def send(self, batch: pa.RecordBatch, sequence: int) -> None:
        self.send_bytes(batch.serialize().to_pybytes(), sequence)

    def send_bytes(self, body: bytes, sequence: int) -> None:
        self.socket.sendall(encode_packet(encode_sequence(sequence), len(body)) + body)

    def answer(self) -> StoredBatch | RefusedBatch:
        while (packet := self._packets.next()) is None:
            received = self.socket.recv(65_536)
            if not received:
                raise EOFError
            self._packets.feed(received)
        return decode_answer(packet.metadata)

    def error(self) -> SlotwheelError:
        answer = self.answer()
        assert isinstance(answer, RefusedBatch)
        return answer.error

    def ended(self) -> bool:
        try:
            self.answer()
        except (EOFError, ConnectionError):
            return True
        return False

    def close(self) -> None:
        self.socket.close()


def send_without_end(client: EdgeClient, batch: pa.RecordBatch) -> None:
    for sequence in itertools.count():
        client.send(batch, sequence)


@pytest.mark.parametrize("commits", [True, False])
def test_batches_are_stored_and_answered_in_order(commits: bool) -> None:
    wheel = FakeWheel(commit_s=0.01)
    with served(wheel, commits=commits) as server, closing(EdgeClient(server)) as client:
        for sequence in range(20):
            client.send(rows(b"%d" % sequence), sequence)
        assert [client.answer().sequence for _ in range(20)] == list(range(20))
    assert wheel.values() == [b"%d" % sequence for sequence in range(20)]


def test_what_was_received_behind_a_full_window_waits_for_nothing_but_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing more comes on the connection then, and no other thread has anything to say."""
    monkeypatch.setattr("slotwheel.intake.edge._WAIT_S", 60.0)
    body = rows(b"x").serialize().to_pybytes()
    sequences = range(2 * IN_FLIGHT_MAX + 1)
    # With a commit of the edge's own, it would look for more to commit.
    with served(FakeWheel(), commits=False) as server, closing(EdgeClient(server)) as client:
        heads = (encode_packet(encode_sequence(sequence), len(body)) for sequence in sequences)
        client.socket.sendall(b"".join(head + body for head in heads))
        assert [client.answer().sequence for _ in sequences] == [*sequences]


def test_a_batch_that_comes_byte_by_byte_is_stored() -> None:
    wheel = FakeWheel()
    body = rows(b"slow").serialize().to_pybytes()
    with served(wheel) as server, closing(EdgeClient(server, b"")) as client:
        sent = encode_hello(command_for(server))
        sent += encode_packet(encode_sequence(0), len(body)) + body
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(sent)):
            client.socket.sendall(sent[number : number + 1])
        client.accepted()
        assert isinstance(client.answer(), StoredBatch)
    assert wheel.values() == [b"slow"]


def test_a_refused_batch_does_not_end_the_exchange() -> None:
    with served(FakeWheel()) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"past", due=-5), 0)
        assert client.error().code == "invalid-message"
        client.send(rows(b"good"), 1)
        assert isinstance(client.answer(), StoredBatch)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        MAGIC + b"\x02" + encode_packet(AppendCommand(7).encode()),
        MAGIC + b"\x01" + encode_packet(b"not json"),
        MAGIC + b"\x01" + encode_packet(AppendCommand(7).encode(), 1) + b"x",
        MAGIC + b"\x01" + struct.pack("<II", 1 << 31, 0),
        encode_hello(AppendCommand(7)),
        encode_hello(AppendCommand(7, token="of another node")),
    ],
)
def test_a_wrong_hello_is_answered_with_the_reason_and_ended(hello: bytes) -> None:
    with served(FakeWheel()) as server, closing(EdgeClient(server, hello)) as client:
        answer = client.answer()
        assert isinstance(answer, RefusedBatch)
        assert answer.sequence == NO_BATCH
        assert answer.error.code in ("invalid-batch", "unsupported-version")
        assert client.ended()


def compressed() -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    batch = rows(bytes(100_000))
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return bytes(reader.read_next_message().serialize().to_pybytes())


@pytest.mark.parametrize(
    "body", [b"no Arrow at all", bytes(64), rows(b"").schema.serialize().to_pybytes(), compressed()]
)
@pytest.mark.parametrize("commits", [True, False])
def test_what_is_no_plain_batch_ends_the_exchange_after_all_answers(
    body: bytes, commits: bool
) -> None:
    wheel = FakeWheel(commit_s=0.05)
    with served(wheel, commits=commits) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"before"), 0)
        client.send_bytes(body, 1)
        assert isinstance(client.answer(), StoredBatch)
        assert client.error().code == "invalid-batch"
        assert client.ended()


def test_each_byte_of_a_batch_may_be_wrong_and_the_node_goes_on() -> None:
    wheel = FakeWheel()
    body = rows(b"value").serialize().to_pybytes()
    with served(wheel) as server:
        for place in range(0, len(body), 3):
            wrong = bytearray(body)
            wrong[place] ^= 0xFF
            with closing(EdgeClient(server)) as client:
                client.send_bytes(bytes(wrong), 0)
                client.answer()  # stored or refused, but answered
        with closing(EdgeClient(server)) as client:
            client.send(rows(b"good"), 0)
            assert isinstance(client.answer(), StoredBatch)


def test_a_client_that_does_not_read_its_answers_holds_up_nobody() -> None:
    wheel = FakeWheel()
    with served(wheel) as server, closing(EdgeClient(server)) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.2)
        many = rows(*[b""] * 5000)
        with pytest.raises(TimeoutError):  # it is not read any more
            send_without_end(deaf, many)
        with closing(EdgeClient(server, producer=8)) as client:
            client.send(rows(b"mine"), 0)
            assert isinstance(client.answer(), StoredBatch)


def test_a_wheel_without_room_is_waited_for_and_then_refuses() -> None:
    wheel = FakeWheel()
    wheel.has_room.clear()
    with served(wheel) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"too soon"), 0)
        assert client.error().code == "overloaded"
        wheel.has_room.set()
        client.send(rows(b"again"), 0)
        assert isinstance(client.answer(), StoredBatch)
    full = FakeWheel()
    full.has_room.clear()
    with served(full, room_timeout_s=60) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"waits"), 0)
        full.has_room.set()
        assert isinstance(client.answer(), StoredBatch)


def test_a_deposed_master_tells_a_quiet_client_and_one_that_sends() -> None:
    wheel = FakeWheel()
    group = {"role": "standby", "master_address": "other:1"}
    with served(wheel, group=lambda: group) as server:
        with closing(EdgeClient(server)) as client, closing(EdgeClient(server)) as late:
            client.send(rows(b""), 0)
            assert isinstance(client.answer(), StoredBatch)
            wheel.serving = False
            server.depose()
            answer = client.answer()
            assert isinstance(answer, RefusedBatch)
            assert answer.sequence == NO_BATCH
            assert isinstance(answer.error, NotMaster)
            assert isinstance(late.error(), NotMaster)
        with closing(EdgeClient(server, encode_hello(command_for(server)))) as standby:
            assert isinstance(standby.error(), NotMaster)
            assert standby.ended()


def test_one_beyond_the_limit_is_refused_until_another_is_gone() -> None:
    with served(FakeWheel(), streams_max=2, quiet_s=60) as server:
        first, second = EdgeClient(server), EdgeClient(server)
        for client in (first, second):
            client.send(rows(b""), 0)
            client.answer()
        with closing(EdgeClient(server, b"")) as refused:
            assert isinstance(refused.error(), Overloaded)
        first.close()
        eventually(lambda: server.edge is not None and server.edge.open == 1)
        with closing(EdgeClient(server)) as third:
            third.send(rows(b""), 1)
            assert isinstance(third.answer(), StoredBatch)
        second.close()


def test_one_beyond_the_limit_replaces_the_one_that_has_been_quiet_longest() -> None:
    with served(FakeWheel(), streams_max=2, quiet_s=0) as server:
        first, second = EdgeClient(server), EdgeClient(server)
        for client in (second, first, second):
            client.send(rows(b""), 0)
            client.answer()
        with closing(EdgeClient(server)) as third:
            assert first.ended()
            for client in (second, third):
                client.send(rows(b""), 1)
                assert isinstance(client.answer(), StoredBatch)
        first.close()
        second.close()


def test_one_beyond_the_limit_replaces_one_that_does_not_read_its_answers() -> None:
    with (
        served(FakeWheel(), streams_max=1, quiet_s=0) as server,
        closing(EdgeClient(server)) as deaf,
    ):
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            send_without_end(deaf, rows(*[b""] * 5000))
        with closing(EdgeClient(server, producer=8)) as client:
            client.send(rows(b"mine"), 0)
            assert isinstance(client.answer(), StoredBatch)


def test_a_batch_that_waits_for_room_is_tried_again_only_when_there_is_some() -> None:
    wheel = FakeWheel()
    wheel.has_room.clear()
    with served(wheel, room_timeout_s=60) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"waits"), 0)
        eventually(lambda: bool(wheel.early))
        for _ in range(50):  # each is a turn
            EdgeClient(server).close()
        assert len(wheel.early) == 1
        wheel.has_room.set()
        assert isinstance(client.answer(), StoredBatch)


def in_thread(do: Callable[[], object]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def edge_of(wheel: FakeWheel) -> AppendEdge:
    return AppendEdge(
        wheel,
        "127.0.0.1",
        0,
        lambda: 0,
        IntakeEvents(),
        check_serving=wheel.check_serving,
        closing=threading.Event(),
        ending=threading.Event(),
        room_timeout_s=1,
        connections_max=2,
        quiet_s=0,
    )


def test_no_wake_is_lost_that_comes_while_an_earlier_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edge = edge_of(FakeWheel())
    edge.turn()
    read = os.eventfd_read

    def read_while_it_is_woken(number: int) -> int:
        in_thread(edge._wake)
        return read(number)

    monkeypatch.setattr(os, "eventfd_read", read_while_it_is_woken)
    in_thread(edge._wake)
    edge.turn()
    in_thread(edge._wake)
    assert select.select([edge._wakes], [], [], 0)[0]
    edge.close(0)
    edge.turn()


def test_an_edge_that_has_ended_may_still_be_woken() -> None:
    edge = edge_of(FakeWheel())
    edge.turn()
    edge.close(0)
    edge.turn()
    in_thread(edge._wake)
    assert str(Path(f"/proc/self/fd/{edge._wakes}").readlink()) == "anon_inode:[eventfd]"


def test_an_unforeseen_error_is_an_alarm_and_the_edge_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarms: list[str] = []
    accept = AppendEdge._admit
    with served(FakeWheel(), alarms=alarms) as server:

        def fail_once(edge: AppendEdge, sock: socket.socket, host: str) -> None:
            monkeypatch.setattr(AppendEdge, "_admit", accept)
            raise MemoryError("no memory")

        monkeypatch.setattr(AppendEdge, "_admit", fail_once)
        with closing(EdgeClient(server, b"")) as lost:
            assert lost.ended()
        with closing(EdgeClient(server)) as client:
            client.send(rows(b"good"), 0)
            assert isinstance(client.answer(), StoredBatch)
    assert alarms == ["append-edge-failed no memory"]


def test_an_address_that_is_taken_is_named_and_the_other_one_is_free_again() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    with pytest.raises(AddressInUse):
        FlightIntake(FakeWheel(), address, edge=address)
    check_free(address)
    taken = edge_of(FakeWheel())
    with pytest.raises(AddressInUse, match="--append"):
        FlightIntake(FakeWheel(), "127.0.0.1:0", edge=f"127.0.0.1:{taken.port}")
    taken.close(0)


@pytest.mark.parametrize("commits", [True, False])
def test_closing_answers_what_was_read(commits: bool) -> None:
    wheel = FakeWheel(commit_s=0.2)
    with served(wheel, commits=commits) as server, closing(EdgeClient(server)) as client:
        client.send(rows(b"last"), 0)
        eventually(lambda: wheel.values() == [b"last"])
        server.close(grace_s=10)
        assert isinstance(client.answer(), StoredBatch)
        assert client.ended()


def test_a_client_sends_by_the_edge_and_follows_its_loss() -> None:
    wheel = FakeWheel()
    with served(wheel) as server, Client(f"127.0.0.1:{server.port}", timeout_s=20) as client:
        for number in range(50):
            client.send(Message("t", b"%d" % number, delay=60)).result(10)
        link = client._sender._link
        assert isinstance(link, EdgeLink)
        link.cut()
        client.send(Message("t", b"50", delay=60)).result(10)
        receipts = client.send_many(Message("t", b"x", delay=60) for _ in range(20_000))
        assert len(receipts.result(20)) == 20_000
    assert wheel.values()[:51] == [b"%d" % number for number in range(51)]


def test_a_client_falls_back_to_flight(caplog: pytest.LogCaptureFixture) -> None:
    wheel = FakeWheel()
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        unused = found.getsockname()[1]
    with served(wheel) as server:
        assert server.edge is not None
        server.edge.port = unused
        with Client(f"127.0.0.1:{server.port}", timeout_s=20) as client:
            client.send(Message("t", b"all the same", delay=60)).result(10)
    assert "cannot be used" in caplog.text
    assert wheel.values() == [b"all the same"]


def test_a_client_stores_nothing_at_the_edge_of_another_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wheel, other = FakeWheel(), FakeWheel()
    with served(wheel) as server, served(other) as there:
        assert server.edge is not None
        assert there.edge is not None
        server.edge.port = there.edge.port  # as through a tunnel that leads elsewhere
        with Client(f"127.0.0.1:{server.port}", timeout_s=20) as client:
            for number in range(3):
                client.send(Message("t", b"%d" % number, delay=60)).result(10)
                link = client._sender._link
                assert isinstance(link, FlightLink)
                link.cut()
    assert wheel.values() == [b"0", b"1", b"2"]
    assert not other.batches
    assert caplog.text.count("cannot be used") == 1  # it is not tried again soon


def test_a_flush_reads_the_answers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(FakeWheel()) as server:
        monkeypatch.setattr(edgelink, "_LOOK_S", 300.0)  # nobody else would read soon
        with Client(f"127.0.0.1:{server.port}", timeout_s=60) as client:
            client.send(Message("t", b"first", delay=60)).result(30)
            for number in range(20):
                client.send(Message("t", b"%d" % number, delay=60))
                client.flush(30)


def test_a_port_that_does_not_answer_the_hello_is_no_link() -> None:
    def ignore(*_args: object) -> None: ...

    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        hello = Hello("g", Limits(), True, 0, "", silent.getsockname()[1], "token")
        with pytest.raises(TimeoutError):
            EdgeLink("127.0.0.1", hello, 0.1, AppendCommand(7), ignore, ignore, ignore)


def test_each_connection_gets_the_answers_to_its_own_batches(tmp_path: Path) -> None:
    """Good, bad, empty and repeated ones of many connections are appended in one turn."""
    kinds = ("good", "bad", "empty", "again", "good")
    now = now_ms()
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), now) as node:
        alone = threading.Lock()  # while a test holds it, nothing turns

        def turn() -> float:
            with alone:
                return server.edge.turn() if server.edge is not None else 0.0

        with contextlib.ExitStack() as stack:
            server = FlightIntake(
                node.wheel,
                "127.0.0.1:0",
                edge="127.0.0.1:0",
                commit=lambda: node.wheel.write_pending(0),
            )
            threads = Threads(lambda *_: None, lambda _: None)
            threads.loop("append-edge", turn)
            stack.callback(lambda: threads.stop(time.monotonic() + 10, last="append-edge"))
            stack.callback(server.close)
            clients = [
                stack.enter_context(closing(EdgeClient(server, producer=10 + number)))
                for number in range(20)
            ]
            sent: list[tuple[EdgeClient, list[tuple[str, list[bytes]]]]] = []
            with alone:
                for number, client in enumerate(clients):
                    mine: list[tuple[str, list[bytes]]] = []
                    for place in range(4):
                        kind = kinds[(number + place) % len(kinds)]
                        values = [b"%d %d %d" % (number, place, row) for row in range(place + 1)]
                        batch = rows(*values)
                        if kind == "bad":
                            far = now + 10**9
                            batch = pa.concat_batches([batch, rows(b"far", due=far)])
                        client.send_bytes(
                            b"" if kind == "empty" else batch.serialize().to_pybytes(), place
                        )
                        if kind == "again":
                            client.send(batch, place)
                            mine.append((kind, values))
                        mine.append((kind, values))
                    sent.append((client, mine))
            stored: dict[int, bytes] = {}
            for client, mine in sent:
                for kind, values in mine:
                    answer = client.answer()
                    if kind in ("bad", "empty"):
                        assert isinstance(answer, RefusedBatch)
                        assert answer.error.row == (len(values) if kind == "bad" else None)
                        continue
                    assert isinstance(answer, StoredBatch)
                    assert answer.count == len(values)
                    for row, value in enumerate(values, answer.base_offset):
                        assert stored.setdefault(row, value) == value
        kept = [
            value
            for piece in node.wheel._storage.tail.pieces
            for value in piece.rows.column("value").to_pylist()
        ]
        assert stored == dict(enumerate(kept))


USELESS = {"nothing": None, "empty batches": rows(), "what is refused": rows(b"refuse")}


@pytest.mark.parametrize("useless", USELESS)
@pytest.mark.parametrize("kind", [EdgeClient, Exchange])
def test_who_stores_nothing_keeps_nobody_out(
    kind: type[EdgeClient] | type[Exchange], useless: str
) -> None:
    wheel, stop = FakeWheel(), threading.Event()

    def refuse(batch: pa.RecordBatch) -> None:
        if batch.num_rows and batch["value"][0].as_py() == b"refuse":
            raise InvalidMessage("refused")

    wheel.before_append = refuse

    def begun() -> EdgeClient | Exchange:
        made = kind(server)
        return made if isinstance(made, EdgeClient) else made.begin()

    def go_on_sending() -> None:
        for sequence in itertools.count():
            for client in useless_ones:
                if USELESS[useless] is not None:
                    client.send(USELESS[useless], sequence)
                    client.answer()
            if stop.wait(0.02):
                break

    with served(wheel, streams_max=4, quiet_s=0.5) as server:
        useful, *useless_ones = (begun() for _ in range(4))
        sending = threading.Thread(target=go_on_sending)
        sending.start()
        try:
            eventually(lambda: min(places(server)) >= 0.5, 20)
            useful.send(rows(b"x"), 1)
            assert isinstance(useful.answer(), StoredBatch)
        finally:
            stop.set()
            sending.join()
        newcomer = begun()
        newcomer.send(rows(b"mine"), 1)
        assert isinstance(newcomer.answer(), StoredBatch)
        useful.send(rows(b"x"), 2)
        assert isinstance(useful.answer(), StoredBatch), "it was not in the way"


def places(server: FlightIntake) -> list[float]:
    """For how long each stream has stored nothing."""
    edge = server.edge
    assert edge is not None
    with server._calls._lock:
        streams = [one.quiet_s for one in server._calls.streams]
    return streams or [one.quiet_s for one in list(edge._connections.values())]

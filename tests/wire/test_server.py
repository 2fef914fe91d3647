"""The server: its connections, from the first byte of each to its last word."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotwheel.security.tls import TlsFiles
from slotwheel.wheel.errors import InvalidMessage, NotRunning, Overloaded
from slotwheel.wire import server as server_module
from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import (
    HELLO_BYTES_MAX,
    MAGIC,
    Frame,
    Kind,
    encode_action,
    encode_frame,
    encode_hello,
)
from slotwheel.wire.server import SMALL_BYTES, THROWN_AWAY_MAX
from support.certificates import Authority
from support.echoserver import (
    BODY_MAX,
    WINDOW,
    EchoServer,
    EchoSession,
    Securing,
    echoing,
    refuse,
    serve_by,
)
from support.exchange import RawClient, action_frame
from support.waiting import PATIENCE_S, eventually

HELLO = encode_hello(b"hello")


@pytest.fixture(autouse=True, params=["plain", "secured"])
def _securing(
    request: pytest.FixtureRequest, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does the same for its clients whether TLS is on or not."""
    if request.param == "secured":
        secured = TlsFiles(authority.issue("localhost"), accepts=True, requires_certificate=True)
        monkeypatch.setattr(Securing, "tls", secured)
        client = TlsFiles.of_client(authority.issue("client.example"))
        monkeypatch.setattr(Securing, "secure", staticmethod(client.dial))


def welcomed(node: EchoServer, host: str = "127.0.0.1") -> RawClient:
    client = RawClient(node, HELLO, source=host)
    frame = client.frame()
    assert (frame.kind, bytes(frame.body)) == (Kind.WELCOME, b"welcome")
    return client


def echo(client: RawClient, text: bytes) -> bytes:
    client.send_bytes(action_frame("say", text))
    return bytes(client.frame().body)


def send_without_end(client: RawClient, frame: bytes) -> None:
    while True:
        client.socket.sendall(frame)


def in_thread(do: Callable[[], object]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def held_bytes(node: EchoServer) -> list[int]:
    """What is kept of each newcomer."""
    return [len(one.frames._held) for one in node.server._newcomers]


def test_what_comes_byte_by_byte_is_answered() -> None:
    with echoing() as node, RawClient(node) as client:
        sent = HELLO + action_frame("say", b"slowly")
        for number in range(len(sent)):
            client.send_bytes(sent[number : number + 1])
        assert client.frame().kind == Kind.WELCOME
        assert bytes(client.frame().body) == b"slowly"


def test_what_was_received_behind_a_full_window_waits_for_nothing_but_answers() -> None:
    """Nothing more comes on the connection then, and no other thread has anything to say."""
    with echoing() as node, welcomed(node) as client:
        node.wait_s = 60.0
        many = range(5 * WINDOW + 1)
        client.send_bytes(b"".join(action_frame("say", b"%d" % number) for number in many))
        assert [bytes(client.frame().body) for _ in many] == [b"%d" % number for number in many]


def test_of_a_newcomer_no_more_is_kept_than_a_hello() -> None:
    with echoing() as node, RawClient(node) as client:
        client.send_bytes(HELLO[:8] + encode_frame(Kind.HELLO, b"", HELLO_BYTES_MAX))
        client.send_bytes(bytes(HELLO_BYTES_MAX - 1))
        eventually(lambda: held_bytes(node) == [HELLO_BYTES_MAX + 8 - 1])
        client.send_bytes(b"x" + action_frame("say", b"both"))
        assert client.frame().kind == Kind.WELCOME
        assert bytes(client.frame().body) == b"both"
        with RawClient(node, HELLO[:8], encode_frame(Kind.HELLO, b"", 1 << 20)) as liar:
            liar.send_bytes(bytes(1 << 20))
            assert "too large" in str(liar.error())
            assert liar.ended()


def test_a_hello_that_does_not_come_in_time_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "HELLO_S", 0.3)
    monkeypatch.setattr(server_module, "_LOOK_EVERY_S", 0.05)
    with echoing() as node, welcomed(node) as client:
        with RawClient(node) as silent, RawClient(node, HELLO[:20]) as slow:
            assert silent.ended()
            assert slow.ended()
        assert echo(client, b"still here") == b"still here"


def test_the_oldest_silent_one_of_the_greediest_address_makes_room_for_a_newcomer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "NEWCOMERS_MAX", 4)
    with echoing() as node, ExitStack() as stack:

        def silent(host: str) -> RawClient:
            before = len(node.server._newcomers)
            client = stack.enter_context(RawClient(node, source=host))
            eventually(lambda: len(node.server._newcomers) == min(4, before + 1))
            return client

        lone = silent("127.0.0.2")
        greedy = [silent("127.0.0.1") for _ in range(3)]
        hosts = ["127.0.0.2", *["127.0.0.1"] * 3]
        assert [one.host for one in node.server._newcomers] == hosts
        with welcomed(node) as client:
            assert greedy[0].rest() == b""
            assert echo(client, b"good") == b"good"
            more = [silent("127.0.0.1") for _ in range(3)]
            assert [one.rest() for one in greedy[1:]] == [b"", b""]
            assert echo(client, b"good") == b"good"
        for one in (lone, *more[1:]):
            one.socket.settimeout(0.0)
            with pytest.raises(BlockingIOError):
                one.socket.recv(1)


NOT_A_HELLO = {
    "another version": (MAGIC + b"\x07\0" + HELLO[8:], "version 7"),
    "another protocol's magic": (b"SWAPPND\x01" + bytes(30), "version 1 of the wire"),
    "a batch before the hello": (HELLO[:8] + encode_frame(Kind.BATCH, bytes(8), 5), "kind 3"),
    "a body that lies": (HELLO[:8] + encode_frame(Kind.HELLO, b"", (1 << 32) - 1), "4294967295"),
    "a second hello": (HELLO + HELLO[8:], "kind 1"),
    "a kind of a node": (HELLO + encode_frame(Kind.WELCOME), "kind 2"),
    "no kind": (HELLO + bytes(8), "kind 0"),
    "far more than is thrown away": (
        HELLO + encode_frame(Kind.ACTION, encode_action(1, "x"), THROWN_AWAY_MAX + 1),
        str(THROWN_AWAY_MAX + 1),
    ),
}


@pytest.mark.parametrize("name", NOT_A_HELLO)
def test_who_sends_what_it_may_not_is_told_so_and_ended_alone(name: str) -> None:
    sent, text = NOT_A_HELLO[name]
    with echoing() as node, welcomed(node) as good, RawClient(node, sent) as client:
        if sent.startswith(HELLO):
            assert client.frame().kind == Kind.WELCOME
        error = client.error()
        assert text in str(error)
        assert error.code in ("invalid-batch", "unsupported-version")
        assert client.ended()
        assert echo(good, b"others are served") == b"others are served"
        eventually(lambda: node.server.open == 1)


def test_a_web_client_is_answered_in_its_own_protocol() -> None:
    with echoing() as node:
        with RawClient(node, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") as browser:
            answer = browser.rest()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"--http" in answer
        assert b"version 1 of the wire" in answer


def test_a_hello_that_is_refused_is_answered_with_the_reason() -> None:
    with echoing(refuse(NotRunning("not now"))) as node, RawClient(node, HELLO) as client:
        assert isinstance(client.error(), NotRunning)
        assert client.ended()


def test_a_connections_error_comes_after_its_last_answers() -> None:
    with echoing() as node, welcomed(node) as good, welcomed(node) as client:
        client.send_bytes(action_frame("say", b"before") + action_frame("wrong", b""))
        client.send_bytes(action_frame("say", b"behind it, and not read"))
        assert bytes(client.frame().body) == b"before"
        assert isinstance(client.error(), InvalidMessage)
        assert client.ended()
        assert node.made[1].taken == 1
        assert node.made[1].ended.wait(60)
        assert echo(good, b"good") == b"good"
    assert node.alarms == []


def test_who_has_said_everything_gets_its_answers() -> None:
    with echoing() as node, welcomed(node) as client:
        client.send_bytes(action_frame("say", b"and that was it"))
        client.socket.shutdown(socket.SHUT_WR)
        assert bytes(client.frame().body) == b"and that was it"
        assert client.ended()


def test_half_a_frame_and_gone_leaves_nothing() -> None:
    sent = HELLO + action_frame("say", b"x" * 100_000)
    with echoing() as node, welcomed(node) as good:
        for length in range(0, len(sent), len(sent) // 40):
            RawClient(node, sent[:length]).close()
        eventually(
            lambda: node.server.open == 1 and all(one.ended.is_set() for one in node.made[1:])
        )
        assert echo(good, b"good") == b"good"
        eventually(lambda: node.server._nbytes == 0)


def test_who_does_not_read_its_answers_is_read_no_more_and_holds_up_nobody() -> None:
    with echoing() as node, welcomed(node) as deaf, welcomed(node) as good:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            send_without_end(deaf, action_frame("say", bytes(BODY_MAX)))
        assert echo(good, b"good") == b"good"
        kept = len(node.made[0].connection.out) / BODY_MAX + len(node.made[0].waiting)
        assert kept <= 2 * WINDOW + 1


def test_a_turn_takes_a_little_of_each_party_and_each_of_its_connections_comes_to_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no time at all it is one connection a turn. Who asks again comes behind all others."""
    turns: list[list[EchoSession]] = [[]]
    take = EchoSession.take

    def note(session: EchoSession, frame: Frame) -> None:
        turns[-1].append(session)
        take(session, frame)

    monkeypatch.setattr(EchoSession, "take", note)
    monkeypatch.setattr(server_module, "TURN_OF_EACH_S", 0.0)
    question = action_frame("say", b"x")
    reached, steps = threading.Semaphore(0), threading.Semaphore(0)

    def stop() -> None:
        reached.release()
        steps.acquire()

    def step() -> list[EchoSession]:
        """What the next turn takes; the answers of the one before are sent then."""
        turns.append([])
        steps.release()
        assert reached.acquire(timeout=PATIENCE_S)
        return turns[-1]

    with echoing() as node, ExitStack() as stack:
        crowd = [stack.enter_context(welcomed(node, "127.0.0.2")) for _ in range(4)]
        other = stack.enter_context(welcomed(node))
        node.work = stop  # type: ignore[method-assign]
        stack.callback(steps.release, 1 << 20)
        assert reached.acquire(timeout=PATIENCE_S)
        for client in [*crowd, other]:
            client.send_bytes(question)
        *ours, last = node.made
        first, another = step()
        assert another is last
        client = crowd[ours.index(first)]
        order = [first, *step()]
        assert bytes(client.frame().body) == b"x"
        client.send_bytes(question)
        while len(order) < 5:
            order += step()
        assert {*order[:4]} == {*ours}
        assert order[4] is first
        assert all(len(turn) <= 2 for turn in turns)


LARGE = encode_frame(Kind.ACTION, encode_action(1, "say"), BODY_MAX)
FULL = 3 * BODY_MAX + BODY_MAX // 2


def held(node: EchoServer) -> int:
    """Large frames of which a part has come."""
    return sum(one.connection.frames.body_bytes == BODY_MAX for one in node.made)


def begin(client: RawClient, node: EchoServer, count: int) -> None:
    client.send_bytes(LARGE + bytes(1000))
    eventually(lambda: held(node) == count)


def end(client: RawClient) -> None:
    client.send_bytes(bytes(BODY_MAX - 1000))
    assert bytes(client.frame().body) == bytes(BODY_MAX)


def test_of_all_connections_together_no_more_is_held_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Otherwise the parts that a busy machine leaves lying for so long are given up.
    monkeypatch.setattr(server_module, "STUCK_S", PATIENCE_S)
    with echoing(bytes_max=FULL) as node, ExitStack() as stack:
        first, second, third, fourth, fifth = (
            stack.enter_context(welcomed(node)) for _ in range(5)
        )
        for number, client in enumerate((first, second, third), 1):
            begin(client, node, number)
        for number, client in enumerate((fourth, fifth), 1):  # each waits for its turn, unread
            client.send_bytes(LARGE + bytes(1000))
            eventually(lambda: len(node.server._queue) == number)  # noqa: B023
        assert held(node) == 3
        assert node.server._nbytes < FULL
        with welcomed(node) as other:
            assert echo(other, b"small") == b"small"
        end(second)
        eventually(lambda: held(node) == 3)
        assert node.made[3].connection.frames.body_bytes
        end(fourth)
        eventually(lambda: not node.server._queue)
        for client in (first, third, fifth):
            end(client)
        eventually(lambda: node.server._nbytes == 0)


def test_small_frames_are_held_up_to_the_limit_and_a_little_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of connections whose window is full."""
    monkeypatch.setattr(EchoSession, "reads", property(lambda self: self.taken < 1))
    many = b"".join(action_frame("say", bytes(1000)) for _ in range(300))
    with echoing(bytes_max=BODY_MAX) as node, ExitStack() as stack:
        clients = [stack.enter_context(welcomed(node)) for _ in range(20)]
        for client in clients:
            client.send_bytes(many)
        for client in clients:
            assert bytes(client.frame().body) == bytes(1000)
        of_each: list[int] = []

        def some_fill_the_room() -> bool:
            of_each[:] = [one.connection.nbytes for one in node.made]
            assert sum(of_each) <= BODY_MAX + (256 << 10) + len(clients) * (SMALL_BYTES + 1100)
            return max(of_each) > SMALL_BYTES + 1100

        eventually(some_fill_the_room)
        assert min(of_each) <= SMALL_BYTES + 1100


@pytest.mark.parametrize("how", ["silent", "drips", "deaf"])
def test_who_lets_others_wait_for_room_is_ended_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(server_module, "STUCK_S", 0.5)
    monkeypatch.setattr(server_module, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(EchoSession, "limits", {Kind.ACTION: (64, 8 * BODY_MAX)})
    with echoing(bytes_max=9 * BODY_MAX) as node, welcomed(node) as bad, welcomed(node) as good:
        large = 8 * BODY_MAX
        head = encode_frame(Kind.ACTION, encode_action(1, "say"), large)
        bad.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bad.send_bytes(head + bytes(large if how == "deaf" else 1000))
        eventually(lambda: node.server._nbytes > large // 2)
        good.send_bytes(head)
        going_on = threading.Event()

        def drip() -> None:
            while not going_on.wait(0.02):
                bad.send_bytes(b"x")

        dripping = threading.Thread(target=drip)
        if how == "drips":
            dripping.start()
        good.send_bytes(bytes(large))
        assert len(good.frame().body) == large
        going_on.set()
        if how == "drips":
            dripping.join()
        elif how == "silent":
            error = bad.error()
            assert isinstance(error, Overloaded)
            assert "smaller batches" in error.remedy
        eventually(lambda: node.server.open == 1)
        assert node.alarms == []


def say_goodbye(client: RawClient) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def close_with_answers_unread(client: RawClient) -> None:
    assert client.socket.recv(1, socket.MSG_PEEK)
    client.close()


@pytest.mark.parametrize(
    ("go", "size"),
    [
        (say_goodbye, 10),
        (say_goodbye, BODY_MAX // 2),
        (RawClient.close, 10),
        (RawClient.close, 2000),
        (close_with_answers_unread, 2000),
    ],
)
def test_what_was_sent_before_the_end_is_done(go: Callable[[RawClient], None], size: int) -> None:
    """More than the window. By ``close`` a client's kernel drops what the node's has not received
    yet, once an answer comes: no node could do that."""
    many = 5 * WINDOW + 1
    with echoing(bytes_max=FULL) as node:
        with RawClient(node, HELLO) as client:
            sent = b"".join(action_frame("say", bytes(size)) for _ in range(many))

            def send() -> None:
                client.send_bytes(sent)
                go(client)

            if go is not say_goodbye:
                send()
            else:  # the kernel may not hold as much as is sent and answered
                sender = threading.Thread(target=send)
                sender.start()
                assert client.frame().kind == Kind.WELCOME
                assert [len(client.frame().body) for _ in range(many)] == [size] * many
                assert client.ended()
                sender.join()
        eventually(lambda: node.made and node.made[0].taken == many)
        eventually(lambda: node.server.open == 0)
        assert node.made[0].ended.wait(60)
        assert node.server._nbytes == 0
        assert node.alarms == []


def test_one_beyond_the_limit_is_refused_until_another_one_is_gone() -> None:
    with echoing(connections_max=2) as node, welcomed(node) as first, welcomed(node) as second:
        with RawClient(node, HELLO) as refused:
            error = refused.error()
            assert isinstance(error, Overloaded)
            assert "2" in str(error.limit)
            assert "open files" in error.remedy
        first.close()
        eventually(lambda: node.server.open == 1)
        with welcomed(node) as third:
            assert echo(third, b"3") == b"3"
            assert echo(second, b"2") == b"2"


def test_one_beyond_the_limit_replaces_who_has_been_of_no_use_for_longest() -> None:
    with (
        echoing(connections_max=2, quiet_s=5.0) as node,
        welcomed(node) as first,
        welcomed(node) as second,
    ):
        node.made[0].quiet_s, node.made[1].quiet_s = 6.0, 7.0
        with welcomed(node) as third:
            assert second.ended()
            assert echo(third, b"3") == b"3"
            assert echo(first, b"1") == b"1"


def test_a_peer_is_not_counted_and_gets_a_thread_of_its_own() -> None:
    threads: list[threading.Thread] = []

    def serve(channel: Channel) -> None:
        threads.append(threading.current_thread())
        channel.limits = {Kind.MESSAGE: (0, 100)}
        channel.send(Kind.WELCOME)
        while (frame := channel.receive(60)) is not None:
            channel.send(Kind.MESSAGE, b"", bytes(frame.body))
            if bytes(frame.body) == b"wrong":
                raise InvalidMessage("wrong")

    hello = encode_hello(b"peer")
    message = encode_frame(Kind.MESSAGE, b"", 2) + b"hi"
    with echoing(serve_by(serve), connections_max=1) as node, welcomed(node) as client:
        with RawClient(node, hello + message) as peer, RawClient(node, hello) as other:
            assert peer.frame().kind == Kind.WELCOME
            assert bytes(peer.frame().body) == b"hi"
            assert other.frame().kind == Kind.WELCOME
            assert node.server.open == 1
            assert echo(client, b"served") == b"served"
            peer.send_bytes(encode_frame(Kind.MESSAGE, b"", 5) + b"wrong")
            assert bytes(peer.frame().body) == b"wrong"
            assert isinstance(peer.error(), InvalidMessage)
            other.send_bytes(encode_frame(Kind.MESSAGE, b"", 101))
            assert "101" in str(other.error())
        for thread in threads:
            thread.join(60)
        eventually(lambda: not node.server._channels)
    assert node.alarms == []


def test_a_defect_is_an_alarm_and_ends_the_connection_that_it_was_found_by() -> None:
    with echoing() as node, welcomed(node) as good, welcomed(node) as client:
        client.send_bytes(action_frame("defect", b""))
        assert client.ended()
        assert echo(good, b"good") == b"good"
        assert node.alarms == ["ZeroDivisionError('a defect')"]


def test_without_a_thread_for_a_peer_its_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing(serve_by(lambda _: None)) as node, welcomed(node) as good:

        def fail(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with RawClient(node, encode_hello(b"peer")) as peer:
                assert peer.ended()
        assert echo(good, b"good") == b"good"
        assert not node.server._channels


def test_without_a_free_descriptor_the_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing() as node, welcomed(node) as good:
        full = [True]
        accept = socket.socket.accept

        def none_free(listener: socket.socket) -> Any:
            if full:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", none_free)
        with RawClient(node) as waiting:
            assert echo(good, b"good") == b"good"
            full.clear()
            waiting.send_bytes(HELLO)
            assert waiting.frame().kind == Kind.WELCOME


def test_no_wake_is_lost_that_comes_while_an_earlier_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = EchoServer(lambda _: None).server
    server.turn()
    read = os.eventfd_read

    def read_while_it_is_woken(number: int) -> int:
        in_thread(server.wake)
        return read(number)

    monkeypatch.setattr(os, "eventfd_read", read_while_it_is_woken)
    in_thread(server.wake)
    server.turn()
    in_thread(server.wake)
    assert select.select([server._wakes], [], [], 0)[0]
    server.close(0)
    server.turn()


def test_a_server_that_has_ended_may_still_be_woken() -> None:
    server = EchoServer(lambda _: None).server
    server.turn()
    server.close(0)
    server.turn()
    in_thread(server.wake)
    assert str(Path(f"/proc/self/fd/{server._wakes}").readlink()) == "anon_inode:[eventfd]"


def test_a_server_that_never_turned_can_be_closed() -> None:
    server = EchoServer(lambda _: None).server
    with RawClient(f"127.0.0.1:{server.port}") as client:
        server.close(10)
        assert client.ended()

"""The wire over TLS: who is refused and how both sides learn of it, and what comes through."""

from __future__ import annotations

import contextlib
import gc
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.security.tls import Tls, TlsFiles, TlsStream
from slotwheel.wheel.errors import (
    InvalidConfiguration,
    NodeUnreachable,
    NotRunning,
    SlotwheelError,
)
from slotwheel.wire import server as server_module
from slotwheel.wire.channel import Channel, Secure
from slotwheel.wire.frames import FrameLimits, Kind, encode_action, encode_frame, encode_hello
from support.certificates import Authority, bundle
from support.echoserver import BODY_MAX, WINDOW, EchoServer, echoing, serve_by
from support.exchange import RawClient, action_frame
from support.securesocket import SecureSocket
from support.waiting import eventually

HELLO = encode_hello(b"hello")
RESULTS: FrameLimits = {Kind.RESULT: (8, BODY_MAX)}


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Secure:
    return TlsFiles.of_client(authority.issue("billing.example")).dial


@pytest.fixture
def node(authority: Authority) -> Iterator[EchoServer]:
    with echoing(tls=served(authority.issue("localhost"))) as echo_server:
        yield echo_server


def served(tls: Tls) -> TlsFiles:
    return TlsFiles(tls, accepts=True, requires_certificate=True)


def opened(node: EchoServer, secure: Secure | None) -> Channel:
    return Channel.open(f"localhost:{node.port}", b"hello", RESULTS, 30, secure=secure)


def echo(channel: Channel, body: bytes) -> bytes:
    channel.send(Kind.ACTION, encode_action(1, "say"), body)
    frame = channel.receive(30)
    assert frame is not None
    return bytes(frame.body)


def test_both_sides_know_the_names_that_were_proven(node: EchoServer, secure: Secure) -> None:
    with contextlib.closing(opened(node, secure)) as channel:
        assert echo(channel, b"hi") == b"hi"
        assert channel.is_secure
        assert channel.certificate_names == ("localhost",)
        connection = node.made[0].connection
        assert connection.is_secure
        assert connection.certificate_names == ("billing.example",)
        assert not channel.is_stale
    with echoing() as plain, contextlib.closing(opened(plain, None)) as channel:
        assert echo(channel, b"hi") == b"hi"
        assert (channel.is_secure, channel.certificate_names) == (False, ())
        connection = plain.made[0].connection
        assert (connection.is_secure, connection.certificate_names) == (False, ())


def test_a_peers_thread_knows_the_names_and_reads_on_where_the_server_stopped(
    authority: Authority, secure: Secure
) -> None:
    names: list[tuple[str, ...]] = []

    def serve(channel: Channel) -> None:
        names.append(channel.certificate_names)
        channel.limits = {Kind.MESSAGE: (0, BODY_MAX)}
        channel.send(Kind.WELCOME)
        while (frame := channel.receive(60)) is not None:
            channel.send(Kind.MESSAGE, b"", bytes(frame.body))

    tls = served(authority.issue("localhost"))
    message = encode_frame(Kind.MESSAGE, b"", BODY_MAX) + bytes(BODY_MAX)
    with echoing(serve_by(serve), tls=tls) as node:
        with RawClient(node, encode_hello(b"peer") + message, secure=secure) as peer:
            assert peer.frame().kind == Kind.WELCOME
            assert bytes(peer.frame().body) == bytes(BODY_MAX)
        eventually(lambda: not node.server._channels)
    assert names == [("billing.example",)]


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 65_537, BODY_MAX])
def test_bodies_of_all_sizes_come_through_both_ways(
    node: EchoServer, secure: Secure, size: int
) -> None:
    body = random.Random(size).randbytes(size)
    with contextlib.closing(opened(node, secure)) as channel:
        for _ in range(3):
            assert echo(channel, body) == body


def test_what_comes_byte_by_byte_is_answered(node: EchoServer, secure: Secure) -> None:
    """Handshake, hello and frames, each byte in a packet of its own; both ways."""
    plain = socket.create_connection(("localhost", node.port), 30)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with plain:
        client = RawClient(node, secure=secure)
        client.socket.close()
        client.socket = SecureSocket(plain, secure("localhost"), piece=1)
        client.send_bytes(HELLO + action_frame("say", b"slowly"))
        assert client.frame().kind == Kind.WELCOME
        assert bytes(client.frame().body) == b"slowly"


def test_many_frames_of_one_record_are_all_answered_though_nothing_more_comes(
    node: EchoServer, secure: Secure
) -> None:
    """They have left the socket when the first of them fills the window."""
    node.wait_s = 60.0
    with RawClient(node, HELLO, secure=secure) as client:
        assert client.frame().kind == Kind.WELCOME
        many = range(200)
        client.send_bytes(b"".join(action_frame("say", b"%d" % number) for number in many))
        assert [bytes(client.frame().body) for _ in many] == [b"%d" % number for number in many]


def test_what_openssl_holds_behind_a_full_window_is_not_forgotten(
    node: EchoServer, secure: Secure
) -> None:
    """The end of a large body and a small frame come in one record: the body fills the window, and
    of the small frame nothing is left in the socket that epoll could report."""
    node.wait_s = 60.0
    with RawClient(node, HELLO, secure=secure) as client:
        assert client.frame().kind == Kind.WELCOME
        for size in range(65_600, 66_800, 40):
            sent = action_frame("say", bytes(size)) * WINDOW + action_frame("say", b"small") * 3
            client.send_bytes(sent)
            lengths = [len(client.frame().body) for _ in range(WINDOW + 3)]
            assert lengths == [size] * WINDOW + [5] * 3


def test_threads_that_send_and_receive_at_once_disturb_nobody(
    node: EchoServer, secure: Secure
) -> None:
    bodies = [random.Random(number).randbytes(number * 997) for number in range(400)]
    with contextlib.closing(opened(node, secure)) as channel:

        def send() -> None:
            for number, body in enumerate(bodies):
                channel.send(Kind.ACTION, encode_action(number, "say"), body)

        sender = threading.Thread(target=send)
        sender.start()
        for body in bodies:
            frame = channel.receive(60)
            assert frame is not None
            assert bytes(frame.body) == body
        sender.join(60)
        assert not sender.is_alive()


def refused(node: EchoServer, secure: Secure | None) -> SlotwheelError:
    with pytest.raises(SlotwheelError) as caught:
        echo(opened(node, secure), b"")
    return caught.value


@pytest.mark.parametrize("case", ["foreign", "expired", "none"])
def test_a_client_whose_certificate_is_not_accepted_learns_so_and_the_log_says_why(
    node: EchoServer, authority: Authority, foreign: Authority, case: str
) -> None:
    issued = {
        "foreign": foreign.issue("billing.example"),
        "expired": authority.issue("billing.example", expired=True, file="expired"),
        "none": Tls(),
    }[case]
    tls = Tls(ca=authority.ca, cert=issued.cert, key=issued.key)
    error = refused(node, TlsFiles.of_client(tls).dial)
    assert isinstance(error, InvalidConfiguration)
    assert "does not accept this one's TLS" in str(error)
    reason = {"foreign": "issuer", "expired": "expired", "none": "did not return a cert"}[case]
    eventually(lambda: node.refusals)
    assert reason in str(node.refusals[0])
    eventually(lambda: node.server.open == 0)
    assert not node.made


def test_a_node_that_is_not_the_one_that_was_meant_is_told_nothing(
    authority: Authority, foreign: Authority
) -> None:
    secure = TlsFiles.of_client(Tls(ca=authority.ca)).dial
    for issued in (foreign.issue("localhost"), authority.issue("other.example")):
        tls = TlsFiles(Tls(cert=issued.cert, key=issued.key), accepts=True)
        with echoing(tls=tls) as node:
            error = refused(node, secure)
            assert isinstance(error, InvalidConfiguration)
            assert "certificate of the other side is not accepted" in str(error)
            eventually(lambda: node.refusals)
            assert "does not accept this one's TLS" in str(node.refusals[0])
            assert not node.made


def test_a_plain_client_of_a_secured_node_is_told_to_use_tls(node: EchoServer) -> None:
    error = refused(node, None)
    assert isinstance(error, InvalidConfiguration)
    assert "tls://HOST:PORT" in str(error)
    assert "speaks TLS" in str(node.refusals[0])
    with RawClient(f"127.0.0.1:{node.port}", b"GET / HTTP/1.1\r\n\r\n") as browser:
        assert browser.rest().startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_secured_client_of_a_plain_node_is_told_that_there_is_no_tls(secure: Secure) -> None:
    with echoing() as node:
        error = refused(node, secure)
        assert isinstance(error, InvalidConfiguration)
        assert "what listens there does not speak TLS" in str(error)
        eventually(lambda: node.refusals)
        assert "this node has no certificate" in str(node.refusals[0])


def test_a_plain_client_of_somebody_elses_tls_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def alert() -> None:
            with listener.accept()[0] as other:
                other.sendall(b"\x15\x03\x01\x00\x02\x02\x0a")
                other.recv(1000)

        answering = threading.Thread(target=alert)
        answering.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(InvalidConfiguration, match="tls://HOST:PORT"):
            Channel.open(address, b"hello", {}, 30)
        answering.join()


@pytest.mark.parametrize("part", [0, 1, 200])
def test_half_a_handshake_ends_after_some_seconds(
    node: EchoServer, secure: Secure, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TLS_HELLO_S", 0.3)
    monkeypatch.setattr(server_module, "_LOOK_EVERY_S", 0.05)
    stream = secure("localhost")
    stream.shake_hands()
    with RawClient(f"127.0.0.1:{node.port}", stream.outgoing()[:part]) as silent:
        silent.rest()
    eventually(lambda: node.server.open == 0)
    assert not node.made


def test_a_handshake_without_end_is_cut_off(node: EchoServer, secure: Secure) -> None:
    """A record says that a message of 16 MB begins, and more and more of it comes."""
    begin = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff"
    with RawClient(f"127.0.0.1:{node.port}", begin + bytes(64 << 10)) as endless:
        endless.rest()
    eventually(lambda: node.refusals and node.server.open == 0)


def test_handshakes_of_many_hold_up_nobody_who_has_said_hello(
    node: EchoServer, secure: Secure
) -> None:
    stream = secure("localhost")
    stream.shake_hands()
    hello = stream.outgoing()
    with contextlib.closing(opened(node, secure)) as channel, contextlib.ExitStack() as many:
        for _ in range(100):
            many.enter_context(RawClient(f"127.0.0.1:{node.port}", hello))
        assert echo(channel, b"good") == b"good"
        with contextlib.closing(opened(node, secure)) as another:
            assert echo(another, b"newcomer") == b"newcomer"


def test_a_turn_gives_newcomers_so_much_time_and_each_comes_to_its_turn(
    authority: Authority, secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time at all it is one handshake a turn."""
    stream = secure("localhost")
    stream.shake_hands()
    hello = stream.outgoing()
    begun: list[TlsStream] = []
    shake_hands = TlsStream.shake_hands

    def shake(stream: TlsStream) -> bool:
        begun.append(stream)
        return shake_hands(stream)

    monkeypatch.setattr(TlsStream, "shake_hands", shake)
    monkeypatch.setattr(server_module, "TURN_OF_EACH_S", 0.0)
    server = EchoServer(lambda _: None, tls=served(authority.issue("localhost"))).server
    with contextlib.ExitStack() as many:
        many.callback(server.turn)
        many.callback(server.close, 0)
        for _ in range(5):
            many.enter_context(RawClient(f"127.0.0.1:{server.port}", hello))
        while len(set(begun)) < 5:
            before = len(begun)
            server.turn()
            assert len(begun) <= before + 1


def test_what_openssl_holds_is_freed_with_its_connection(node: EchoServer, secure: Secure) -> None:
    """By the count of references: until the collector comes, strangers would fill 100 MB."""

    def streams() -> int:
        return sum(isinstance(each, TlsStream) for each in gc.get_objects())

    stream = secure("localhost")
    stream.shake_hands()
    hello = stream.outgoing()
    eventually(lambda: node.server.open == 0)
    gc.collect()
    gc.disable()
    try:
        before = streams()
        for _ in range(20):
            RawClient(f"127.0.0.1:{node.port}", hello).close()
        eventually(lambda: node.server.open == 0 and streams() == before)
    finally:
        gc.enable()


def test_broken_hellos_and_records_end_their_connection_alone(
    node: EchoServer, secure: Secure
) -> None:
    chance = random.Random(3)
    with contextlib.closing(opened(node, secure)) as good:
        for number in range(300):
            stream = secure("localhost")
            with socket.create_connection(("127.0.0.1", node.port), 30) as plain:
                client = SecureSocket(plain, stream)
                with contextlib.suppress(ConnectionError):
                    if number % 2:
                        client.sendall(chance.randbytes(chance.randrange(1, 3000)))
                    else:
                        client.sendall(HELLO)
                        sealed = bytearray(stream.seal(action_frame("say", b"hi")))
                        sealed[chance.randrange(len(sealed))] ^= 1 << chance.randrange(8)
                        plain.sendall(sealed)
                    plain.shutdown(socket.SHUT_WR)
                    while client.recv(1000):
                        pass
        assert echo(good, b"good") == b"good"
        eventually(lambda: node.server.open == 1)
    assert node.alarms == []


def test_who_was_proven_by_an_authority_that_is_gone_is_ended_and_comes_back_by_another(
    authority: Authority, foreign: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(server_module, "TRUST_EVERY_S", 0.05)
    ca = bundle(tmp_path / "ca.pem", authority)
    issued = authority.issue("localhost")
    tls = served(Tls(ca=ca, cert=issued.cert, key=issued.key))
    old = authority.issue("billing.example")
    made = foreign.issue("billing.example")
    new = TlsFiles.of_client(Tls(ca=authority.ca, cert=made.cert, key=made.key))
    with echoing(tls=tls) as node:
        with contextlib.closing(opened(node, TlsFiles.of_client(old).dial)) as channel:
            bundle(ca, authority, foreign)
            assert tls.look()
            time.sleep(0.2)
            assert echo(channel, b"still") == b"still"
            bundle(ca, foreign)
            assert tls.look()
            with pytest.raises(NotRunning, match="not accepted any more"):
                channel.receive(30)
        refused(node, TlsFiles.of_client(old).dial)
        with contextlib.closing(opened(node, new.dial)) as channel:
            assert echo(channel, b"back") == b"back"


def test_a_peer_that_was_proven_by_an_authority_that_is_gone_is_cut(
    authority: Authority, foreign: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(server_module, "TRUST_EVERY_S", 0.05)

    def serve(channel: Channel) -> None:
        channel.limits = {Kind.MESSAGE: (0, 100)}
        channel.send(Kind.WELCOME)
        channel.receive(60)

    ca = bundle(tmp_path / "ca.pem", authority)
    issued = authority.issue("localhost")
    tls = served(Tls(ca=ca, cert=issued.cert, key=issued.key))
    secure = TlsFiles.of_client(authority.issue("b")).dial
    with echoing(serve_by(serve), tls=tls) as node:
        address = f"localhost:{node.port}"
        with contextlib.closing(Channel.open(address, b"peer", {}, 30, secure=secure)) as channel:
            bundle(ca, foreign)
            assert tls.look()
            with pytest.raises(NodeUnreachable, match="closed by the other side"):
                channel.receive(60)


def test_a_name_that_is_none_is_refused_before_anybody_is_connected_to(secure: Secure) -> None:
    with pytest.raises((InvalidConfiguration, NodeUnreachable)):
        Channel.open(f"{'x' * 300}:7200", b"hello", {}, 1, secure=secure)

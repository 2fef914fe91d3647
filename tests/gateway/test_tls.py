"""HTTPS: the same requests over TLS, and what becomes of those who cannot speak it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from slotwheel.gateway import tlsport
from slotwheel.gateway.httpserver import HttpServer
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.security.tls import Tls, TlsStream
from slotwheel.wheel.errors import InvalidConfiguration
from support.certificates import Authority
from support.httpserved import served_http

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def files(authority: Authority) -> Tls:
    return authority.issue(HOST, "localhost")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the names of the client's certificate, or with as many bytes as came."""
    body = ",".join(scope["certificate_names"]).encode() + b"."
    if scope["method"] == "POST" and scope["path"] != "/early":
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
    headers = [(b"content-length", b"%d" % len(body)), (b"x-scheme", scope["scheme"].encode())]
    if scope["path"] == "/early":
        headers, body = [(b"content-length", b"5")], b"early"
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def served(
    files: Tls, client_certs: str = "off"
) -> AbstractAsyncContextManager[tuple[HttpServer, int]]:
    return served_http(
        app,
        tls_cert=Path(files.cert or ""),
        tls_key=Path(files.key or ""),
        client_ca=Path(files.ca or ""),
        client_certs=client_certs,
        receive_s=5.0,
    )


def run(
    files: Tls, test: Callable[[int], Any], client_certs: str = "off", server: Any = None
) -> Any:
    """Serve while ``test``, which gets the port, runs in a thread."""

    async def serve() -> Any:
        async with served(files, client_certs) as (made, port):
            if server is not None:
                server.append(made)
            return await asyncio.to_thread(test, port)

    return uvloop.run(serve())


def context(
    files: Tls, version: ssl.TLSVersion | None = None, cert: Tls | None = None
) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=files.ca)
    if version is not None:
        made.maximum_version = version
        if version < ssl.TLSVersion.TLSv1_2:
            made.minimum_version = version
            made.set_ciphers("ALL:@SECLEVEL=0")
    if cert is not None:
        assert cert.cert is not None
        made.load_cert_chain(cert.cert, cert.key)
    return made


def connect(port: int, how: ssl.SSLContext) -> ssl.SSLSocket:
    return how.wrap_socket(socket.create_connection((HOST, port), 10), server_hostname=HOST)


def get(sock: socket.socket, request: bytes = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n") -> bytes:
    """One answer whole, of which the head is shorter than 4 KB."""
    sock.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = sock.recv(4096)
        if not part:
            return answer
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        part = sock.recv(1 << 20)
        if not part:
            break
        body += part
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_over_tls_are_answered_as_without(files: Tls, version: ssl.TLSVersion) -> None:
    def test(port: int) -> None:
        with connect(port, context(files, version)) as sock:
            for _ in range(3):
                head, _, body = get(sock).partition(b"\r\n\r\n")
                assert body == b"."
                for header in (
                    b"x-scheme: https",
                    b"strict-transport-security: max-age=31536000",
                    b"x-content-type-options: nosniff",
                    b"cache-control: no-store",
                ):
                    assert head.count(header) == 1
            sent = os.urandom(5 << 20)
            request = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(sent)
            assert get(sock, request + sent).endswith(b"\r\n\r\n" + sent)

    run(files, test)


def test_bytes_may_come_one_by_one(files: Tls) -> None:
    def test(port: int) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context(files).wrap_bio(incoming, outgoing, server_hostname=HOST)
        with socket.create_connection((HOST, port), 10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def exchange(step: Callable[[], Any]) -> Any:
                while True:
                    try:
                        return step()
                    except ssl.SSLWantReadError:
                        for byte in outgoing.read():
                            sock.send(bytes([byte]))
                        received = sock.recv(1)
                        assert received, "the end was made, and not said"
                        incoming.write(received)

            exchange(tls.do_handshake)
            tls.write(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\n."):
                answer += exchange(lambda: tls.read(100))
            assert exchange(lambda: tls.read(100)) == b""

    run(files, test)


def test_a_refusal_is_read_before_the_connection_ends(files: Tls) -> None:
    """Its client is still sending: a reset would take the answer along."""

    def test(port: int) -> None:
        with connect(port, context(files)) as sock:
            head = b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n"
            sock.sendall(head + b"x" * 100_000)
            time.sleep(0.1)
            sock.sendall(b"x" * 1_000_000)
            assert b" 200 " in get(sock, b"x")

    run(files, test)


def test_a_request_without_tls_is_told_so_and_not_read(
    files: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    def test(port: int) -> None:
        with socket.create_connection((HOST, port), 10) as sock:
            answer = get(
                sock, b"GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cret\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"without TLS to a port of TLS" in answer
            assert sock.recv(1) == b""

    with caplog.at_level(logging.INFO):
        run(files, test)
    assert "1 x a request without TLS (127.0.0.1)" in caplog.text
    assert "s3cret" not in caplog.text


BAD_CLIENTS: dict[str, Callable[[Authority, Authority, Path], Tls | None]] = {
    "none": lambda _known, _stranger, _folder: None,
    "expired": lambda known, _stranger, _folder: known.issue("old.example", expired=True),
    "foreign": lambda _known, foreign, _folder: foreign.issue("app.example"),
    "self-signed": lambda known, _stranger, folder: _self_signed(folder),
}


def _self_signed(folder: Path) -> Tls:
    own = Authority(folder, "own")
    path = folder / "own.crt"
    path.write_bytes(own.own_pem)
    return Tls(cert=path)


def assert_refused(port: int, how: ssl.SSLContext) -> None:
    """A client of TLS 1.3 sees it only when it reads."""
    with pytest.raises((ssl.SSLError, ConnectionError)), connect(port, how) as sock:
        get(sock)


@pytest.mark.parametrize("bad", BAD_CLIENTS.values(), ids=BAD_CLIENTS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_have_to_prove_a_certificate_where_it_is_required(
    files: Tls,
    authority: Authority,
    foreign: Authority,
    bad: Callable[[Authority, Authority, Path], Tls | None],
    version: ssl.TLSVersion,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = authority.issue("app.example", "other.example")

    def test(port: int) -> None:
        with connect(port, context(files, version, good)) as sock:
            assert get(sock).endswith(b"\r\n\r\napp.example,other.example.")
        how = context(files, version, bad(authority, foreign, tmp_path))
        assert_refused(port, how)

    with caplog.at_level(logging.INFO):
        run(files, test, "required")
    assert "connections refused before a request: 1 x" in caplog.text
    assert "certificate" in caplog.text


def test_a_certificate_may_be_left_out_where_it_is_optional(
    files: Tls, authority: Authority, foreign: Authority
) -> None:
    def test(port: int) -> None:
        with connect(port, context(files)) as sock:
            assert get(sock).endswith(b"\r\n\r\n.")
        with connect(port, context(files, cert=authority.issue("app.example"))) as sock:
            assert get(sock).endswith(b"\r\n\r\napp.example.")
        assert_refused(port, context(files, cert=foreign.issue("app.example")))

    run(files, test, "optional")


def test_old_versions_and_other_names_are_refused(files: Tls, foreign: Authority) -> None:
    def test(port: int) -> None:
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.warns(DeprecationWarning, match="deprecated"):
                how = context(files, version)
            with pytest.raises(ssl.SSLError):
                connect(port, how)
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(port, context(foreign.issue(HOST)))
        with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
            context(files).wrap_socket(
                socket.create_connection((HOST, port), 10), server_hostname="localhost.example"
            )

    run(files, test)


def client_hello(files: Tls) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(files).wrap_bio(incoming, outgoing, server_hostname=HOST)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_slow_handshakes_end_in_time(
    files: Tls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tlsport, "HANDSHAKE_S", 0.5)
    hello = client_hello(files)

    def test(port: int) -> None:
        silent, half, whole, slow = (socket.create_connection((HOST, port), 10) for _ in range(4))
        half.sendall(hello[:50])
        whole.sendall(hello)
        began = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012
            for byte in hello:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began > 0.4
        for sock in (silent, half, whole, slow):
            with sock:
                try:
                    while sock.recv(4096):
                        pass
                except ConnectionError:
                    pass

    with caplog.at_level(logging.INFO):
        run(files, test)
    assert "4 x the handshake of TLS took longer than 0.5 s" in caplog.text


def test_handshakes_are_bounded_in_number_and_bytes(
    files: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tlsport, "HANDSHAKES_MAX", 8)
    servers: list[HttpServer] = []

    def test(port: int) -> None:
        silent = [socket.create_connection((HOST, port), 10) for _ in range(50)]
        with connect(port, context(files)) as sock:  # who is quick gets a place
            assert get(sock).endswith(b".")
        assert len(servers[0].handshakes) <= 8
        endless = socket.create_connection((HOST, port), 10)
        record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + b"\x03\x03" + bytes(0x4000 - 6)
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(100):
                endless.sendall(record)
                time.sleep(0.01)
        for idle in (*silent, endless):
            idle.close()

    run(files, test, server=servers)


def test_the_loop_looks_at_everybody_else_between_two_handshakes(
    files: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a request would wait until all handshakes that came at once have been answered."""
    count, shaken = 30, 0
    shake_hands = TlsStream.shake_hands

    def counted(stream: TlsStream) -> bool:
        nonlocal shaken
        shaken += 1
        return shake_hands(stream)

    hello = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context(files).wrap_bio(ssl.MemoryBIO(), hello, server_hostname=HOST).do_handshake()
    begin = hello.read()

    async def serve() -> list[int]:
        turns = [0]
        async with served(files) as (server, port):
            sockets = [socket.create_connection((HOST, port), 10) for _ in range(count)]
            while len(server.handshakes) < count:
                await asyncio.sleep(0)
            monkeypatch.setattr(TlsStream, "shake_hands", counted)
            for sock in sockets:
                sock.sendall(begin)
            while shaken < count:
                await asyncio.sleep(0)
                turns.append(shaken)
            for sock in sockets:
                sock.close()
        return turns

    turns = uvloop.run(serve())
    assert max(after - before for before, after in pairwise(turns)) == 1


def test_any_bytes_leave_the_port_as_it_was(files: Tls) -> None:
    chance = random.Random(11)
    hello = client_hello(files)

    def test(port: int) -> None:
        for _ in range(1_000):
            sent = bytearray(hello)
            for _ in range(chance.randint(1, 6)):
                sent[chance.randrange(len(sent))] = chance.randrange(256)
            with socket.create_connection((HOST, port), 10) as sock:
                sock.sendall(bytes(sent[: chance.randint(1, len(sent))]))
                if chance.random() < 0.2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
        with connect(port, context(files)) as sock:
            assert get(sock).endswith(b".")

    run(files, test)


def test_new_files_count_for_new_connections(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    first = authority.issue(HOST, file="first")
    used = Tls(tmp_path / "ca.pem", tmp_path / "tls.crt", tmp_path / "tls.key")

    def put(source: Tls, ca: Path) -> None:
        for made, place in ((source.cert, used.cert), (source.key, used.key), (ca, used.ca)):
            assert made is not None
            assert place is not None
            shutil.copy(made, str(place) + ".new")
            Path(str(place) + ".new").replace(place)

    put(first, authority.ca)
    servers: list[HttpServer] = []
    app_of_old, app_of_new = authority.issue("old.example"), foreign.issue("new.example")

    def look() -> None:
        tls = servers[0]._tls
        assert tls is not None
        tls.look()

    def test(port: int) -> None:
        with connect(port, context(first, cert=app_of_old)) as old:
            assert get(old).endswith(b"old.example.")
            Path(used.cert or "").write_bytes(b"nothing")
            look()
            with connect(port, context(first)) as sock:  # what cannot be used, is not
                assert get(sock).endswith(b".")
            second = foreign.issue(HOST, file="second")
            put(second, authority.ca)
            look()
            assert get(old).endswith(b"old.example.")
            with connect(port, context(second)) as sock:
                assert get(sock).endswith(b".")
            with pytest.raises(ssl.SSLCertVerificationError):
                connect(port, context(first))
            # Its authority is gone, and it goes with it.
            put(second, foreign.ca)
            look()
            old.settimeout(5)
            assert old.recv(1) == b""
            with connect(port, context(second, cert=app_of_new)) as sock:
                assert get(sock).endswith(b"new.example.")

    run(used, test, "optional", servers)


def test_settings_that_contradict_are_named(files: Tls) -> None:
    cert, key, ca = (Path(str(path)) for path in (files.cert, files.key, files.ca))
    with pytest.raises(InvalidConfiguration, match="cannot be verified"):
        GatewaySettings(client_certs="required", tls_cert=cert, tls_key=key)
    with pytest.raises(InvalidConfiguration, match="cannot be verified"):
        GatewaySettings(client_certs="optional", client_ca=ca)
    halves: list[dict[str, Any]] = [{}, {"tls_cert": cert, "tls_key": key}, {"security": ca}]
    for address in ("0.0.0.0:8082", "[::]:8082", "10.0.0.7:8082", "gateway.example:8082"):
        for given in halves:
            with pytest.raises(InvalidConfiguration, match="strangers could reach this gateway"):
                GatewaySettings(listen=address, **given)
        GatewaySettings(listen=address, allow_insecure=True)
        GatewaySettings(listen=address, tls_cert=cert, tls_key=key, security=ca)
    with pytest.raises(InvalidConfiguration, match="key is given, and no certificate"):
        GatewaySettings(tls_key=key)
    with pytest.raises(InvalidConfiguration, match="no certificate with its key"):
        GatewaySettings(tls_cert=cert, tls_key=ca).tls_files()

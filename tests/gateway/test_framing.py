"""Where a request ends: the requests of other languages' clients as those send them, whole and in
pieces, and requests that can be read in two ways."""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass
from itertools import count

import pytest

from support.gatewayprocess import NodeWithGateway, ask

HTTP2 = b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
JAVA = b"User-Agent: Java-http-client/17.0.15\r\n"
CURL = b"User-Agent: curl/7.88.1\r\nAccept: */*\r\n"
NODE = (
    b"connection: keep-alive\r\nContent-Type: TYPE\r\naccept: */*\r\naccept-language: *\r\n"
    b"user-agent: node\r\naccept-encoding: gzip, deflate\r\n"
)
LENGTH = b"Content-Length: LENGTH\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
TYPE = b"Content-Type: TYPE\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\n"
CLIENTS = {
    "java": UPGRADE + LENGTH + b"Host: HOST\r\n" + HTTP2 + b"Upgrade: h2c\r\n" + JAVA + TYPE,
    "java-stream": (
        UPGRADE
        + b"Host: HOST\r\n"
        + HTTP2
        + b"Transfer-encoding: chunked\r\nUpgrade: h2c\r\n"
        + JAVA
        + TYPE
    ),
    "java-expect": (
        UPGRADE
        + LENGTH
        + b"Expect: 100-Continue\r\nHost: HOST\r\n"
        + HTTP2
        + b"Upgrade: h2c\r\n"
        + JAVA
        + TYPE
    ),
    "java-url": (
        TYPE
        + b"User-Agent: Java/17.0.15\r\nHost: HOST\r\n"
        + b"Accept: text/html, image/gif, image/jpeg, */*; q=0.2\r\nConnection: keep-alive\r\n"
        + LENGTH
    ),
    "curl": b"Host: HOST\r\n" + CURL + TYPE + LENGTH,
    "curl-http2": b"Host: HOST\r\n" + CURL + UPGRADE + b"Upgrade: h2c\r\n" + HTTP2 + TYPE + LENGTH,
    "curl-stream": b"Host: HOST\r\n" + CURL + CHUNKED + TYPE + b"Expect: 100-continue\r\n",
    "curl-expect": b"Host: HOST\r\n" + CURL + TYPE + b"Expect: 100-continue\r\n" + LENGTH,
    "go": (
        b"Host: HOST\r\nUser-Agent: Go-http-client/1.1\r\n"
        + LENGTH
        + TYPE
        + b"Accept-Encoding: gzip\r\n"
    ),
    "go-stream": (
        b"Host: HOST\r\nUser-Agent: Go-http-client/1.1\r\n"
        + CHUNKED
        + TYPE
        + b"Accept-Encoding: gzip\r\n"
    ),
    "go-expect": (
        b"Host: HOST\r\nUser-Agent: Go-http-client/1.1\r\n"
        + LENGTH
        + TYPE
        + b"Expect: 100-continue\r\nAccept-Encoding: gzip\r\n"
    ),
    "node": TYPE + b"Host: HOST\r\nConnection: keep-alive\r\n" + CHUNKED,
    "node-fetch": b"host: HOST\r\n" + NODE + b"content-length: LENGTH\r\n",
    "dotnet": b"Host: HOST\r\n" + CHUNKED + TYPE,
    "dotnet-string": b"Host: HOST\r\n" + TYPE + LENGTH,
    "dotnet-expect": b"Host: HOST\r\nExpect: 100-continue\r\n" + TYPE + LENGTH,
    "python": b"Host: HOST\r\nAccept-Encoding: identity\r\n" + LENGTH + TYPE,
    "python-stream": b"Host: HOST\r\nAccept-Encoding: identity\r\n" + CHUNKED + TYPE,
    "httpx": (
        b"Host: HOST\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, zstd\r\n"
        b"Connection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\n" + LENGTH + TYPE
    ),
    "websocket": (
        b"Host: HOST\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\n" + LENGTH + TYPE
    ),
}
"""Headers as default clients send them; HOST, TYPE and LENGTH stand for those of a request."""


@dataclass(frozen=True)
class Sent:
    """A request, what answers it, and what in the answer shows that its body was read."""

    path: str
    kind: str
    body: str
    status: int
    shows: str


_numbers = count()


def requests() -> list[Sent]:
    """One of each kind of route."""
    name = f"i{next(_numbers)}"
    later = '{"topic": "framing", "value": "v", "delay_ms": 3600000}'
    records = '{"records": [{"value": 1, "delay_ms": 3600000}]}'
    form = "application/x-www-form-urlencoded"
    return [
        Sent("/v1/messages", "application/json", later, 201, '{"id":"'),
        Sent("/v1/cancel", "application/json", '{"ids": ["nobody"]}', 200, '"id":"nobody"'),
        Sent("/topics/framing", "application/vnd.kafka.json.v2+json", records, 200, '"offsets":'),
        Sent("/consumers/g", "application/vnd.kafka.v2+json", f'{{"name": "{name}"}}', 200, name),
        Sent("/console/job/stop?id=x", form, "token=abc", 403, "form token"),
    ]


def parts_of(client: str, sent: Sent) -> tuple[bytes, bytes]:
    head = f"POST {sent.path} HTTP/1.1\r\n".encode() + CLIENTS[client] + b"\r\n"
    body = sent.body.encode()
    head = head.replace(b"HOST", b"localhost").replace(b"TYPE", sent.kind.encode())
    if b"LENGTH" not in head:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return head.replace(b"LENGTH", b"%d" % len(body)), body


LAST = b"GET /v1/levels HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def answers(node: NodeWithGateway, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """To these bytes, each piece in a packet of its own, until the connection is closed."""
    with connected(node) as one:
        for piece in pieces:
            one.sendall(piece)
            time.sleep(pause_s)
        found = b""
        while part := one.recv(1 << 16):
            found += part
    return found


def connected(node: NodeWithGateway) -> socket.socket:
    host, _, port = node.url.removeprefix("http://").rpartition(":")
    one = socket.create_connection((host, int(port)), 30)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def statuses(found: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", found)]


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_of_other_clients_are_read_as_they_are_meant(
    embedded: NodeWithGateway, client: str
) -> None:
    for cut in ("whole", "head and body", "bytes"):
        for sent in requests():
            head, body = parts_of(client, sent)
            if cut == "whole":
                found = answers(embedded, head + body + LAST)
            elif cut == "head and body":
                found = answers(embedded, head, body, LAST, pause_s=0.01)
            else:
                found = answers(embedded, *(bytes([one]) for one in head + body + LAST))
            expected = [sent.status, 200]
            assert statuses(found) == expected, (cut, sent, found)
            assert sent.shows.encode() in found, (cut, sent, found)
            if sent.path == "/consumers/g":
                name = json.loads(sent.body)["name"]
                assert ask(embedded, "DELETE", f"/consumers/g/instances/{name}").status_code == 204


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.2", "h2c, websocket"])
def test_a_body_is_never_a_request(embedded: NodeWithGateway, offer: str) -> None:
    """Neither beside an offered protocol, nor in a request whose route takes no body."""
    body = b"POST /v1/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    offered = f"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: {offer}\r\n".encode()
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for first in (b"GET /v1/levels", b"HEAD /v1/levels", b"DELETE /v1/jobs/x", b"POST /nowhere"):
        start = first + b" HTTP/1.1\r\n" + offered
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        for head, rest in ((start + length, body), (start + CHUNKED + b"\r\n", chunks)):
            found = statuses(answers(embedded, head + rest + LAST))
            assert len(found) == 2, (head, found)
            assert found[1] == 200
            # In a packet of its own, it may come too late to be waited for.
            found = statuses(answers(embedded, head, rest, LAST, pause_s=0.02))
            assert found[1:] in ([], [200]), (head, found)


def test_an_offer_leaves_the_version_as_it_is(embedded: NodeWithGateway) -> None:
    """A client of HTTP/1.0 waits for the end of the connection."""
    offer = b"GET /v1/levels HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with connected(embedded) as one:
        one.settimeout(3)
        one.sendall(offer)
        found = b""
        while part := one.recv(1 << 16):
            found += part
    assert b" 200 " in found.splitlines()[0]


def test_offers_behind_each_other_are_read(embedded: NodeWithGateway) -> None:
    head, body = parts_of("java", requests()[1])
    assert statuses(answers(embedded, (head + body) * 50 + LAST)) == [200] * 51
    unfinished = head + body[:-1]
    with connected(embedded) as one:
        one.sendall(unfinished)
        one.settimeout(0.3)
        with pytest.raises(TimeoutError):  # not a byte too early
            one.recv(1)


POST = b"POST /v1/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"ids": []}'
CL = b"Content-Length: 11\r\n"
AMBIGUOUS = {
    "two lengths": POST + CL + CL + b"\r\n" + BODY,
    "two different lengths": POST + CL + b"Content-Length: 5\r\n\r\n" + BODY,
    "a list of lengths": POST + b"Content-Length: 11, 11\r\n\r\n" + BODY,
    "a signed length": POST + b"Content-Length: +11\r\n\r\n" + BODY,
    "length and chunks": POST + CL + CHUNKED + b"\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks and length": POST + CHUNKED + CL + b"\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunks twice": POST + CHUNKED + CHUNKED + b"\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "gzip, chunked": POST
    + b"Transfer-Encoding: gzip, chunked\r\n\r\nb\r\n"
    + BODY
    + b"\r\n0\r\n\r\n",
    "chunked, gzip": POST
    + b"Transfer-Encoding: chunked, gzip\r\n\r\nb\r\n"
    + BODY
    + b"\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "space before the colon": POST + b"Content-Length : 11\r\n\r\n" + BODY,
    "folded": POST + b"X: a\r\n b\r\n" + CL + b"\r\n" + BODY,
    "folded length": POST + b"Content-Length:\r\n 11\r\n\r\n" + BODY,
    "no CR": POST.replace(b"\r\n", b"\n") + CL + b"\r\n" + BODY,
    "no CR at the end": POST + CL + b"\n" + BODY,
    "no LF": POST + b"X: a\rY: b\r\n" + CL + b"\r\n" + BODY,
    "NUL": POST + b"X: a\0b\r\n" + CL + b"\r\n" + BODY,
    "chunk without CR": POST + CHUNKED + b"\r\nb\n" + BODY + b"\n0\n\n",
    "chunk too long": POST + CHUNKED + b"\r\nb\r\n" + BODY + b"x\r\n0\r\n\r\n",
    "chunk of 0x": POST + CHUNKED + b"\r\n0xb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk of -1": POST + CHUNKED + b"\r\n-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk without end": POST + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n" + BODY,
    "length in a trailer": POST + CHUNKED + b"\r\n0\r\nContent-Length: 9\r\n\r\n",
    "chunks of HTTP/1.0": POST.replace(b"1.1", b"1.0")
    + CHUNKED
    + (b"\r\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "HTTP/2.0": POST.replace(b"1.1", b"2.0") + CL + b"\r\n" + BODY,
    "HTTP/0.9": b"GET /v1/levels\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "CONNECT": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n" + CL + b"\r\n" + BODY,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_can_be_read_in_two_ways_is_refused_with_all_behind_it(
    embedded: NodeWithGateway, name: str
) -> None:
    sent = AMBIGUOUS[name]
    for before in (b"", LAST.replace(b"Connection: close\r\n", b"")):
        whole = answers(embedded, before + sent + LAST)
        in_bytes = answers(embedded, before, *(bytes([one]) for one in sent), LAST)
        for found in (whole, in_bytes):
            *first, last = statuses(found)
            assert first == [200] * bool(before), found
            assert 400 <= last < 500 or last == 501, found
            error = json.loads(found.rpartition(b"\r\n\r\n")[2])
            assert error["message"], error
            assert b"connection: close" in found.lower()


def test_a_trailer_ends_the_connection_after_the_answer(embedded: NodeWithGateway) -> None:
    """The parser reads nothing behind it, so nobody may wait for an answer there."""
    chunks = b"\r\nb\r\n" + BODY + b"\r\n0\r\nConnection: close\r\n\r\n"
    found = answers(embedded, POST + CHUNKED + chunks + LAST)
    assert statuses(found) in ([200], [422])
    assert b"connection: close" in found


def test_a_client_of_http_1_0_gets_no_answer_before_the_answer(embedded: NodeWithGateway) -> None:
    head = POST.replace(b"1.1", b"1.0") + CL + b"Expect: 100-continue\r\n\r\n"
    found = answers(embedded, head, BODY, pause_s=0.05)
    assert b" 100 " not in found
    assert len(statuses(found)) == 1

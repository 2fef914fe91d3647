"""A request is answered past ASGI as it is through ASGI: the same bytes, counts and lines of the
log, whatever is wrong with it, however it comes, and whoever is away."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import uvloop

from slotwheel.gateway import server as serving
from slotwheel.gateway.app import GatewayApp
from slotwheel.gateway.httpserver import HttpServer
from slotwheel.gateway.routes import make_app
from slotwheel.gateway.services import Services
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.wheel.errors import InvalidMessage
from support.fakewheel import FakeWheel, Log
from support.served import ServedIntake
from support.waiting import now_ms

USUAL = b"Content-Encoding: identity\r\n"
"""Changes nothing but the way that a request takes."""
LAST = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
DUE_MS = now_ms() + 3_600_000
BODY_MAX = 14_000
_OF_NOW = re.compile(
    rb"(?<=date: )[^\r]+|(?<=\d)\.\d+\.[0-9a-f]{16}\b|[\d.]+ s too far|[\d-]{10}T[\d:.]+Z"
)
"""What of an answer is of its time: the date, an id's end, and how far a horizon is."""


def message(**more: Any) -> bytes:
    return json.dumps({"topic": "t", "value": "x", "due_ms": DUE_MS, **more}).encode()


BODIES = {
    "plain": message(),
    "everything": message(key="k", partition=3, headers=[["a", "b"], ["a", None]], ttl_ms=5),
    "base64": message(value=None, value_base64="AP8="),
    "spaces": b" \r\n" + message() + b"\n",
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"topic": "t\xff"}',
    "null": b"null",
    "more behind it": message() + b"{}",
    "nested": b'{"headers": [["a", ' + b"[" * 5_000,
    "no topic": message(topic=""),
    "bad topic": message(topic="../x"),
    "wrong type": message(partition="1"),
    "unknown field": message(dalay=1),
    "twice": b'{"topic": "t", "due_ms": 1, "topic": "u"}',
    "two values": message(value_base64=""),
    "delay and due": message(delay_ms=1),
    "expired": message(expires_ms=1),
    "reserved": message(headers={"slotwheel-id": "1"}),
    "too late": message(due_ms=1 << 60),
    "refused by the node": message(topic="refused"),
    "refused as Arrow": message(topic="refused", headers=[["", ""]] * 1001),
    "more than may wait": message(value="x" * 12_000),
}
THROUGH_ASGI = {
    "many": b"[" + message() + b"]",
    "empty array": b" []",
    "level": message(due_ms=None, level="nolevel"),
    "route": message(topic="", route="noroute"),
}


def posted(
    body: bytes, headers: bytes = b"", start: bytes = b"POST /v1/messages HTTP/1.1"
) -> bytes:
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    kind = b"Host: localhost\r\nContent-Type: application/json\r\n"
    return start + b"\r\n" + kind + headers + length + body


@dataclass
class Running:
    services: Services
    server: Any
    port: int
    calls: list[str]
    """Paths of requests that came through ASGI."""

    async def answers(self, *pieces: bytes) -> bytes:
        """To these, each read by itself, until the connection is closed; without what differs."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for piece in pieces:
            writer.write(piece)
            await _turns()
        found = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return _OF_NOW.sub(b"*", found)

    def counts(self) -> dict[str, float]:
        """Of requests by status."""
        text = self.services.metrics.render().decode()
        found = re.findall(r"^(slotwheel_http_requests_total\{.*\}) (\S+)$", text, re.M)
        return {name: float(value) for name, value in found}

    async def observed(self, *pieces: bytes) -> tuple[bytes, dict[str, float]]:
        """Answers, and what they have added to the counts."""
        before = self.counts()
        found = await self.answers(*pieces)
        after = self.counts()
        grown = {name: value - before.get(name, 0) for name, value in after.items()}
        return found, {name: value for name, value in grown.items() if value}


async def _turns() -> None:
    """Of the loop, in which the gateway reads what was sent."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    real = GatewayApp.__call__

    async def noting(self: GatewayApp, scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await real(self, scope, receive, send)

    monkeypatch.setattr(GatewayApp, "__call__", noting)
    return paths


@pytest.fixture
def free() -> threading.Event:
    """Until it is set, the node stores nothing."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def node(free: threading.Event) -> Iterator[ServedIntake]:
    def refuse(rows: pa.RecordBatch) -> None:
        assert free.wait(60)
        if "refused" in rows.column("topic").to_pylist():
            raise InvalidMessage("not this one", got=1, limit=2, remedy="Send another", row=0)

    # Offsets, and so the lengths of answers, have as many digits all the time.
    wheel = FakeWheel(before_append=refuse, log=Log(next_offset=10**6))
    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        yield server


@asynccontextmanager
async def running(port: int, calls: list[str], **limits: Any) -> AsyncIterator[Running]:
    settings = GatewaySettings(nodes=(f"127.0.0.1:{port}",), **limits)
    ready: asyncio.Future[Running] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        """As the program does: what it serves with ends in the turn in which the server ends."""
        listening = serving.listen("127.0.0.1:0")
        with closing(listening), serving.made_services(settings) as services:
            server = HttpServer(*make_app(services), settings)
            ready.set_result(Running(services, server, listening.getsockname()[1], calls))
            await server.serve(listening)

    task = asyncio.create_task(serve())
    gateway = await ready
    while not gateway.server.listens:
        await asyncio.sleep(0)
    yield gateway
    gateway.server.end()
    await task
    assert gateway.services.gatherer.room.nbytes == 0


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def test_each_body_gets_the_same_answer(node: ServedIntake, calls: list[str]) -> None:
    async def test() -> None:
        limits = {"waiting_bytes_max": 12_000, "body_bytes_max": BODY_MAX}
        async with running(node.port, calls, **limits) as gateway:
            for name, body in (BODIES | THROUGH_ASGI).items():
                for more, last in ((b"", LAST), (b"Connection: close\r\n", b"")):
                    usual = await gateway.observed(posted(body, more + USUAL) + last)
                    assert calls[0] == "/v1/messages"
                    for size in (1 << 20, len(posted(body, more)) - len(body), 97):
                        calls.clear()
                        pieces = cut(posted(body, more) + last, size)
                        assert await gateway.observed(*pieces) == usual, (name, size)
                        direct = [] if name in BODIES else ["/v1/messages"]
                        assert calls == direct + ["/v1/jobs"] * bool(last), (name, size)
                    calls.clear()

    uvloop.run(test())


UNUSUAL = {
    "no type": posted(message()).replace(b"Content-Type", b"X-Type"),
    "another type": posted(message()).replace(b"/json", b"/jason"),
    "two types": posted(message(), b"Content-Type: application/json\r\n"),
    "another charset": posted(message()).replace(b"/json", b"/json; charset=latin-1"),
    "another host": posted(message()).replace(b"localhost", b"evil.example"),
    "two hosts": posted(message(), b"Host: localhost\r\n"),
    "another site": posted(message(), b"Origin: http://evil.example\r\n"),
    "another site's page": posted(message(), b"Sec-Fetch-Site: cross-site\r\n"),
    "by hand": posted(message(), b"Sec-Fetch-Site: none\r\n"),
    "our page": posted(message(), b"Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost\r\n"),
    "a key": posted(message(), b"Idempotency-Key: a\r\n"),
    "an answer before": posted(message(), b"Expect: 100-continue\r\n"),
    "a bad key": posted(message(), b"Idempotency-Key: a b\r\n"),
    "compressed": posted(message(), b"Content-Encoding: gzip\r\n"),
    "too large": posted(b"x" * (BODY_MAX + 1)),
    "a query": posted(message(), start=b"POST /v1/messages?a=1 HTTP/1.1"),
    "HTTP/1.0": posted(message(), start=b"POST /v1/messages HTTP/1.0"),
    "an offer": posted(message(), b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    "chunks": posted(b"", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(message()), message()),
    "PUT": posted(message(), start=b"PUT /v1/messages HTTP/1.1"),
    "HEAD": posted(b"", start=b"HEAD /v1/messages HTTP/1.1"),
    "a path below": posted(message(), start=b"POST /v1/messages/ HTTP/1.1"),
    "large headers": posted(message(), b"X: " + b"x" * 20_000 + b"\r\n"),
    "no length": posted(message()).replace(b"Content-Length", b"X-Length"),
    "a bad length": posted(message()).replace(b"Length: ", b"Length: +"),
}


def test_what_is_unusual_is_answered_behind_what_is_not_as_before_it(
    node: ServedIntake, calls: list[str]
) -> None:
    """Also by a connection that has had a plain request, and knows its headers."""

    async def test() -> None:
        async with running(node.port, calls, body_bytes_max=BODY_MAX) as gateway:
            for name, sent in UNUSUAL.items():
                found = []
                for way in (b"", USUAL):
                    plain = posted(message(), way)
                    also = sent.replace(b"\r\n", b"\r\n" + way, 1)
                    at = 150 + len(way)
                    calls.clear()
                    whole = await gateway.observed(plain, plain, also + LAST)
                    assert calls.count("/v1/messages") >= 2 * bool(way), name
                    pieces = also[:at], *cut(also[at:], 150), plain + LAST
                    found.append((whole, await gateway.observed(*pieces)))
                assert found[0] == found[1], name

    uvloop.run(test())


def test_requests_behind_each_other_are_answered_in_their_order(
    node: ServedIntake, calls: list[str]
) -> None:
    def mixed(way: bytes) -> bytes:
        get = b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        bad, plain = posted(b"{", way), posted(message(), way)
        many = posted(b"[" + message() + b"]", way)
        return plain + plain + get + bad + plain + bad + bad + many + get + plain + plain

    async def test() -> None:
        async with running(node.port, calls) as gateway:
            for last in (LAST, posted(message(), b"Connection: close\r\n") + LAST, b"nonsense\r\n"):
                usual = await gateway.observed(mixed(USUAL) + last)
                assert len(re.findall(rb"HTTP/1.1 [2-5]", usual[0])) == 12
                for size in (1 << 20, 1_000, 333):
                    assert await gateway.observed(*cut(mixed(b"") + last, size)) == usual

    uvloop.run(test())


def test_who_goes_before_the_answer_leaves_nothing_behind(
    node: ServedIntake,
    free: threading.Event,
    calls: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "slotwheel.gateway")

    async def test() -> None:
        async with running(node.port, calls, http_log=True) as gateway:
            connections = gateway.server.connections
            await gateway.answers(posted(message()) + LAST)
            found = []
            for way in (b"", USUAL):
                before = gateway.counts()
                free.clear()
                for sent in (posted(message(), way), posted(message(), way)[:-1]):
                    with socket.create_connection(("127.0.0.1", gateway.port)) as one:
                        one.sendall(sent)
                        while not connections:
                            await asyncio.sleep(0.01)
                        await asyncio.sleep(0.02)
                    while connections:
                        await asyncio.sleep(0.01)
                free.set()
                while gateway.server.tasks:
                    await asyncio.sleep(0.01)
                now = gateway.counts()
                grown = {name: value - before.get(name, 0) for name, value in now.items()}
                found.append(grown)
            assert found[0] == found[1]
            assert sum(found[0].values()) == 1

    uvloop.run(test())
    lines = [re.sub(r"[\d.]+ ms .*", "", one.getMessage()) for one in caplog.records]
    assert lines.count("POST /v1/messages 201 ") == 3, lines
    assert calls.count("/v1/messages") == 2


def test_a_node_that_is_away_and_a_gateway_that_ends_are_told_of(calls: list[str]) -> None:
    begun: list[bytes] = []

    async def late(gateway: Running, sent: bytes) -> bytes:
        """The answer to what comes whole while the gateway ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(sent[:-20])
        await _turns()
        begun.append(sent)
        while not gateway.server.ending.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        writer.write(sent[-20:])
        found = await reader.read()
        writer.close()
        return _OF_NOW.sub(b"*", found)

    async def test() -> None:
        ways = posted(message(), b""), posted(message(), USUAL)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            async with running(port, calls, answer_s=0.2) as gateway:
                away = await asyncio.gather(*(gateway.answers(one + LAST) for one in ways))
                assert away[0] == away[1]
                assert b" 503 " in away[0]
                assert b"\r\nretry-after: 1\r\n" in away[0]
            async with running(port, calls) as gateway:
                asked = [asyncio.create_task(gateway.answers(one)) for one in ways]
                asked += [asyncio.create_task(late(gateway, one)) for one in ways]
                while len(gateway.server.tasks) < 3 or len(begun) < 2:
                    await asyncio.sleep(0.01)
            ended = await asyncio.gather(*asked)
            assert len(set(ended)) == 1, ended
            assert b"shutting down" in ended[0]
            assert b"\r\nconnection: close\r\n" in ended[0]

    uvloop.run(test())

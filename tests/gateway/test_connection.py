"""Connections whose application fails: each request has its own answer, or its connection ends."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Any

import pytest
import uvloop

from slotwheel.gateway import connection
from slotwheel.gateway.httpserver import HttpServer
from support.httpserved import served_http
from support.waiting import PATIENCE_S

LARGE_BYTES = 8 << 20


async def app(scope: Any, receive: Any, send: Any) -> None:
    """What a path says: a status, and how it goes wrong."""
    _, status, how = scope["path"].split("/")
    body = bytes(LARGE_BYTES) if how == "large" else b"ok"
    headers = [(b"content-length", b"%d" % len(body))]
    if how == "slow":
        await asyncio.sleep(30)
    if how == "fails":
        raise RuntimeError("planted")
    if how == "nothing":
        return
    if how == "header":
        headers.append((b"x", b"a\r\ny: b"))
    if how == "body":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
    if how == "again":
        await receive()


def served(**limits: Any) -> AbstractAsyncContextManager[tuple[HttpServer, int]]:
    return served_http(app, **limits)


def get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n".encode()


async def answers(port: int, *pieces: bytes) -> list[int]:
    """Statuses of the answers until the connection is closed, each piece sent by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.02)
    found = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", found)]


LAST = get("/200/last", "Connection: close\r\n")
WRONG = {"header": [500], "fails": [500], "nothing": [500]}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("together", [True, False])
def test_a_request_without_an_answer_ends_its_connection(how: str, together: bool) -> None:
    """Or the client would take the answer to the next request for this one's."""

    async def test() -> None:
        async with served() as (server, port):
            sent = get(f"/200/{how}") + LAST
            pieces = (sent,) if together else (get(f"/200/{how}"), LAST)
            assert await answers(port, *pieces) == WRONG[how]
            while server.connections:
                await asyncio.sleep(0.01)
            assert not server.hosts

    uvloop.run(test())


def echoed(number: int, chance: random.Random) -> tuple[bytes, bytes]:
    """A request, and the body of its answer: the request's own. It may look like other requests."""
    body = chance.choice([b"", b"\r\n\r\n" * 40, get("/200/no") * 3, b"x" * 3000]) + b"%d" % number
    start = b"POST /e HTTP/1.1\r\n" + chance.choice([b"", b"X: " + b"x" * 90 + b"\r\n"])
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + length + body
    return chance.choice(
        [
            (start + length + body, body),
            (start + chunks, body),
            (start + offer, body),
            (b"GET /e HTTP/1.1\r\n\r\n", b""),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
def test_requests_behind_each_other_are_answered_in_order_however_they_come(seed: int) -> None:
    async def echo(_scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def test() -> None:
        chance = random.Random(seed)
        requests = [echoed(number, chance) for number in range(100)]
        sent = b"".join(request for request, _ in requests)
        async with served_http(echo) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            cuts = sorted(chance.randrange(len(sent)) for _ in range(30 * seed))
            for start, end in pairwise([0, *cuts, len(sent)]):
                writer.write(sent[start:end])
                await asyncio.sleep(0)
            for _, body in requests:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                assert b"content-length: %d\r\n" % len(body) in head, head
                assert await reader.readexactly(len(body)) == body
            writer.close()

    uvloop.run(test())


@pytest.mark.parametrize("status", [299, 499, 599])
def test_a_status_without_a_name_is_sent(status: int) -> None:
    async def test() -> None:
        async with served() as (_, port):
            assert await answers(port, get(f"/{status}/fine") + LAST) == [status, 200]

    uvloop.run(test())


def test_an_invitation_for_a_body_is_sent_only_while_it_is_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expecting = "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"

    async def test() -> None:
        async with served() as (_, port):
            body = b"2\r\nok\r\n0\r\n\r\n"
            assert await answers(port, get("/200/body", expecting), body + LAST) == [100, 200, 200]
            # Refused before the application sees it; answered before it asks.
            assert await answers(port, get("/200/body", expecting) + b"zz\r\n") == [400]
            assert await answers(port, get("/200/again", expecting)) == [200]

    uvloop.run(test())
    assert not caplog.records


def test_a_server_that_ends_begins_no_request_that_waits() -> None:
    async def test() -> None:
        async with served() as (server, port):
            asked = asyncio.create_task(answers(port, *[get("/200/slow")] * 4))
            while not server.tasks:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            server.end()
            assert await asked == [500]

    uvloop.run(test())


def test_of_requests_behind_each_other_one_is_begun_when_the_answer_before_it_is_taken() -> None:
    """Else each of them would have its answer made, and kept, for who does not read."""
    begun = 0

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        await app(scope, receive, send)

    async def test() -> None:
        async with served_http(counting) as (server, port):
            reader, writer = await unread(port, "127.0.0.1", 4)
            while len(server.unread) < 1:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert begun == 1
            for count in range(1, 5):
                await reader.readuntil(b"\r\n\r\n")
                assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
                assert begun <= count + 1
            writer.close()

    uvloop.run(test())
    assert begun == 4


async def unread(
    port: int, host: str, count: int = 1
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask from ``host`` for large answers, of which the kernel takes a little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind((host, 0))
    sock.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    writer.write(get("/200/large") * count)
    return reader, writer


def test_who_reads_no_answers_leaves_when_too_much_is_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the address that leaves most unread; whoever came before it reads on when he likes."""
    monkeypatch.setattr(connection, "UNREAD_MAX", 2 * LARGE_BYTES + 4096)

    async def test() -> None:
        async with served() as (server, port):
            reader, slow = await unread(port, "127.0.0.1")
            while len(server.unread) < 1:
                await asyncio.sleep(0.01)
            crowd = [await unread(port, "127.0.0.2") for _ in range(5)]
            while server.hosts["127.0.0.2"] > 2 or len(server.unread) < 2:
                await asyncio.sleep(0.01)
            assert server.hosts["127.0.0.1"] == 1
            assert sum(server.unread.values()) <= connection.UNREAD_MAX
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
            for _, writer in [(reader, slow), *crowd]:
                writer.close()

    uvloop.run(test())

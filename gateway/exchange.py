"""A request that the application answers: its scope and its body, and how its answer is written.

Theory: every answer of the gateway is whole when it is given (``Reply``). So its head waits for its
body, and both are one write: a second call of the kernel and a second packet would be a quarter of
what a small request costs.

Rule: an answer that is given before its request has come whole is the last one of its connection.
Otherwise what comes next could be taken for a request though it is the rest of that body: the
client may have given up the body (``Expect: 100-continue``), or may be about to send gigabytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from .errors import HttpError
from .requests import Reply, error_reply

log = logging.getLogger("slotwheel.gateway")

BODY_HELD_MAX = 64 << 10
"""Bytes of a body that nobody has asked for yet; beyond them the connection is not read on."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class AnsweringConnection(Protocol):
    """A connection that writes the answer to the request that is running."""

    def answer(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        keep_alive: bool,
    ) -> None: ...


class ExchangeConnection(AnsweringConnection, Protocol):
    """The part of a connection that an exchange uses. ``writable``: the other side takes what is
    written."""

    transport: asyncio.Transport
    writable: asyncio.Event

    def resume_reading(self) -> None: ...


def failure() -> Reply:
    """The answer in the place of one that was not given, or cannot be sent."""
    return error_reply(HttpError(500, "the gateway failed on this request"))


class HttpExchange:
    """``scope``: as of ASGI. ``body``: bytes that have come and were not received yet.
    ``more_body``: it has not come whole. ``keep_alive``: the connection stays open behind the
    answer. ``lost``: nobody waits for it."""

    def __init__(
        self,
        connection: ExchangeConnection,
        scope: dict[str, Any],
        *,
        expects: bool,
        keep_alive: bool,
    ) -> None:
        """``expects``: the client waits with its body until it is asked for it."""
        self.scope = scope
        self.body = bytearray()
        self.more_body = True
        self.keep_alive = keep_alive
        self.response_complete = False
        self._connection = connection
        self._expects = expects
        self.lost = False
        self._came = asyncio.Event()
        """Set when there is something to receive."""
        self._head: Any = None
        """The first message of the answer; the body is not there yet."""

    async def run(self, app: Any) -> None:
        """Answer it by an ASGI application."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:
            log.error("a request failed", exc_info=error)
        finally:
            if not (self.response_complete or self.lost):
                log.error("a request ended without an answer: %s", self.scope["path"])
                failed = failure()
                self.keep_alive = False
                self._answer(failed.status, failed.all_headers, failed.body)

    def feed(self, data: bytes) -> None:
        """Add what has come of the body."""
        self.body += data
        self._came.set()

    def end_body(self) -> None:
        """Note that the body has come whole."""
        self.more_body = False
        self._came.set()

    def lose(self) -> None:
        """Note that nothing more comes, and that nobody waits for the answer."""
        self.lost = True
        self._came.set()

    async def receive(self) -> dict[str, Any]:
        """What has come of the body since the last call, as a message of ASGI."""
        if not (self.lost or self.response_complete):
            transport = self._connection.transport
            if self._expects and not transport.is_closing():
                transport.write(_CONTINUE)
                self._expects = False
            self._connection.resume_reading()
            await self._came.wait()
            self._came.clear()
        if self.lost or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        """Take the answer: two messages of ASGI, its head and then its whole body."""
        assert not message.get("more_body"), "an answer in parts"
        if message["type"] == "http.response.start":
            self._head = message
            return
        await self._connection.writable.wait()
        if not self.lost:
            head, body = self._head, message.get("body", b"")
            self._answer(head["status"], head["headers"], body)

    def _answer(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        self.response_complete = True
        self._came.set()
        keep_alive = self.keep_alive and not self.more_body
        if self.scope["method"] == "HEAD":  # whose answer only says how long the body would be
            body = b""
        self._connection.answer(status, headers, body, keep_alive=keep_alive)

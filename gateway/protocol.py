"""Connections with limits: how many, how large their headers, how slow they may be.

Theory: the server that we use bounds the body it holds (it stops reading) and the time between two
requests; it bounds neither headers, nor the time a request takes to arrive, nor that of who does
not take an answer. One look at all connections each second costs less than a timer for each
request.

An answer's head waits for the first part of its body, and both are one write: a write is a call of
the kernel and a packet, which together are a quarter of what a small request costs.

Rules: a connection beyond the limit, and one that is too slow, gets an answer if it can take one,
and is closed; it never waits for another one. What is no request is answered behind all requests
that came before it: an answer is never that to another request.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from .errors import HttpError
from .settings import GatewaySettings

_LOOK_EVERY_S = 1.0
_PIPELINED_MAX = 100


class LimitedProtocol(HttpToolsProtocol):
    """One connection. ``settings`` is set on a subclass for each server."""

    settings = GatewaySettings()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._receiving_since = self.loop.time()
        """When the request began that is not complete; 0: there is none."""
        self._writing_since = 0.0
        """When the other side stopped taking an answer; 0: it takes it."""
        self._head_bytes = 0
        """Of the data that came while a head was not complete."""
        self._trailer_bytes = 0
        self._in_head = True
        self._active_at = self.loop.time()
        """When something came or an answer ended."""
        self._closing_since = 0.0
        self._refusal: HttpError | None = None
        self._running: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last."""
        self._last_words: HttpError | None = None
        """The answer to what came behind requests that are still being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections_max:
            self._refuse(
                HttpError(
                    503,
                    "too many connections",
                    got=len(self.connections),
                    limit=self.settings.connections_max,
                    remedy="Use connections again for further requests, or another gateway",
                    headers={"Retry-After": "1"},
                )
            )

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._last_words is not None:
            return
        self._active_at = self.loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.settings.header_bytes_max:
            self._refuse(self._headers_too_large())

    # What the parser finds

    def on_message_begin(self) -> None:
        self._receiving_since = self.loop.time()
        self._in_head = True
        self._head_bytes, self._trailer_bytes = 1, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A trailer, behind a body in chunks: nobody here looks at it.
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self.settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("trailers too large")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = len(self.url) + sum([len(n) + len(v) + 4 for n, v in self.headers])
        if self._head_bytes > self.settings.header_bytes_max:
            self._refusal = self._headers_too_large()
            raise ValueError("headers too large")
        if len(self.pipeline) >= _PIPELINED_MAX:
            self._refusal = HttpError(
                400,
                "too many requests at once on a connection",
                limit=_PIPELINED_MAX,
                remedy="Await answers before further requests; those before this one are answered",
            )
            raise ValueError("too many requests")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._receiving_since = 0.0
        super().on_message_complete()

    def _headers_too_large(self) -> HttpError:
        return HttpError(
            431,
            "the request's first line and headers are too large",
            limit=f"{self.settings.header_bytes_max} bytes",
            remedy="Send fewer or shorter headers",
        )

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or HttpError(400, msg))

    # What is answered

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["method"] != "HEAD":  # which has no body that the head could wait for
            cycle.transport = cast("asyncio.Transport", _HeadWithBody(cycle.transport))
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._active_at = self.loop.time()
        super().on_response_complete()
        done = self._running is None or self._running.response_complete
        if self._last_words is not None and done and not self.transport.is_closing():
            self._end(self._last_words)

    # Time

    def pause_writing(self) -> None:
        self._writing_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writing_since = 0.0
        super().resume_writing()

    def look(self, now: float) -> None:
        """End this connection if it is too slow. ``now``: of the loop's clock."""
        receive_s, idle_s = self.settings.receive_s, self.settings.idle_s
        allowed = receive_s if self._head_bytes else idle_s
        running = self._running is not None and not self._running.response_complete
        if self.transport.is_closing():
            # What it still has to send is not taken.
            self._closing_since = self._closing_since or now
            if now - self._closing_since > receive_s:
                self.transport.abort()
        elif self._writing_since and now - self._writing_since > receive_s:
            self.transport.abort()
        elif self.flow.read_paused:
            self._receiving_since = now if self._receiving_since else 0.0  # it may not send on
        elif self._receiving_since and now - self._receiving_since > allowed:
            if self._answering or self._head_bytes == 0:
                self.transport.abort()
            else:
                limit = f"{allowed:g} s"
                self._refuse(HttpError(408, "the request takes too long to arrive", limit=limit))
        elif not self._receiving_since and not running and now - self._active_at > idle_s + 1:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        """Answer this and close; behind the requests that came whole before, in their order."""
        if self._last_words is not None:
            return
        self._receiving_since = 0.0
        newest: RequestResponseCycle | None = self.cycle
        if self.pipeline and newest is not None and newest.more_body:
            self.pipeline.popleft()  # it is the one that is refused
        running = self._running
        if running is None or running.response_complete:
            self._end(error)
        elif running.more_body:
            running.disconnected = True
            running.message_event.set()
            if running.response_started:
                self.transport.abort()
            else:
                self._end(error)
        else:
            self._last_words = error

    def _end(self, error: HttpError) -> None:
        body = error.body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()


class _HeadWithBody:
    """The part of a transport that an answer uses. ``write``: holds the head until more comes."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():  # whoever asked is gone, and a write would raise
            self._head = None
        elif self._head is not None:
            self._transport.write(self._head + data)
            self._head = None
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._head is not None:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


async def look_at_connections(connections: set[Any]) -> None:
    """End what is too slow, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = loop.time()
        for connection in list(connections):
            connection.look(now)

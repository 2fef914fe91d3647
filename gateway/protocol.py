"""Connections with limits: how many, how large their headers, how slow they may be.

Theory: the server that we use bounds the body it holds (it stops reading) and the time between two
requests; it bounds neither headers, nor the time a request takes to arrive, nor that of who does
not take an answer. One look at all connections each second costs less than a timer for each
request.

Rules: a connection beyond the limit, and one that is too slow, gets an answer if it can take one,
and is closed; it never waits for another one.
"""

from __future__ import annotations

import asyncio
from typing import Any

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
        self._refusal: HttpError | None = None

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
        if not self.transport.is_closing():
            super().data_received(data)

    # What the parser finds

    def on_message_begin(self) -> None:
        self._receiving_since = self.loop.time()
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _PIPELINED_MAX:
            self._refusal = HttpError(
                400, "too many requests at once on a connection", limit=_PIPELINED_MAX
            )
            raise ValueError("too many requests")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._receiving_since = 0.0
        super().on_message_complete()

    def _count(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self.settings.header_bytes_max:
            self._refusal = HttpError(
                431,
                "the request's first line and headers are too large",
                limit=f"{self.settings.header_bytes_max} bytes",
                remedy="Send fewer or shorter headers",
            )
            raise ValueError("headers too large")

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or HttpError(400, msg))

    # Time

    def pause_writing(self) -> None:
        self._writing_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._writing_since = 0.0
        super().resume_writing()

    def look(self, now: float) -> None:
        """End this connection if it is too slow. ``now``: of the loop's clock."""
        allowed = self.settings.receive_s if self._head_bytes else self.settings.idle_s
        if self._writing_since and now - self._writing_since > allowed:
            self.transport.abort()
        elif self._receiving_since and now - self._receiving_since > allowed:
            if self._answering or self._head_bytes == 0:
                self.transport.abort()
            else:
                limit = f"{allowed:g} s"
                self._refuse(HttpError(408, "the request takes too long to arrive", limit=limit))

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        body = error.body()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(STATUS_LINE[error.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()


async def look_at_connections(connections: set[Any]) -> None:
    """End what is too slow, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = loop.time()
        for connection in list(connections):
            connection.look(now)

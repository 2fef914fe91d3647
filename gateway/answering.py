"""How the answer to a request is written.

Theory: a write is a call of the kernel and a packet, which together are a quarter of what a small
request costs. So an answer's head waits for the first part of its body, and both are one write.

Rule: an answer that begins before its request has come whole is the last one of its connection.
Nobody has to guess whether what comes next is the rest of that body or a request: the client may
have given up its body (``Expect: 100-continue``), or may be about to send gigabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class AnswerTransport:
    """The part of a transport that the answer to a request uses. ``write``: holds the head until
    more comes, if it has a body. ``close_in_order``: closes the connection."""

    __slots__ = ("_began", "_close_in_order", "_cycle", "_head", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        cycle: RequestResponseCycle,
        close_in_order: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._cycle = cycle
        self._close_in_order = close_in_order
        self._began = False
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():  # whoever asked is gone, and a write would raise
            self._head = None
        elif self._head is not None:
            self._transport.write(self._head + data)
            self._head = None
        elif self._began or data.startswith(b"HTTP/1.1 100"):
            self._transport.write(data)
        else:
            self._began = True
            cycle = self._cycle
            if cycle.more_body and cycle.keep_alive:
                cycle.keep_alive = False
                data = data[:-2] + b"connection: close\r\n\r\n"
            if cycle.scope["method"] == "HEAD":  # which has no body that the head could wait for
                self._transport.write(data)
            else:
                self._head = data

    def close(self) -> None:
        if self._head is not None:
            self.write(b"")
        self._close_in_order()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

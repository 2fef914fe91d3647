"""One connection to a gateway: it sends a request, and returns the answer or its error.

An error is ``uncertain`` when the request may have been carried out: the connection broke after it
was sent, or the answer is 5xx.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ..wheel.errors import (
    InvalidBatch,
    NodeUnreachable,
    Overloaded,
    SlotwheelError,
    from_wire,
)
from .addresses import place_of

ARROW = "application/vnd.apache.arrow.stream"
TEXT_MAX = 200
"""An error shows so many characters of an answer."""
_ROW = re.compile(r"\$\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """An answer of a gateway, or of a proxy before it."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body; None: it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def error(self) -> SlotwheelError:
        """The error in the answer; ``uncertain`` when the request may have been carried out."""
        body = self.json()
        fields = body if isinstance(body, dict) else {}
        at = _ROW.match(str(fields.get("place") or ""))
        fields = {**fields, "row": int(at[1]) if at else None}
        if not fields.get("code"):
            text = str(fields.get("message") or self.body[:TEXT_MAX].decode(errors="replace"))
            kind: type[SlotwheelError] = InvalidBatch
            if self.status == HTTPStatus.TOO_MANY_REQUESTS:
                kind = Overloaded
            elif self.status >= 500 or self.status == HTTPStatus.REQUEST_TIMEOUT:
                kind = NodeUnreachable
            fields |= {"code": kind.code, "message": f"HTTP {self.status}: {text}"}
        error = from_wire(fields)
        error.uncertain = self.status >= 500
        return error


class GatewayConnection:
    """One connection to a gateway. Only ``cut`` is thread-safe."""

    def __init__(self, address: str, timeout_s: float) -> None:
        """Errors: ``NodeUnreachable``."""
        tls, host, port = place_of(address)
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=timeout_s)
        self._connection.auto_open = 0  # ``cut`` would miss a socket that is opened later
        try:
            self._connection.connect()
        except OSError as error:
            raise NodeUnreachable(
                f"gateway not reachable: {error}",
                got=address,
                remedy="Check the address, and that the gateway runs",
            ) from None
        sock = self._connection.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket: socket.socket = sock

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str = "",
        timeout_s: float | None = None,
    ) -> GatewayAnswer:
        """Send a request and return the answer. ``body``: an Arrow stream as bytes, or a value that
        becomes JSON. ``timeout_s``: the longest silence of the gateway; None: until ``cut``.

        Errors: ``NodeUnreachable``, mostly uncertain."""
        if self._connection.sock is None:
            raise NodeUnreachable("the gateway has ended the connection", remedy="Send it again")
        headers = {"Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data: bytes | None = body if isinstance(body, bytes) else None
        if data is not None:
            headers["Content-Type"] = ARROW
        elif body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        try:
            self._socket.settimeout(timeout_s)
            self._connection.request(method, path, data, headers)
            answer = self._connection.getresponse()
            return GatewayAnswer(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            lost = NodeUnreachable(
                f"the connection to the gateway broke: {type(error).__name__}: {error}"[:TEXT_MAX],
                remedy="Check that the gateway runs",
            )
            lost.uncertain = True
            raise lost from None

    def cut(self) -> None:
        """End the connection at any time; from any thread."""
        # The method of a socket with TLS would let another thread go on without TLS.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._connection.close()

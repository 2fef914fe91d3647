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
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ..security.secretplace import SecretPlace
from ..security.tls import Tls, TlsFiles, refusal_of
from ..security.tokens import read_token
from ..wheel.errors import (
    InvalidBatch,
    InvalidConfiguration,
    NodeUnreachable,
    Overloaded,
    SlotwheelError,
    from_wire,
)
from ..wheel.protocol import is_loopback
from .addresses import place_of

ARROW = "application/vnd.apache.arrow.stream"
ONE_WHEEL = "slotwheel-one-wheel"
"""A header of a request whose sender understands ids of one wheel alone: receipts of a ``Client``
have one group, and offsets that follow each other."""
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


class GatewayAccess:
    """The ways in which a client proves who it is to gateways, and they to it. Thread-safe.

    ``tls``: files of the authorities that prove a gateway's certificate, and of a certificate of
    the client's own; None: the system's authorities, and none. ``token``: the file of a bearer
    token, which is read for each request, so that another one in the file counts at once. Errors:
    ``InvalidConfiguration``."""

    def __init__(self, tls: Tls | None = None, token: SecretPlace | None = None) -> None:
        self._token = token
        self._files = TlsFiles.of_client(tls) if tls is not None else None

    @property
    def context(self) -> ssl.SSLContext | None:
        """For the next connection with TLS; None: by the system's authorities."""
        return None if self._files is None else self._files.dialling

    def headers(self) -> dict[str, str]:
        """The proof that goes along with a request. Errors: ``InvalidConfiguration``: its place has
        none that could be used."""
        return {} if self._token is None else {"Authorization": f"Bearer {read_token(self._token)}"}

    def check(self, tls: bool, host: str, address: str) -> None:
        """Errors: ``InvalidConfiguration`` for a token that everybody on the way could read."""
        if self._token is not None and not tls and not is_loopback(host):
            raise InvalidConfiguration(
                "a token would be sent without TLS",
                got=address,
                limit="https://HOST:PORT",
                remedy="Give the gateway's address with https://, or leave the token out",
            )


class GatewayConnection:
    """One connection to a gateway. Only ``cut`` is thread-safe."""

    def __init__(self, address: str, timeout_s: float, access: GatewayAccess | None = None) -> None:
        """Errors: ``NodeUnreachable``; ``InvalidConfiguration``: the certificate of what answers is
        not accepted, or it speaks no TLS; as of ``GatewayAccess.check``."""
        tls, host, port = place_of(address)
        self._access = access or GatewayAccess()
        self._access.check(tls, host, address)
        self._connection: http.client.HTTPConnection
        if tls:
            context = self._access.context
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._connection.auto_open = 0  # ``cut`` would miss a socket that is opened later
        try:
            self._connection.connect()
        except ssl.SSLError as error:
            self._connection.close()
            raise refusal_of(error) from None
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
        headers: Mapping[str, str] | None = None,
    ) -> GatewayAnswer:
        """Send a request and return the answer. ``body``: an Arrow stream as bytes, or a value that
        becomes JSON. ``timeout_s``: the longest silence of the gateway; None: until ``cut``.
        ``headers``: further ones.

        Errors: ``NodeUnreachable``, mostly uncertain."""
        if self._connection.sock is None:
            raise NodeUnreachable("the gateway has ended the connection", remedy="Send it again")
        sent = {"Accept": "application/json", **self._access.headers(), **(headers or {})}
        if key:
            sent["Idempotency-Key"] = key
        data: bytes | None = body if isinstance(body, bytes) else None
        if data is not None:
            sent["Content-Type"] = ARROW
        elif body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        try:
            self._socket.settimeout(timeout_s)
            self._connection.request(method, path, data, sent)
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

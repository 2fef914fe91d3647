"""A request for one message, answered past ASGI: no scope, no task, no events for its answer.

Theory: nearly all of the load is single messages, and such a request waits for one thing, its
message's id. So what it leaves behind is one object that the link to the node calls, in the place
of a task that awaits it: that costs half.

Rules
- Whatever is unusual about a request takes the way through ASGI (``connection.py``): a head that
  says more than where, what and how long, requests that come behind each other, several messages,
  and a message with a level or a route.
- A request is judged, and its answer made, by the code that the way through ASGI has: nobody can
  tell from an answer which way it came.
- Nothing is answered while the parser reads, as no task would be: an answer may end the connection
  in whose data the parser still is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from ..security.oidc import RefusedToken
from ..security.principals import Identity
from ..security.quotas import CountedConnection
from ..wheel.errors import OverQuota, SlotwheelError, Unauthenticated
from .app import GatewayApp
from .authentication import TOPICS
from .errors import HttpError
from .exchange import AnsweringConnection
from .requests import JSON, RawHeaders, Reply, content_type_of
from .v1.messages import SendMessages, stored_one, without_row

METHOD = "POST"
PATH = "/v1/messages"
BYTES_MAX = 16 << 10
"""Of a body: so much may wait for its rest on each connection, as of a head."""
_UNUSUAL = frozenset(
    (TOPICS, *b"content-encoding expect idempotency-key transfer-encoding".split())
)


class DirectConnection(AnsweringConnection, Protocol):
    """The part of a connection that an answer past ASGI uses. ``tasks``: of the server, which ends
    them."""

    loop: asyncio.AbstractEventLoop
    client: tuple[str, int] | None
    tasks: set[Any]


class DirectMessages:
    """Single messages of all connections."""

    def __init__(self, app: GatewayApp, messages: SendMessages, body_bytes_max: int) -> None:
        self.app = app
        self.messages = messages
        self._bytes_max = min(BYTES_MAX, body_bytes_max)

    def takes(
        self, headers: RawHeaders, certificate_names: Sequence[str], quota: CountedConnection
    ) -> Identity | None:
        """The caller of a request with this head, if it is answered here, once its body has come;
        ``quota`` counts for it then. None: it takes the way through ASGI."""
        size = -1
        for name, value in headers:
            if name in _UNUSUAL:
                return None
            if name == b"content-length":
                size = int(value)  # the parser has checked that it is a number
        if not 0 <= size <= self._bytes_max:
            return None
        scope = {"method": METHOD, "path": PATH, "headers": headers}
        try:
            self.app.guard.check(scope)
            content_type_of(scope, (JSON,))
            identity = self.app.authenticator.recall(headers, certificate_names)
            quota.count_for(identity.meter)
        except (HttpError, OverQuota, RefusedToken, Unauthenticated):
            return None
        return identity


class DirectAnswer:
    """A request that comes, and then its answer: for its connection an exchange, for the server a
    task, as far as they ask. ``body``: what has come of it."""

    __slots__ = (
        *("_began", "_cancelled", "_connection", "_direct", "_identity"),
        *("body", "keep_alive", "more_body", "response_complete"),
    )

    def __init__(
        self, direct: DirectMessages, connection: DirectConnection, identity: Identity
    ) -> None:
        self._direct = direct
        self._connection = connection
        self._identity = identity
        self._began = time.perf_counter()
        self.body = b""
        self.more_body = True
        self.response_complete = self._cancelled = False
        self.keep_alive = True

    def begin(self) -> bool:
        """Store what has come; whether that was done. If not, it is no single message."""
        connection = self._connection
        try:
            if not self._direct.messages.begin(self.body, self, self._identity):
                return False
        except Exception as error:
            connection.loop.call_soon(self.set_exception, error)
        self.more_body = False
        self.body = b""  # this object stays until the next request comes
        connection.tasks.add(self)
        return True

    def lose(self) -> None:
        """Nobody waits for the answer. What was sent is stored all the same, and counted."""

    def done(self) -> bool:
        return self._cancelled or self.response_complete

    def set_result(self, message_id: str, /) -> None:
        self._connection.tasks.discard(self)
        self._answer(stored_one(message_id))

    def set_exception(self, error: BaseException, /) -> None:
        if not self.response_complete:
            self._connection.tasks.discard(self)
            self._refuse(error)

    def cancel(self, **_: Any) -> None:
        """By the server as it ends; as a task, it answers in the loop's next turn."""
        if not self.done():
            self._cancelled = True
            self._connection.loop.call_soon(self.set_exception, asyncio.CancelledError())

    def _refuse(self, error: BaseException) -> None:
        if isinstance(error, SlotwheelError):
            without_row(error)
        self._answer(self._direct.app.refusal({"path": PATH}, error))

    def _answer(self, reply: Reply) -> None:
        self.response_complete = True
        connection = self._connection
        connection.answer(reply.status, reply.all_headers, reply.body, keep_alive=self.keep_alive)
        self._direct.app.count(METHOD, PATH, reply.status, self._began, PATH, connection.client)

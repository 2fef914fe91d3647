"""The ASGI application: finds the route, turns errors into answers, counts and logs.

Theory: one path carries nearly all of the load, single messages. It is looked up in a table and
answered without a router, a request object or a response object, which together cost more than the
rest of it; and most of it does not come here at all (``direct.py``). Everything else is
Starlette's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Router

from ..wheel.errors import NotRunning, SlotwheelError
from .authentication import IDENTITY, RequestAuthenticator
from .errors import HttpError, from_slotwheel
from .metrics import GatewayMetrics
from .requests import Reply, error_reply
from .sites import SiteGuard

log = logging.getLogger("slotwheel.gateway")

DirectRoute = Callable[[Any, Any], Awaitable[Reply]]
"""Takes scope and receive."""
ErrorForm = Callable[[HttpError, Any], Reply]
"""Makes an error the answer to a request; the second argument is its scope."""
_NO_SUCH_ROUTE = "(none)"


class GatewayApp:
    """``guard``: which requests get to a route at all. ``direct``: routes by method and path.
    ``public``: paths that need no proof; one with a parameter, ``/a/{name}``, means all below it.
    ``error_forms``: how errors look below a path's first segment, if not as elsewhere."""

    def __init__(
        self,
        direct: Mapping[tuple[str, str], DirectRoute],
        routes: Sequence[BaseRoute],
        metrics: GatewayMetrics,
        guard: SiteGuard,
        authenticator: RequestAuthenticator,
        *,
        public: Sequence[str],
        error_forms: Mapping[str, ErrorForm],
        http_log: bool,
    ) -> None:
        self._direct = dict(direct)
        self._router = Router(routes, redirect_slashes=False, default=_no_such_route)
        self._metrics = metrics
        self.guard = guard
        self.authenticator = authenticator
        self._public = frozenset(path for path in public if "{" not in path)
        self._public_below = tuple(path.partition("{")[0] for path in public if "{" in path)
        self._error_forms = error_forms
        self._http_log = http_log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        method, path = scope["method"], scope["path"]
        direct = self._direct.get((method, path))
        if direct is not None:
            route = path
            try:
                await self._admit(scope)
                answer = await direct(scope, receive)
            except ClientDisconnect:
                return
            except (Exception, asyncio.CancelledError) as error:
                answer = self.refusal(scope, error)
            await answer(scope, receive, send)
            status = answer.status
        else:
            route, status = await self._by_router(scope, receive, send)
        # As it came: decoded it might have the end of a line in it.
        sent = scope["raw_path"].decode("ascii", "backslashreplace")
        self.count(method, route, status, began, sent, scope.get("client"))

    def count(
        self, method: str, route: str, status: int, began: float, sent: str, client: Any
    ) -> None:
        """Note a request that was answered. ``began``: of ``time.perf_counter``; ``sent``: its
        path, as it came; ``client``: host and port of who sent it."""
        seconds = time.perf_counter() - began
        self._metrics.answered(method, route, status, seconds)
        if self._http_log:
            peer = "-" if client is None else f"{client[0]}:{client[1]}"
            log.info("%s %s %d %.1f ms %s", method, sent, status, seconds * 1000, peer)

    async def _admit(self, scope: Any) -> None:
        """Find out who calls. Everything but what is public needs a proof, also a path that there
        is not. Errors: as of ``SiteGuard.check``; ``Unauthenticated``."""
        self.guard.check(scope)
        path = scope["path"]
        if path in self._public or path.startswith(self._public_below):
            scope[IDENTITY] = self.authenticator.recall_public(scope)
        else:
            scope[IDENTITY] = await self.authenticator.identify(scope)

    async def _by_router(self, scope: Any, receive: Any, send: Any) -> tuple[str, int]:
        """The route's name and the status."""
        status = 0

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope["app"] = self  # so that the router raises its errors
        try:
            await self._admit(scope)
            await self._router(scope, receive, noting)
        except ClientDisconnect:
            status = status or 499
        except (Exception, asyncio.CancelledError) as error:
            if status:  # the answer has begun: all that is left is to end the connection
                raise
            answer = self.refusal(scope, error)
            status = answer.status
            await answer(scope, receive, send)
        endpoint = scope.get("endpoint")
        return getattr(endpoint, "__name__", _NO_SUCH_ROUTE), status

    def refusal(self, scope: Any, error: BaseException) -> Reply:
        """The answer to a request that ended so. ``scope``: with its path, at least."""
        if isinstance(error, SlotwheelError):
            refused = from_slotwheel(error)
        elif isinstance(error, HttpError):
            refused = error
        elif isinstance(error, HTTPException):
            refused = HttpError(error.status_code, error.detail, headers=error.headers)
        elif isinstance(error, asyncio.CancelledError):  # it has had ``server.END_S``
            refused = from_slotwheel(_ending())
        else:
            log.error("a request failed", exc_info=error)
            name = type(error).__name__
            refused = HttpError(500, f"the gateway failed on this request: {name}")
        path = scope["path"]
        form = self._error_forms.get(path.split("/", 2)[1] if "/" in path else "")
        return error_reply(refused) if form is None else form(refused, scope)


def _ending() -> NotRunning:
    return NotRunning(
        "the gateway is shutting down; whether this was done is not known",
        remedy="Send it again, with an Idempotency-Key if it must not be done twice",
        uncertain=True,
    )


async def _no_such_route(scope: Any, _receive: Any, _send: Any) -> None:
    raise HttpError(
        404,
        "no such page",
        got=scope["path"],
        remedy="/openapi.json lists them all; a slash within a name is written %2F",
    )

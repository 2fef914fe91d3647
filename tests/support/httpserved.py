"""The gateway's server before an application of a test, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from slotwheel.gateway.httpserver import HttpServer
from slotwheel.gateway.server import listen
from slotwheel.gateway.settings import GatewaySettings


class NoDirect:
    """No request is answered past ASGI."""

    def takes(self, *_: object) -> None:
        return None


@asynccontextmanager
async def served_http(app: Any, **settings: Any) -> AsyncIterator[tuple[HttpServer, int]]:
    """The server and its port. ``settings``: fields of ``GatewaySettings``."""
    listening = listen("127.0.0.1:0")
    given = GatewaySettings(nodes=("127.0.0.1:1",), **settings)
    server = HttpServer(app, cast("Any", NoDirect()), given, given.tls_files())
    task = asyncio.create_task(server.serve(listening))
    while not server.listens:
        await asyncio.sleep(0)
    yield server, listening.getsockname()[1]
    server.end()
    await task
    assert not server.tasks
    assert not server.handshakes

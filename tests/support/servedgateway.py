"""A whole gateway in this process, whose sessions go by a clock that a test gives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotwheel.gateway.httpserver import HttpServer
from slotwheel.gateway.routes import make_app
from slotwheel.gateway.server import listen, made_services
from slotwheel.gateway.settings import GatewaySettings
from support.waiting import eventually


@contextmanager
def served_gateway(settings: GatewaySettings, clock: Callable[[], float]) -> Iterator[int]:
    """Serve in a thread with a loop of its own; the port."""
    listening = listen(settings.listen)
    servers: list[tuple[asyncio.AbstractEventLoop, HttpServer]] = []

    async def serve() -> None:
        with made_services(settings) as services:
            services.authenticator.sessions.monotonic = clock
            server = HttpServer(*make_app(services), settings, settings.tls_files())
            server.watch(services.authenticator.look)
            servers.append((asyncio.get_running_loop(), server))
            await server.serve(listening)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="served-gateway")
    port = int(listening.getsockname()[1])
    thread.start()
    try:
        eventually(lambda: bool(servers) and servers[0][1].listens)
        yield port
    finally:
        for loop, server in servers:
            loop.call_soon_threadsafe(server.end)
        thread.join()
        listening.close()

"""Accepts HTTP connections, looks after them each second, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Collection
from email.utils import formatdate
from typing import Protocol

from .app import GatewayApp
from .connection import HttpConnection
from .direct import DirectMessages
from .settings import GatewaySettings

END_S = 1
"""How long requests that are being answered may go on when the server ends."""
_CANCELLED_S = 0.5
"""How long, after that, the answers may take which say that it ends."""
_LOOK_EVERY_S = 1.0
_POLL_S = 0.02
_BACKLOG = 2048


class UnderWay(Protocol):
    """A request that is being answered: a task, or what answers past ASGI."""

    def cancel(self) -> object: ...


class HttpServer:
    """``direct``: answers single messages past ASGI. ``hosts``: the number of connections by
    address and of all (``ALL``), without those that were refused. ``date``: the header's value."""

    def __init__(self, app: GatewayApp, direct: DirectMessages, settings: GatewaySettings) -> None:
        self.app = app
        self.direct = direct
        self.settings = settings
        self.connections: set[HttpConnection] = set()
        self.tasks: set[UnderWay] = set()
        self.hosts: Counter[str] = Counter()
        self.date = b""
        self.listens = False
        self.ending = asyncio.Event()
        self._at_once = False

    def end(self) -> None:
        """End in order; the second call: at once."""
        self._at_once = self.ending.is_set()
        self.ending.set()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until ``end``; closes the socket."""
        loop = asyncio.get_running_loop()
        self._look(loop.time())
        accepting = await loop.create_server(
            lambda: HttpConnection(self), sock=listening, backlog=_BACKLOG
        )
        self.listens = True
        while not self.ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), _LOOK_EVERY_S)
            self._look(loop.time())
        accepting.close()
        for connection in list(self.connections):
            connection.shutdown()
        await self._until_empty(END_S, self.connections, self.tasks)
        for connection in list(self.connections):
            connection.drop_waiting()
        for request in list(self.tasks):
            request.cancel()
        await self._until_empty(_CANCELLED_S, self.tasks)

    async def _until_empty(self, wait_s: float, *sets: Collection[object]) -> None:
        """Wait until all ``sets`` are empty, ``wait_s`` at most; not at all if it ends at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while any(sets) and not self._at_once and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    def _look(self, now: float) -> None:
        """End what is too slow. ``now``: of the loop's clock."""
        self.date = formatdate(time.time(), usegmt=True).encode()
        for connection in list(self.connections):
            connection.look(now)

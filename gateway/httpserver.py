"""Accepts HTTP connections, looks after them each second, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from email.utils import formatdate
from typing import Protocol

from ..security.tls import PeerCertificate, TlsFiles
from ..security.watched import WatchedFiles
from .app import GatewayApp
from .connection import HttpConnection
from .direct import DirectMessages
from .settings import GatewaySettings
from .tlsport import TlsGuest
from .turns import Turns

log = logging.getLogger("slotwheel.gateway")

END_S = 1
"""How long requests that are being answered may go on when the server ends."""
_CANCELLED_S = 0.5
"""How long, after that, the answers may take which say that it ends."""
_LOOK_EVERY_S = 1.0
_POLL_S = 0.02
_BACKLOG = 2048
_REFUSALS_MAX = 10
_OF_BROWSERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Headers by which a browser takes no answer for a script, and keeps none on a disk."""
_OF_TLS = (b"strict-transport-security", b"max-age=31536000")
"""A browser that has seen it never sends a request without TLS to this name again."""


class UnderWay(Protocol):
    """A request that is being answered: a task, or what answers past ASGI."""

    def cancel(self) -> object: ...


class HttpServer:
    """``direct``: answers single messages past ASGI. ``tls``: the certificate of its port; None:
    it has no TLS. ``hosts``: the number of connections by address and of all (``ALL``), without
    those that were refused; ``handshakes``: connections with TLS before that; ``turns``: whose work
    the loop does next. ``unread``: as of ``ConnectionServer``. ``date``: the header's value."""

    def __init__(
        self,
        app: GatewayApp,
        direct: DirectMessages,
        settings: GatewaySettings,
        tls: TlsFiles | None = None,
    ) -> None:
        self.app = app
        self.direct = direct
        self.settings = settings
        self.connections: set[HttpConnection] = set()
        self.tasks: set[UnderWay] = set()
        self.hosts: Counter[str] = Counter()
        self.unread: dict[HttpConnection, int] = {}
        self.date = b""
        self.guards: Sequence[tuple[bytes, bytes]] = ()
        if tls is not None:
            self.guards = (_OF_TLS, *_OF_BROWSERS)
        self.handshakes: dict[TlsGuest, None] = {}
        self.turns = Turns()
        self._tls = tls
        self._refusals: Counter[str] = Counter()
        self._looks: list[Callable[[], object]] = [] if tls is None else [tls.look]
        self._looked_at_files = 0.0
        self._looking: asyncio.Future[None] = asyncio.Future()
        self._looking.set_result(None)
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
        accepting = await loop.create_server(self._accept, sock=listening, backlog=_BACKLOG)
        self.listens = True
        while not self.ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), _LOOK_EVERY_S)
            self._look(loop.time())
        accepting.close()
        for guest in list(self.handshakes):
            guest.give_up("the gateway ends")
        for connection in list(self.connections):
            connection.shutdown()
        await self._until_empty(END_S, self.connections, self.tasks)
        for connection in list(self.connections):
            connection.drop_waiting()
        for request in list(self.tasks):
            request.cancel()
        await self._until_empty(_CANCELLED_S, self.tasks)
        self._log_refusals()

    def _accept(self) -> asyncio.Protocol:
        return HttpConnection(self) if self._tls is None else TlsGuest(self, self._tls)

    def stands(self, certificate: PeerCertificate | None) -> bool:
        """Returns False for a certificate that is not accepted any more."""
        return certificate is None or self._tls is None or self._tls.stands(certificate)

    def note_refusal(self, host: str, reason: str) -> None:
        """Note that a connection from ``host`` ended without a request. The log has one line a
        second, however many there are: strangers cannot fill the disk."""
        text = f"{reason} ({host})"
        if len(self._refusals) >= _REFUSALS_MAX and text not in self._refusals:
            text = "other reasons"
        self._refusals[text] += 1

    async def _until_empty(self, wait_s: float, *sets: Collection[object]) -> None:
        """Wait until all ``sets`` are empty, ``wait_s`` at most; not at all if it ends at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while any(sets) and not self._at_once and loop.time() < until:
            await asyncio.sleep(_POLL_S)

    def _look(self, now: float) -> None:
        """End what is too slow. ``now``: of the loop's clock."""
        self.date = formatdate(time.time(), usegmt=True).encode()
        if now - self._looked_at_files >= WatchedFiles.every_s and self._looking.done():
            self._looked_at_files = now
            self._looking = asyncio.get_running_loop().run_in_executor(None, self._look_at_files)
        for connection in list(self.connections):
            connection.look(now)
        self._log_refusals()

    def watch(self, look: Callable[[], object]) -> None:
        """Call ``look`` every ``WatchedFiles.every_s`` from now on, by a thread: it may wait."""
        self._looks.append(look)

    def _look_at_files(self) -> None:
        for look in self._looks:
            try:
                look()
            except Exception as error:
                log.error("files that may have changed cannot be looked at", exc_info=error)

    def _log_refusals(self) -> None:
        if self._refusals:
            reasons = "; ".join(f"{count} x {text}" for text, count in self._refusals.items())
            log.warning("connections refused before a request: %s", reasons)
            self._refusals.clear()

"""The files by which a node uses TLS, towards clients and towards peers, and their exchange.

A thread looks at them every ten seconds, so a new certificate or authority counts without a
restart, and the thread that serves connections reads no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wheel.errors import SlotwheelError
from .config import NodeConfig
from .events import NodeEvents

if TYPE_CHECKING:  # OpenSSL takes 5 MB, which a node without TLS does not need
    from ..security.tls import TlsFiles


class NodeTls:
    """``clients``: for connections of clients; ``peers``: for those of peers, both ways; None: they
    are plain. Errors on construction: ``InvalidConfiguration`` that names the file."""

    def __init__(self, config: NodeConfig, events: NodeEvents) -> None:
        self._events = events
        self.clients: TlsFiles | None = None
        self.peers: TlsFiles | None = None
        self.look_every_s = 0.0
        if config.tls_cert is None and config.peer_cert is None:
            return
        from ..security.tls import Tls, TlsFiles
        from ..security.watched import WatchedFiles

        self.look_every_s = WatchedFiles.every_s
        if config.tls_cert is not None:
            self.clients = TlsFiles(
                Tls(config.client_ca, config.tls_cert, config.tls_key),
                accepts=True,
                # With a security file a token proves as much.
                requires_certificate=config.client_ca is not None and config.security is None,
                alarm=self._alarm,
            )
        if config.peer_cert is not None:
            self.peers = TlsFiles(
                Tls(config.peer_ca, config.peer_cert, config.peer_key),
                accepts=True,
                dials=True,
                requires_certificate=True,
                compares_node_ids=True,
                alarm=self._alarm,
            )

    @property
    def is_on(self) -> bool:
        """True if there are files to look at."""
        return self.clients is not None or self.peers is not None

    def turn(self) -> float:
        """Look if the files changed. Returns the pause before the next look, s."""
        for whose, files in (("clients", self.clients), ("peers", self.peers)):
            if files is not None and files.look():
                self._events.event("certificates-exchanged", whose=whose)
        return self.look_every_s

    def problems(self) -> list[str]:
        """The reasons for which files as they are now are not in use."""
        files = [files for files in (self.clients, self.peers) if files is not None]
        return [str(one.error) for one in files if one.error is not None]

    def _alarm(self, error: SlotwheelError) -> None:
        self._events.alarm("certificates", reason=str(error))

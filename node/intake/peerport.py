"""The address at which peers are served with TLS: a server of its own, which nobody else may use.

A caller proves a certificate of the peers' authority before its greeting is read, and the greeting
has to be of the node that the certificate names. So a client's certificate, which another authority
may have given out, opens nothing here.
"""

from __future__ import annotations

from ...policy.places import who_leaves
from ...security.tls import TlsFiles
from ...wheel.errors import InvalidConfiguration
from ...wheel.protocol import PEER_COMMAND, split_address
from ...wire.frames import Frame
from ...wire.server import Connection, Leave, Server
from .ports import IntakeEvents, PeerPort
from .refusals import Refusals
from .wire import check_free

_BYTES_MAX = 1 << 20
_WAIT_S = 0.25


class PeerServer:
    """Listens from construction until ``close``; one thread calls ``turn`` again and again. Errors:
    ``AddressInUse``, ``OSError``."""

    wait_s = _WAIT_S

    def __init__(self, address: str, tls: TlsFiles, peers: PeerPort, events: IntakeEvents) -> None:
        self._peers = peers
        self._events = events
        check_free(address, "--peer-listen")
        host, port = split_address(address, to_listen=True)
        self.server = Server(
            host,
            port,
            self._greet,
            self,
            who_leaves,
            self._broken,
            connections_max=0,  # none stays here: each peer's leaves with a thread of its own
            bytes_max=_BYTES_MAX,
            quiet_s=0.0,
            tls=tls,
            refused=Refusals("peer-connection-refused", events),
        )
        self.port = self.server.port
        self.turn = self.server.turn

    def work(self) -> None:
        """Nothing: what peers send is worked on in their own threads."""

    def close(self, timeout_s: float) -> None:
        self.server.close(timeout_s)

    def _greet(self, connection: Connection, hello: Frame) -> Leave:
        body = bytes(hello.body)
        if not body.startswith(PEER_COMMAND):
            raise InvalidConfiguration(
                "clients are not served at this address",
                remedy="Give the address at which the node listens for clients, --listen",
            )
        return self._peers.admit(body, connection.certificate_names)

    def _broken(self, error: Exception) -> None:
        self._events.alarm("peer-server-failed", error=repr(error))

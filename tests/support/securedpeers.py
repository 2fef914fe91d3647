"""Three peers with TLS, between each other and towards clients, on certificates that can be
exchanged while they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slotwheel import Tls
from slotwheel.security.tls import TlsFiles
from support.certificates import Authority, bundle
from support.peers import PEERS, Peers
from support.ports import free_port
from support.proxylab import Loopback


class TwoPorts(Loopback):
    """Peers on ports of their own, apart from those for clients."""

    def __init__(self, peers: Sequence[str]) -> None:
        super().__init__(peers)
        self._between = {peer: f"{self.host}:{free_port(self.host)}" for peer in self.peers}

    def address(self, peer: str) -> str:
        return self._between[peer]


class SecuredPeers(Peers):
    """``peers_by``, ``nodes_by``, ``clients_by``: the authorities of peers, of the certificates
    towards clients, and of clients. ``address``: for a client, with TLS."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.folder = directory / "certificates"
        self.peers_by = Authority(self.folder, "peers-1")
        self.nodes_by = Authority(self.folder, "nodes-1")
        self.clients_by = Authority(self.folder, "clients-1")
        self.ca = {whose: self.folder / f"{whose}.pem" for whose in ("peer", "node", "client")}
        bundle(self.ca["peer"], self.peers_by)
        bundle(self.ca["node"], self.nodes_by)
        bundle(self.ca["client"], self.clients_by)
        own = {}
        for name in PEERS:
            peer, node = self.issue_peer(name), self.issue_node(name)
            own[name] = [
                *("--tls-cert", str(node.cert), "--peer-cert", str(peer.cert)),
                *("--client-ca", str(self.ca["client"]), "--peer-ca", str(self.ca["peer"])),
            ]
        super().__init__(directory, *options, own=own, lab=TwoPorts(PEERS))
        self.client = self.issue_client()
        secure = TlsFiles.of_client(self.client).dial
        for process in self.nodes.values():
            process.secure = secure
        self.address = "tls://" + ",".join(self.lab.listen(name) for name in PEERS)

    def issue_peer(self, name: str) -> Tls:
        return _in_one_file(self.peers_by.issue(name, file=f"peer-{name}"))

    def issue_node(self, name: str) -> Tls:
        return _in_one_file(self.nodes_by.issue("127.0.0.1", file=f"node-{name}"))

    def issue_client(self) -> Tls:
        issued = self.clients_by.issue("billing.example", file="client")
        return Tls(ca=self.ca["node"], cert=issued.cert, key=issued.key)


def _in_one_file(issued: Tls) -> Tls:
    """The certificate with its key, in a file that is there at once: a peer that looks at two of
    them between their writes has an alarm."""
    cert, key = Path(str(issued.cert)), Path(str(issued.key))
    both, new = cert.with_suffix(".pem"), cert.with_suffix(".new")
    new.write_bytes(cert.read_bytes() + key.read_bytes())
    new.replace(both)
    return Tls(ca=issued.ca, cert=both)

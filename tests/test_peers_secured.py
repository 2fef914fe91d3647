"""Three real peers with TLS: they serve as others do, strangers get nothing, and every certificate
and authority is exchanged while they work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slotwheel import Client, InvalidConfiguration, Message, SlotwheelError, Tls
from slotwheel.client.groupstatus import group_status
from slotwheel.replication.transport.handshake import CONTROL, Greeting
from slotwheel.security.tls import TlsFiles
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.errors import Unauthenticated
from slotwheel.wheel.protocol import AppendCommand
from slotwheel.wire.channel import Channel, Secure
from slotwheel.wire.server import TRUST_EVERY_S
from support.certificates import Authority, bundle
from support.peers import PEERS
from support.rightsfile import token_of
from support.securedpeers import SecuredPeers
from support.securing import write_private
from support.stopwatch import Stopwatch
from support.waiting import eventually

SMALL = (
    *("--segment-bytes", "1M", "--tail-age", "500ms", "--tail-keep", "200ms"),
    *("--peer-journal", "256K"),
)
OUT_S = 5.0
"""Who lost his rights is out so soon after a look, s: within 15 s, as one begins every ten."""


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[SecuredPeers]:
    with SecuredPeers(tmp_path) as group:
        yield group


def test_a_group_serves_and_fails_over_and_strangers_get_nothing(
    peers: SecuredPeers, tmp_path: Path
) -> None:
    master = peers.wait_until_whole()
    with Client(peers.address, tls=peers.client, timeout_s=60) as client:
        receipts = client.send_many([Message("orders", b"x", delay=1000) for _ in range(500)])
        assert len(receipts.result(60)) == 500
        status = group_status(client)
        assert status["replication"]["role"] == "master"
        # A standby names the address for clients, and not the one at which peers meet.
        standby = peers.standbys(master)[0]
        named = eventually(lambda: peers[standby].hello().get("master_address"))
        assert named == peers.lab.listen(master)

        for case, (address, secure) in strangers(peers, tmp_path, master).items():
            with pytest.raises(SlotwheelError) as caught:
                greet(peers, address, secure)
            text = str(caught.value)
            assert not [word for word in (*PEERS, "default") if f"{word!r}" in text], (case, text)

        peers[master].kill()
        after = client.send_many([Message("orders", b"y", delay=1000) for _ in range(500)])
        assert len(after.result(60)) == 500
        peers[master].start()
        peers.wait_until_whole()
        eventually(lambda: group_status(client)["pending"] == 1000)
    peers.stop()
    assert peers.disagreements() == []


def strangers(
    peers: SecuredPeers, tmp_path: Path, master: str
) -> dict[str, tuple[str, Secure | None]]:
    """Where they connect, and what they prove."""
    foreign = Authority(tmp_path / "foreign", "foreign")
    at_peers, at_clients = peers.lab.address(master), peers.lab.listen(master)

    def proves(tls: Tls) -> Secure:
        files = TlsFiles(
            Tls(ca=peers.ca["peer"], cert=tls.cert, key=tls.key), dials=True, compares_node_ids=True
        )
        return lambda _host: files.dial(master)

    return {
        "nothing": (at_peers, None),
        "no certificate": (at_peers, proves(Tls())),
        "a foreign authority's": (at_peers, proves(foreign.issue("x"))),
        "a client's": (at_peers, proves(peers.client)),
        "a peer's that is no peer": (at_peers, proves(peers.peers_by.issue("x"))),
        "a client's, at the port for clients": (
            at_clients,
            TlsFiles.of_client(peers.client).dial,
        ),
    }


def greet(peers: SecuredPeers, address: str, secure: Secure | None) -> None:
    """Greet as a peer that is not there."""
    group = {name: peers.lab.address(name) for name in PEERS}
    me, to = PEERS[1], PEERS[0]
    said = Greeting("default", me, to, "i", bytes(16), group, promise_ms=800, lane=CONTROL)
    Channel.open(address, said.encode(), {}, 10, secure=secure).close()


def test_the_id_of_a_peer_that_is_down_is_nobody_elses(peers: SecuredPeers) -> None:
    """What a stranger would need to get all messages and the group's key."""
    master = peers.wait_until_whole()
    down = peers.standbys(master)[0]
    peers[down].kill()
    other = peers.standbys(master)[1]
    group = {name: peers.lab.address(name) for name in PEERS}
    said = Greeting(
        "default", down, master, "i", bytes(16), group, promise_ms=800, lane=CONTROL
    ).encode()
    tls = peers.peers_by.issue(other, file="other")
    stolen = {
        "without TLS": None,
        "without a certificate": secure_to(master, Tls(ca=peers.ca["peer"])),
        "as another peer": secure_to(master, tls),
    }
    for case, secure in stolen.items():
        with pytest.raises(InvalidConfiguration):
            Channel.open(group[master], said, {}, 10, secure=secure)
        assert case
    log = peers[master].log_text()
    assert "the certificate is not that peer's" in log
    assert "did not return a certificate" in log
    # A peer is not greeted either where somebody else listens at its address.
    with pytest.raises(InvalidConfiguration, match="another name"):
        Channel.open(group[master], said, {}, 10, secure=secure_to(down, tls))


def secure_to(peer: str, tls: Tls) -> Secure:
    files = TlsFiles(tls, dials=True, compares_node_ids=True)
    return lambda _host: files.dial(peer)


class Load:
    """A client that stores message after message. ``pause_s``: the longest between two of them;
    ``stored_s``: when the last one was stored."""

    def __init__(
        self, peers: SecuredPeers, tls: Tls, token: str | None = None, timeout_s: float = 60
    ) -> None:
        self.ids: list[str] = []
        self.errors: list[SlotwheelError] = []
        self.pause_s = 0.0
        self.stored_s = 0.0
        self._client = Client(peers.address, tls=tls, token=token, timeout_s=timeout_s)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        watch = Stopwatch()
        while not self._ended.wait(0.02):
            try:
                self.ids.append(self._client.store("orders", b"x", delay=3000))
                self.stored_s = time.monotonic()
            except SlotwheelError as error:
                self.errors.append(error)
            self.pause_s = max(self.pause_s, watch.seconds)
            watch = Stopwatch()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)
        with contextlib.suppress(OSError):
            self._client.close()


def test_a_peer_with_a_new_disk_gets_a_snapshot_over_tls(tmp_path: Path) -> None:
    with SecuredPeers(tmp_path, *SMALL) as peers:
        master = peers.wait_until_whole()
        wiped = peers.standbys(master)[0]
        peers.wipe(wiped)
        first = peers[master].oldest_segment()
        with Client(peers.address, tls=peers.client, timeout_s=60) as client:
            many = [Message("orders", bytes(4000), delay=3000 + n % 60) for n in range(2000)]
            assert len(client.send_many(many).result(60)) == 2000
            # The entries that it lacks are in the journal no more.
            eventually(lambda: peers[master].oldest_segment() > first)
            peers[wiped].start()
            peers.wait_until_whole()
            eventually(lambda: "snapshot-installed" in peers[wiped].log_text())
            eventually(lambda: group_status(client)["pending"] == 2000)
        peers.stop()
        assert peers.disagreements() == []


def all_have_exchanged(peers: SecuredPeers, times: int) -> bool:
    """Returns True once each peer goes by other files than at first, towards clients and towards
    peers so many times, and by another security file."""
    logs = [peers[name].log_text() for name in PEERS]
    return all(
        log.count("certificates-exchanged") >= 2 * times and "security-file-exchanged" in log
        for log in logs
    )


def test_a_client_is_not_served_where_peers_are(peers: SecuredPeers) -> None:
    master = peers.wait_until_whole()
    secure = secure_to(master, peers.peers_by.issue("b", file="as-client"))
    with pytest.raises(InvalidConfiguration, match="clients are not served at this address"):
        Channel.open(
            peers.lab.address(master), AppendCommand().encode(), {}, 10, secure=secure
        ).close()


def write_members(path: Path, tokens: Sequence[str], topics: Sequence[str]) -> Path:
    """A security file in which the client's certificate and these tokens have a role that may
    schedule to these topics."""
    lines = [f'[tokens.{name}]\nsha256 = "{digest_of(token_of(name))}"' for name in tokens]
    members = ["cert:billing.example", *(f"token:{name}" for name in tokens)]
    listed = ", ".join(f'"{topic}"' for topic in topics)
    lines += ["[roles.orders]", f"schedule = [{listed}]", f"cancel = [{listed}]"]
    lines += ["observe = true", "[members]"]
    return write_private(path, "\n".join([*lines, *(f'"{m}" = ["orders"]' for m in members), ""]))


def test_certificates_authorities_a_token_and_a_role_are_exchanged_under_load(
    tmp_path: Path, looks_often: float, figure: Callable[[str], None]
) -> None:
    """Each in the order that docs/security.md gives: the new authority and the new token beside the
    old ones, new certificates and the new token for the client, the old ones go."""
    security = write_members(tmp_path / "security.toml", ["old", "leaver"], ["orders"])
    mine = write_private(tmp_path / "mine.token", token_of("old"))
    leaving = write_private(tmp_path / "leaver.token", token_of("leaver"))
    with SecuredPeers(tmp_path, "--security", str(security)) as peers:
        peers.wait_until_whole()
        without = Tls(ca=peers.ca["node"])
        with (
            Load(peers, peers.client) as by_certificate,
            Load(peers, without, f"file:{mine}") as by_token,
            Load(peers, without, f"file:{leaving}", timeout_s=20) as leaver,
        ):
            loads = by_certificate, by_token
            eventually(lambda: all(len(load.ids) > 50 for load in (*loads, leaver)))
            old = peers.peers_by, peers.nodes_by, peers.clients_by
            new = tuple(
                Authority(peers.folder, name) for name in ("peers-2", "nodes-2", "clients-2")
            )
            peers.peers_by, peers.nodes_by, peers.clients_by = new
            for whose, before, after in zip(("peer", "node", "client"), old, new, strict=True):
                bundle(peers.ca[whose], before, after)
            write_members(security, ["old", "new", "leaver"], ["orders", "moved"])
            eventually(lambda: all_have_exchanged(peers, 1))
            old_client = peers.client
            assert old_client.cert is not None
            kept = Path(old_client.cert).read_bytes(), Path(str(old_client.key)).read_bytes()
            for name in PEERS:
                peers.issue_peer(name)
                peers.issue_node(name)
            peers.issue_client()
            write_private(mine, token_of("new"))
            # The role has another topic by now, for connections that were open before, too.
            with Client(peers.address, tls=peers.client, timeout_s=60) as client:
                client.store("moved", b"x", delay=3000)
            eventually(lambda: all_have_exchanged(peers, 2))
            assert leaver.errors == []
            for whose, after in zip(("peer", "node", "client"), new, strict=True):
                bundle(peers.ca[whose], after)
            write_members(security, ["new"], ["orders", "moved"])
            taken_s = time.monotonic()
            eventually(lambda: leaver.errors)
            out_s = leaver.stored_s - taken_s
            counts = [len(load.ids) for load in loads]
            eventually(lambda: all_have_exchanged(peers, 3))
            time.sleep(TRUST_EVERY_S + 1)  # connections of old certificates are ended meanwhile
            eventually(
                lambda: all(len(load.ids) > n + 50 for load, n in zip(loads, counts, strict=True))
            )
            stored = len(leaver.ids)
        figure(
            f"exchanged under load: pauses {by_certificate.pause_s:.2f} and {by_token.pause_s:.2f}"
            f" s, who lost the token is out after {out_s:.1f} s"
        )
        assert out_s <= looks_often + OUT_S
        assert len(leaver.ids) == stored
        assert {error.code for error in leaver.errors} == {Unauthenticated.code}
        for load in loads:
            assert load.errors == []
            assert load.pause_s < 1.0
        ids = [*by_certificate.ids, *by_token.ids, *leaver.ids]
        assert len(set(ids)) == len(ids)
        master = peers.wait_until_whole()
        with Client(peers.address, tls=peers.client) as client:
            # None is lost, and none is there twice; the one that moved with its role stays.
            assert client.cancel(ids) == ["cancelled"] * len(ids)
            eventually(lambda: group_status(client)["pending"] == 1)
        for name in PEERS:
            log = peers[name].log_text()
            assert "alarm" not in log, log
        # By what was exchanged nobody gets in any more.
        cert, key = peers.folder / "kept.crt", peers.folder / "kept.key"
        cert.write_bytes(kept[0])
        key.write_bytes(kept[1])
        secure = TlsFiles.of_client(Tls(ca=peers.ca["node"], cert=cert, key=key)).dial
        peers[master].secure = secure
        assert peers[master].hello() == {}

"""Attacks against each listener of a real node, its gateway and three peers, from docs/security.md.

The attackers (``support.attackers``) are a process of their own. Beside them honest callers store
messages, once without the attack and once with it. Whatever strangers do, memory and threads stay
within their limits, honest callers wait at most three times as long, none of their messages is
lost, early or repeated, and nobody who has proven nothing gets an answer that names anything.

Each attack against each listener for a minute: ``python -m pytest -m soak tests/test_attacks.py``
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaProducer

from slotwheel import Client, Tls
from slotwheel.security.tokens import digest_of
from slotwheel.trace.events import TRACE_TOPIC
from support.attackers import (
    ATTACKS,
    HTTP,
    LISTENERS,
    LITTLE,
    METRICS,
    NOTHING,
    PEER,
    PEER_PORT,
    TOKEN,
    WIRE,
    Attack,
    Attacking,
    Result,
    Target,
)
from support.broker import Cluster, TopicFactory
from support.certificates import Authority
from support.gatewayprocess import GatewayProcess
from support.honest import NEWCOMER, Honest, http_client
from support.kafkaread import held
from support.nodeprocess import NodeProcess
from support.peers import PEERS
from support.rightsfile import bearer, token_of
from support.securedpeers import SecuredPeers
from support.securing import write_private
from support.stopwatch import Stopwatch
from support.waiting import eventually

Figure = Callable[[str], None]
SHORT_S, LONG_S = 1.0, 60.0
CALM_S = 0.7
LONG = [pytest.mark.soak, pytest.mark.timeout(600)]
TRIES = 3
IN_SUITE = {"silent", "stalled handshakes", "huge claims", "guesses"}
"""Attacks that every run of the suite tries for a moment; the soak tries all of them, for both."""
RESIDENT_MB_MAX = 400
THREADS_MAX = 100
SLOWER_MAX = 3.0
MOMENT_MS, BUSY_MS = 20.0, 1_000.0
"""A p99 below it counts as so much: the attackers take processor time of the same two cores. In the
suite, which runs six files at once, the others do, too, so what is short shows only that nobody is
kept waiting for seconds, and what the machine made everybody wait is taken off; the soak shows the
rest."""
NEWCOMER_S = 5.0
"""Who connects anew gets in within it, whoever else does."""
GROUP = "vault"
SECRETS = ("orders", "honest", GROUP, "token:", "cert:", *(f'"{name}"' for name in PEERS))
"""What no stranger may be told: topics, principals, the group, the ids of peers."""
ROLES = f"""
[roles.honest]
schedule = ["orders-*"]
observe = true

[roles.little]
schedule = ["{LITTLE}"]

[roles.gateway]
gateway = true

[members]
"token:honest" = ["honest"]
"token:little" = ["little"]
"token:gateway" = ["gateway"]
"""


def write_security(path: Path) -> Path:
    names = ("honest", "little", "gateway")
    tokens = [f'[tokens.{name}]\nsha256 = "{digest_of(token_of(name))}"\n' for name in names]
    return write_private(path, "".join(tokens) + ROLES)


class Watch:
    """The most threads that processes have had, while the ``with`` block runs, and the most memory,
    MB, since they began."""

    def __init__(self, *processes: psutil.Process) -> None:
        self._processes = processes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.threads = 0
        self.resident_mb = 0.0

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self.threads = max([self.threads, *(each.num_threads() for each in self._processes)])

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.resident_mb = max(_peak_mb(each.pid) for each in self._processes)


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say how much memory a process has had")


class Attacked:
    """What is attacked. ``calm``: by caller, the waits of honest callers without an attack."""

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]]) -> None:
        self.processes = processes
        self.calm: dict[str, list[float]] = {}
        self._topics = 0

    def honest(self, topic: str) -> Honest:
        raise NotImplementedError

    def rows(self, topic: str, count: int) -> list[dict[str, Any]]:
        raise NotImplementedError

    def log_text(self) -> str:
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """It grows with each election."""
        raise NotImplementedError

    def withstands(
        self, attack: Attack, targets: Sequence[Target], seconds: float, figure: Figure
    ) -> list[Result]:
        """Attack the targets at once, and check what has to hold. Peers that get no processor time
        may elect another master, whoever takes it: then the attack is tried again. One that ended a
        master would do so each time."""
        for _ in range(TRIES):
            epoch, machine = self.epoch, Stopwatch()
            before, honest, watch, results = self._attack(attack, targets, seconds)
            stalled_ms = 1000 * machine.stalled_s
            if self.epoch == epoch:
                break
        assert self.epoch == epoch
        for who, waits in before.waits_s.items():
            self.calm.setdefault(who, []).extend(waits)
        calm = Honest.p99_of(self.calm)
        slow = Honest.p99_of(honest.waits_s)
        tries = sum(result.tries for result in results)
        where = ", ".join(target.listener for target in targets)
        figure(
            f"{attack.name} at {where}: {tries:,} tries in {seconds:g} s;"
            f" {watch.resident_mb:.0f} MB, {watch.threads} threads;"
            + "".join(f" {who} p99 {calm[who]:.1f} -> {slow[who]:.1f} ms" for who in slow)
        )
        assert tries > 0
        assert watch.resident_mb <= RESIDENT_MB_MAX
        assert watch.threads <= THREADS_MAX
        assert before.errors == honest.errors == []
        moment_ms, others_ms = (BUSY_MS, stalled_ms) if seconds < LONG_S else (MOMENT_MS, 0.0)
        assert slow.pop(NEWCOMER) <= NEWCOMER_S * 1000 + others_ms
        for who, p99_ms in slow.items():
            limit_ms = SLOWER_MAX * max(calm[who], moment_ms) + others_ms
            assert p99_ms <= limit_ms, (who, calm, slow, others_ms)
        rows = self.rows(honest.topic, len(honest.sent))
        assert sorted(row["value"] for row in rows) == sorted(honest.sent)
        assert [row for row in rows if row["delivered"] < row["due"]] == []
        for target, result in zip(targets, results, strict=True):
            if attack.proves not in (TOKEN, PEER):
                secret = [name for name in SECRETS if name != f'"{target.poses_as}"']  # it said so
                assert [text for text in result.heard for name in secret if name in text] == []
        assert "Traceback" not in self.log_text()
        return results

    def _attack(
        self, attack: Attack, targets: Sequence[Target], seconds: float
    ) -> tuple[Honest, Honest, Watch, list[Result]]:
        """Returns the honest callers before the attack and those beside it."""
        self._topics += 1
        topic = f"orders-{self._topics}"
        with self.honest(f"{topic}-calm") as before:
            time.sleep(CALM_S if seconds < LONG_S else 10.0)
        attacking = [Attacking(attack.name, target, seconds) for target in targets]
        try:
            for each in attacking:
                each.wait_until_it_is_ready()
            with self.honest(topic) as honest, Watch(*self.processes()) as watch:
                for each in attacking:
                    each.begin()
                results = [each.result() for each in attacking]
        finally:
            for each in attacking:
                each.end()
        return before, honest, watch, results


class Single(Attacked):
    """A node with TLS and a security file, its metrics, and a gateway of its own."""

    def __init__(self, node: NodeProcess, gateway: GatewayProcess, files: Tls) -> None:
        super().__init__(lambda: (psutil.Process(node.running.pid), gateway.process))
        self.node = node
        self.gateway = gateway
        self._files = files
        self._token = write_private(node.data.with_name("honest.token"), token_of("honest"))

    def target(self, listener: str, proves: str) -> Target:
        places = {
            WIRE: self.node.address,
            HTTP: self.gateway.address,
            METRICS: self.node.metrics,
        }
        token = token_of(LITTLE) if proves == TOKEN else ""
        return Target(listener, places[listener], listener != METRICS, token)

    def honest(self, topic: str) -> Honest:
        def client() -> Client:
            tls = Tls(ca=self._files.ca)
            address = f"tls://{self.node.address}"
            return Client(address, tls=tls, token=f"file:{self._token}", timeout_s=60)

        ca = Path(str(self._files.ca))
        headers = bearer("honest")
        return Honest(topic, client, lambda: http_client(self.gateway.url, ca, headers))

    def rows(self, topic: str, count: int) -> list[dict[str, Any]]:
        return self.node.wait_for(topic, count)

    def log_text(self) -> str:
        return self.node.log_text() + self.gateway.log_text()

    @property
    def epoch(self) -> int:
        return 0


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Single]:
    folder = tmp_path_factory.mktemp("single")
    files = Authority(folder / "authority").issue("127.0.0.1", "localhost")
    security = write_security(folder / "security.toml")
    own = ["--tls-cert", str(files.cert), "--tls-key", str(files.key), "--security", str(security)]
    token = write_private(folder / "gateway.token", token_of("gateway"))
    node = NodeProcess(folder / "data", "--group", GROUP, *own)
    node.forked = False  # its memory is measured
    with node:
        to_node = ["--node", f"tls://{node.address}", "--tls-ca", str(files.ca)]
        to_node += ["--token-file", str(token)]
        with GatewayProcess(node, *to_node, *own, ca=Path(str(files.ca))) as gateway:
            made = Single(node, gateway, files)
            with made.honest("orders-first") as honest:  # imports, policies, connections
                eventually(lambda: len(honest.sent) > 200)
            yield made
        assert node.signal() < 30


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in IN_SUITE else [pytest.mark.soak]


OF_SINGLE = [
    (name, tuple(listener for listener in attack.listeners if listener != PEER_PORT))
    for name, attack in ATTACKS.items()
    if attack.proves in (NOTHING, TOKEN)
]
EACH_OF_SINGLE = [(name, (listener,)) for name, at in OF_SINGLE for listener in at]


@pytest.mark.parametrize(
    ("name", "listeners", "seconds"),
    [
        *[pytest.param(*case, SHORT_S, id=case[0], marks=_marks(case[0])) for case in OF_SINGLE],
        *[
            pytest.param(*case, LONG_S, id=f"{case[0]} at {case[1][0]}", marks=LONG)
            for case in EACH_OF_SINGLE
        ],
    ],
)
def test_a_node_and_its_gateway_withstand(
    single: Single, name: str, listeners: Sequence[str], seconds: float, figure: Figure
) -> None:
    attack = ATTACKS[name]
    targets = [single.target(listener, attack.proves) for listener in listeners]
    results = single.withstands(attack, targets, seconds, figure)
    if attack.proves == NOTHING:
        assert [result.let_in for result in results] == [0] * len(results)


class Group(Attacked):
    """Three peers with TLS."""

    def __init__(self, peers: SecuredPeers, folder: Path) -> None:
        super().__init__(
            lambda: [psutil.Process(p.running.pid) for p in peers.nodes.values() if p.alive]
        )
        self.peers = peers
        self.down = peers.standbys(peers.wait_until_whole())[0]
        self._foreign = Authority(folder / "foreign", "foreign")

    @property
    def proofs(self) -> dict[str, Tls]:
        """Certificates by which somebody could try to be the peer that is down."""
        return {
            "none": Tls(),
            "of another authority": self._foreign.issue(self.down),
            "a client's": self.peers.client,
            "another name's": self.peers.peers_by.issue("x", file="x"),
            "its own": self.peers.issue_peer(self.down),
        }

    @property
    def master(self) -> str:
        return self.peers.master()

    def at_peers(self, proof: str = "none") -> Target:
        tls = self.proofs[proof]
        return Target(
            PEER_PORT,
            self.peers.lab.address(self.master),
            cert=str(tls.cert or ""),
            key=str(tls.key or ""),
            peers={name: self.peers.lab.address(name) for name in PEERS},
            poses_as=self.down,
            to=self.master,
        )

    def at_clients(self) -> Target:
        """With the certificate of a client, which is proven there."""
        return replace(
            self.at_peers("a client's"), listener=WIRE, address=self.peers.lab.listen(self.master)
        )

    def honest(self, topic: str) -> Honest:
        peers = self.peers
        return Honest(topic, lambda: Client(peers.address, tls=peers.client, timeout_s=60))

    def rows(self, topic: str, count: int) -> list[dict[str, Any]]:
        return self.peers[self.master].wait_for(topic, count)

    def log_text(self) -> str:
        return "".join(process.log_text() for process in self.peers.nodes.values())

    @property
    def epoch(self) -> int:
        return int(self.peers[self.peers.master()].hello()["epoch"])


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("group")
    peers = SecuredPeers(folder)
    for process in peers.nodes.values():
        process.forked = False
    with peers:
        made = Group(peers, folder)
        with made.honest("orders-first") as honest:
            eventually(lambda: len(honest.sent) > 200)
        yield made
        peers.stop()
        assert peers.disagreements() == []


AT_PEERS = [
    name
    for name, attack in ATTACKS.items()
    if attack.proves == NOTHING and PEER_PORT in attack.listeners
]


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=LONG)])
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in AT_PEERS])
def test_peers_withstand(group: Group, name: str, seconds: float, figure: Figure) -> None:
    group.withstands(ATTACKS[name], [group.at_peers()], seconds, figure)


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=LONG)])
def test_nobody_is_a_peer_where_clients_connect(
    group: Group, seconds: float, figure: Figure
) -> None:
    attack = ATTACKS["peers messages"]
    [result] = group.withstands(attack, [group.at_clients()], seconds, figure)
    assert result.let_in == 0


@pytest.mark.parametrize("seconds", [SHORT_S, pytest.param(LONG_S, marks=LONG)])
def test_the_place_of_a_peer_that_is_down_stays_empty(
    group: Group, seconds: float, figure: Figure
) -> None:
    """Nobody takes it by another certificate. By its own, which was stolen, it cannot end all
    elections."""
    group.down = group.peers.standbys(group.master)[0]
    group.peers[group.down].kill()
    proofs = [proof for proof in group.proofs if proof != "its own"]
    stolen = [group.at_peers(proof) for proof in proofs]
    group.withstands(ATTACKS["stolen ids"], stolen, seconds, figure)
    assert "the certificate is not that peer's" in group.peers[group.master].log_text()
    [far] = group.withstands(ATTACKS["far epochs"], [group.at_peers("its own")], seconds, figure)
    assert far.let_in > 0, far.heard
    group.peers[group.down].start()
    group.peers.wait_until_whole()


def test_records_of_a_delay_topic_reach_no_topic_of_slotwheels_own(
    broker: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """Whoever may write to the delay topic could else forge dead letters and what is traced."""
    delays, good, dead = topic("delays"), topic("good"), topic("dead")
    forged = [TRACE_TOPIC, "slotwheel-dead-letters", "__consumer_offsets"]
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number, name in enumerate([*forged, good]):
            headers = [("slotwheel-topic", name.encode()), ("slotwheel-delay-ms", b"0")]
            producer.send(delays, b"%d" % number, headers=headers)
        producer.flush()
    options = ["--sink", "kafka-python", "--bootstrap", broker.bootstrap]
    options += ["--delay-topic", delays, "--dead-letter-topic", dead]
    with NodeProcess(tmp_path / "data", *options) as node:
        eventually(lambda: node.metric("slotwheel_delivered_total") == len(forged) + 1)
        assert node.signal() < 30
    assert held(broker.bootstrap, [good]) == 1
    assert held(broker.bootstrap, [dead]) == len(forged)


def test_the_page_has_every_attack() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs/security.md").read_text()
    for name, attack in ATTACKS.items():
        places = ["yes" if listener in attack.listeners else "" for listener in LISTENERS]
        assert f"| {name} | {' | '.join(places)} |".replace("  ", " ") in page

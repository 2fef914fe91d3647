"""A node with a security file: callers by tokens, another file while it runs, its log, and no
secret anywhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel import AsyncClient, Client, Message, Tls
from slotwheel.client.groupstatus import group_status
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.errors import Forbidden, OverQuota, SlotwheelError, Unauthenticated
from slotwheel.wheel.protocol import StoredBatch, encode_json
from support import denying
from support.certificates import Authority
from support.exchange import Exchange, close_all
from support.nodeprocess import NodeProcess, run_cli
from support.securedpeers import SecuredPeers
from support.securing import write_private
from support.stopwatch import Stopwatch
from support.waiting import eventually

TOKENS = {name: f"swt_planted_{name}_secret" for name in ("billing", "watch", "other")}
FILE = "\n".join(
    [
        *(f"[tokens.{name}]\nsha256 = '{digest_of(token)}'" for name, token in TOKENS.items()),
        "[roles.orders]\nschedule = ['orders*']\ncancel = ['orders*']",
        "[roles.watch]\nobserve = true",
        "[roles.other]\nschedule = ['other']\ncancel = ['other']",
        "[members]",
        "'token:billing' = ['orders']\n'token:watch' = ['watch']\n'token:other' = ['other']",
    ]
)


class Secured(NodeProcess):
    """A node with a security file; ``token(name)`` is the place of a token."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.file = write_private(folder / "security.toml", FILE)
        self.access_log = folder / "access.log"
        log = ("--access-log", str(self.access_log), "--log-level", "debug")
        super().__init__(folder / "wheel", "--security", str(self.file), *log, *options)
        for name, token in TOKENS.items():
            write_private(folder / name, token)

    def token(self, name: str) -> str:
        return f"file:{self.folder / name}"

    def client(self, name: str, **more: float) -> Client:
        return Client(self.address, token=self.token(name), timeout_s=more.get("timeout_s", 20))

    def logged(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.access_log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Secured]:
    with Secured(tmp_path) as node:
        yield node


def test_each_way_to_send_is_under_the_same_rights(node: Secured) -> None:
    with node.client("billing") as client:
        message_id = client.store("orders", b"waits", delay=600)
        assert client.send("orders-eu", b"batched", delay=600).result()
        with pytest.raises(Forbidden, match="append for topic 'payments'"):
            client.store("payments", b"x", delay=600)
        with pytest.raises(Forbidden, match="append for topic 'payments'"):
            client.send("payments", b"x", delay=600).result()
        mixed = [("orders", "payments", "other", "orders")[n % 4] for n in range(100)]
        sent = client.send_many([Message(topic, b"a", delay=600) for topic in mixed])
        for topic, receipt in zip(mixed, sent, strict=True):
            assert isinstance(receipt.error(), Forbidden) is (topic != "orders")
        with pytest.raises(Forbidden, match="status"):
            client.status()
        with node.client("other") as other:
            assert other.cancel(message_id) == ["unknown"]
            assert other.reschedule(message_id, delay=900)[0] == "unknown"
        assert client.cancel(message_id) == ["cancelled"]
    with Client(node.address, timeout_s=5) as stranger:
        with pytest.raises(Unauthenticated) as refused:
            stranger.store("orders", b"x", delay=600)
        assert str(refused.value) == str(Unauthenticated())
    with node.client("watch") as watch:
        assert watch.status()["pending"] == 51


async def store_by_asyncio(node: Secured) -> None:
    async with AsyncClient(node.address, token=node.token("billing"), timeout_s=20) as client:
        assert await client.send("orders", b"x", delay=600)
        topics = ["orders", "payments"] * 20
        sent = [client.send(topic, b"x", delay=600) for topic in topics]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        for topic, answer in zip(topics, answers, strict=True):
            assert isinstance(answer, str if topic == "orders" else Forbidden)


def test_asyncio_is_under_the_same_rights(node: Secured) -> None:
    asyncio.run(store_by_asyncio(node))


def test_commands_prove_who_they_are(node: Secured) -> None:
    place = str(node.folder / "watch")
    done = run_cli("status", "--node", node.address, "--token-file", place)
    assert done.returncode == 0
    assert "pending" in done.stdout
    done = run_cli("status", "--node", node.address, "--timeout", "3s")
    assert done.returncode == 1
    assert "who calls is not known here" in done.stderr
    sent = run_cli(
        "send", "orders", "x", "--delay", "1h", "--node", node.address, "--token-file", place
    )
    assert sent.returncode == 1
    assert "not allowed: append for topic 'orders'" in sent.stderr


def test_who_lost_his_rights_is_out_within_15_s_and_a_bad_file_changes_nothing(
    node: Secured, looks_often: float
) -> None:
    """In five, besides the ten of a look."""
    with node.client("billing", timeout_s=3) as client, node.client("other") as other:
        client.store("orders", b"x", delay=600)
        other.store("other", b"x", delay=600)
        write_private(node.file, FILE + "\n[roles.broken")
        eventually(lambda: "alarm security-file" in node.log_text())
        assert node.get("/readyz")[0] == 503
        client.store("orders", b"x", delay=600)
        watch = Stopwatch()
        write_private(node.file, FILE.replace(digest_of(TOKENS["billing"]), "0" * 64))

        def is_out() -> bool:
            try:
                client.store("orders", b"x", delay=600)
            except Unauthenticated:
                return True
            return False

        eventually(is_out)
        assert watch.seconds < looks_often + 5
        assert other.store("other", b"x", delay=600)
        eventually(lambda: node.get("/readyz")[0] == 200)
        with pytest.raises(SlotwheelError):
            node.client("billing", timeout_s=3).store("orders", b"x", delay=600)


def test_clients_wait_for_a_quota(tmp_path: Path) -> None:
    node = Secured(tmp_path)
    write_private(node.file, FILE + "\n[quotas.'token:billing']\nrows-per-second = 20\n")
    with node, node.client("billing") as client:
        watch = time.monotonic()
        for _ in range(4):
            receipts = client.send_many(Message("orders", b"x", delay=600) for _ in range(20))
            assert [receipt.error() for receipt in receipts] == [None] * 20
        assert time.monotonic() - watch > 2
        client.store("orders", b"x", delay=600)
        many = client.send_many(Message("orders", b"x", delay=600) for _ in range(100))
        assert not [one for one in many if one.error()]
        with node.client("billing", timeout_s=0.5) as hasty, pytest.raises(OverQuota):
            hasty.store("orders", b"x", delay=600)


@pytest.mark.usefixtures("looks_often")
def test_the_access_log_tells_who_did_what(node: Secured) -> None:
    with node.client("billing") as client:
        client.store("orders", b"x", delay=600)
        with pytest.raises(Forbidden):
            client.store("payments", b"x", delay=600)
        assert client.cancel("default.1.2.00000000") == ["unknown"]
    with node.client("watch") as watch:
        watch.status()
    eventually(lambda: bool(node.logged("writes")))
    assert {one["principal"] for one in node.logged("login")} == {"token:billing", "token:watch"}
    [denied] = node.logged("denied")
    assert (denied["principal"], denied["topic"]) == ("token:billing", "payments")
    [read] = node.logged("read")
    assert (read["principal"], read["operation"]) == ("token:watch", "status")
    [cancel] = node.logged("cancel")
    assert cancel["principal"] == "token:billing"
    [writes] = node.logged("writes")
    assert (writes["principal"], writes["rows"]) == ("token:billing", 1)


def test_a_planted_secret_is_nowhere(node: Secured) -> None:
    """In logs at debug, status, metrics, errors and the list of processes; digests neither."""
    told: list[str] = []
    with node.client("watch") as client:
        told.append(json.dumps(client.status()))
    with node.client("billing") as client:
        for topic in ("orders", "payments"):
            try:
                client.store(topic, b"x", delay=600)
            except SlotwheelError as error:
                told += [str(error), repr(error), json.dumps(error.to_wire())]
        told.append(repr(vars(client)))
    write_private(node.folder / "billing", TOKENS["billing"] + "x")
    with node.client("billing", timeout_s=2) as client:
        try:
            client.store("orders", b"x", delay=600)
        except SlotwheelError as error:
            told.append(str(error))
    eventually(lambda: bool(node.logged("stranger")))
    processes = subprocess.run(["ps", "axeww"], capture_output=True, check=True)
    told.append(processes.stdout.decode(errors="replace"))
    told += [node.get(page)[1] for page in ("/metrics", "/healthz", "/readyz")]
    told += [node.log_text(), node.access_log.read_text()]
    assert all(told)
    for text in told:
        for token in TOKENS.values():
            assert token not in text
            assert digest_of(token) not in text


def test_an_address_that_others_reach_is_an_alarm_and_in_the_status(tmp_path: Path) -> None:
    insecure = ("--listen", "0.0.0.0:0", "--allow-insecure")
    with NodeProcess(tmp_path / "wheel", *insecure) as node:
        port = node.address.rpartition(":")[2]
        with Client(f"127.0.0.1:{port}") as client:
            assert client.status()["insecure"] == [
                "--listen 0.0.0.0:0 has no --tls-cert and no --security"
            ]
        assert "alarm insecure" in node.log_text()


def test_a_security_file_that_others_can_read_ends_the_start(tmp_path: Path) -> None:
    node = Secured(tmp_path)
    node.file.chmod(0o640)
    node.start(wait=False)
    assert node.running.wait(60) == 1
    assert "is open to others" in node.log_text()


def test_the_deny_matrix_over_a_real_node_also_as_a_fleet(tmp_path: Path) -> None:
    """Every operation by every role, and then rows of all roles at once, over many connections."""
    node = Secured(tmp_path)
    write_private(node.file, denying.FILE)
    roles = [role for role in denying.ROLES if role != "expired"]
    with node:
        for stranger in ("", "expired", "made-up"):
            with pytest.raises(Unauthenticated):
                Exchange(node.address, denying.hello(stranger))
        for number, role in enumerate(roles, 1):
            with Exchange(node.address, denying.hello(role, number)) as exchange:
                assert not denying.wrong_answers(exchange, role)
        each = [(role, topic) for role in roles for topic in denying.TOPICS]
        fleet = [
            Exchange(node.address, denying.hello(role, 100 + number))
            for number, (role, _) in enumerate(each)
        ]
        rounds = 20
        for number in range(rounds):
            for exchange, (_, topic) in zip(fleet, each, strict=True):
                exchange.send_bytes(denying.plain(number, topic))
            for exchange, pair in zip(fleet, each, strict=True):
                answer = denying.plain_answer(exchange)
                assert isinstance(answer, StoredBatch) is (pair in denying.ALLOWED), (pair, answer)
        close_all(fleet)
        with Exchange(node.address, denying.hello("observer", 999)) as exchange:
            status = exchange.ask("status", encode_json({}))["status"]
        assert status["accepted"] == len(denying.ALLOWED) * (rounds + 2)


def test_a_certificate_is_a_principal_and_a_token_needs_none(tmp_path: Path) -> None:
    nodes, clients = Authority(tmp_path / "tls", "nodes"), Authority(tmp_path / "tls", "clients")
    own, billing = nodes.issue("127.0.0.1"), clients.issue("billing.example")
    foreign = clients.issue("stranger.example")
    tls = ("--tls-cert", str(own.cert), "--tls-key", str(own.key), "--client-ca", str(clients.ca))
    node = Secured(tmp_path, *tls)
    write_private(node.file, FILE + "\n'cert:billing.example' = ['orders']\n")
    with node:
        address = f"tls://{node.address}"
        by_certificate = Tls(ca=nodes.ca, cert=billing.cert, key=billing.key)
        with Client(address, tls=by_certificate, timeout_s=20) as client:
            client.store("orders", b"x", delay=600)
            with pytest.raises(Forbidden):
                client.store("other", b"x", delay=600)
        plain = Tls(ca=nodes.ca)
        with Client(address, tls=plain, token=node.token("other"), timeout_s=20) as client:
            client.store("other", b"x", delay=600)
        unknown = Tls(ca=nodes.ca, cert=foreign.cert, key=foreign.key)
        for stranger in (plain, unknown):
            client = Client(address, tls=stranger, timeout_s=5)
            with client, pytest.raises(Unauthenticated):
                client.store("orders", b"x", delay=600)
        eventually(lambda: len(node.logged("stranger")) >= 2)
        names = {one["principal"] for one in node.logged("login")}
        assert names == {"cert:billing.example", "token:other"}


def test_peers_know_callers_alike_and_a_failover_loses_nothing(tmp_path: Path) -> None:
    watches = "\n'cert:billing.example' = ['watch']\n"
    file = write_private(tmp_path / "security.toml", FILE + watches)
    token = f"file:{write_private(tmp_path / 'token', TOKENS['billing'])}"
    with SecuredPeers(tmp_path / "peers", "--security", str(file)) as peers:
        master = peers.wait_until_whole()
        tls = Tls(ca=peers.ca["node"])
        with Client(peers.address, tls=tls, token=token, timeout_s=60) as client:
            assert len(client.send_many(forms(200)).result(60)) == 200
            peers[master].kill()
            assert len(client.send_many(forms(200)).result(60)) == 200
            with pytest.raises(Forbidden):
                client.store("other", b"x", delay=600)
        with Client(peers.address, tls=peers.client, timeout_s=60) as watch:
            # A standby answers, too, and may not know yet of the last that is committed.
            eventually(lambda: group_status(watch)["pending"] == 400)
        peers[master].start()
        peers.wait_until_whole()
        peers.stop()


def forms(count: int) -> list[Message]:
    return [Message("orders", b"x", delay=600) for _ in range(count)]

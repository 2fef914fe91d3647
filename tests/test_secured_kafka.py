"""Kafka that asks who somebody is: each use of it, by each client, with no right too many.

The settings are the same for all, in librdkafka's names, in a file; the password is of digits. Of
what keeps a client out, every program says what it is.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwheel import Client, Message
from slotwheel.broker.reach import why_not
from slotwheel.consumer import Consumer
from slotwheel.reading.kafka import confluenttopic, kafkatopic
from slotwheel.replay.facts.kafka_topics import KafkaTopics
from slotwheel.wheel.errors import SlotwheelError
from support.nodeprocess import NodeProcess, run_cli
from support.ports import free_address
from support.secured import Right, SecuredBroker, topic
from support.securing import write_private
from support.waiting import PATIENCE_S

PAGE = Path(__file__).parents[1] / "docs/security.md"
CLIENTS = ("kafka-python", "confluent")


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with SecuredBroker() as broker:
        yield broker


def rights_on_page(user: str, prefix: str) -> list[Right]:
    """The rights that docs/security.md grants to a user; ``prefix`` is in the place of *orders*."""
    lines = re.findall(rf"^\$acls --allow-principal User:{user} (.*)$", PAGE.read_text(), re.M)
    rights = []
    for line in lines:
        *operations, (kind, on) = re.findall(r"--([a-z-]+) (\S+)", line)
        names = tuple(operation.upper() for _, operation in operations)
        rights.append(
            Right(kind.upper().replace("-", "_"), prefix if on == "orders" else on, names)
        )
    assert len(rights) > 2, "the page has lost its rights"
    return rights


class User:
    """Somebody with rights to what begins with its name alone. ``file``: its settings."""

    def __init__(self, broker: SecuredBroker, name: str, folder: Path, *rights: Right) -> None:
        self.name, self.bootstrap = name, broker.secured
        broker.create_topics([f"{name}-orders", f"{name}-dead", f"{name}-dead-redriven"])
        broker.create_topics([f"{name}-g-retry", f"{name}-out", f"{name}-wheel"], partitions=2)
        self.settings = broker.user(*rights)
        self.file = folder / f"{name}.properties"
        lines = [f"{one}={value}\n" for one, value in self.settings.items()]
        self.file.write_text("# of a test\n" + "".join(lines))

    def arguments(self) -> tuple[str, ...]:
        return "--bootstrap", self.bootstrap, "--kafka", str(self.file)


def test_a_node_and_its_gateway(secured: SecuredBroker, tmp_path: Path, client: str) -> None:
    """Exactly once, so that transactions, marks and producers are among it; and over HTTP topics,
    records by the REST proxy, and the dead letters."""
    name = f"node-{client}"
    user = User(secured, name, tmp_path, *rights_on_page("wheel", name))
    http = free_address()
    options = (
        *("--sink", client, "--delivery", "exactly-once", "--http", http),
        *("--dead-letter-topic", f"{name}-dead", *user.arguments()),
    )
    with NodeProcess(tmp_path / "data", *options) as node:
        with Client(node.address) as sender:
            sender.send(Message(f"{name}-orders", b"hello", key=b"k", delay=0)).result(60)
        read = run_cli(
            "consume", f"{name}-orders", "--follow", "--limit", "1", "--json", *user.arguments()
        )
        assert json.loads(read.stdout)["value"] == "hello", read.stderr
        with httpx.Client(base_url=f"http://{http}") as gateway:
            assert f"{name}-orders" in _soon(gateway, "/topics")
            assert _rest_records(gateway, f"{name}-g", f"{name}-orders") == ["aGVsbG8="]
            _soon(gateway, f"/v1/dead?topic={name}-dead")
        listed = run_cli("dead", "list", "--topic", f"{name}-dead", *user.arguments())
        assert listed.returncode == 0, listed.stderr
        arguments = _arguments_of_children(node)
        assert any("gateway" in line for line in arguments)
        assert not any(user.settings["sasl.password"] in line for line in arguments)
    assert user.settings["sasl.password"] not in node.log_text()


@pytest.mark.parametrize("transactional", [False, True])
def test_a_consumer(
    secured: SecuredBroker, tmp_path: Path, client: str, transactional: bool
) -> None:
    name = f"consumer-{client}-{transactional}"
    rights = rights_on_page("app", name)
    if not transactional:
        rights = [right for right in rights if right.kind != "TRANSACTIONAL_ID"]
    user = User(secured, name, tmp_path, *rights)
    more: dict[str, Any] = {}
    if transactional:
        more = {"transactional": True, "delay_topic": f"{name}-wheel"}
    _produce(secured, f"{name}-orders", 3)
    with Consumer(
        f"{name}-orders",
        f"{name}-g",
        bootstrap=user.bootstrap,
        client=client,
        retry="1s",
        dead_letter_topic=f"{name}-dead",
        kafka=user.settings,
        **more,
    ) as consumer:
        taken = consumer.take(3, 20)
        while len(taken) < 3:
            taken += consumer.take(3, 20)
        if transactional:
            consumer.send(f"{name}-out", b"done", message=taken[0])
        consumer.done(*taken)
        consumer.commit(10)


def test_a_proof_asks_for_topics(secured: SecuredBroker, tmp_path: Path) -> None:
    user = User(secured, "proof", tmp_path, topic("proof", "READ", "DESCRIBE"))
    topics = KafkaTopics(user.bootstrap, ["proof-orders"], "proof-dead", user.settings)
    topics.check()


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WRONG = {
    "nothing": (None, "security.protocol"),
    "another password": ({"sasl.password": "0"}, "sasl.password"),
    "another mechanism": ({"sasl.mechanism": "SCRAM-SHA-512"}, "PLAIN"),
    "no login": ({"security.protocol": "SSL"}, "wants a login"),
    "another authority": ({"ssl.ca.location": "…"}, "ssl.ca.location"),
    "no TLS": ({"security.protocol": "SASL_PLAINTEXT"}, "SASL_SSL"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_keeps_a_client_out_is_named(
    secured: SecuredBroker, own_settings: dict[str, str], wrong: str
) -> None:
    change, word = WRONG[wrong]
    settings: dict[str, str] = {} if change is None else own_settings | change
    if wrong == "another authority":
        settings["ssl.ca.location"] = secured.strangers_ca()
    if wrong == "no login":
        settings = {name: settings[name] for name in ("security.protocol", "ssl.ca.location")}
    if wrong == "no TLS":
        del settings["ssl.ca.location"]
    said = why_not(secured.secured, settings, "no brokers available")
    assert word in said
    assert own_settings["sasl.password"] not in said


def test_a_consumer_says_it(
    secured: SecuredBroker, own_settings: dict[str, str], client: str
) -> None:
    where = {"bootstrap": secured.secured, "client": client}
    wrong = own_settings | {"sasl.password": "0"}
    with pytest.raises(SlotwheelError, match="refuses the login of 'user"):
        Consumer("orders", "g", retry="1s", kafka=wrong, **where)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def own_settings(secured: SecuredBroker) -> dict[str, str]:
    return secured.user(topic("any", "READ"))


def test_a_command_says_it_too(
    secured: SecuredBroker,
    own_settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the wait that brokers get which answer late."""
    monkeypatch.setattr(confluenttopic, "CALL_S", 10 * PATIENCE_S)
    monkeypatch.setattr(kafkatopic, "_CALL_MS", int(10_000 * PATIENCE_S))
    wrong = own_settings | {"sasl.password": f"file:{write_private(tmp_path / 'password', '00')}"}
    given = [f"--kafka={name}={value}" for name, value in wrong.items()]
    for command in (("dead", "list"), ("consume", "orders")):
        done = run_cli(*command, "--bootstrap", secured.secured, *given)
        assert done.returncode == 1
        assert "refuses the login of 'user" in done.stderr, done.stderr


def test_who_is_let_in_is_told_its_own_error(
    secured: SecuredBroker, own_settings: dict[str, str]
) -> None:
    assert why_not(secured.secured, own_settings, "own") == "own"
    assert why_not(secured.bootstrap, {}, "own") == "own"
    assert "takes no login" in why_not(
        secured.bootstrap,
        own_settings | {"security.protocol": "SASL_PLAINTEXT"},
        "own",
    )
    assert "connection refused" in why_not(free_address(), {}, "own")


def _soon(gateway: httpx.Client, path: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = gateway.get(path, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
        except (httpx.TransportError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return answer.json()


def _rest_records(gateway: httpx.Client, name: str, source: str) -> list[str]:
    kind = {"Content-Type": "application/vnd.kafka.v2+json"}
    accept = {"Accept": "application/vnd.kafka.binary.v2+json"}
    made = gateway.post(
        f"/consumers/{name}",
        json={"name": "one", "format": "binary", "auto.offset.reset": "earliest"},
        headers=kind,
    )
    assert made.status_code == 200, made.text
    own = f"/consumers/{name}/instances/one"
    answer = gateway.post(f"{own}/subscription", json={"topics": [source]}, headers=kind)
    assert answer.status_code == 204, answer.text
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = gateway.get(f"{own}/records", headers=accept, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        if found := answer.json():
            gateway.delete(own, headers=kind)
            return [record["value"] for record in found]
    return []


def _arguments_of_children(node: NodeProcess) -> list[str]:
    number = node.running.pid
    lines = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if f") S {number} " in (stat := path.read_text()) or f") R {number} " in stat:
                lines.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines


def _produce(secured: SecuredBroker, name: str, count: int) -> None:
    from kafka import KafkaProducer

    with closing(KafkaProducer(bootstrap_servers=secured.bootstrap)) as producer:
        for number in range(count):
            producer.send(name, str(number).encode())
        producer.flush()

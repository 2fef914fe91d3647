"""A secret is planted in each setting that can have one, and looked for where others can look."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
import httpx
import psutil
import pytest

from slotwheel import Client
from slotwheel.broker.settings import _TABLE, CONFLUENT, check, is_secret, named
from slotwheel.cli.main import cli
from slotwheel.client.addresses import Nodes
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.node.config import NodeConfig
from slotwheel.security.secretplace import SecretPlace
from slotwheel.security.securityfile import SecurityFile
from slotwheel.security.tokens import digest_of, read_token
from slotwheel.wheel.config import WheelConfig, settings_of
from slotwheel.wheel.errors import SlotwheelError
from support.certificates import Authority
from support.gatewayprocess import NodeWithGateway
from support.nodeprocess import run_cli
from support.securing import write_private
from support.waiting import eventually

LOOKS_SECRET = re.compile(r"token|secret|passw|credential|kafka|key|jaas", re.IGNORECASE)
FILES = {"tls-key", "peer-key", "token-file"}
"""Settings that are the path of a file which only its owner can read."""
TABLES = {"kafka"}
"""Settings that are tables: of their names ``is_secret`` says which have secrets."""
NO_SECRET = {"kafka-jars", "key", "by-key"}
"""Options whose names look like it: paths of jars, and keys of messages."""


def options_of(group: click.Command) -> Iterator[str]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from options_of(command)
    for parameter in group.params:
        if isinstance(parameter, click.Option):
            yield from (name.removeprefix("--") for name in parameter.opts if name[:2] == "--")


def test_each_setting_that_looks_like_a_secret_is_one_of_those_below() -> None:
    declared = {
        setting.option
        for kind in (NodeConfig, WheelConfig, GatewaySettings)
        for setting in settings_of(kind).values()
    }
    names = declared | set(options_of(cli))
    unknown = {name for name in names if LOOKS_SECRET.search(name)}
    assert unknown - NO_SECRET == FILES | TABLES
    secret = {name for name in _TABLE if is_secret(name)}
    assert secret == {"sasl.password", "ssl.key.password"} == set(PLANTED_IN_KAFKA)
    # Those that only librdkafka has are told by their names, too.
    for name in ("sasl.oauthbearer.client.secret", "ssl.keystore.password", "ssl.key.pem"):
        assert is_secret(name)


PLANTED_IN_KAFKA = {"sasl.password": "planted-sasl-4711", "ssl.key.password": "planted-key-4712"}
TOKENS = {"operator": "swt_planted-operator", "gateway": "swt_planted-gateway"}
WRONG_TOKEN = "swt_planted-wrong-one"
VARIABLE, OF_LOGIN = "PLANTED_KEY_PASSWORD", "PLANTED_CLIENT_SECRET"
CLIENT_SECRET = "planted-oidc-4713"
ASKED_AT_ONCE = 6
ALL = (*PLANTED_IN_KAFKA.values(), *TOKENS.values(), WRONG_TOKEN, CLIENT_SECRET)


@dataclass(frozen=True)
class Planted:
    """A folder with the files that have the secrets, and the options that name them."""

    folder: Path
    options: tuple[str, ...]
    key: str
    """A line of the node's private key."""

    def token(self, name: str) -> Path:
        return self.folder / f"{name}.token"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    authority = Authority(folder / "kafka")
    locked = authority.locked_key(folder, PLANTED_IN_KAFKA["ssl.key.password"])
    password = write_private(folder / "password", PLANTED_IN_KAFKA["sasl.password"])
    own = authority.issue("127.0.0.1", file="node")
    assert own.key is not None
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "wheel",
        "sasl.password": f"file:{password}",
        "ssl.ca.location": str(authority.ca),
        "ssl.certificate.location": str(authority.ca),
        "ssl.key.location": str(locked),
        "ssl.key.password": f"env:{VARIABLE}",
    }
    lines = [f'"{name}" = "{value}"' for name, value in settings.items()]
    config = write_private(folder / "node.toml", "[kafka]\n" + "\n".join(lines))
    tables = [f"[tokens.{name}]\nsha256 = '{digest_of(text)}'" for name, text in TOKENS.items()]
    roles = "[roles.all]\nobserve = true\nread = ['*']\nschedule = ['*']\nadmin = true\n"
    roles += "[roles.gateway]\ngateway = true\n[members]\n"
    roles += "'token:operator' = ['all']\n'token:gateway' = ['gateway']\n"
    roles += "[oidc.corp]\nissuer = 'http://127.0.0.1:1'\naudience = 'a'\nclient-id = 'console'\n"
    roles += f"client-secret = 'env:{OF_LOGIN}'"
    security = write_private(folder / "security.toml", "\n".join([*tables, roles]))
    for name, text in TOKENS.items():
        write_private(folder / f"{name}.token", text)
    options = (
        *("--config", str(config), "--sink", "confluent", "--bootstrap", "127.0.0.1:1"),
        *("--delay-topic", "delays", "--unknown-topics", "accept", "--log-level", "debug"),
        *("--security", str(security), "--token-file", str(folder / "gateway.token")),
        *("--access-log", str(folder / "access.log"), "--http-log"),
        *("--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-ca", str(authority.ca)),
    )
    return Planted(folder, options, Path(own.key).read_text().splitlines()[1])


class PlantedNode(NodeWithGateway):
    """A program of its own, started with a secret in its environment."""

    forked = False


@pytest.fixture(scope="module")
def node(planted: Planted) -> Iterator[PlantedNode]:
    variables = {VARIABLE: PLANTED_IN_KAFKA["ssl.key.password"], OF_LOGIN: CLIENT_SECRET}
    with PlantedNode(planted.folder / "data", *planted.options, **variables) as started:
        yield started
        started.signal()


def hits(text: str, *more: str) -> list[str]:
    return [secret for secret in (*ALL, *more) if secret in text]


def test_nobody_who_looks_at_a_running_node_sees_one(planted: Planted, node: PlantedNode) -> None:
    address = f"tls://{node.address}"
    ca = str(planted.folder / "kafka" / "authority.pem")
    as_operator = ("--tls-ca", ca, "--token-file", str(planted.token("operator")))
    at_node = ("--node", address, *as_operator)
    said = [run_cli("send", "orders", "x", "--delay", "1h", *at_node)]
    said += [run_cli("status", *at_node, *more) for more in ((), ("--json",))]
    assert [one.returncode for one in said] == [0, 0, 0], said
    wrong = write_private(planted.folder / "wrong.token", WRONG_TOKEN)
    refused = run_cli(
        "status", "--node", address, "--timeout", "1s", "--tls-ca", ca, "--token-file", wrong
    )
    assert refused.returncode == 1
    seen = {f"a command said, {number}": f"{one}" for number, one in enumerate([*said, refused])}
    seen |= pages_of(node, ca)
    run = psutil.Process(node.running.pid)
    children = run.children(recursive=True)
    assert len(children) > 1, "the gateway has processes of its own"
    for process in (run, *children):
        seen[f"command line of {process.pid}"] = " ".join(process.cmdline())
    for process in children:
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        assert VARIABLE not in environment
        if process != node.gateway:  # which needs it for logins
            assert OF_LOGIN not in environment
            seen[f"environment of {process.pid}"] = environment
    eventually(lambda: "sink" in node.log_text())
    for file in (node.log, planted.folder / "access.log"):
        seen[file.name] = file.read_text(errors="replace")
    assert "unauthenticated" in seen[node.log.name]
    found = {place: hits(text, planted.key) for place, text in seen.items()}
    assert {place: secrets for place, secrets in found.items() if secrets} == {}


def pages_of(node: PlantedNode, ca: str) -> dict[str, str]:
    """What the gateway answers to every GET without parameters, with a good token and a wrong
    one; at once, because some of them wait for a Kafka that is not there."""
    import ssl

    verify = ssl.create_default_context(cafile=ca)
    url = node.url.replace("http:", "https:")
    with (
        httpx.Client(base_url=url, verify=verify, timeout=60) as http,
        ThreadPoolExecutor(ASKED_AT_ONCE) as pool,
    ):
        description = json.loads((Path(__file__).parents[1] / "docs" / "openapi.json").read_text())
        gets = [
            path for path, ways in description["paths"].items() if "get" in ways and "{" not in path
        ]
        paths = (*gets, "/console", "/metrics", "/readyz", "/nothing")
        asked = list(product(paths, (TOKENS["operator"], WRONG_TOKEN)))

        def ask(path: str, token: str) -> str:
            answer = http.get(path, headers={"Authorization": f"Bearer {token}"})
            return f"{answer.headers}{answer.text}"

        answers = pool.map(ask, *zip(*asked, strict=True))
        places = [f"{path} as {token[-8:]}" for path, token in asked]
        seen = dict(zip(places, answers, strict=True))
    assert "pending" in seen["/metrics as operator"]
    return seen


def wrong_kafka(folder: Path) -> None:
    named({"sasl.password": f"file:{folder / 'open'}"})


def wrong_login(folder: Path) -> None:
    check({"sasl.password": "planted-sasl-4711", "sasl.mechanism": "PLAIN"}, CONFLUENT)


def wrong_key(folder: Path) -> None:
    key = Authority(folder / "other").locked_key(folder)
    given = {"security.protocol": "SSL", "ssl.key.location": str(key)}
    given |= {"ssl.certificate.location": str(folder / "other" / "authority.pem")}
    check(given | {"ssl.key.password": "planted-key-4712"}, CONFLUENT)


def no_place(folder: Path) -> None:
    Client("127.0.0.1:1", token=WRONG_TOKEN)


def two_words(folder: Path) -> None:
    read_token(SecretPlace(f"file:{write_private(folder / 'token', WRONG_TOKEN + ' x')}"))


def no_digest(folder: Path) -> None:
    SecurityFile.parse(f"[tokens.a]\nsha256 = '{WRONG_TOKEN}'".encode())


def no_toml(folder: Path) -> None:
    SecurityFile.parse(f"[tokens.a]\nsha256 = {WRONG_TOKEN}".encode())


@pytest.mark.parametrize(
    "wrong", [wrong_kafka, wrong_login, wrong_key, no_place, two_words, no_digest, no_toml]
)
def test_an_error_about_a_wrong_value_does_not_show_it(
    tmp_path: Path, wrong: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "open").write_text("planted-sasl-4711")
    (tmp_path / "open").chmod(0o644)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SlotwheelError) as refused:
        wrong(tmp_path)
    assert hits(f"{refused.value}{refused.value!r}{refused.value.to_wire()}{caplog.text}") == []


@pytest.mark.parametrize(
    "kafka",
    [
        ("--kafka", "sasl.password=planted-sasl-4711"),
        ("--kafka", "sasl_plain_password=planted-sasl-4711"),
    ],
)
def test_a_command_refuses_a_secret_among_its_arguments(kafka: tuple[str, str]) -> None:
    for command in (("dead", "list"), ("consume", "orders"), ("replay", "d")):
        done = run_cli(*command, *kafka)
        assert done.returncode == 2
        assert "command line" in done.stderr
        assert hits(f"{done.stdout}{done.stderr}") == []


def test_a_value_that_is_printed_by_mistake_shows_no_secret(tmp_path: Path) -> None:
    kafka = named(dict(PLANTED_IN_KAFKA))
    config = NodeConfig(tmp_path, bootstrap="k:9092", kafka_settings=kafka)
    token = write_private(tmp_path / "token", TOKENS["operator"])
    nodes = Nodes("127.0.0.1:1", token=f"file:{token}")
    security = SecurityFile.parse(f"[tokens.a]\nsha256 = '{digest_of(WRONG_TOKEN)}'".encode())
    assert hits(f"{config!r}{nodes!r}{security!r}", digest_of(WRONG_TOKEN)) == []

"""What ``slotwheel node`` makes of its options, of variables, and of a file with settings."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from slotwheel.cli import main
from slotwheel.cli.shared import span, span_ms
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.node.config import NodeConfig
from slotwheel.node.gateway import share
from slotwheel.wheel.config import Setting, WheelConfig, settings_of
from slotwheel.wheel.errors import InvalidConfiguration
from support.securing import write_private

THREE = ("--peer", "a=10.0.0.1:7200", "--peer", "b=10.0.0.2:7200", "--peer", "c=10.0.0.3:7300")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """The configurations of nodes that would have been run."""
    found: list[NodeConfig] = []
    monkeypatch.setattr("slotwheel.cli.node.run", found.append)
    monkeypatch.setattr("slotwheel.cli.node.set_up", lambda *_args: None)
    return found


def run(*arguments: str) -> int:
    """Nothing is run, so addresses of other machines harm nobody."""
    return main.run(["node", "--data", "d", "--allow-insecure", *arguments])


def test_without_peers_nothing_changes(started: list[NodeConfig]) -> None:
    assert run() == 0
    (config,) = started
    assert (config.peers, config.listen, config.group()) == ({}, "127.0.0.1:7200", None)


def test_the_gateway_beside_a_node_audits_if_the_node_was_told_so(
    started: list[NodeConfig],
) -> None:
    http = ("--http", "127.0.0.1:0")
    assert [run(*http), run(*http, "--audit")] == [0, 0]
    assert [share(config, "127.0.0.1:7200")["audit"] for config in started] == [False, True]


def test_passwords_of_a_variable_are_passed_on_to_no_other_process(
    started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWHEEL_KAFKA", "sasl.password=secret")
    assert run("--bootstrap", "k:9092", "--http", "127.0.0.1:0") == 0
    assert "SLOTWHEEL_KAFKA" not in os.environ
    assert share(started[0], "127.0.0.1:7200")["kafka"] == {"sasl.password": "secret"}


def test_a_secret_on_the_command_line_is_refused_and_a_place_is_read(
    started: list[NodeConfig],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write_private(tmp_path / "config.toml", '[kafka]\nsasl.password = "planted"\n')
    place = write_private(tmp_path / "password", "planted")
    assert run("--bootstrap", "k:9092", "--kafka", "sasl.password=planted") == 2
    refused = capsys.readouterr().err
    assert "sasl.password stands on the command line" in refused
    assert "planted" not in refused
    monkeypatch.setenv("PLANTED_PASSWORD", "planted")
    for given in (
        ("--kafka", f"sasl.password=file:{place}"),
        ("--kafka", "sasl.password=env:PLANTED_PASSWORD"),
        ("--config", str(file)),
    ):
        assert run("--bootstrap", "k:9092", *given) == 0
        assert started[-1].kafka_settings == {"sasl.password": "planted"}
        assert "planted" not in repr(started[-1])
    assert "PLANTED_PASSWORD" not in os.environ


def test_the_share_of_a_gateway_is_of_its_settings(started: list[NodeConfig]) -> None:
    assert run("--http", "127.0.0.1:0", "--node-id", "b", *THREE, "--slots", "60") == 0
    settings = GatewaySettings(**share(started[0], "10.0.0.2:7200"))
    assert settings.nodes == ("10.0.0.2:7200", "10.0.0.1:7200", "10.0.0.3:7300")
    assert (settings.listen, settings.data) == ("127.0.0.1:0", Path("d"))
    assert settings.audit_ahead_ms == 60_000
    types = {kind: get_type_hints(kind) for kind in (NodeConfig, GatewaySettings)}
    given = {name: one.gateway for name, one in settings_of(NodeConfig).items() if one.gateway}
    for name, field in given.items():
        if field not in ("listen", "data", "kafka"):  # which a gateway can have otherwise, too
            assert types[NodeConfig][name] == types[GatewaySettings][field], name


def test_a_default_is_shown_as_what_it_is() -> None:
    for kind in (NodeConfig, WheelConfig, GatewaySettings):
        declared = settings_of(kind)
        for field in fields(kind):
            if field.name.endswith("_ms") and field.name in declared and declared[field.name].shown:
                assert span_ms(span(declared[field.name].shown)) == field.default


def test_peers(started: list[NodeConfig]) -> None:
    assert run("--node-id", "c", *THREE) == 0
    (config,) = started
    assert config.peers == {"a": "10.0.0.1:7200", "b": "10.0.0.2:7200", "c": "10.0.0.3:7300"}
    assert config.listen == "10.0.0.3:7300"
    group = config.group()
    assert group is not None
    assert (group.me, group.others, group.majority) == ("c", ("a", "b"), 2)
    timing = group.timing
    seconds = (timing.heartbeat_s, timing.lease_s, timing.promise_s, timing.election_spread_s)
    assert seconds == pytest.approx((0.08, 0.6, 0.8, 0.4))


def test_listen_and_election_of_a_peer(
    started: list[NodeConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    me = ("--node-id", "a", *THREE)
    assert run(*me, "--listen", "0.0.0.0:7200", "--election", "2s") == 0
    monkeypatch.setenv("SLOTWHEEL_LISTEN", "127.0.0.1:7200")  # the default, and yet not by default
    assert run(*me) == 0
    assert [config.listen for config in started] == ["0.0.0.0:7200", "127.0.0.1:7200"]
    group = started[0].group()
    assert group is not None
    assert group.timing.lease_s == pytest.approx(1.5)


def test_an_even_number_of_peers_is_warned_about(
    started: list[NodeConfig], caplog: pytest.LogCaptureFixture
) -> None:
    assert run("--node-id", "a", *THREE[:4]) == 0
    assert "2 peers survive as many failures as 1 would" in caplog.text
    assert len(started) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--node-id", "d", *THREE), "this node is not among its peers"),
        (("--node-id", "a", *THREE, "--peer", "a=10.0.0.9:1"), "the same peer is named twice"),
        (("--node-id", "a", *THREE, "--peer", "d=10.0.0.1:7200"), "have the same address"),
        (("--node-id", "a", "--peer", "10.0.0.1:7200"), "ID=HOST:PORT"),
        (("--node-id", "a", "--peer", "a=10.0.0.1"), "the address of peer 'a' is not usable"),
        (("--node-id", "a", "--peer", "a=10.0.0.1:0"), "a port other than 0"),
        (("--node-id", "a", *THREE, "--election", "5ms"), "50 to 60000 ms"),
    ],
)
def test_peers_that_cannot_be(
    started: list[NodeConfig],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    text: str,
) -> None:
    assert run(*arguments) == 1
    assert text in capsys.readouterr().err
    assert started == []


def test_a_configuration_that_was_not_made_by_the_command_line_is_checked_too() -> None:
    with pytest.raises(InvalidConfiguration, match="not among its peers"):
        NodeConfig(Path("d"), node_id="x", peers={"a": "h:1"})


SETTINGS = """
data = "from-the-file"
allow-insecure = true
node_id = "b"
tail-bytes = "64M"
chunk_rows = 500
tail-age = "5s"
sink = "confluent"
bootstrap = "kafka:9092"

[peers]
a = "10.0.0.1:7200"
b = "10.0.0.2:7200"
"c.d" = "10.0.0.3:7200"

[kafka]
linger_ms = 7
security.protocol = "SSL"
"enable.idempotence" = true
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(SETTINGS)
    return path


def test_a_file_with_settings(started: list[NodeConfig], settings: Path) -> None:
    assert main.run(["node", "--config", str(settings)]) == 0
    (config,) = started
    assert (config.data, config.node_id) == (Path("from-the-file"), "b")
    assert config.peers == {
        "a": "10.0.0.1:7200",
        "b": "10.0.0.2:7200",
        "c.d": "10.0.0.3:7200",
    }
    assert config.listen == "10.0.0.2:7200"
    wheel = config.wheel
    limits = (wheel.tail_bytes_max, wheel.chunk_rows_max, wheel.tail_age_ms)
    assert limits == (64 << 20, 500, 5000)
    assert config.kafka_settings == {
        "linger.ms": "7",
        "security.protocol": "SSL",
        "enable.idempotence": "true",
    }


def test_the_command_line_wins_over_a_variable_and_that_over_the_file(
    started: list[NodeConfig], settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWHEEL_TAIL_AGE", "7s")
    monkeypatch.setenv("SLOTWHEEL_CHUNK_ROWS", "700")
    monkeypatch.setenv("SLOTWHEEL_CONFIG", str(settings))
    assert run("--node-id", "a", *THREE, "--chunk-rows", "900") == 0
    (config,) = started
    assert (config.data, config.node_id, set(config.peers)) == (Path("d"), "a", {"a", "b", "c"})
    wheel = config.wheel
    limits = (wheel.tail_age_ms, wheel.chunk_rows_max, wheel.tail_bytes_max)
    assert limits == (7000, 900, 64 << 20)


def test_every_option_may_stand_in_the_file(started: list[NodeConfig], tmp_path: Path) -> None:
    """With the default of each, both spellings: nothing is refused, nothing changes."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")
    section = page.partition("### slotwheel node\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `--([a-z-]+)[^`]*` \| `([^`]+)` \|", section, re.MULTILINE)
    assert len(rows) > 25
    for change in (str, lambda name: name.replace("-", "_")):
        lines = [f'{change(name)} = "{default}"\n' for name, default in rows]
        (tmp_path / "all.toml").write_text("".join(lines))
        assert run("--config", str(tmp_path / "all.toml")) == 0
    assert run() == 0
    assert started[0] == started[1] == started[2]


PEERS_CA = ("--node-id", "n", "--peer", "n=h:1", "--peer-ca", "policies.toml")
PEERS_TLS = (*PEERS_CA, "--peer-cert", "policies.toml")
NEEDS = {
    "accept-repeats": ("--delivery", "exactly-once"),
    "delay-topic": ("--bootstrap", "k:1"),
    "delay-fleet": ("--bootstrap", "k:1", "--delay-topic", "t"),
    "kafka": ("--bootstrap", "k:1"),
    "client-ca": ("--tls-cert", "policies.toml"),
    "peer": ("--node-id", "n"),
    "peer-ca": (*PEERS_TLS[:4], "--peer-cert", "policies.toml"),
    "peer-cert": PEERS_CA,
    "peer-key": PEERS_TLS,
    "peer-listen": PEERS_TLS,
    "tls-key": ("--tls-cert", "policies.toml"),
    "token-file": ("--security", "policies.toml"),
    "sink": ("--bootstrap", "k:1"),
    "tls-ca": ("--tls-cert", "policies.toml", "--http", "h:1"),
    "http-client-certs": (
        "--tls-cert",
        "policies.toml",
        "--client-ca",
        "policies.toml",
        "--http",
        "h:1",
    ),
}
"""Options that another one has to be given with."""
NOT_WITHOUT = ("data", "peer_ca", "peer_cert")
"""Settings without which the rest of the line is refused."""


def other_value(name: str, declared: Setting) -> str:
    """A value that is not the default, as a text."""
    if declared.choices:
        return declared.choices[-1]
    if declared.kind == "file":
        return "policies.toml"
    texts = {
        "data-mode": "0750",
        "http-name": "x.example",
        "kafka": "acks=all",
        "peer": "n=h:1",
        "delay-partitions": "0,3-5",
        "retain": "24h,10G",
        "listen": "h:1",
        "peer-listen": "h:2",
        "metrics": "h:1",
        "http": "h:1",
    }
    if declared.option in texts:
        return texts[declared.option]
    if name.endswith("_ms"):
        return {"far_horizon_ms": "7d"}.get(name, "7s")
    if "bytes" in name or declared.kind == "size":
        return {"tail_bytes_refuse": "400M", "batch_bytes_max": "2M"}.get(name, "600k")
    return "17"


@pytest.mark.parametrize(
    ("name", "declared"), [*settings_of(NodeConfig).items(), *settings_of(WheelConfig).items()]
)
def test_a_setting_is_the_same_by_option_variable_and_file(
    started: list[NodeConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    declared: Setting,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policies.toml").touch()
    is_flag = get_type_hints(NodeConfig).get(name) is bool
    text = "true" if is_flag else other_value(name, declared)
    base = ["node", *NEEDS.get(declared.option, ())]
    base += () if name == "allow_insecure" else ("--allow-insecure",)
    base += () if name == "data" else ("--data", "d")
    variable = f"SLOTWHEEL_{declared.option.upper().replace('-', '_')}"
    many = declared.option in ("http-name", "kafka", "delay-topic", "peer")
    Path("all.toml").write_text(f"{declared.option} = {json.dumps([text] if many else text)}")
    with monkeypatch.context() as patched:
        patched.setenv(variable, text)
        assert main.run(base) == 0
    assert main.run([*base, "--config", "all.toml"]) == 0
    assert main.run([*base, f"--{declared.option}" + ("" if is_flag else f"={text}")]) == 0
    if name not in NOT_WITHOUT:
        assert main.run(base) == 0
    option, plain = started[2], started[3:]
    assert started[0] == started[1] == option
    assert option not in plain


TLS = ("--tls-cert", "f")
RIGHTS = ("--security", "f")
PEERS_WITH_TLS = ("--node-id", "a", *THREE, "--peer-cert", "f", "--peer-ca", "f")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "0.0.0.0:1"), "--listen 0.0.0.0:1 has no --tls-cert and no --security"),
        (("--listen", "[::]:1", *TLS), "--listen [::]:1 has no --security"),
        (("--listen", "10.0.0.1:1", *RIGHTS), "--listen 10.0.0.1:1 has no --tls-cert"),
        (("--listen", "node.example:1"), "--listen node.example:1 has no --tls-cert"),
        (("--http", "0.0.0.0:1"), "--http 0.0.0.0:1 has no --tls-cert"),
        (("--node-id", "a", *THREE, "--listen", "127.0.0.1:1"), "--peer 10.0.0.1:7200 has no"),
        (("--node-id", "a", *THREE, *RIGHTS), "peers cannot"),
        (("--http", "127.0.0.1:1", *RIGHTS), "the gateway beside the node"),
        (("--token-file", "f"), "nobody asks for it"),
    ],
)
def test_strangers_cannot_reach_a_node_by_mistake(
    started: list[NodeConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    assert main.run(["node", "--data", "d", *arguments]) == 1
    assert says in capsys.readouterr().err
    assert not started


@pytest.mark.parametrize(
    ("arguments", "exposed"),
    [
        ((), 0),
        (("--listen", "127.3.4.5:1", "--metrics", "0.0.0.0:1"), 0),
        (("--listen", "[::1]:1", "--http", "localhost:1"), 0),
        (("--listen", "0.0.0.0:1", *TLS, *RIGHTS), 0),
        ((*PEERS_WITH_TLS, *TLS, *RIGHTS, "--listen", "0.0.0.0:1"), 0),
        (("--listen", "0.0.0.0:1", "--allow-insecure"), 1),
        (("--listen", "0.0.0.0:1", "--http", "0.0.0.0:2", "--allow-insecure"), 2),
    ],
)
def test_what_is_let_out(
    started: list[NodeConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    exposed: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    assert main.run(["node", "--data", "d", *arguments]) == 0
    assert len(started[0].exposed()) == exposed


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ('tail-byte = "1M"', 1, "Do you mean 'tail-bytes'?"),
        ('peer-s = "x"', 1, "Do you mean 'peers'?"),
        ("[kafak]\na = 1", 1, "Do you mean 'kafka'?"),
        ('zzzzzzzz = "x"', 1, "See 'slotwheel node --help'"),
        ('config = "other.toml"', 1, "no such setting"),
        ('tail-age = "5s"\ntail_age = "6s"', 1, "the same setting twice"),
        ('peer = ["a=h:1"]\n[peers]\na = "h:1"', 1, "the same setting twice"),
        ("data = [1]", 1, "no text and no number"),
        ("[group]\nname = 'x'", 1, "no text and no number"),
        ("tail-age = 2026-11-20", 1, "no text and no number"),
        ("tail-age 5s", 1, "is not TOML"),
        ("tail-age = 'soon'", 2, "is not a time span"),
        ("slots = 'many'", 2, "--slots"),
        ("sink = 'rabbits'", 2, "--sink"),
    ],
)
def test_a_file_that_cannot_be_used(
    started: list[NodeConfig],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    code: int,
    says: str,
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    assert run("--config", str(path)) == code
    told = " ".join(capsys.readouterr().err.split())
    assert says in told
    if code == 1:
        assert str(path) in told
    assert started == []


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        ("--horizon soon", 2, "is not a time span"),
        ("--horizon 0s", 2, "--horizon"),
        ("--horizon -1d", 2, "--horizon"),
        ("--horizon 1h", 1, "got 1 h; expected 2 h, the time of --slots, to 3660d"),
        ("--horizon 3661d", 1, "got 3,661 d; expected 2 h, the time of --slots"),
        ("--slots 3600 --horizon 1d", 1, "got 3600 slots; limit 7200. Give --slots 7200"),
        ("--slots 86401", 1, "Give --slots 86400 or fewer, and the time ahead as --horizon"),
    ],
)
def test_a_horizon_that_no_wheel_can_have(
    started: list[NodeConfig],
    capsys: pytest.CaptureFixture[str],
    given: str,
    code: int,
    says: str,
) -> None:
    assert run(*given.split()) == code
    assert says in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert started == []


def test_a_horizon_is_what_was_given_or_the_time_of_the_slots(started: list[NodeConfig]) -> None:
    for given in ([], ["--horizon", "2h"], ["--horizon", "60d"], ["--slots", "86400"]):
        assert run(*given) == 0
    hours = [config.wheel.horizon_ms // 3_600_000 for config in started]
    assert hours == [2, 2, 60 * 24, 24]


def test_a_file_that_is_not_there(
    started: list[NodeConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--config", str(tmp_path / "none.toml")) == 2
    assert "none.toml" in capsys.readouterr().err
    (tmp_path / "bytes.toml").write_bytes(b'data = "\xff"')
    assert run("--config", str(tmp_path / "bytes.toml")) == 1
    assert "is not TOML" in capsys.readouterr().err
    assert started == []


def test_retention_is_a_span_or_a_size(
    started: list[NodeConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ((), ("--retain", "24h"), ("--retain", "2h,10GiB"), ("--retain", "1.5T")):
        assert run(*options) == 0
    kept = [(config.wheel.retain_ms, config.wheel.retain_bytes) for config in started]
    assert kept == [(0, 0), (86_400_000, 0), (7_200_000, 10 << 30), (0, 3 << 39)]
    assert run("--retain", "everything") == 2
    assert "neither a time span (24h, 7d) nor a size (10GiB)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--tls-key f", "--tls-key says nothing without --tls-cert"),
        ("--client-ca f", "--client-ca says nothing without --tls-cert"),
        ("--peer-key f", "--peer-key says nothing without --peer-cert"),
        ("--peer-ca f", "--peer-ca says nothing without --peer-cert"),
        ("--peer-listen h:1", "--peer-listen says nothing without --peer-cert"),
        ("--peer-cert f", "--peer-cert says nothing without --peer-ca"),
        ("--peer-cert f --peer-ca f", "--peer-cert says nothing without --peer"),
        ("PEERS --tls-cert f", "--tls-cert without --peer-cert"),
        ("PEERS --peer-cert f --peer-ca f --peer-listen h:7 --listen h:7", "another one than"),
        ("PEERS --peer-cert f --peer-ca f --peer-listen h", "Change --peer-listen"),
    ],
)
def test_files_for_tls_that_would_leave_something_open_are_refused(
    started: list[NodeConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    arguments = given.replace("PEERS", f"--node-id a {' '.join(THREE)}").split()
    assert run(*arguments) == 1
    assert says in capsys.readouterr().err
    assert not started


def test_with_certificates_peers_meet_at_their_addresses_and_clients_elsewhere(
    started: list[NodeConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").touch()
    secured = ("--node-id", "c", *THREE, "--peer-cert", "f", "--peer-ca", "f")
    assert run(*secured) == 0
    assert run(*secured, "--listen", "0.0.0.0:7250", "--peer-listen", "0.0.0.0:7300") == 0
    assert run(*secured, "--listen", "127.0.0.1:0") == 0
    groups = [config.group() for config in started]
    seen = [
        (config.listen, config.peers_at, group and group.clients_at)
        for config, group in zip(started, groups, strict=True)
    ]
    assert seen == [
        ("127.0.0.1:7200", "10.0.0.3:7300", "10.0.0.3:7200"),
        ("0.0.0.0:7250", "0.0.0.0:7300", "10.0.0.3:7250"),
        ("127.0.0.1:0", "10.0.0.3:7300", ""),
    ]

"""``slotwheel token`` and ``slotwheel security``: tokens are shown once, and answers say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwheel.security.secretplace import SecretPlace
from slotwheel.security.securityfile import SecurityFile
from slotwheel.security.tokens import digest_of, read_token
from support.nodeprocess import run_cli
from support.securing import EXAMPLE, write_private


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_private(tmp_path / "security.toml", EXAMPLE)


def test_a_new_token_is_printed_once_and_its_lines_fit_the_file(path: Path) -> None:
    done = run_cli("token", "new", "reports", "--until", "2099-06-30T00:00:00Z")
    assert done.returncode == 0
    token = done.stdout.strip()
    assert token.startswith("swt_")
    lines = done.stderr.partition("For the security file:\n")[2]
    security = SecurityFile.parse((EXAMPLE + lines).encode())
    assert security.tokens[digest_of(token)].until_ms == 4_086_460_800_000
    assert token not in done.stderr


def test_a_token_in_a_file_is_private_and_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    done = run_cli("token", "new", "billing.eu", "--file", path)
    token = read_token(SecretPlace(f"file:{path}"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in done.stdout + done.stderr
    assert SecurityFile.parse(done.stdout.encode()).tokens[digest_of(token)].name == "billing.eu"
    again = run_cli("token", "new", "billing", "--file", path)
    assert again.returncode == 1
    assert read_token(SecretPlace(f"file:{path}")) == token
    assert run_cli("token", "new", "no name").returncode == 1


def test_tokens_are_listed_without_their_digests(path: Path) -> None:
    text = path.read_text().replace("2100-01-01", "2020-01-01")
    write_private(path, text)
    done = run_cli("token", "list", path)
    billing, gateway = [line.split() for line in done.stdout.splitlines()[1:]]
    assert billing == ["token:billing", "2020-01-01T00:00:00.000Z", "expired", "orders"]
    assert gateway == ["token:gateway", "no", "end", "valid", "gateway"]
    first = json.loads(run_cli("token", "list", path, "--json").stdout.splitlines()[0])
    assert (first["principal"], first["valid"], first["roles"]) == (
        "token:billing",
        False,
        ["orders"],
    )
    assert digest_of("swt_billing") not in done.stdout


@pytest.mark.parametrize(
    ("asked", "code", "answer"),
    [
        (("append", "--topic", "orders-eu"), 0, "yes: orders: schedule = orders-*"),
        (("append", "--topic", "payments"), 1, "no: none of its roles has the right 'schedule'"),
        (("append", "--topic", "slotwheel-trace"), 1, "no: "),
        (("append",), 0, "yes: orders: schedule = orders orders-*"),
        (("status",), 1, "no: "),
        (("hello",), 0, "yes: orders: any member"),
    ],
)
def test_what_a_principal_may_do_and_why(
    path: Path, asked: tuple[str, ...], code: int, answer: str
) -> None:
    done = run_cli("security", "check", path, "--principal", "token:billing", "--operation", *asked)
    assert done.returncode == code
    assert done.stdout.startswith(answer)


def test_all_principals_and_their_rights(path: Path) -> None:
    done = run_cli("security", "check", path)
    assert done.returncode == 0
    text = done.stdout
    assert text.count("(") == 6
    billing = text.partition("token:billing  (orders)")[2].partition("\n\n")[0]
    assert [line.split() for line in billing.splitlines()[2:]] == [
        ["schedule", "orders", "orders-*"],
        ["read", "*"],
    ]
    gateway = json.loads(
        run_cli("security", "check", path, "--principal", "token:gateway", "--json").stdout
    )
    assert gateway == {"principal": "token:gateway", "roles": ["gateway"], "flags": ["gateway"]}


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (("--principal", "token:stranger"), 1, "no member"),
        (("--operation", "status"), 2, "needs --principal"),
        (("--topic", "x"), 2, "needs --operation"),
        (("--principal", "token:billing", "--operation", "fly"), 2, "--operation"),
    ],
)
def test_questions_that_cannot_be_answered(
    path: Path, asked: tuple[str, ...], code: int, says: str
) -> None:
    done = run_cli("security", "check", path, *asked)
    assert done.returncode == code
    assert says in done.stderr


def test_a_file_that_a_node_would_refuse(path: Path) -> None:
    path.chmod(0o644)
    done = run_cli("security", "check", path)
    assert done.returncode == 1
    assert "open to others" in done.stderr
    write_private(path, "[roles.a]\nschedul = []")
    done = run_cli("security", "check", path)
    assert "roles.a.schedul" in done.stderr

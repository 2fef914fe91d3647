"""A bad file for TLS ends a node at its start, and is an alarm later."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel import Client
from support.certificates import Authority
from support.nodeprocess import NodeProcess, run_cli
from support.ports import free_address
from support.waiting import eventually


def test_a_bad_file_at_the_start_is_named_and_nothing_begins(
    authority: Authority, tmp_path: Path
) -> None:
    issued = authority.issue("127.0.0.1")
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    data = ("--data", tmp_path / "d", "--listen", "127.0.0.1:0", "--metrics", "off")
    for options, text in (
        (("--tls-cert", bad), f"{bad}"),
        (("--tls-cert", issued.cert), "no certificate with its key"),
        (("--tls-cert", issued.cert, "--tls-key", issued.key, "--client-ca", bad), f"{bad}"),
    ):
        done = run_cli("node", *data, *map(str, options))
        assert done.returncode == 1, done.stderr
        assert text in done.stderr


@pytest.mark.usefixtures("looks_often")
def test_a_file_that_becomes_bad_is_an_alarm_and_what_was_in_use_stays(
    authority: Authority, tmp_path: Path
) -> None:
    issued = authority.issue("127.0.0.1")
    cert = Path(str(issued.cert))
    good = cert.read_bytes()
    options = ("--tls-cert", str(cert), "--tls-key", str(issued.key))
    with NodeProcess(tmp_path / "d", *options) as node:
        new = cert.with_suffix(".new")
        new.write_text("half a certific")
        new.replace(cert)
        eventually(lambda: "alarm certificates" in node.log_text(), otherwise=node.log_text)
        status, text = node.get("/readyz")
        assert status == 503
        assert str(cert) in text
        with Client(f"tls://{node.address}", tls=authority.issue("c"), timeout_s=20) as client:
            client.store("t", b"x", delay=60)
        new.write_bytes(good)
        new.replace(cert)
        eventually(lambda: node.get("/readyz")[0] == 200, otherwise=node.log_text)


def test_the_address_for_peers_is_checked_before_anything_is_opened(
    authority: Authority, tmp_path: Path
) -> None:
    issued = authority.issue("a")
    peers = {name: free_address() for name in "abc"}
    options = [word for name in peers for word in ("--peer", f"{name}={peers[name]}")]
    options += ["--peer-cert", str(issued.cert), "--peer-key", str(issued.key)]
    options += ["--peer-ca", str(authority.ca), "--node-id", "a"]
    with NodeProcess(tmp_path / "other") as other:
        done = run_cli(
            *("node", "--data", tmp_path / "d", "--listen", "127.0.0.1:0", "--metrics", "off"),
            *(*options, "--peer-listen", other.address),
        )
    assert done.returncode == 1
    assert "another --peer-listen address" in done.stderr

"""Commands in front of a group of peers: status, step-down, and a list of addresses for --node."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client
from slotwheel.cli import main
from slotwheel.wheel.errors import NodeUnreachable
from support.fakegroup import FakeGroup
from support.nodeprocess import NodeProcess
from support.ports import free_port
from support.waiting import eventually


@pytest.fixture
def group() -> Iterator[FakeGroup]:
    with FakeGroup() as made:
        for number, server in enumerate(made.servers):
            server.actions._group = seen_by(made, number)
        yield made


def seen_by(group: FakeGroup, number: int) -> Any:
    """What a driver says: a master knows how far each peer is, a standby does not."""

    def seen() -> dict[str, Any]:
        master = number == group.master
        peers = [
            {
                "id": f"n{peer}",
                "address": address,
                "state": "replicate" if peer != 2 else "snapshot",
                "match": 1_234_567 - peer if master else None,
                "lag_entries": peer if master else None,
                "admitted": peer != 2,
                "heard_ms": 12 if master else None,
            }
            for peer, address in enumerate(group.addresses)
        ]
        more = {"commit": 1_234_567, "lease_ms": 431 if master else 0, "peers": peers}
        return {**group._seen_by(number), **more}

    return seen


def test_status_shows_the_group(group: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--node", group.addresses[0]]) == 0
    text = capsys.readouterr().out
    for line in (
        r"role +master",
        r"epoch +1",
        rf"master +n0 at {group.addresses[0]}",
        r"commit +1,234,567",
        r"lease +431 ms",
        r"peer +address +state +match +lag +admitted +heard ms ago",
        rf"n1 +{group.addresses[1]} +replicate +1,234,566 +1 +yes +12",
        rf"n2 +{group.addresses[2]} +snapshot +1,234,565 +2 +no +12",
    ):
        assert re.search(rf"^{line}\s*$", text, re.MULTILINE), line
    assert re.search(r"^pending +0$", text, re.MULTILINE)


def test_status_of_a_standby(group: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["status", "--node", group.addresses[2]]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^role +standby$", text, re.MULTILINE)
    assert "lag" not in text
    assert "lease" not in text
    assert main.run(["status", "--json", "--node", group.addresses[2]]) == 0
    seen = json.loads(capsys.readouterr().out)["replication"]
    assert (seen["role"], seen["master"], len(seen["peers"])) == ("standby", "n0", 3)
    group.elect(None)
    assert main.run(["status", "--node", group.addresses[2]]) == 0
    assert re.search(r"^master +none known$", capsys.readouterr().out, re.MULTILINE)


def test_status_of_several_is_the_masters(
    group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    group.elect(1)
    everywhere = ",".join(group.addresses)
    assert main.run(["status", "--json", "--node", everywhere]) == 0
    assert json.loads(capsys.readouterr().out)["replication"]["role"] == "master"
    group.die(1)  # the others still name it
    assert main.run(["status", "--json", "--node", everywhere]) == 0
    assert json.loads(capsys.readouterr().out)["replication"]["role"] == "standby"


def test_step_down_prints_the_new_master(
    group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    everywhere = ",".join(group.addresses)
    assert main.run(["step-down", "--node", everywhere]) == 0
    assert capsys.readouterr().out == f"{group.addresses[1]}\n"
    assert main.run(["step-down", "--node", group.addresses[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"master_address": group.addresses[2]}
    group.servers[2].actions._hand_over = lambda _timeout_s: False
    assert main.run(["step-down", "--node", everywhere, "--timeout", "1s"]) == 1
    assert "the master goes on" in capsys.readouterr().err


def test_commands_find_the_master(group: FakeGroup, capsys: pytest.CaptureFixture[str]) -> None:
    group.elect(2)
    everywhere = ("--node", ", ".join(group.addresses))
    assert main.run(["send", "t", "one", "--delay", "60s", *everywhere]) == 0
    (message_id,) = capsys.readouterr().out.split()
    group.die(2)
    group.elect(1)
    assert main.run(["cancel", message_id, *everywhere]) == 0
    assert capsys.readouterr().out == f"{message_id}\tcancelled\n"
    assert main.run(["reschedule", message_id, "--delay", "90s", *everywhere]) == 0
    assert "cancelled" in capsys.readouterr().out
    assert group.wheel.values() == [b"one"]


def test_without_a_master_the_error_names_every_peer(
    group: FakeGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    group.elect(None)
    options = ("--node", ",".join(group.addresses), "--timeout", "500ms")
    assert main.run(["send", "t", "x", "--delay", "1s", *options]) == 1
    told = capsys.readouterr().err
    assert all(address in told for address in group.addresses)
    assert main.run(["cancel", "default.1.2.00000000", "--json", *options]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "node-unreachable"


def test_a_node_without_peers_cannot_step_down(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeGroup(1) as alone:
        actions = alone.servers[0].actions
        actions._group = actions._hand_over = None
        with Client(alone.addresses[0]) as client:
            assert "replication" not in client.status()
        assert main.run(["step-down", "--node", alone.addresses[0]]) == 1
        assert "no peers" in capsys.readouterr().err


def test_a_group_that_forms_says_for_whom_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = {peer: f"127.0.0.1:{free_port('127.0.0.1')}" for peer in "abc"}
    peers = [f"--peer={peer}={address}" for peer, address in addresses.items()]
    node = NodeProcess(tmp_path / "data", f"--listen={addresses['a']}", "--node-id=a", *peers)
    wanted = (
        "the group begins when all peers are there; it waits for b (does not answer), c (does not"
    )
    with node:
        eventually(lambda: wanted in node.get("/readyz")[1], otherwise=lambda: node.get("/readyz"))
        assert main.run(["status", "--node", addresses["a"]]) == 0
        text = capsys.readouterr().out
        assert re.search(rf"^master +none known: {re.escape(wanted)}", text, re.MULTILINE), text
        assert f"b: node not reachable: {addresses['b']}: connection refused. Check" in text
        asked = [line for line in node.log_text().splitlines() if "replication-asks" in line]
        assert len(asked) == 1, asked
        assert "b: does not answer, c: does not answer" in asked[0]


def test_a_client_at_another_programs_port_is_told_so() -> None:
    with (
        HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server,
        Client(f"127.0.0.1:{server.server_port}", timeout_s=5) as client,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(NodeUnreachable, match=r"no slotwheel node.*given as http://HOST:PORT"):
            client.status()
        server.shutdown()

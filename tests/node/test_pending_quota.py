"""A quota of what is pending, at real nodes: through kills, cancels, delivery, another master."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.node.pendingfile import FILE_NAME
from slotwheel.node.pendingtable import PendingTable
from slotwheel.replication.rules.timing import Timing
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.errors import OverQuota
from support.nodeprocess import NodeProcess, run_cli
from support.replicas import Replica, Replicas
from support.securing import write_private
from support.waiting import eventually, now_ms

FILE = f"""
[tokens.sender]
sha256 = "{digest_of("swt_sender")}"
[roles.all]
schedule = ["*"]
cancel = ["*"]
read = ["*"]
observe = true
[members]
"token:sender" = ["all"]
[quotas.default.pending."orders*"]
rows = 10
"""
PENDING = "pending_by_prefix"
PATIENT = Timing(
    heartbeat_s=0.05, lease_s=3.0, promise_s=4.0, election_spread_s=0.2, hand_over_s=0.15
)
"""No pause of the machine ends the mastership."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    security = write_private(tmp_path / "security.toml", FILE)
    write_private(tmp_path / "token", "swt_sender")
    # The file of what is pending is written behind a spill.
    options = ("--security", str(security), "--tail-age", "1s")
    with NodeProcess(tmp_path / "wheel", *options) as started:
        yield started


def client_of(node: NodeProcess, timeout_s: float = 60) -> Client:
    return Client(node.address, token=f"file:{node.data.parent / 'token'}", timeout_s=timeout_s)


def status(client: Client) -> Any:
    return client.status()[PENDING]


def refused(node: NodeProcess, count: int) -> str:
    """The error for so many messages more, from a client that does not wait for room."""
    with client_of(node, 0.2) as client:
        sent = client.send_many([Message("orders", b"x", delay=600)] * count)
        errors = [receipt.error() for receipt in sent]
    assert {type(error) for error in errors} == {OverQuota}
    return str(errors[0])


def test_what_is_pending_counts_through_kills_cancels_and_delivery(node: NodeProcess) -> None:
    with client_of(node) as client:
        ids = [client.store("orders-eu", b"x", delay=600) for _ in range(7)]
        client.store("payments", b"x" * 100, delay=600)
        assert client.send("orders", b"soon", delay=2).result()
        assert "and 4 in this batch" in refused(node, 4)
        ids += [client.store("orders", b"x", delay=600) for _ in range(3)]  # when one has left
        assert "10 pending, and 1 in this batch" in refused(node, 1)
    node.kill()
    node.start()
    with client_of(node) as client:
        counted = [{"prefix": "orders*", "rows": 10, "bytes": 10}]
        eventually(lambda: status(client)["prefixes"] == counted)
        eventually(lambda: status(client)["slots_to_count"] == 0)
        token = str(node.data.parent / "token")
        shown = run_cli("status", "--node", node.address, "--token-file", token).stdout
        assert re.search(r"pending by prefix +rows +bytes\norders\* +10 +10\n", shown), shown
        assert "10 pending, and 1 in this batch" in refused(node, 1)
        assert client.cancel(ids[:4]) == ["cancelled"] * 4
        eventually(lambda: status(client)["prefixes"][0]["rows"] == 6)
        assert client.reschedule(ids[4], delay=900)[0] == "cancelled"
        client.store("orders", b"x", delay=600)
        eventually((node.data / FILE_NAME).exists)
    node.kill()
    node.start()
    with client_of(node) as client:
        eventually(lambda: status(client)["prefixes"][0]["rows"] == 7)


def test_a_full_quota_stops_no_schedule_and_its_runs_are_counted(node: NodeProcess) -> None:
    """A run that somebody asks for counts for their quota; a schedule's own runs are nobody's."""
    with client_of(node) as client:
        for _ in range(9):
            client.store("orders", b"x", delay=600)
        client.schedules.put(
            {"name": "by hand", "every_ms": 1_009 * 3_600_000, "template": {"topic": "orders"}}
        )
        number, _ = client.schedules.run("by hand")
        node.wait_for("orders", 1)
        eventually(lambda: status(client)["prefixes"][0]["rows"] == 9)
        client.store("orders", b"x", delay=600)
        with client_of(node, 0.2) as hasty, pytest.raises(OverQuota, match="10 pending, and 1 in"):
            hasty.schedules.run("by hand")
        assert client.schedules.get("by hand")["runs"] == number == 1, "nothing was stored"
        client.schedules.put({"name": "beat", "every_ms": 1_000, "template": {"topic": "orders"}})
        node.wait_for("orders", 3)
        assert status(client)["prefixes"][0]["rows"] > 10, "those of the next half minute count"
        shown = client.schedules.get("beat")
        assert (shown["missed"], shown["runs"] >= 2) == (0, True)
        assert "schedule-missed" not in node.log_text()


def is_counted(replica: Replica, table: PendingTable, rows: int) -> bool:
    point = replica.wheel.stock_point()
    table.add_new(point)
    for second in table.stale(point):
        table.count(second, point)
    assert table.unseen_slots == 0
    return table.amounts[0][0] == rows


def test_every_peer_has_the_same_counts_and_so_has_the_next_master(tmp_path: Path) -> None:
    day_ms = 86_400_000
    group = Replicas(tmp_path, timing=PATIENT, tail_age_ms=200, far_horizon_ms=60 * day_ms)
    try:
        group.start()
        tables = {
            name: PendingTable(["t"], replica.wheel.read_slot, 7_200)
            for name, replica in group.all.items()
        }
        for number in range(20):
            group.send(b"%d" % number, due_ms=now_ms() + 600_000 + number * day_ms // 4)
        group.send(*[b"leaves"] * 5, due_ms=now_ms())
        for replica in group.running:
            all_came = partial(is_counted, replica, tables[replica.name], 25)
            eventually(all_came)
        master = group.master()
        assert master.deliver(now_ms()) == [b"leaves"] * 5
        assert is_counted(master, tables[master.name], 20)
        master.stop()
        following = group.master()
        following.deliver(now_ms())  # again what no committed mark has
        eventually(partial(is_counted, following, tables[following.name], 20))
    finally:
        group.stop()

"""A node whose wall clock jumps ahead, as a process: nothing that it does by that clock stays."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest

from slotwheel import Client
from slotwheel.node.clock import NodeClock
from slotwheel.wheel.state import StoredState
from support.memstate import MemoryState
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually
from support.wallclock import WallClock

DAY_MS = 24 * 3_600_000


def why_not(node: NodeProcess) -> str:
    status, body = node.get("/readyz")
    return "" if status == 200 else "; ".join(json.loads(body)["reasons"])


def due_soon() -> int:
    return time.time_ns() // 1_000_000 + 300


def test_a_day_ahead_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    """What is due the next day stays, what is due leaves, and a restart in between believes it as
    little. Accepted, it counts; then the mark is ahead once the clock is right, until it is set
    back."""
    clock = WallClock(tmp_path / "clock")
    options = ("--slots", "90000", "--metrics", "127.0.0.1:0")
    with NodeProcess(tmp_path / "data", *options, **clock.variables) as node:
        with Client(node.address, timeout_s=30) as client:
            client.send("t", b"tomorrow", delay=3 * 3600).result(20)
            client.send("t", b"first", due=due_soon()).result(20)
            node.wait_for("t", 1)
            clock.set(DAY_MS)
            eventually(lambda: "--accept" in why_not(node))
            client.send("t", b"second", due=due_soon()).result(20)
            node.wait_for("t", 2)
        node.kill()
        node.start()
        assert "--accept" in why_not(node)
        clock.set(0)
        eventually(lambda: not why_not(node))
        with Client(node.address, timeout_s=30) as client:
            client.send("t", b"third", due=due_soon()).result(20)
            node.wait_for("t", 3)
            clock.set(DAY_MS)
            shown = run_cli("clock", "--node", node.address)
            assert "ahead, not believed" in shown.stdout
            assert run_cli("clock", "--accept", "--node", node.address).returncode == 0
            node.wait_for("t", 4)
            clock.set(0)
            eventually(lambda: "--set-back" in why_not(node))
            client.send("t", b"fourth", due=due_soon()).result(20)
            shown = run_cli("clock", "--set-back", "--node", node.address)
            assert "is set back" in shown.stdout, shown.stderr
            node.wait_for("t", 5)
            assert not why_not(node)
        values = [row["value"] for row in node.delivered("t")]
        assert values == [b"first", b"second", b"third", b"tomorrow", b"fourth"]


@pytest.mark.parametrize("boot", ["this-one", ""])
def test_what_a_run_before_has_noted_counts_for_this_start_of_the_machine(boot: str) -> None:
    """Behind a start of the machine, or where there is none to know it by, nothing can be told."""
    state = MemoryState(StoredState())
    before = NodeClock(lambda: 10 * DAY_MS, lambda: 5, lambda: boot)
    before.begin(state, "")
    before.note()
    assert bool(state.durable.clock) is bool(boot)
    for again, ahead_ms in ((boot, DAY_MS if boot else 0), ("another", 0)):
        clock = NodeClock(lambda: 11 * DAY_MS, lambda: 5, partial(str, again))
        clock.begin(state, state.durable.clock)
        assert clock.ahead_ms == ahead_ms

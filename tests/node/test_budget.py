"""The limits of a node follow from the memory that it may use."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import Client
from slotwheel.node.budget import (
    FIELDS,
    MemoryLimit,
    fitting,
    memory_limit,
    needed,
    secured_connections,
)
from slotwheel.wheel.config import MIB, WheelConfig
from support.nodeprocess import NodeProcess
from support.waiting import eventually, now_ms
from support.wallclock import WallClock

V2, V1 = ("cgroup2", "rw", "memory.max"), ("cgroup", "rw,memory", "memory.limit_in_bytes")
NONE = "9223372036854771712"
"""No limit, as version 1 writes it."""
AWAKE_MS = 4_000
"""So long before it is due a slot is not being read yet."""


def system(
    at: Path, kind: tuple[str, str, str], limits: dict[str, str], *, group: str, root: str = "/"
) -> Path:
    """A ``/proc`` of a process in ``group``, and the limits by path below the mount point."""
    name, options, file = kind
    (at / "proc" / "self").mkdir(parents=True)
    for path, text in limits.items():
        (at / "mount" / path).mkdir(parents=True, exist_ok=True)
        (at / "mount" / path / file).write_text(text + "\n")
    controllers = "" if name == "cgroup2" else "cpu,memory"
    other = "7:freezer:/\n" if name == "cgroup" else ""
    (at / "proc/self/cgroup").write_text(f"{other}5:{controllers}:{group}\n")
    mounts = [f"35 31 0:32 {root} {at / 'mount'} rw,relatime - {name} cgroup {options}"]
    mounts.append("36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices")
    (at / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    (at / "proc/meminfo").write_text("MemTotal:  8000000 kB\nMemFree: 1 kB\n")
    return at / "proc"


@pytest.mark.parametrize("kind", [V1, V2], ids=["version 1", "version 2"])
@pytest.mark.parametrize(
    ("limits", "group", "root", "expected"),
    [
        ({".": "max", "a/b": "400000000"}, "/a/b", "/", 400_000_000),
        ({".": NONE, "a": "300000000", "a/b": "max"}, "/a/b", "/", 300_000_000),
        ({"a": "300000000", "a/b": "400000000"}, "/a/b", "/", 300_000_000),
        ({".": "500000000"}, "/docker/1234", "/docker/1234", 500_000_000),
        ({".": "500000000"}, "/../1234", "/", 500_000_000),
        ({".": "max", "a": NONE}, "/a", "/", 8_192_000_000),
        ({}, "/a", "/", 8_192_000_000),
    ],
)
def test_the_smallest_limit_of_the_group_and_of_those_above(
    tmp_path: Path,
    kind: tuple[str, str, str],
    limits: dict[str, str],
    group: str,
    root: str,
    expected: int,
) -> None:
    found = memory_limit(system(tmp_path, kind, limits, group=group, root=root))
    assert found is not None
    assert found.nbytes == expected
    assert ("MemTotal" in found.source) == (expected > 8_000_000_000)


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None


def test_limits_fit_into_what_there_is() -> None:
    usual = WheelConfig()
    for gateway in (False, True):
        enough = needed(usual, gateway=gateway)
        assert fitting(enough, gateway=gateway, given={}) == {
            name: getattr(usual, name) for name in FIELDS
        }
        for memory in (400_000_000, 700_000_000, enough - 1):
            limits: dict[str, Any] = {**fitting(memory, gateway=gateway, given={})}
            chosen = replace(usual, **limits)
            assert needed(chosen, gateway=gateway) <= memory
            assert 4 * chosen.chunk_bytes_max <= chosen.window_bytes_max
            assert chosen.tail_bytes_max < chosen.tail_bytes_refuse
    least = fitting(1, gateway=True, given={})
    assert all(least[name] > 0 for name in FIELDS)


def test_what_was_given_stays() -> None:
    given = {"tail_bytes_max": 100 * MIB}
    chosen = fitting(400_000_000, gateway=False, given=given)
    assert chosen["tail_bytes_max"] == 100 * MIB
    assert chosen["tail_bytes_refuse"] == 200 * MIB, "or appends would be refused before a spill"
    chosen = fitting(400_000_000, gateway=False, given={"tail_bytes_refuse": 10 * MIB})
    assert chosen["tail_bytes_max"] == chosen["tail_bytes_refuse"] == 10 * MIB


def test_a_burst_leaves_a_node_with_little_memory_alive(tmp_path: Path) -> None:
    """180 MB come in at once, and are due in one second; 300 MB is all that the node may use."""
    rows, parts, limit = 3_000, 60, 300_000_000
    clock = WallClock(tmp_path / "clock")
    own = NodeProcess(tmp_path / "data", "--memory", str(limit), **clock.variables)
    own.forked = False
    with own as node:
        pid, peak = node.running.pid, 0

        def look() -> None:
            nonlocal peak
            text = Path(f"/proc/{pid}/status").read_text()
            found = re.search(r"RssAnon:\s+(\d+) kB", text)
            assert found is not None
            peak = max(peak, int(found[1]) * 1024)

        with Client(node.address, batch_rows=rows) as client:
            due_s = int(time.time()) + 120
            due = due_s * 1000 + np.arange(rows) * 1000 // rows
            columns = [pa.array(due), pa.array(["t"] * rows), pa.array([os.urandom(1000)] * rows)]
            batch = pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])
            for _ in range(parts):
                client.send_table(batch)
                look()
            client.flush()
            # Nobody waits for the second: the machine sleeps until shortly before it.
            clock.sleep(due_s * 1000 - AWAKE_MS - now_ms())

            def left() -> bool:
                look()
                return bool(client.status()["delivered"] == rows * parts)

            eventually(left)
            chosen = client.status()["limits"]
        assert peak < limit
        assert chosen == fitting(limit, gateway=False, given={})
        assert f"memory bytes={limit} source=--memory" in node.log_text()
        assert "alarm memory" not in node.log_text()


def test_limits_that_do_not_fit_are_an_alarm(tmp_path: Path) -> None:
    options = ["--memory", "300M", "--tail-bytes", "256M"]
    with NodeProcess(tmp_path / "data", *options) as node:
        eventually(lambda: "alarm memory" in node.log_text())
        with Client(node.address) as client:
            assert client.status()["limits"]["tail_bytes_max"] == 256 * MIB


@pytest.mark.parametrize(
    ("limit", "connections"),
    [(None, 10_000), (16 << 30, 10_000), (256 << 20, 819), (1 << 20, 16)],
)
def test_connections_with_tls_take_a_tenth_of_the_memory(
    limit: int | None, connections: int
) -> None:
    given = None if limit is None else MemoryLimit(limit, "a test")
    assert secured_connections(10_000, given) == connections

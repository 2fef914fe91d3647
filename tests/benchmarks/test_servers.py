"""Each server of benchmarks.queues holds messages back; ``make queues`` installs them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from slotwheel.benchmarks.harness import data_directory
from slotwheel.benchmarks.servers.all import ALL
from slotwheel.benchmarks.servers.server import Server
from support.waiting import PATIENCE_S

COUNT = 50
AHEAD_MS = 2_000


@pytest.mark.soak
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_it_hands_over_each_message_once_and_none_early(kind: type[Server]) -> None:
    with data_directory(None) as directory:
        directory.chmod(0o755)  # one of them runs as another user
        with kind(directory / "server") as server:
            exchange(server)
            assert server.cpu_s() > 0


def exchange(server: Server) -> None:
    receiver = server.receiver()
    sender = server.sender()
    first_ms = time.time_ns() // 1_000_000 + AHEAD_MS
    due = [first_ms + number for number in range(COUNT)]
    sender.send([b"%d" % one for one in due[:-1]], due[:-1])
    sender.send([b"%d" % due[-1]], due[-1:])
    late: dict[int, int] = {}
    end = time.monotonic() + PATIENCE_S
    while len(late) < COUNT and time.monotonic() < end:
        for value in receiver.receive():
            if value.isdigit():
                assert int(value) not in late
                late[int(value)] = time.time_ns() // 1_000_000 - int(value)
    sender.close()
    receiver.close()
    assert sorted(late) == due
    assert min(late.values()) >= 0


def test_what_installs_them_finds_what_it_needs() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "servers" / "install.sh"
    subprocess.run([script, "true"], check=True, timeout=60)

"""A node among a thousand idle connections: they take no descriptor that its files need."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from slotwheel import Client, Message
from slotwheel.wheel.protocol import AppendCommand, encode_json
from slotwheel.wire.frames import Kind, encode_hello
from support.exchange import Exchange, action_frame
from support.nodeprocess import NodeProcess
from support.waiting import eventually

IDLE = 1300
LIMIT = 1024
MANY = 5000
MIB = 1 << 20
_HELLO = encode_hello(AppendCommand().encode())


class LimitedNode(NodeProcess):
    """``limit``: what ``ulimit`` is told of the descriptors."""

    limit = f"-n {LIMIT}"

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit {self.limit}; exec "$@"', "sh", *super().command()]


@pytest.fixture(autouse=True)
def room_for_ours() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def idle_connections(address: str, count: int, say: bytes) -> Iterator[list[socket.socket]]:
    host, port = address.rsplit(":", 1)
    with contextlib.ExitStack() as opened:
        found = []
        for _ in range(count):
            one = opened.enter_context(socket.create_connection((host, int(port)), 10))
            with contextlib.suppress(OSError):  # refused already
                one.sendall(say)
            found.append(one)
        yield found


@pytest.mark.parametrize("say", [b"", _HELLO], ids=["silent", "welcomed"])
def test_idle_connections_take_nothing_from_sends_spills_and_deliveries(
    tmp_path: Path, say: bytes
) -> None:
    options = ("--tail-age", "300ms", "--tail-keep", "50ms", "--segment-bytes", "64K")
    with (
        LimitedNode(tmp_path / "data", *options) as node,
        idle_connections(node.address, IDLE, say),
        Client(node.address) as client,
    ):
        for batch in range(6):
            soon = [Message("soon", b"x", delay=0.5) for _ in range(20)]
            later = [Message("later", b"x" * 100, delay=600 + slot) for slot in range(300)]
            receipts = client.send_many(soon + later)
            assert receipts.errors(60) == {}, batch
            time.sleep(0.2)
        node.wait_for("soon", 120)
        eventually(lambda: node.metric("slotwheel_slot_rows") == 1800)
        assert "disk" not in node.log_text()
        eventually(lambda: descriptors_of(node) < LIMIT * 3 // 4)


def test_five_thousand_idle_connections_cost_little_and_are_all_answered(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    many = min(MANY, hard // 2 - 1000)
    status = action_frame("status", encode_json({}))
    with NodeProcess(tmp_path / "data") as node, contextlib.ExitStack() as stack:
        process = psutil.Process(node.running.pid)
        with Client(node.address) as client:
            client.send(Message("t", b"x", delay=600)).result(60)
        before = process.memory_full_info().uss
        threads = process.num_threads()
        idle = [stack.enter_context(Exchange(node.address)) for _ in range(many)]
        cost = (process.memory_full_info().uss - before) / MIB
        figure(f"{many} idle connections: {cost:.1f} MiB of the node")
        assert cost < 40
        assert process.num_threads() < threads + 20
        for one in idle[:: many // 50]:
            one.send_bytes(status)
            assert one.frame().kind == Kind.RESULT
        with Client(node.address) as client:
            client.send(Message("t", b"x", delay=600)).result(60)


def test_idle_connections_for_metrics_are_bounded(tmp_path: Path) -> None:
    with (
        LimitedNode(tmp_path / "data") as node,
        idle_connections(node.metrics, IDLE, b""),
    ):
        eventually(lambda: descriptors_of(node) < LIMIT // 4)
        eventually(lambda: is_healthy(node))


def test_too_few_descriptors_are_refused_at_the_start(tmp_path: Path) -> None:
    class Poor(LimitedNode):
        limit = "-n 300"

    node = Poor(tmp_path / "data").start(wait=False)
    assert node.running.wait(60) == 1
    assert "too few files may be open at a time; got 300" in node.log_text()
    assert "LimitNOFILE" in node.log_text()


def test_the_soft_limit_is_raised_at_the_start(tmp_path: Path) -> None:
    class Soft(LimitedNode):
        limit = "-S -n 256"

    with Soft(tmp_path / "data") as node:
        limits = Path(f"/proc/{node.running.pid}/limits").read_text()
        found = re.search(r"Max open files +(\d+) +(\d+)", limits)
        assert found is not None
        assert found[1] == found[2] != "256"


def is_healthy(node: NodeProcess) -> bool:
    try:
        return node.get("/healthz")[0] == 200
    except OSError:  # closed: one too many
        return False


def descriptors_of(node: NodeProcess) -> int:
    return len(list(Path(f"/proc/{node.running.pid}/fd").iterdir()))

"""Stopping with threads that do not end, and what a node says when it cannot do its whole job."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwheel import Client
from slotwheel.node import threads
from slotwheel.node.clock import wall_clock_ms
from slotwheel.node.config import NodeConfig
from slotwheel.node.node import STOP_WITHIN_S, Node
from slotwheel.wheel.config import WheelConfig
from support.nodeprocess import topic_rows
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S, eventually


class StepClock:
    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return wall_clock_ms() + self.offset_ms


@contextmanager
def running(
    data: Path,
    clock: StepClock | None = None,
    *,
    within_s: float = PATIENCE_S,
    **limits: Any,
) -> Iterator[tuple[Node, list[str]]]:
    """A node, and the threads that were left when it was stopped. ``within_s``: as of its stop."""
    config = NodeConfig(data, listen="127.0.0.1:0", metrics=None, wheel=WheelConfig(**limits))
    node = Node(config, clock=clock or wall_clock_ms)
    node.start()
    left: list[str] = []
    try:
        yield node, left
    finally:
        started = Stopwatch()
        left += node.stop(within_s)
        assert started.seconds < 2.0


class Deposed:
    """A master's threads, or a part of them: they are gone when somebody looks again."""

    def __init__(self, threads: Any) -> None:
        self.threads = threads
        self.looks = 0

    def __get__(self, _node: Node, _kind: type[Node]) -> Any:
        self.looks += 1
        return None if self.looks == 2 else self.threads


def test_a_master_that_is_deposed_while_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "data") as (node, left):
        sources = SimpleNamespace(unready=lambda: ["a topic is not read"])
        with monkeypatch.context() as patched:
            patched.setattr(Node, "_sources", Deposed(sources))
            assert node.unready() == ["a topic is not read"]
        assert node.unready() == []
        monkeypatch.setattr(Node, "_master_threads", Deposed(node._single))
    assert left == []


def test_a_peer_that_becomes_master_while_it_stops(tmp_path: Path) -> None:
    """The loop that starts a master's threads has not ended yet when these are looked for."""
    node = Node(NodeConfig(tmp_path / "data", listen="127.0.0.1:0", metrics=None))

    def start_late(stop: threading.Event) -> None:
        stop.wait(60)
        node._single = late

    late: Any = SimpleNamespace(stop=lambda _within_s: ["a thread that hangs"])
    node._threads.run("roles", start_late)
    assert node._stop_threads() == ["a thread that hangs"]


@pytest.mark.parametrize("stuck", ["hand", "slot-files"])
def test_a_stuck_thread_is_left_behind_and_costs_nothing_that_was_stored(
    tmp_path: Path, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, release = threading.Event(), threading.Event()

    def wait(*args: Any, **named: Any) -> Any:
        reached.set()
        release.wait(60)
        raise RuntimeError("was stuck")

    limits: dict[str, Any] = {"tail_age_ms": 100, "tail_keep_ms": 50}
    with running(tmp_path / "data", within_s=STOP_WITHIN_S, **limits) as (node, left):
        if stuck == "hand":
            monkeypatch.setattr(node._out.sink, "deliver", wait)
        else:
            monkeypatch.setattr(node.wheel, "spill", wait)
        with Client(node.listening) as client:
            client.send("kept", b"x", delay=0.05 if stuck == "hand" else 600).result(60)
        assert reached.wait(60)
        monkeypatch.setattr(threads, "SILENT_MAX_S", 0.5)
        eventually(lambda: any(stuck in reason for reason in node.unhealthy()))
    assert left == [stuck]
    # A real process ends here. In this one the thread goes on: let it, and close by hand.
    monkeypatch.undo()
    release.set()
    assert node._threads.stop(time.monotonic() + 60, last="syncer") == []
    node._undo.close()
    with running(tmp_path / "data") as (again, _):
        assert again.wheel.status().accepted == 1
        deadline = time.monotonic() + PATIENCE_S
        while stuck == "hand" and not topic_rows(tmp_path / "data", "kept"):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_clock_that_steps_back_is_told_and_nothing_leaves_early(tmp_path: Path) -> None:
    clock = StepClock()
    with running(tmp_path / "data", clock) as (node, _), Client(node.listening) as client:
        client.send("first", b"x", delay=0.05).result(60)
        eventually(lambda: node.wheel.status().delivered == 1)
        assert node.unready() == []
        clock.offset_ms = -3_000
        eventually(lambda: any("clock" in reason for reason in node.unready()))
        assert node.unhealthy() == []
        due = client.send("second", b"x", due=wall_clock_ms() + 500)
        due.result(60)
        eventually(lambda: "clock-behind" in node.metrics.render().decode())
        time.sleep(1.0)
        assert node.wheel.status().delivered == 1
        clock.offset_ms = 0
        eventually(lambda: node.wheel.status().delivered == 2)
        assert node.unready() == []


def test_a_disk_that_is_almost_full_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "data", disk_reserve_bytes=1 << 60) as (node, _):
        (reason,) = node.unready()
        assert "kept in reserve" in reason


def test_what_must_not_be_survived_ends_with_3() -> None:
    code = "from slotwheel.node.node import end_process; end_process(OSError('gone'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 3
    assert "gone" in done.stderr

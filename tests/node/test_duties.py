"""A node is not ready while anything that it was told to do fails again and again."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from slotwheel import Client, Message
from slotwheel.node import damage, duty, events, gateway, work
from slotwheel.node.config import NodeConfig
from slotwheel.node.duty import Duty
from slotwheel.node.gateway import GatewayProcess
from slotwheel.node.node import Node
from slotwheel.node.threads import Threads
from slotwheel.wheel.config import WheelConfig
from support.waiting import PATIENCE_S, eventually


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(work, "DEPARTURES_EVERY_S", 0.05)
    monkeypatch.setattr(damage, "PASS_EVERY_S", 0.1)
    monkeypatch.setattr(duty, "STEADY_S", 0.2)
    monkeypatch.setattr(events, "_DEPARTURES_STALE_S", 2.0)
    limits = WheelConfig(
        tail_age_ms=200, tail_keep_ms=50, disk_reserve_bytes=1, retain_ms=3_600_000
    )
    config = NodeConfig(
        tmp_path / "data",
        listen="127.0.0.1:0",
        metrics=None,
        wheel=limits,
        trace_retain_ms=3_600_000,
    )
    fatal: list[BaseException] = []
    started = Node(config, on_fatal=fatal.append)
    started.start()
    yield started
    assert started.stop(PATIENCE_S) == []
    assert fatal == []


Owner = Callable[[Node], Any]
_FAILS: dict[str, tuple[str, Owner, str]] = {
    "a spill": ("slot-files", lambda node: node.wheel, "spill"),
    "cleaning": ("slot-files", lambda node: node.wheel, "clean"),
    "the archive": ("archive", lambda node: node.wheel._storage.archive, "_link"),
    "the scrubber": ("scrubber", lambda node: node.wheel.scrubber, "turn"),
    "reading ahead": ("prefetcher", lambda node: node.wheel.dispatcher, "prepare"),
    "what is due": ("delivery", lambda node: node.wheel.dispatcher, "next_chunk"),
    "departures": ("keeping what left", lambda node: node._out.departures, "_append"),
    "old departures": ("departures", lambda node: node._out.departures, "clean"),
    "policies": ("policies", lambda node: node._policies, "_read"),
}


@pytest.mark.parametrize("which", _FAILS)
def test_what_fails_again_and_again_is_a_reason(
    which: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, owner, method = _FAILS[which]
    reason = "No space left on device"

    def fail(*_arguments: Any, **_named: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, reason)

    assert node.unready() == []
    assert hasattr(owner(node), method), "another method by now"
    with Client(node.listening) as client:

        def reasons() -> list[str]:
            client.send(Message("t", b"later", delay=600))  # something to spill
            client.send(Message("t", b"soon", delay=0.6))  # to clean and to deliver
            return node.unready()

        with monkeypatch.context() as patched:
            patched.setattr(owner(node), method, fail)
            eventually(lambda: any(name in text and reason in text for text in reasons()))
            assert node.unhealthy() == [], "a restart would not help"
        eventually(lambda: reasons() == [])


def test_a_gateway_that_ends_whenever_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "share", lambda *_: {"listen": "nowhere"})
    config: Any = None
    process = GatewayProcess(config, "")
    threads = Threads(lambda _kind, _error: None, lambda _error: None)
    try:
        threads.loop("gateway", process.turn)
        eventually(
            lambda: any("the gateway ended with exit code 1" in text for text in threads.failing())
        )
    finally:
        assert threads.stop(time.monotonic() + 60, last="") == []
        process.stop()


def test_one_failure_is_tried_again_before_it_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    sweeping = Duty("sweeping", stale_s=60.0)

    def failing() -> str | None:
        return sweeping.failing

    sweeping.worked()
    sweeping.failed("no broom")
    assert failing() is None
    now_s += 1
    sweeping.worked()  # as a process does that has just been started again
    sweeping.failed("no broom")
    assert failing() == "sweeping fails and is tried again, 2 times: no broom"
    now_s += 2
    sweeping.worked()
    assert failing() is not None
    now_s += 2
    sweeping.worked()
    assert failing() is None
    sweeping.failed("no broom")
    sweeping.failed("no broom")
    now_s += 61
    assert failing() is None, "nothing is known of now"

"""What fails inside a node costs a retry and an alarm, never the node; but for a failed sync."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Message
from slotwheel.node.config import NodeConfig
from slotwheel.node.node import Node
from slotwheel.node.work import SlotFileWork
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import SyncFailed
from slotwheel.wheel.files import OsHandle
from support.nodeprocess import topic_rows
from support.waiting import PATIENCE_S, eventually


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    limits = WheelConfig(tail_age_ms=200, tail_keep_ms=50, disk_reserve_bytes=1)
    config = NodeConfig(
        tmp_path / "data", listen="127.0.0.1:0", metrics="127.0.0.1:0", wheel=limits
    )
    fatal: list[BaseException] = []
    started = Node(config, on_fatal=fatal.append)
    started.start()
    yield started
    assert started.stop(PATIENCE_S) == []
    assert fatal == []


def test_an_exception_while_spilling(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = fails_at_first(node.wheel, "spill", 2, RuntimeError("spill"), monkeypatch)
    send(node, "later", delay=600)
    eventually(lambda: node.wheel.status().slot_rows == 10)
    assert len(spill) >= 3
    assert "slot-files-failed" in alarms(node)
    assert node.unhealthy() == []


def test_a_full_disk_while_spilling_does_not_keep_the_cleaner_from_work(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(node, "soon", delay=2.5)
    eventually(lambda: node.wheel.status().slot_files > 0)
    full = OSError(errno.ENOSPC, "No space left on device")
    spill = fails_at_first(node.wheel, "spill", 1 << 30, full, monkeypatch)
    send(node, "later", delay=600)
    eventually(lambda: len(spill) > 0 and node.wheel.status().slot_files == 0)
    assert node.wheel.status().delivered == 10
    monkeypatch.undo()
    eventually(lambda: node.wheel.status().slot_rows == 10)


def test_a_failed_sync_is_not_hidden_by_the_error_of_the_cleaner() -> None:
    class Broken:
        cleaned = 0

        def spill_needed(self, _now_ms: int) -> bool:
            return True

        def spill(self, *_arguments: Any, **_named: Any) -> None:
            raise SyncFailed("fdatasync failed")

        def clean(self, _now_ms: int) -> int:
            self.cleaned += 1
            raise OSError(errno.EIO, "input/output error")

    wheel: Any = Broken()
    metrics: Any = None
    with pytest.raises(SyncFailed):
        SlotFileWork(wheel, lambda: 0, metrics).turn()
    assert wheel.cleaned == 0


def test_what_the_archive_cannot_keep_is_told_and_not_too_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keeping:
        archive_missed = 0, ""

        def spill_needed(self, _now_ms: int) -> bool:
            return False

        def clean(self, _now_ms: int) -> int:
            missed = self.archive_missed[0] + 2
            self.archive_missed = missed, "Invalid cross-device link"
            return 0

        def index_ahead(self, _now_ms: int) -> None:
            pass

    monkeypatch.setattr("slotwheel.node.work.CLEAN_EVERY_S", 0.0)
    wheel: Any = Keeping()
    metrics: Any = None
    work = SlotFileWork(wheel, lambda: 0, metrics)
    for _ in range(3):
        work.turn()
    monkeypatch.setattr(work, "_next_log_s", 0.0)
    work.turn()
    told = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "WARNING"], told
    assert "could not keep" in told[0][1]


def test_an_exception_while_delivering(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    delivered = fails_at_first(node._out.sink, "deliver", 2, RuntimeError("sink"), monkeypatch)
    send(node, "soon", delay=0.2)
    eventually(lambda: node.wheel.status().delivered == 10)
    assert len(delivered) >= 3
    assert len(topic_rows(node.config.data, "soon")) == 10


def test_an_exception_while_asking_what_is_due(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at_first(node.wheel.dispatcher, "next_chunk", 3, RuntimeError("due"), monkeypatch)
    send(node, "soon", delay=0.2)
    eventually(lambda: node.wheel.status().delivered == 10)
    assert "delivery-error" in alarms(node)


def test_an_exception_while_opening_ahead(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = fails_at_first(
        node.wheel.dispatcher, "prepare", 3, RuntimeError("ahead"), monkeypatch
    )
    eventually(lambda: len(prepared) > 3)
    assert "prefetcher-failed" in alarms(node)
    send(node, "soon", delay=0.1)
    eventually(lambda: node.wheel.status().delivered == 10)


def test_a_failed_sync_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    fatal: list[BaseException] = []

    def on_fatal(error: BaseException) -> None:
        fatal.append(error)
        ended.set()

    config = NodeConfig(tmp_path / "data", listen="127.0.0.1:0", metrics=None)
    node = Node(config, on_fatal=on_fatal)
    node.start()

    def no_sync(handle: OsHandle) -> None:
        raise SyncFailed("fdatasync failed")

    monkeypatch.setattr(OsHandle, "sync", no_sync)
    with Client(node.listening, timeout_s=1) as client:
        receipt = client.send("soon", b"x", delay=1)
        assert ended.wait(60)
        assert receipt.error(10) is not None  # and never a receipt
    assert isinstance(fatal[0], SyncFailed)
    # The wire commits what is small; the syncer may be on its way to the same failure.
    assert node.unhealthy() in (
        ["thread wire has ended"],
        ["thread syncer has ended"],
        ["thread syncer has ended", "thread wire has ended"],
    )
    monkeypatch.undo()
    node.stop()


def test_stopping_twice_is_harmless(node: Node) -> None:
    assert node.stop(PATIENCE_S) == []
    assert node.unready() == ["the node is shutting down"]


def send(node: Node, topic: str, delay: float) -> None:
    with Client(node.listening) as client:
        client.send_many([Message(topic, b"x", delay=delay) for _ in range(10)]).result(60)


def fails_at_first(
    where: Any, name: str, times: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Let a method raise ``times`` times; when it was called, for the test to look at."""
    original = getattr(where, name)
    calls: list[float] = []

    def replacement(*args: Any, **named: Any) -> Any:
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise error
        return original(*args, **named)

    monkeypatch.setattr(where, name, replacement)
    return calls


def alarms(node: Node) -> str:
    text = node.metrics.render().decode()
    return "\n".join(
        line for line in text.splitlines() if line.startswith("slotwheel_alarms_total")
    )

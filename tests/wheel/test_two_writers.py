"""The syncer and the wire both write and commit: entries become visible in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from slotwheel.wheel.errors import SyncFailed
from slotwheel.wheel.tail.tail import Piece, Tail
from support.crashlife import Steps, World
from support.waiting import eventually


def test_what_two_threads_commit_becomes_visible_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Steps(), embedded=False)
    world.open()
    wheel = world.wheel
    taken, go_on = threading.Event(), threading.Event()
    grown = Tail.grown

    def slow_at_first(*given: Any, **more: Any) -> Sequence[Piece]:
        if not taken.is_set():
            taken.set()
            go_on.wait(60)
        return grown(*given, **more)

    monkeypatch.setattr(Tail, "grown", slow_at_first)
    threads = [threading.Thread(target=wheel.write_pending, args=(0.0,)) for _ in range(2)]
    for name, thread in zip(("first", "second"), threads, strict=True):
        world.append(name, [("x", 5100), ("y", 5200)])
        thread.start()
        assert taken.wait(60)
    log = wheel._log
    eventually(lambda: log.journal.durable_index == log.next_index - 1)
    time.sleep(0.1)  # the second could overtake now
    go_on.set()
    for thread in threads:
        thread.join(60)
    pieces = wheel._storage.tail.pieces
    ends = [piece.next_offset for piece in pieces]
    assert [piece.base_offset for piece in pieces[1:]] == ends[:-1]
    assert (log.commit_index, log.committed_offset) == (log.next_index - 1, log.next_offset)
    assert ends[-1] == log.next_offset


def test_after_a_failed_sync_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports it once; the next sync would hide that the first entry is lost."""
    world = World(Steps(), embedded=False)
    world.open()
    wheel = world.wheel
    journal = wheel._log.journal

    def fails() -> None:
        raise SyncFailed("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "sync", fails)
        world.append("first", [("x", 5100)])
        with pytest.raises(SyncFailed):
            wheel.write_pending(0.0)
    written = journal.last_index
    world.append("second", [("x", 5100)])
    with pytest.raises(SyncFailed):
        wheel.write_pending(0.0)
    assert journal.last_index == written
    assert wheel.status().commit_index < written

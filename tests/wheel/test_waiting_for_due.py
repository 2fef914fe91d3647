"""When the hand is woken: by every row that can leave, and by nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel.wheel.config import WheelConfig
from support.stopwatch import Stopwatch
from support.wheels import NOW, Node, master_of, opened


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        yield node


def test_a_row_committed_while_the_hand_looks_does_not_have_to_wait(node: Node) -> None:
    """Behind the last look at what is committed, before the slot is chosen: still woken for."""
    due: Any = master_of(node.wheel).due
    choose = due._choose_cursor

    def choose_late(*arguments: Any) -> None:
        due._choose_cursor = choose
        node.send([(NOW, "t", b"v")], NOW)
        choose(*arguments)

    due._choose_cursor = choose_late
    assert master_of(node.wheel).next_chunk(NOW) is None
    began = Stopwatch()
    master_of(node.wheel).wait_for_due(master_of(node.wheel).next_due_ms(), NOW, 5.0)
    assert began.seconds < 1.0
    assert node.delivered(NOW) == [b"v"]


def test_the_hand_does_not_spin_while_a_late_row_waits_for_its_cancel(node: Node) -> None:
    assert node.next_chunk(NOW) is None
    ids = node.ids_of(node.send([(NOW, "t", b"v")], NOW))
    asked = threading.Thread(target=node.wheel.cancel, args=(ids, NOW, 5.0))
    asked.start()
    while not list(node.wheel._cancels.pending(NOW // 1000)):
        time.sleep(0.001)
    assert master_of(node.wheel).next_chunk(NOW) is None
    began = time.monotonic()
    master_of(node.wheel).wait_for_due(NOW + 50, NOW, 5.0)
    assert time.monotonic() - began >= 0.04
    node.sync()
    asked.join()

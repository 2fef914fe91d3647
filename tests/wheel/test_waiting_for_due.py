"""When the hand is woken: by every row that can leave, and by nothing else."""

from __future__ import annotations

import threading
import time
from typing import Any

from support.stopwatch import Stopwatch
from support.wheels import NOW, Node, master_of


def test_a_row_committed_while_the_hand_looks_does_not_have_to_wait(usual: Node) -> None:
    """Behind the last look at what is committed, before the slot is chosen: still woken for."""
    due: Any = master_of(usual.wheel).due
    choose = due._choose_cursor

    def choose_late(*arguments: Any) -> None:
        due._choose_cursor = choose
        usual.send([(NOW, "t", b"v")], NOW)
        choose(*arguments)

    due._choose_cursor = choose_late
    assert master_of(usual.wheel).next_chunk(NOW) is None
    began = Stopwatch()
    master_of(usual.wheel).wait_for_due(master_of(usual.wheel).next_due_ms(), NOW, 5.0)
    assert began.seconds < 1.0
    assert usual.delivered(NOW) == [b"v"]


def test_the_hand_does_not_spin_while_a_late_row_waits_for_its_cancel(usual: Node) -> None:
    assert usual.next_chunk(NOW) is None
    ids = usual.ids_of(usual.send([(NOW, "t", b"v")], NOW))
    asked = threading.Thread(target=usual.wheel.cancel, args=(ids, NOW, 5.0))
    asked.start()
    while not list(usual.wheel._cancels.pending(NOW // 1000)):
        time.sleep(0.001)
    assert master_of(usual.wheel).next_chunk(NOW) is None
    began = time.monotonic()
    master_of(usual.wheel).wait_for_due(NOW + 50, NOW, 5.0)
    assert time.monotonic() - began >= 0.04
    usual.sync()
    asked.join()

"""Open slot files: nobody waits for a file but who wants that one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from slotwheel.wheel.slots.openslots import OpenSlots
from slotwheel.wheel.state import SlotInfo
from support.wheels import rows_at

SLOW = 100
INFO = SlotInfo(100, 1, 0, 1, 0)


class OneIsSlow:
    """Slot files, of which the one of ``SLOW`` is read until it may end."""

    map_from_bytes = 1

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.reads = 0

    def read(self, second: int, *_known: Any) -> list[pa.RecordBatch]:
        self.reads += 1
        if second == SLOW:
            self.begun.set()
            assert self.may_end.wait(60)
        return [rows_at([(second * 1000, 1)])]


def test_a_file_that_is_read_ahead_keeps_no_other_from_being_read() -> None:
    files: Any = OneIsSlow()
    slots = OpenSlots(files, 1 << 20)
    others = [*range(SLOW - 40, SLOW), *range(SLOW + 1, SLOW + 40)]
    with ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(slots.blocks, SLOW, INFO) for _ in range(2)]
        try:
            assert files.begun.wait(60)
            found = [pool.submit(slots.blocks, second, INFO).result(60) for second in others]
            assert [len(blocks) for blocks in found] == [1] * len(others)
            assert not any(one.done() for one in slow)
        finally:
            files.may_end.set()
        assert [len(one.result(60)) for one in slow] == [1, 1]
    assert files.reads == len(others) + 1, "each is read once"
    assert not len(slots._kept.turns)

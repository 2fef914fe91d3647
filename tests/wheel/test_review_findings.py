"""What a review of the engine found: each of these once failed."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.node.work import SlotFileWork
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import SyncFailed
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.receipt import CancelAnswer, Receipt
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel
from support.stopwatch import Stopwatch

NOW = 1_000_000
ROOMY = WheelConfig(disk_reserve_bytes=0)


def opened(path: Path, config: WheelConfig = ROOMY) -> Wheel:
    return Wheel.open(OsFiles(path), LmdbState(path), config, NOW)


def add(wheel: Wheel, dues: list[int], value: bytes = b"v") -> Receipt:
    rows = len(dues)
    none = [None] * rows
    batch = from_columns(dues, ["t"] * rows, none, none, [value] * rows, [()] * rows)
    future = wheel.append(batch, NOW)
    wheel.write_pending(0)
    return future.result(0)


def ids_of(wheel: Wheel, receipt: Receipt) -> list[MessageId]:
    dues = receipt.due.tolist()
    return [wheel.mint.one(due, receipt.base_offset + row) for row, due in enumerate(dues)]


def deliver_one(wheel: Wheel, now_ms: int) -> int:
    chunk = wheel.next_chunk(now_ms)
    assert chunk is not None
    wheel.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    return int(chunk.rows.num_rows)


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
        SlotFileWork(wheel, lambda: NOW, metrics).turn()
    assert wheel.cleaned == 0


def test_the_key_of_the_ids_survives_a_first_write_that_failed(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    journal: Any = wheel._log.journal
    append = journal.append

    def full(_entries: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    journal.append = full
    wheel.write_pending(0)
    journal.append = append
    one = ids_of(wheel, add(wheel, [NOW + 5_000]))[0]
    wheel.close()
    wheel = opened(tmp_path)
    assert wheel.mint.genuine(one)
    wheel.close()


def test_a_cancel_of_many_rows_in_flight_waits_once(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    ids = ids_of(wheel, add(wheel, [NOW] * 20))
    assert wheel.next_chunk(NOW) is not None
    began = Stopwatch()
    assert wheel.cancel(ids, NOW, 0.1) == [CancelAnswer.UNKNOWN] * 20
    assert began.seconds < 1.0
    wheel.close()


def test_a_row_that_goes_into_flight_again_while_a_cancel_waits_for_it(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    ids = ids_of(wheel, add(wheel, [NOW, NOW]))
    first = wheel.next_chunk(NOW)
    assert first is not None
    answers: list[CancelAnswer] = []
    asked = threading.Thread(target=lambda: answers.extend(wheel.cancel(ids, NOW, 5.0)))
    with wheel._lock:
        asked.start()
        time.sleep(0.05)
    time.sleep(0.1)  # it waits for both rows, and has let go of the lock
    with wheel._lock:  # in one go: both are in flight when the question is asked again
        wheel.answer(first, np.zeros(2, np.bool_), sink_down=True)
        second = wheel.next_chunk(NOW)
    assert second is not None
    time.sleep(0.1)
    assert not answers
    wheel.answer(second, np.ones(2, np.bool_))
    asked.join(5.0)
    assert answers == [CancelAnswer.DELIVERED] * 2
    wheel.close()


def test_rows_that_join_an_open_window_do_not_outgrow_it(tmp_path: Path) -> None:
    """All due at one millisecond, coming in faster than they leave."""
    config = WheelConfig(
        disk_reserve_bytes=0, window_bytes_max=50_000, chunk_rows_max=10, tail_bytes_max=300_000
    )
    wheel = opened(tmp_path, config)
    due, now_ms = NOW + 500, NOW + 600
    add(wheel, [due] * 20, b"v" * 1000)
    sent, delivered, largest = 20, 0, 0
    for _ in range(60):
        add(wheel, [due] * 50, b"v" * 1000)
        sent += 50
        if wheel.spill_needed(now_ms):
            wheel.spill(now_ms)
        delivered += deliver_one(wheel, now_ms)
        cursor = wheel._due._main.cursor
        if cursor is not None:
            largest = max(largest, cursor._window.nbytes)
    assert largest <= 3 * config.window_bytes_max
    while delivered < sent:
        delivered += deliver_one(wheel, now_ms)
    assert wheel.next_chunk(now_ms) is None
    wheel.close()


def test_late_rows_in_slot_files_are_taken_by_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that was down, and rows that were sent meanwhile as due long ago."""
    from slotwheel.wheel import reader

    config = WheelConfig(disk_reserve_bytes=0, chunk_rows_max=10, chunk_bytes_max=20_000)
    wheel = opened(tmp_path, config)
    assert wheel.next_chunk(NOW - 1) is None  # the mark follows the clock
    add(wheel, [NOW])
    down = wheel.next_chunk(NOW)
    assert down is not None
    wheel.answer(down, np.zeros(1, np.bool_), sink_down=True)
    for due in (0, 5_000, 0, 7_000, 0):
        add(wheel, [due, due + 1] * 100, b"v" * 1000)
        wheel.spill(NOW, everything=True)
    sizes: list[int] = []
    in_files = reader._late_in_files

    def measured(*arguments: Any) -> Any:
        found = in_files(*arguments)
        sizes.append(found[0].nbytes)
        return found

    monkeypatch.setattr(reader, "_late_in_files", measured)
    offsets: list[int] = []
    while (chunk := wheel.next_chunk(NOW)) is not None:
        offsets += chunk.rows.column("offset").to_pylist()
        wheel.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert offsets == [*range(1, 1001), 0]
    assert max(sizes) <= 3 * config.chunk_bytes_max
    wheel.close()


def test_a_row_committed_while_the_hand_looks_does_not_have_to_wait(tmp_path: Path) -> None:
    """Behind the last look at what is committed, before the slot is chosen: still woken for."""
    wheel = opened(tmp_path)
    due: Any = wheel._due
    choose = due._choose_cursor

    def choose_late(*arguments: Any) -> None:
        due._choose_cursor = choose
        add(wheel, [NOW])
        choose(*arguments)

    due._choose_cursor = choose_late
    assert wheel.next_chunk(NOW) is None
    began = Stopwatch()
    wheel.wait_for_due(wheel.next_due_ms(), NOW, 5.0)
    assert began.seconds < 1.0
    assert deliver_one(wheel, NOW) == 1
    wheel.close()


def test_the_hand_does_not_spin_while_a_late_row_waits_for_its_cancel(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    assert wheel.next_chunk(NOW) is None
    ids = ids_of(wheel, add(wheel, [NOW]))
    asked = threading.Thread(target=wheel.cancel, args=(ids, NOW, 5.0))
    asked.start()
    while not list(wheel._cancels.pending(NOW // 1000)):
        time.sleep(0.001)
    assert wheel.next_chunk(NOW) is None
    began = time.monotonic()
    wheel.wait_for_due(NOW + 50, NOW, 5.0)
    assert time.monotonic() - began >= 0.04
    wheel.write_pending(0)
    asked.join()
    wheel.close()


def test_a_held_topic_waits_for_a_clock_behind_the_main_mark(tmp_path: Path) -> None:
    wheel = opened(tmp_path)
    add(wheel, [NOW + 10])
    chunk = wheel.next_chunk(NOW + 10)
    assert chunk is not None
    wheel.answer(chunk, np.zeros(1, np.bool_))
    assert wheel.next_chunk(NOW + 5_000) is None
    chunk = wheel.next_topic_chunk("t", NOW + 20)
    assert chunk is not None
    wheel.answer(chunk, np.ones(1, np.bool_))
    assert wheel.next_topic_chunk("t", NOW + 20) is None  # and no empty chunks, one after the other
    assert wheel.held_topics() == ["t"]
    assert wheel.next_topic_chunk("t", NOW + 5_000) is None
    assert wheel.held_topics() == []
    wheel.close()

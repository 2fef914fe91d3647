"""Memory is bounded, whatever is pending and whatever is due at once (I9 of docs/design.md)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due import reader
from slotwheel.wheel.schema import times
from support.wheels import NOW, Node, master_of, opened


def deliver_one(node: Node, now_ms: int) -> int:
    """One chunk; its rows."""
    chunk = node.next_chunk(now_ms)
    assert chunk is not None
    master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    return int(chunk.rows.num_rows)


def test_rows_that_join_an_open_window_do_not_outgrow_it(tmp_path: Path) -> None:
    """All due at one millisecond, coming in faster than they leave."""
    config = WheelConfig(
        disk_reserve_bytes=0, window_bytes_max=50_000, chunk_rows_max=10, tail_bytes_max=300_000
    )
    due, now_ms = NOW + 500, NOW + 600
    with opened(tmp_path, config, NOW) as node:
        wheel = node.wheel
        node.send([(due, "t", b"v" * 1000)] * 20, NOW)
        sent, delivered, largest = 20, 0, 0
        for _ in range(60):
            node.send([(due, "t", b"v" * 1000)] * 50, NOW)
            sent += 50
            if wheel.spill_needed(now_ms):
                wheel.spill(now_ms)
            delivered += deliver_one(node, now_ms)
            cursor = master_of(wheel).due.lines.main.cursor
            if cursor is not None:
                largest = max(largest, cursor._window.nbytes)
        assert largest <= 3 * config.window_bytes_max
        while delivered < sent:
            delivered += deliver_one(node, now_ms)
        assert node.next_chunk(now_ms) is None


def test_late_rows_in_slot_files_are_taken_by_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that was down, and rows that were sent meanwhile as due long ago."""
    config = WheelConfig(disk_reserve_bytes=0, chunk_rows_max=10, chunk_bytes_max=20_000)
    with opened(tmp_path, config, NOW) as node:
        assert node.next_chunk(NOW - 1) is None  # the mark follows the clock
        node.send([(NOW, "t", b"v")], NOW)
        assert node.delivered(NOW, lambda _: False, down=True) == []
        for due in (0, 5_000, 0, 7_000, 0):
            node.send([(due + n % 2, "t", b"v" * 1000) for n in range(200)], NOW)
            node.wheel.spill(NOW, everything=True)
        sizes: list[int] = []
        in_files = reader._late_in_files

        def measured(*arguments: Any) -> Any:
            found = in_files(*arguments)
            sizes.append(found[0].nbytes)
            return found

        monkeypatch.setattr(reader, "_late_in_files", measured)
        offsets: list[int] = []
        while (chunk := node.next_chunk(NOW)) is not None:
            offsets += chunk.rows.column("offset").to_pylist()
            master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
        assert offsets == [*range(1, 1001), 0]
        assert max(sizes) <= 3 * config.chunk_bytes_max


def test_what_is_pending_takes_no_memory_and_no_time_to_count(tmp_path: Path) -> None:
    rows, held = 0, []
    column = np.arange(50_000)
    with opened(tmp_path, WheelConfig(), NOW) as node:
        for part in range(8):
            due = NOW + 60_000 + (column * 137 + part) % 600_000
            node.send([(int(at), "t", b"x" * 50) for at in due], NOW)
            rows += len(due)
            if part % 4 == 3:
                node.wheel.spill(NOW, everything=True)
                pa.default_memory_pool().release_unused()
                held.append(pa.total_allocated_bytes())
        times_s = []
        for _ in range(50):
            began = time.thread_time()
            assert node.wheel.status().pending == rows
            times_s.append(time.thread_time() - began)
    assert np.median(times_s) < 0.005
    assert held[1] - held[0] < 4 << 20, "memory grew with what is pending"


def test_a_burst_at_one_millisecond_leaves_in_bounded_chunks(tmp_path: Path) -> None:
    config = WheelConfig(window_bytes_max=1 << 20, chunk_rows_max=5_000)
    with opened(tmp_path, config, NOW) as node:
        for part in range(4):
            numbers = range(part * 25_000, (part + 1) * 25_000)
            node.send([(NOW + 5_000, "t", b"%d" % n) for n in numbers], NOW)
        node.wheel.spill(NOW, everything=True)
        assert node.next_chunk(NOW + 4_999) is None
        began, got = time.perf_counter(), []
        while (chunk := node.next_chunk(NOW + 5_000)) is not None:
            assert chunk.rows.num_rows <= 5_000
            got.append(times(chunk.rows, "offset"))
            master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert time.perf_counter() - began < 20
    assert np.array_equal(np.concatenate(got), np.arange(100_000))

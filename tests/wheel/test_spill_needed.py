"""The tail is spilled when it is worth it; what leaves before then needs no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.schedules import SchedulePut
from support.wheels import NOW, opened

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "age_ms", "journal_bytes", "spilled"),
    [
        (128 * MIB - 1, 9_999, 900 * MIB, False),
        (128 * MIB, 0, 0, True),
        (MIB, 10_000, 4 * MIB - 1, False),
        (MIB, 9_999, 4 * MIB, False),
        (MIB, 10_000, 4 * MIB, True),
        (1, 599_999, 1, False),
        (1, 600_000, 1, True),
    ],
)
def test_by_size_by_age_or_by_what_a_restart_reads(
    nbytes: int, age_ms: int, journal_bytes: int, spilled: bool
) -> None:
    assert WheelConfig().tail_is_worth_a_spill(nbytes, age_ms, journal_bytes) is spilled


@pytest.mark.parametrize(("age_ms", "spilled"), [(499, False), (500, True)])
def test_a_short_age_is_kept_whatever_there_is(age_ms: int, spilled: bool) -> None:
    config = WheelConfig(tail_age_ms=500)
    assert config.tail_is_worth_a_spill(1, age_ms, 1) is spilled


def test_less_memory_for_the_tail_is_less_that_is_worth_a_spill() -> None:
    small = WheelConfig(tail_bytes_max=4 * MIB)
    assert small.tail_is_worth_a_spill(1, 10_000, MIB // 8)
    assert not small.tail_is_worth_a_spill(1, 10_000, MIB // 8 - 1)


def test_what_the_journal_got_since_the_last_spill_counts(tmp_path: Path) -> None:
    """Else a journal whose open segment stays would ask for a spill every ten seconds."""
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0, tail_bytes_max=MIB), NOW) as node:
        for now_ms in (NOW, NOW + 60_000):
            node.send([(NOW + 3_600_000, "t", b"v" * 20_000)], now_ms)
            assert not node.wheel.spill_needed(now_ms + 10_000)
            node.send([(NOW + 3_600_000, "t", b"v" * 20_000)], now_ms + 1)
            assert not node.wheel.spill_needed(now_ms + 9_999)
            assert node.wheel.spill_needed(now_ms + 10_000)
            node.wheel.spill(now_ms + 10_000)


def test_what_left_before_the_spill_needs_no_file(tmp_path: Path) -> None:
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        node.send([(NOW + 60_000 + at, "t", b"v") for at in range(50)], NOW)
        node.send([(NOW + 3_600_000, "t", b"later")], NOW)
        assert not node.wheel.spill_needed(NOW + 60_100)
        assert len(node.delivered(NOW + 60_100)) == 50
        node.mark(NOW + 60_100)
        assert node.wheel.spill_needed(NOW + 600_000)
        report = node.wheel.spill(NOW + 600_000)
        assert (report.rows, report.skipped, report.slots) == (1, 50, 1)
        assert not node.wheel.spill_needed(NOW + 1_200_000)


def test_schedules_without_rows_are_not_left_to_a_restart(tmp_path: Path) -> None:
    """100,000 that were put one by one would be 100,000 entries to read."""
    config = WheelConfig(disk_reserve_bytes=0, tail_bytes_max=MIB)
    with opened(tmp_path, config, NOW) as node:
        for number in range(100):
            change = SchedulePut(f"s{number}", b"v" * 1_000, NOW)
            node.wheel.change_schedules([(change, 0)], NOW)
            node.sync()
            if node.wheel.status().journal_bytes < MIB // 32:
                assert not node.wheel.spill_needed(NOW)
        assert node.wheel.spill_needed(NOW)
        node.wheel.spill(NOW)
        assert not node.wheel.spill_needed(NOW)
    with opened(tmp_path, config, NOW) as node:
        assert node.wheel.recovery.entries < 5
        assert len(node.wheel.schedule_names()) == 100

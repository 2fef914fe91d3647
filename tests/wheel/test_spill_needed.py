"""The tail is spilled when it is worth it; what leaves before then needs no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel.wheel.config import WheelConfig
from support.wheels import NOW, opened

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "age_ms", "spilled"),
    [
        (128 * MIB - 1, 9_999, False),
        (128 * MIB, 0, True),
        (4 * MIB - 1, 10_000, False),
        (4 * MIB, 9_999, False),
        (4 * MIB, 10_000, True),
        (1, 599_999, False),
        (1, 600_000, True),
    ],
)
def test_by_size_by_age_or_by_both(nbytes: int, age_ms: int, spilled: bool) -> None:
    assert WheelConfig().tail_is_worth_a_spill(nbytes, age_ms) is spilled


@pytest.mark.parametrize(("age_ms", "spilled"), [(499, False), (500, True)])
def test_a_short_age_is_kept_whatever_the_tail_has(age_ms: int, spilled: bool) -> None:
    config = WheelConfig(tail_age_ms=500)
    assert config.tail_is_worth_a_spill(1, age_ms) is spilled


def test_less_memory_for_the_tail_is_less_that_is_worth_a_spill() -> None:
    small = WheelConfig(tail_bytes_max=4 * MIB)
    assert small.tail_is_worth_a_spill(MIB // 8, 10_000)
    assert not small.tail_is_worth_a_spill(MIB // 8 - 1, 10_000)


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

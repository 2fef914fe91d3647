"""Facts stay until their window is judged, and a repeated batch counts once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotwheel.replay.facts.fact import FACT, Facts
from slotwheel.replay.following import ledger
from slotwheel.replay.following.ledger import Appender
from slotwheel.wheel.errors import Damaged


def facts(*dues: int) -> Facts:
    made = np.zeros(len(dues), FACT)
    made["due"] = dues
    return made


def dues(folder: Path, lengths: dict[int, int], start: int) -> list[int]:
    found: list[int] = ledger.read(folder, start, lengths[start])["due"].tolist()
    return found


def test_windows_start_inclusive_end_exclusive(tmp_path: Path) -> None:
    appender = Appender(tmp_path, 100, {})
    appender.add(facts(250, 0, 99, 100, 251))
    appender.add(facts(1))
    size = FACT.itemsize
    assert appender.lengths == {0: 3 * size, 100: size, 200: 2 * size}
    assert dues(tmp_path, appender.lengths, 0) == [0, 99, 1]
    assert dues(tmp_path, appender.lengths, 200) == [250, 251]


def test_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    before = Appender(tmp_path, 100, {})
    before.add(facts(1, 2))
    for _ in range(2):  # the first time the process ended before it was written down
        appender = Appender(tmp_path, 100, before.lengths)
        appender.add(facts(3, 150))
        appender.add(facts(4))
    assert dues(tmp_path, appender.lengths, 0) == [1, 2, 3, 4]
    assert dues(tmp_path, appender.lengths, 100) == [150]


def test_a_window_that_comes_again_is_empty(tmp_path: Path) -> None:
    appender = Appender(tmp_path, 100, {})
    appender.add(facts(1, 2))
    again = Appender(tmp_path, 100, {})
    again.add(facts(3))
    assert dues(tmp_path, again.lengths, 0) == [3]


def test_a_file_that_is_too_short_is_damage(tmp_path: Path) -> None:
    appender = Appender(tmp_path, 100, {})
    appender.add(facts(1, 2))
    with pytest.raises(Damaged, match="192 bytes"):
        ledger.read(tmp_path, 0, 3 * FACT.itemsize)

"""Schedules in simulated histories: masters fail, writes are lost, checkpoints are newer than their
index; each run is one row. Each rule that this rests on is taken out once, and is missed.

A hundred thousand histories: ``python -m pytest -m soak tests/wheel/test_schedule_histories.py``
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slotwheel.wheel import schedules, scheduletable
from slotwheel.wheel.schedules import FiredRun, StoredSchedule
from support.schedulelog import ScheduleHistory

HISTORIES = 1500


@pytest.mark.parametrize("histories", [HISTORIES, pytest.param(100_000, marks=pytest.mark.soak)])
def test_each_run_is_one_row(histories: int, figure: Callable[[str], None]) -> None:
    rows = 0
    for seed in range(histories):
        history = ScheduleHistory(seed)
        assert history.play() == [], seed
        rows += sum(len(entry.rows) for entry in history.log)
    assert rows > histories
    figure(f"{histories} histories with {rows} rows")


def found_within(unnoted: float = 0.0) -> bool:
    return any(ScheduleHistory(seed, unnoted).play() for seed in range(HISTORIES))


def test_a_row_without_its_note_is_found() -> None:
    assert found_within(unnoted=0.1)


def test_a_version_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def number_alone(state: StoredSchedule, run: FiredRun) -> bool:
        return run.number == state.runs + 1

    monkeypatch.setattr(schedules, "is_next", number_alone)
    monkeypatch.setattr(scheduletable, "is_next", number_alone)
    assert found_within()


def test_a_run_that_is_fired_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a master that does not look at the number of the last run."""

    def version_alone(state: StoredSchedule, run: FiredRun) -> bool:
        return run.version == state.version

    monkeypatch.setattr(schedules, "is_next", version_alone)
    monkeypatch.setattr(scheduletable, "is_next", version_alone)
    assert found_within()


def test_a_table_that_forgets_what_is_queued_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that decides by committed entries alone fires what waits for its sync again."""
    monkeypatch.setattr(
        scheduletable.ScheduleTable, "get", lambda table, name: table._committed.get(name)
    )
    assert found_within()

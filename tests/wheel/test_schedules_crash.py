"""Schedules through power cuts at every step: see ``support/crashschedules.py``. That the sweep
finds something is shown by rules of the engine that are taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from slotwheel.wheel import wheel
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal import queued
from slotwheel.wheel.scheduletable import ScheduleTable
from support.crashlife import Steps, shorten_widths
from support.crashschedules import ScheduledWorld
from support.crashscript import cut_lives, length

Patch = pytest.MonkeyPatch
LIVES = 30
MANY = 3_000
LIVES_MAX = 400
"""A breakage that does not show in so many lives has not been found."""


@pytest.fixture(autouse=True)
def _widths_are_short(monkeypatch: Patch) -> None:
    shorten_widths(monkeypatch)


@cache
def steps_of_a_life() -> int:
    return length(ScheduledWorld(Steps()))


def lives(count: int, seed: int) -> dict[str, int]:
    return cut_lives(ScheduledWorld, steps_of_a_life(), count, seed)


def test_schedules_through_crashes(figure: Callable[[str], None]) -> None:
    counts = lives(LIVES, 1)
    figure(f"schedules: {LIVES} lives of {steps_of_a_life()} steps, {counts}")
    assert counts["runs"] > 10 * LIVES
    assert counts["missed"] > 0


@pytest.mark.soak
def test_schedules_through_many_crashes(figure: Callable[[str], None]) -> None:
    figure(f"schedules: {MANY} lives, {lives(MANY, 2)}")


def runs_not_noted(patch: Patch) -> None:
    patch.setattr(wheel, "encode_runs", lambda _: b"")


def notes_ignored_at_recovery(patch: Patch) -> None:
    patch.setattr(queued, "_runs_of", lambda *_: [])


def records_not_saved(patch: Patch) -> None:
    patch.setattr(ScheduleTable, "unsaved", lambda _: {})


def deletions_not_saved(patch: Patch) -> None:
    unsaved = ScheduleTable.unsaved

    def without(self: ScheduleTable) -> Any:
        return {name: state for name, state in unsaved(self).items() if state is not None}

    patch.setattr(ScheduleTable, "unsaved", without)


BREAKAGES: Sequence[Callable[[Patch], None]] = (
    runs_not_noted,
    notes_ignored_at_recovery,
    records_not_saved,
    deletions_not_saved,
)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
def test_the_sweep_finds(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    steps_of_a_life()
    breakage(monkeypatch)
    with pytest.raises((AssertionError, Damaged)):
        lives(LIVES_MAX, 3)

"""The crash sweep over a life with names, and rules of names taken out of it, which it notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.due import namer
from slotwheel.wheel.due.namer import NameDecisions, Namer
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal import queued
from slotwheel.wheel.journal.log import Log
from slotwheel.wheel.named import table
from slotwheel.wheel.named.table import NamesChange, NameTable
from support.crashfs import without_sync
from support.crashlife import Steps, shorten_widths
from support.crashnames import NamedWorld
from support.crashscript import cut_lives, length

Patch = pytest.MonkeyPatch
Figure = Callable[[str], None]
LIVES = 20
MANY = 3_000
LIVES_MAX = 400
"""A breakage that does not show in so many lives has not been found."""


@pytest.fixture(autouse=True)
def _widths_are_short(monkeypatch: Patch) -> None:
    shorten_widths(monkeypatch)


@cache
def steps_of_a_life() -> int:
    return length(NamedWorld(Steps()))


def lives(count: int, seed: int) -> dict[str, int]:
    return cut_lives(NamedWorld, steps_of_a_life(), count, seed)


def test_names_through_crashes(figure: Figure) -> None:
    counts = lives(LIVES, 1)
    figure(f"names: {LIVES} lives of {steps_of_a_life()} steps, {counts}")
    expected = {"replaced", "kept", "already delivered", "unknown", "refused", "overloaded"}
    assert expected <= counts.keys()


@pytest.mark.soak
def test_names_through_many_crashes(figure: Figure) -> None:
    figure(f"names: {MANY} lives, {lives(MANY, 2)}")


def replaced_rows_not_cancelled(patch: Patch) -> None:
    decide = Namer.decide

    def without(self: Namer, named: Any, due: Any, base: int, *more: Any) -> NameDecisions:
        decided = decide(self, named, due, base, *more)
        kept = [at for at, offset in enumerate(decided.offset) if offset >= base]
        decided.due = [decided.due[at] for at in kept]
        decided.offset = [decided.offset[at] for at in kept]
        return decided

    patch.setattr(Namer, "decide", without)


def runs_not_synced(patch: Patch) -> None:
    without_sync(patch, table, "write_run")


def names_not_moved_at_a_spill(patch: Patch) -> None:
    def forget(self: NameTable, upto: int, gone: Any) -> NamesChange:
        frozen = self._layers[: self._frozen]
        left = tuple(layer.behind(upto) for layer in frozen)
        return NamesChange(self.runs, None, left, len(frozen))

    patch.setattr(NameTable, "spill", forget)


def notes_ignored_at_recovery(patch: Patch) -> None:
    patch.setattr(queued, "named_in", lambda notes: ())


def kept_row_takes_the_name(patch: Patch) -> None:
    names_of = queued._names_of
    patch.setattr(queued, "_names_of", lambda piece, cancels: names_of(piece, None))


def cancels_of_runs_forgotten_in_a_merge(patch: Patch) -> None:
    write, merge = NameTable._write, NameTable.merge
    merging: list[bool] = []

    def forget(self: NameTable, room: int, shares: Any, cancelled: Any) -> Any:
        return write(self, room, shares, cancelled[:0] if merging else cancelled)

    def merged(self: NameTable, *arguments: Any) -> Any:
        merging.append(True)
        try:
            return merge(self, *arguments)
        finally:
            merging.clear()

    patch.setattr(NameTable, "_write", forget)
    patch.setattr(NameTable, "merge", merged)


def leaving_rows_treated_as_gone(patch: Patch) -> None:
    holders = Namer._holders
    hasty = {namer._Holder.LEAVING: namer._Holder.GONE}

    def all_decided(self: Namer, *arguments: Any) -> Any:
        return {key: hasty.get(at, at) for key, at in holders(self, *arguments).items()}

    patch.setattr(Namer, "_holders", all_decided)


def cancels_not_moved_at_a_spill(patch: Patch) -> None:
    write, spill = NameTable._write, NameTable.spill

    def without(self: NameTable, upto: int, gone: Any) -> NamesChange:
        with pytest.MonkeyPatch.context() as within:
            nothing = np.empty(0, np.int64)
            within.setattr(
                NameTable,
                "_write",
                lambda self, room, shares, _: write(self, room, shares, nothing),
            )
            return spill(self, upto, gone)

    patch.setattr(NameTable, "spill", without)


def refused_before_the_holder_is_committed(patch: Patch) -> None:
    patch.setattr(Log, "awaited_row", lambda self, offset, *, early: None)


BREAKAGES: Sequence[Callable[[Patch], None]] = (
    replaced_rows_not_cancelled,
    runs_not_synced,
    names_not_moved_at_a_spill,
    notes_ignored_at_recovery,
    kept_row_takes_the_name,
    cancels_of_runs_forgotten_in_a_merge,
    cancels_not_moved_at_a_spill,
    leaving_rows_treated_as_gone,
    refused_before_the_holder_is_committed,
)


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.__name__)
def test_the_sweep_finds(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    steps_of_a_life()
    breakage(monkeypatch)
    with pytest.raises((AssertionError, Damaged)):
        lives(LIVES_MAX, 3)

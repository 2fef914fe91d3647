"""The crash sweep once more, over a wheel that keeps what is covered.

At the end of each life everything that was ever in a slot file is in the archive, once; and the
segments that were kept, with those that are alive, hold every entry since the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from slotwheel.wheel.mark import Marks
from slotwheel.wheel.slots.archive import Archive
from slotwheel.wheel.slots.storage import KnownCancels, Storage
from slotwheel.wheel.state import SlotInfo
from support.archives import journal_offsets, slot_offsets
from support.crashfs import MODES, Mode, without_sync_dir
from support.crashlife import CONFIG, Steps, World
from support.crashscript import length, live_on
from support.memstate import MemoryState

KEEPING = replace(CONFIG, retain_bytes=1 << 40)


class KeepingWorld(World):
    """``spilled``: offsets of all rows that have been seen in slot files."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps, embedded=False, config=KEEPING)
        self.spilled: set[int] = set()

    def _look(self) -> None:
        storage = self.wheel._storage
        for second, info in storage.catalog.items():
            for block in storage.read_blocks(second, info):
                self.spilled.update(block.column("offset").to_pylist())

    def open(self) -> None:
        super().open()
        self._look()

    def spill(self, *, everything: bool = False) -> None:
        super().spill(everything=everything)
        self._look()

    def finish(self) -> None:
        super().finish()
        offsets = slot_offsets(self.files)
        assert len(offsets) == len(set(offsets)), "a row was kept twice"
        assert self.spilled <= set(offsets), "a slot file was not kept"
        assert set(self.book.owner) <= set(journal_offsets(self.files)), "a segment was not kept"


def one_life(stop_at: int | None, mode: Mode, again: int, rng: Random) -> KeepingWorld:
    world = KeepingWorld(Steps(stop_at))
    live_on(world, mode, rng, again)
    return world


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_at_many_steps(every: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`test_crash_sweep` takes each of the steps that a wheel without an archive has, too."""
    world = KeepingWorld(Steps())
    points = range(1, length(world) + 1, every)
    assert len(world.spilled) > 10
    for number, stop_at in enumerate(points):
        mode = MODES[number % 3]
        again = Random(stop_at).randint(1, 60) if stop_at % 2 else 0
        try:
            one_life(stop_at, mode, again, Random(stop_at))
        except BaseException as error:
            error.add_note(f"at step {stop_at}, {mode}, again after {again}")
            raise
    with capsys.disabled():
        print(f"\ncrash sweep, with an archive: {len(points)} points", end=" ")


@pytest.mark.soak
def test_the_full_cross_product() -> None:
    for stop_at in range(1, length(KeepingWorld(Steps())) + 1):
        for mode in MODES:
            for seed in range(1 if mode == "durable" else 4):
                rng = Random(stop_at * 7 + seed)
                one_life(stop_at, mode, rng.randint(1, 60) if seed % 2 else 0, rng)


Patch = pytest.MonkeyPatch


def second_names_are_not_synced(patch: Patch) -> None:
    without_sync_dir(patch, Archive, "keep_slots")


def second_names_of_the_living_stay(patch: Patch) -> None:
    patch.setattr(Archive, "recover", lambda self, catalog: [])


def kept_behind_the_commit(patch: Patch) -> None:
    """What a crash in between leaves is an unknown slot file, which is removed."""
    clean, keep_slots, commit = Storage.clean, Archive.keep_slots, MemoryState.commit

    def late(self: Storage, marks: Marks, now_ms: int, known: KnownCancels) -> int:
        waiting: list[Callable[[], Any]] = []

        def put_off(archive: Archive, slots: Mapping[int, SlotInfo], now_ms: int) -> list[str]:
            waiting.append(lambda: keep_slots(archive, slots, now_ms))
            return []

        with pytest.MonkeyPatch.context() as within:
            within.setattr(Archive, "keep_slots", put_off)

            def commit_first(state: MemoryState, update: Any) -> None:
                commit(state, update)
                while waiting:
                    waiting.pop()()

            within.setattr(MemoryState, "commit", commit_first)
            return clean(self, marks, now_ms, known)

    patch.setattr(Storage, "clean", late)


def segments_move_unsynced(patch: Patch) -> None:
    """The old name is gone for good before the new one is there."""

    def keep(self: Archive, path: str, nbytes: int, now_ms: int, left_ms: int) -> bool:
        content = self._files.open(path).pread(nbytes, 0)
        self._make(self._day(now_ms))
        name = path.rpartition("/")[2]
        target = f"archive/{self._day(now_ms)}/journal/{name}"
        self._files.open(target, create=True).pwrite([content], 0)
        self._files.unlink(path)
        return True

    patch.setattr(Archive, "keep_segment", keep)


BREAKAGES = (
    second_names_are_not_synced,
    second_names_of_the_living_stay,
    kept_behind_the_commit,
    segments_move_unsynced,
)


SEEDS: dict[Callable[[Patch], None], int] = {
    second_names_are_not_synced: 0,
    second_names_of_the_living_stay: 57,
    kept_behind_the_commit: 3,
}
"""Of what shows at few points: an order in which one comes early (``test_crash_sweep_finds``)."""


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.__name__)
def test_the_sweep_finds(breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    steps = length(KeepingWorld(Steps()))
    breakage(monkeypatch)
    rng = Random(SEEDS.get(breakage, 2))
    for number in range(900):
        try:
            one_life(rng.randint(1, steps), MODES[number % 3], 0, rng)
        except AssertionError:
            return
    raise AssertionError("the sweep sees nothing wrong")

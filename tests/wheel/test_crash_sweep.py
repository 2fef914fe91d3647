"""The crash sweep: a whole life of a wheel, stopped at every step, in every way a disk can survive.

Each point of the sweep is a step of the scenario (``support.crashscript``) at which the power is
cut or the process killed, times what survives of unsynced bytes. The wheel is opened again,
invariants of docs/design.md are checked at once (I1, I2, I4, I5, I6, I8), the rest of the scenario
is played, and in the end everything acknowledged has been delivered, once but for what no mark had
covered, none early, and every file is gone. Half of the random points are cut a second time, during
the recovery or what follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from slotwheel.wheel.schema import times
from slotwheel.wheel.slots import slotfile
from slotwheel.wheel.slots.slot import width_s
from support.crashfs import Mode
from support.crashlife import Steps, World, shorten_widths
from support.crashscript import SCENES, length, live_on


@pytest.fixture(autouse=True)
def _widths_are_short_and_blocks_take_several_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_widths(monkeypatch)
    monkeypatch.setattr(slotfile, "SHARE_BYTES", 512)


@dataclass(frozen=True)
class Point:
    """``again``: the power fails once more, so many steps after the first cut; 0 for never."""

    stop_at: int
    mode: Mode
    seed: int = 0
    again: int = 0


def sweep_one(point: Point, *, embedded: bool) -> World:
    """One life, cut at ``point``. Raises ``AssertionError`` (or ``Damaged``) if a rule breaks."""
    world = World(Steps(point.stop_at), embedded=embedded)
    rng = Random(point.seed * 1_000_003 + point.stop_at)
    live_on(world, point.mode, rng, point.again)
    return world


def points(steps: int, seeds: int) -> Iterator[Point]:
    """The cross product: every step, every mode, ``seeds`` random survivals of each."""
    for stop_at in range(1, steps + 1):
        yield Point(stop_at, "durable")
        yield Point(stop_at, "live")
        for seed in range(seeds):
            again = Random(stop_at * 31 + seed).randint(1, 60) if seed % 2 else 0
            yield Point(stop_at, "random", seed, again)


def sweep(chosen: list[Point], *, embedded: bool) -> int:
    """Run them all; the number of repeated deliveries."""
    repeats = 0
    for point in chosen:
        try:
            repeats += sweep_one(point, embedded=embedded).book.repeats
        except BaseException as error:
            error.add_note(f"at {point}, embedded={embedded}")
            raise
    return repeats


def report(capsys: pytest.CaptureFixture[str], what: str, chosen: list[Point], steps: int) -> None:
    with capsys.disabled():
        print(f"\ncrash sweep, {what}: {len(chosen)} points over {steps} steps", end=" ")


def share(point: Point) -> bool:
    """Every fourteenth step with nothing unsynced left; every 21st killed, or with random
    survivors. ``test_crash_modes.py`` stops at others, the soak at all."""
    others: tuple[tuple[Mode, int], ...] = (("live", 0), ("random", 0), ("random", 1))
    turn = point.stop_at // 21 % 3
    also = point.stop_at % 21 == 0 and (point.mode, point.seed) == others[turn]
    return (point.mode == "durable" and point.stop_at % 14 == 1) or also


def test_seconds_lie_in_files_of_three_widths_and_cancels_apart_from_their_targets() -> None:
    world = World(Steps(), embedded=False)
    world.open()
    widths: dict[int, set[int]] = defaultdict(set)
    apart: set[tuple[int, int]] = set()
    for scene in SCENES:
        scene.act(world)
        slot_of: dict[int, int] = {}
        targets: dict[int, int] = {}
        storage = world.wheel._storage
        for slot, info in storage.catalog.items():
            for block in storage.read_blocks(slot, info):
                for due, offset, target in zip(
                    *(times(block, name).tolist() for name in ("due", "offset")),
                    block.column("cancels").to_pylist(),
                    strict=True,
                ):
                    widths[due // 1000].add(width_s(slot))
                    slot_of[offset] = slot
                    if target is not None:
                        targets[offset] = target
        apart |= {
            (width_s(slot_of[offset]), width_s(slot_of[target]))
            for offset, target in targets.items()
            if target in slot_of and slot_of[offset] != slot_of[target]
        }
    assert {1, 4, 16} in widths.values()
    assert {width for width, _ in apart} == {1, 4}
    world.let_go()


def test_a_crash_at_many_steps(capsys: pytest.CaptureFixture[str]) -> None:
    steps = length(World(Steps(), embedded=False))
    chosen = [point for point in points(steps, 2) if share(point)]
    report(capsys, "recording sink", chosen, steps)
    assert steps > 200
    assert sweep(chosen, embedded=False) > 0, "a crash never came between answer and mark"


def test_a_crash_at_many_steps_with_embedded_topics(capsys: pytest.CaptureFixture[str]) -> None:
    """A share, evenly spread over steps and modes."""
    steps = length(World(Steps(), embedded=True))
    chosen = list(points(steps, 3))[::373]
    report(capsys, "embedded topics", chosen, steps)
    assert {point.mode for point in chosen} == {"durable", "live", "random"}
    sweep(chosen, embedded=True)


@pytest.mark.soak
@pytest.mark.parametrize("embedded", [False, True])
def test_the_full_cross_product(embedded: bool, capsys: pytest.CaptureFixture[str]) -> None:
    steps = length(World(Steps(), embedded=embedded))
    chosen = list(points(steps, 4 if embedded else 8))
    report(capsys, "embedded topics" if embedded else "recording sink", chosen, steps)
    sweep(chosen, embedded=embedded)

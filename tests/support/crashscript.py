"""The scenario of the crash sweep: everything a wheel does, in about a hundred rows.

A list of small acts, so that a run that was cut in one can go on with the next. An act that sends
under a producer's sequence is done again after the crash, as a client would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from slotwheel.wheel.journal import payloads
from slotwheel.wheel.request import RequestKey
from slotwheel.wheel.tail import tail
from support.crashfs import MODES, Mode
from support.crashlife import EXPIRING, POISON, PowerCut, Steps, World

Act = Callable[[World], None]
_REQUEST = RequestKey.of("r0", b"", 0)


@dataclass(frozen=True)
class Scene:
    name: str
    act: Act
    again: bool = False
    """Done again when a crash came in the middle of it."""


def _first_batches(w: World) -> None:
    w.append("a", [("x", 200), ("y", 700), ("x", 1500), ("z", 1500), ("x", -50), ("y", 4000)])
    w.append("b", [("y", 900), ("x", 901)])


def _second_batch(w: World) -> None:
    w.append("p0", [("x", 950), ("y", 2500), ("z", 3000), ("x", 60_000)], producer=7, sequence=0)
    w.commit()


def _third_batch(w: World) -> None:
    """Plain rows of callers in one turn, more than one entry takes, and of two of them twice."""
    p1 = "p1", [("y", 1100), ("y", 1100)], 7, 1
    q0 = "q0", [("z", 1200)], 8, 5
    r0 = "r0", [("z", 1300)], _REQUEST.producer, _REQUEST.sequence
    s0 = "s0", [("x", 1250), ("z", 1350), ("z", 1350)], 9, 0
    t0 = "t0", [("x", 1400), ("x", 1400), ("y", 1450)], 10, 0
    w.append_together([p1, q0, q0, r0, s0, t0, p1])
    w.commit()


def _fourth_batch(w: World) -> None:
    w.append("p2", [("x", 1999), ("x", 2000), ("x", 2001)], producer=7, sequence=2)
    w.commit()


def _send_all_again(w: World) -> None:
    """A producer that got no answers: every batch under the sequence it had."""
    _second_batch(w)
    _third_batch(w)
    _fourth_batch(w)


def _poison(w: World) -> None:
    w.append("bad", [("x", 300), ("z", 300)], value=POISON)
    w.append("good", [("x", 300)])
    w.commit()


def _expiring(w: World) -> None:
    """Around the millisecond at which x is delivered; y is held back, and it expires there."""
    w.append("short", [("x", 719), ("x", 720), ("x", 721), ("y", 780)], value=EXPIRING)
    w.commit()


def _tick(ms: int) -> Act:
    def act(w: World) -> None:
        w.wait(ms)
        w.deliver()
        w.commit()

    return act


def _block(w: World) -> None:
    w.blocked.add("y")


def _release(w: World) -> None:
    w.blocked.clear()
    w.deliver()
    w.commit()


def _spill_all(w: World) -> None:
    w.spill(everything=True)


def _spill_old(w: World) -> None:
    w.append("young", [("x", 7000), ("y", 6200)])
    w.commit()
    w.wait(400)
    if w.wheel.spill_needed(w.now_ms):
        w.spill()


@patch.object(payloads, "_SMALL_BYTES", 0)
def _spill_while_rows_come_in(w: World) -> None:
    """Rows are committed while the slot files are written, and the tail joins its pieces.

    Each entry is a piece of its own, as large ones are.
    """
    storage: Any = w.wheel._storage
    make_durable = storage._make_durable

    def then_more_come(*arguments: Any) -> None:
        make_durable(*arguments)
        for number in range(5, 6 + tail._FAN):
            w.append(f"small {number}", [("z", 4200 + number)])
        w.commit()

    for number in range(5):
        w.append(f"small {number}", [("z", 4200 + number)])
    w.commit()
    storage._make_durable = then_more_come
    try:
        w.spill(everything=True)
    finally:
        storage._make_durable = make_durable


def _more_for_the_same_slots(w: World) -> None:
    w.append("c", [("x", 4001), ("y", 4000), ("z", 60_001), ("x", 7_100_000), ("y", 2600)])
    w.append("d", [("z", 3001)])
    w.commit()
    w.spill(everything=True)


def _busy_flight(w: World) -> None:
    """While a chunk is with the sink: an append, a spill, a cancel of what is in it, a clean."""
    done: list[str] = []

    def between() -> None:
        if not done:
            done.append("once")
            w.append("e", [("x", 100), ("x", 3100), ("z", 2400)])
            w.commit()
            w.cancel("p0", 1)
            w.spill(everything=True)
            w.wheel.clean(w.now_ms)

    w.wait(700)
    w.deliver(between)
    w.commit()


def _sink_down(w: World) -> None:
    w.is_down_after = 1
    w.wait(600)
    w.deliver()
    w.commit()


def _sink_up(w: World) -> None:
    w.is_down_after = None
    w.deliver()
    w.commit()


def _late_into_files(w: World) -> None:
    """Late rows that are spilled before they leave, into slots that may have been deleted."""
    w.append("late", [("x", 10), ("z", 1400), ("y", 20)])
    w.commit()
    w.spill(everything=True)
    w.deliver()
    w.commit()


def _clock_steps_back(w: World) -> None:
    w.append("f", [("x", 4600)])
    w.commit()
    w.wait(-1500)
    w.deliver()
    w.wait(1500)
    w.deliver()


def _clean_before_the_mark(w: World) -> None:
    """The cleaner comes when rows have been answered and no mark tells of it yet."""
    w.append("g", [("x", 3200), ("z", 3300)])
    w.commit()
    w.spill(everything=True)
    w.wait(1300)
    w.deliver()
    w.wheel.clean(w.now_ms)


def _cancels(w: World) -> None:
    w.cancel("a", 5)  # in a slot file by now
    w.cancel("d", 0)
    w.cancel("a", 0)  # left long ago
    w.cancel("c", 3)


def _cancel_again(w: World) -> None:
    w.cancel("c", 3)
    w.cancel("a", 5)


SCENES = [
    Scene("two batches in one group", _first_batches),
    Scene("a batch of a producer", _second_batch, again=True),
    Scene("past rows leave at once", _tick(0)),
    Scene("refused rows", _poison),
    Scene("they go to the dead letters", _tick(320)),
    Scene("more of producers", _third_batch, again=True),
    Scene("y is blocked", _block),
    Scene("some expire", _expiring),
    Scene("y is held back", _tick(500)),
    Scene("spill all", _spill_all),
    Scene("slots grow", _more_for_the_same_slots),
    Scene("a producer goes on", _fourth_batch, again=True),
    Scene("cancel and its answers", _cancels),
    Scene("move to later", lambda w: w.reschedule("p0", 3, 5500)),
    Scene("held and others", _tick(700)),
    Scene("spill nearer, so into narrower slots", _spill_all),
    Scene("the sink goes down", _sink_down),
    Scene("and comes back", _sink_up),
    Scene("spill with a topic held", _spill_while_rows_come_in),
    Scene("y is released", _release),
    Scene("clean", lambda w: w.clean()),
    Scene("late rows in files", _late_into_files),
    Scene("a chunk in flight", _busy_flight),
    Scene("the cleaner is early", _clean_before_the_mark),
    Scene("stop and start", lambda w: w.restart()),
    Scene("everything is sent again", _send_all_again, again=True),
    Scene("cancel again", _cancel_again),
    Scene("clock steps", _clock_steps_back),
    Scene("spill by age", _spill_old),
    Scene("spill into a wide slot that is being delivered", _spill_all),
    Scene("time passes", _tick(2500)),
    Scene("clean again", lambda w: w.clean()),
    Scene("spill drops segments", _spill_all),
    Scene("stop and start again", lambda w: w.restart()),
]


def play(world: World, first: int = 0) -> int:
    """Play the scenes from ``first`` on. ``world.scene`` says which one is being played."""
    scenes = world.scenes or SCENES
    for number in range(first, len(scenes)):
        world.scene = number
        scenes[number].act(world)
    world.scene = len(scenes)
    return world.scene


def length(world: World) -> int:
    """Steps of the scenario in this world, without a crash."""
    world.open()
    play(world)
    steps = world.steps.count
    world.finish()
    return steps


def live_on(world: World, mode: Mode, rng: Random, again: int = 0) -> None:
    """Play the whole life of ``world``, and go on after each power cut until it is finished.
    ``again``: cut once more, so many steps after the first cut; 0: never."""
    while True:
        try:
            world.open()
            play(world, next_scene(world))
            world.finish()
        except PowerCut:
            world.crash(mode, rng, Steps(again or None))
            again = 0
        else:
            return


def cut_lives(
    new_world: Callable[[Steps], Any], steps: int, count: int, seed: int
) -> dict[str, int]:
    """``count`` lives of worlds that count what they see, of ``steps`` steps each, cut at any step
    in any mode, half of them twice; returns the counts of all together. The first is not cut: some
    breakages show without a crash."""
    rng = Random(seed)
    counts: dict[str, int] = {}
    for number in range(count):
        stop_at = rng.randint(1, steps) if number else None
        world = new_world(Steps(stop_at))
        mode, again = MODES[number % 3], rng.randint(1, 40) if number % 2 else 0
        try:
            live_on(world, mode, rng, again)
        except BaseException as error:
            error.add_note(f"life {number} of seed {seed}, cut at {stop_at}, {mode}, {again}")
            raise
        for what, times in world.counts.items():
            counts[what] = counts.get(what, 0) + times
    return counts


def next_scene(world: World) -> int:
    """Where to go on after a crash; the first one if none was played yet."""
    scenes = world.scenes or SCENES
    if 0 <= world.scene < len(scenes) and scenes[world.scene].again:
        return world.scene
    return min(world.scene + 1, len(scenes))

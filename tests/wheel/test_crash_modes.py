"""The crash sweep under each delivery mode; and it can fail: each rule of a mode is broken in turn.

The script is that of ``test_crash_sweep``. With Kafka, which has power all the time, the steps are
also the requests to it and their answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from slotwheel.delivery.embedded import exactly_once as embedded
from slotwheel.delivery.embedded.exactly_once import EmbeddedExactlyOnce
from slotwheel.delivery.kafka.exactly_once import KafkaExactlyOnce
from slotwheel.wheel.dispatcher import Dispatcher
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.mark import BY_TOPICS
from support.crashfs import MODES, Mode
from support.crashlife import Steps
from support.crashmodes import WORLDS
from support.crashscript import length, live_on
from support.removedrules import (
    held_back_before_the_journal_has_the_name,
    mark_committed_behind_the_transaction,
    mark_read_while_it_is_unstable,
)

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@cache
def steps_of_a_life(kind: str) -> list[str]:
    world = WORLDS[kind](Steps())
    return world.steps.names[: length(world)]


def sweep(kind: str, every: int) -> tuple[int, int]:
    """Lives cut at each ``every``-th step; how many there were, and of how many rows nobody knew
    whether they had left."""
    points = range(1, len(steps_of_a_life(kind)) + 1, every)
    lost = 0
    for number, stop_at in enumerate(points):
        mode = MODES[number % 3]
        again = Random(stop_at).randint(1, 60) if number % 2 else 0
        world = WORLDS[kind](Steps(stop_at))
        try:
            live_on(world, mode, Random(stop_at), again)
        except BaseException as error:
            error.add_note(f"{kind}, at step {stop_at}, {mode}, again after {again}")
            raise
        lost += len(world.book.may_be_lost - world.book.answered - world.book.cancelled)
    return len(points), lost


@pytest.mark.parametrize("kind", WORLDS)
def test_a_crash_at_many_steps(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    points, lost = sweep(kind, {"at-most-once": 31, "exactly-once, embedded": 127}.get(kind, 83))
    with capsys.disabled():
        print(f"\ncrash sweep, {kind}: {points} points, {lost} rows lost", end=" ")
    assert (lost > 0) == (kind == "at-most-once")


@pytest.mark.parametrize("kind", WORLDS)
def test_a_crash_in_the_first_start(kind: str) -> None:
    """Kafka's mark is made with the group's key, which has to be on disk by then."""
    for stop_at in range(1, 30, 6):
        live_on(WORLDS[kind](Steps(stop_at)), "durable", Random(stop_at))


@pytest.mark.soak
@pytest.mark.parametrize("kind", WORLDS)
def test_a_crash_at_every_step(kind: str) -> None:
    sweep(kind, 1)


def at_most_once_mark_not_waited_for(patch: Patch) -> None:
    def queue(self: Any, chunk: Chunk, now_ms: int) -> bool:
        everything = np.ones(chunk.rows.num_rows, np.bool_)
        with self._lock:
            self._first = self.due.lines.after(chunk, everything)
            self.queue_mark(now_ms)
        return True

    patch.setattr(Dispatcher, "mark_first", queue)


def at_most_once_mark_behind_the_delivery(patch: Patch) -> None:
    patch.setattr(Dispatcher, "mark_first", lambda self, chunk, now_ms: True)


def topics_not_read(patch: Patch) -> None:
    def begin(_self: Any, wheel: Any, now_ms: int) -> None:
        wheel.resume(now_ms, exact=BY_TOPICS)

    patch.setattr(EmbeddedExactlyOnce, "begin", begin)


def topics_read_from_the_start_on(patch: Patch) -> None:
    """Only what was delivered since the node has started counts."""

    def begin(self: Any, wheel: Any, now_ms: int) -> None:
        for topic in self._files.list("topics"):
            for rows in embedded.delivered_since(self._files, topic, now_ms, self._damaged):
                self._count(wheel, topic, rows)
        wheel.resume(now_ms, exact=BY_TOPICS)

    patch.setattr(EmbeddedExactlyOnce, "begin", begin)


def only_the_last_block_read(patch: Patch) -> None:
    since = embedded.delivered_since

    def last(*arguments: Any, **more: Any) -> Iterable[Any]:
        yield from list(since(*arguments, **more))[:1]

    patch.setattr(embedded, "delivered_since", last)


def dead_letters_not_read(patch: Patch) -> None:
    patch.setattr(embedded, "_letters", lambda rows, at, topic: iter(()))


def held_topics_judged_by_the_main_mark(patch: Patch) -> None:
    patch.setattr(
        Dispatcher,
        "uncovered",
        lambda self, topic, due, offset: ~self.due.lines.main.mark.covered(due, offset),
    )


def last_block_not_synced(patch: Patch) -> None:
    """What counts as answered may be lost in a power cut."""
    patch.setattr(embedded, "closing", _NoSync)


class _NoSync:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __enter__(self) -> _NoSync:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    def sync(self) -> None: ...


def kafkas_mark_not_read(patch: Patch) -> None:
    patch.setattr(KafkaExactlyOnce, "_decide", lambda self, stored, wheel: (wheel.marks, True))


BREAKAGES: dict[str, tuple[Callable[[Patch], None], ...]] = {
    "at-most-once": (at_most_once_mark_not_waited_for, at_most_once_mark_behind_the_delivery),
    "exactly-once, embedded": (
        topics_not_read,
        topics_read_from_the_start_on,
        only_the_last_block_read,
        dead_letters_not_read,
        held_topics_judged_by_the_main_mark,
        last_block_not_synced,
    ),
    "exactly-once, Kafka": (
        mark_read_while_it_is_unstable,
        mark_committed_behind_the_transaction,
        held_back_before_the_journal_has_the_name,
        kafkas_mark_not_read,
    ),
}
CASES = [(kind, one) for kind, breakages in BREAKAGES.items() for one in breakages]
SHOWS_AT: dict[Callable[[Patch], None], tuple[str, tuple[Mode, ...]]] = {
    dead_letters_not_read: ("sync topics/slotwheel-dead-letters/*", MODES),
    held_topics_judged_by_the_main_mark: ("sync topics/y/*.index", MODES),
    # The process is killed before the sync, and the power fails after the next one has counted the
    # block.
    last_block_not_synced: ("sync topics/*.index", ("live",)),
}
"""Of what shows at few points: at which steps lives are cut, and what survives. Cut anywhere, some
hundred lives may pass before one shows it."""
SEEDS: dict[Callable[[Patch], None], int] = {
    at_most_once_mark_not_waited_for: 0,
    held_back_before_the_journal_has_the_name: 7,
}
"""Orders in which one comes early (``test_crash_sweep_finds``)."""
MOST = 400


def first_finding(
    kind: str, points: Sequence[int], modes: Sequence[Mode], seed: int
) -> BaseException | None:
    """Sweep over ``points`` in a random order until something breaks."""
    rng = Random(seed)
    for number in range(MOST):
        world = WORLDS[kind](Steps(rng.choice(points)))
        mode = modes[number % len(modes)]
        # Nothing unsynced survives: what was killed has to lose power, too.
        again = rng.randint(1, 90) if number % 2 or modes == ("live",) else 0
        try:
            live_on(world, mode, rng, again)
        except (AssertionError, Damaged) as finding:
            return finding
    return None


@pytest.mark.parametrize(("kind", "breakage"), CASES, ids=[one.__name__ for _, one in CASES])
def test_the_sweep_finds(kind: str, breakage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    step, modes = SHOWS_AT.get(breakage, ("*", MODES))
    points = [
        number for number, name in enumerate(steps_of_a_life(kind), 1) if fnmatchcase(name, step)
    ]
    breakage(monkeypatch)
    finding = first_finding(kind, points, modes, SEEDS.get(breakage, 4))
    assert finding is not None, "the sweep sees nothing wrong"

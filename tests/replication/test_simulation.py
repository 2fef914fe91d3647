"""Whole groups of peers, simulated: many thousands of stories, each checked at every step."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable

import pytest

from support.simulation import play

Figure = Callable[[str], None]

FEW = 400
"""In the normal run: about 4 s on one core."""
MANY = 120_000
"""In the soak run, on all cores."""
SHARE = 500
FIRST_OF_MANY = 1_000_000


def play_all(seeds: range) -> tuple[int, int, int, int, int, int, list[str]]:
    """Steps, checks, masters, committed entries and those of several callers among them, decisions
    about names that another message had, and what was violated."""
    steps = checks = masters = committed = shared = named = 0
    violated = []
    for seed in seeds:
        try:
            world = play(seed)
        except Exception as error:
            violated.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        steps += world.steps
        checks += world.referee.checks
        masters += len(world.referee.masters)
        committed += len(world.referee.committed)
        shared += sum(len(item.sent) > 1 for item in world.referee.committed)
        named += world.referee.names.decided
    return steps, checks, masters, committed, shared, named, violated


def test_a_share_of_all_stories(figure: Figure) -> None:
    began = time.process_time()
    steps, checks, masters, committed, shared, named, violated = play_all(range(FEW))
    rate = FEW / (time.process_time() - began)
    figure(
        f"simulation: {FEW} schedules, {rate:.0f} a second of one core, "
        f"{steps} steps, {checks} checks, {masters} masters, {committed} entries committed, "
        f"{named} decisions about names"
    )
    assert not violated, "\n".join(violated[:5])
    # What never happens proves nothing.
    assert masters > 2 * FEW
    assert committed > 10 * FEW
    assert shared > 3 * FEW
    assert named > 10 * FEW
    assert steps > 300 * FEW


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = play(4711), play(4711)
    assert (first.steps, first.now) == (second.steps, second.now)
    assert first.referee.committed == second.referee.committed
    assert first.steps != play(4712).steps


@pytest.mark.soak
def test_many_stories(figure: Figure) -> None:
    cores = os.cpu_count() or 1
    shares = [
        range(first, first + SHARE) for first in range(FIRST_OF_MANY, FIRST_OF_MANY + MANY, SHARE)
    ]
    began = time.monotonic()
    violated: list[str] = []
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for *_, found in pool.imap_unordered(play_all, shares):
            violated += found
    seconds = time.monotonic() - began
    figure(
        f"simulation: {MANY} schedules in {seconds:.0f} s, {MANY / seconds:.0f} a second "
        f"on {cores} cores"
    )
    assert not violated, "\n".join(violated[:5])

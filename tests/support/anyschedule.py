"""Hypothesis strategies for schedules."""

from __future__ import annotations

from hypothesis import strategies as st

from slotwheel.policy.schedules.spec import Missed, Schedule, Template

NOW_MS = 1_795_000_000_000
"""2026-11-18T11:06:40Z."""
HOUR_MS = 3_600_000
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
CONTENTS = st.none() | st.binary(max_size=20) | TEXTS.map(str.encode)


@st.composite
def templates(draw: st.DrawFn) -> Template:
    names = TEXTS.filter(lambda name: not name.startswith("slotwheel-"))
    return Template(
        topic=draw(st.sampled_from(["orders", "a.b-c_d"])),
        value=draw(CONTENTS),
        key=draw(CONTENTS),
        headers=tuple(draw(st.lists(st.tuples(names, CONTENTS), max_size=3))),
        partition=draw(st.none() | st.integers(0, 9)),
        ttl_ms=draw(st.none() | st.integers(1, 1 << 40)),
        name=draw(st.none() | TEXTS),
    )


@st.composite
def schedules(draw: st.DrawFn, *, every: bool | None = None) -> Schedule:
    """A schedule that fires around ``NOW_MS``. ``every``: the kind; None: both."""
    by_distance = draw(st.booleans()) if every is None else every
    every_ms = draw(st.integers(1000, 5 * HOUR_MS)) if by_distance else None
    start_ms = draw(st.none() | st.integers(NOW_MS - 9 * HOUR_MS, NOW_MS + HOUR_MS))
    end_ms = draw(st.none() | st.integers(NOW_MS + 2 * HOUR_MS, NOW_MS + 100 * HOUR_MS))
    crons = ["*/7 * * * *", "0 * * * *", "30 2,5 * * *", "15 8-17 * * MON-FRI", "@daily"]
    return Schedule(
        name=draw(TEXTS),
        template=draw(templates()),
        cron=None if by_distance else draw(st.sampled_from(crons)),
        zone="UTC" if by_distance else draw(st.sampled_from(["UTC", "Europe/Berlin", "EST"])),
        every_ms=every_ms,
        anchor_ms=draw(st.none() | st.integers(NOW_MS, 2 * NOW_MS)) if by_distance else None,
        start_ms=start_ms,
        end_ms=end_ms,
        count=draw(st.none() | st.integers(1, 50)),
        jitter_ms=draw(st.integers(0, (every_ms or HOUR_MS) - 1)),
        missed=draw(st.sampled_from(Missed)),
        catch_up_ms=draw(st.integers(0, 5 * HOUR_MS)),
        paused=False,
    )

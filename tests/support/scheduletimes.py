"""Which runs of a schedule have to be rows, by its specification and by when its nodes were there:
a model that shares nothing with ``slotwheel.policy.schedules``.

Theory: it goes through all nominal times once, asks of each when a node could look at it first, and
applies the rule of missed runs as docs/schedules.md says it. What a busy machine could decide one
way or the other is no case for the model, and it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from support.cronwalk import fires, local_minutes

_local_minutes = cache(local_minutes)

MINUTE_MS = 60_000
_DAY_MINUTES = 1440
_AHEAD_MS, _LATE_MS = 30_000, 5_000
_BUSY_MS = 8_000
"""So much later than it should a busy node looks at a schedule, at most."""


class Span(NamedTuple):
    """From when until when nodes were there, ms by their clock. Spans stand in the order in which
    they were lived, so after a step back one begins before the end of the one before."""

    begin_ms: int
    end_ms: int


class Expected(NamedTuple):
    """A run that has to be a row; ``missed``: how many before it became none."""

    number: int
    nominal_ms: int
    missed: int


def nominal_times(schedule: dict[str, Any], from_ms: int, to_ms: int) -> list[int]:
    """All nominal times from one time to another, without the schedule's end and count."""
    if cron := schedule.get("cron"):
        # From a day before, so that what a change of the clock skips is seen.
        minutes = range(from_ms // MINUTE_MS - _DAY_MINUTES, to_ms // MINUTE_MS)
        local = _local_minutes(schedule.get("zone", "UTC"), minutes)
        times = [minute * MINUTE_MS for minute in fires(cron, minutes, local)]
    else:
        every_ms = schedule["every_ms"]
        first_ms = schedule.get("anchor_ms", schedule.get("start_ms", 0)) % every_ms
        times = list(range(from_ms - from_ms % every_ms + first_ms, to_ms, every_ms))
    start_ms = max(from_ms, schedule.get("start_ms", 0))
    return [ms for ms in times if start_ms <= ms < schedule.get("end_ms", to_ms)]


def expected_runs(
    schedule: dict[str, Any],
    put_ms: int,
    spans: Sequence[Span],
    paused: Span | None = None,
) -> list[Expected]:
    """The runs that have to be rows at the end of the last of ``spans``. Errors: ``AssertionError``
    if that depends on how busy the machine was."""
    last_ms = max(span.end_ms for span in spans)
    times = nominal_times(schedule, put_ms, last_ms + 2 * _DAY_MINUTES * MINUTE_MS)
    runs: list[Expected] = []
    missed, number = 0, 0
    for nominal_ms, following_ms in zip(times, [*times[1:], None], strict=True):
        while number < len(spans) and _ends_before(spans[number], nominal_ms):
            number += 1
        if number == len(spans) or len(runs) == schedule.get("count"):
            return runs
        looked_ms = max(spans[number].begin_ms, nominal_ms - _AHEAD_MS)
        if paused is not None and looked_ms >= paused.begin_ms:
            if nominal_ms < paused.end_ms:
                continue
            looked_ms = max(looked_ms, paused.end_ms)
        if _is_late(schedule, nominal_ms, looked_ms) and not _is_made_up(
            schedule, nominal_ms, following_ms, looked_ms
        ):
            missed += 1
        else:
            runs.append(Expected(len(runs) + 1, nominal_ms, missed))
            missed = 0
    return runs


def _ends_before(span: Span, nominal_ms: int) -> bool:
    """True if nobody made a run with that time a row until the span's end."""
    left_ms = span.end_ms - (nominal_ms - _AHEAD_MS)
    assert not 0 <= left_ms < _BUSY_MS, f"{nominal_ms} may or may not be a row by {span}"
    return left_ms < 0


def _is_late(schedule: dict[str, Any], nominal_ms: int, looked_ms: int) -> bool:
    late_ms = looked_ms - _LATE_MS - nominal_ms
    jitter_ms = schedule.get("jitter_ms", 0)
    assert not -_BUSY_MS < late_ms <= jitter_ms, f"{nominal_ms} may or may not be missed"
    return bool(late_ms > 0)


def _is_made_up(
    schedule: dict[str, Any], nominal_ms: int, following_ms: int | None, looked_ms: int
) -> bool:
    missed = schedule.get("missed", "last")
    catch_up_ms = schedule.get("catch_up_ms", _DAY_MINUTES * MINUTE_MS)
    if missed == "skip" or nominal_ms < looked_ms - catch_up_ms:
        return False
    return missed == "all" or following_ms is None or following_ms > looked_ms

"""When a schedule is due: from one run to the next.

Theory: the *nominal time* of a run is what its schedule says. The next one is a function of the
schedule and of the nominal time before it. There is no clock in it and no memory, so every peer,
and the proof, compute the same runs, however late a run was fired.

Example: ``every_ms`` 10000 with the anchor 12:00:00 is due at 12:00:10, 12:00:20 and so on. A run
that a busy node fires at 12:00:13 is followed by 12:00:20: counted from the fire itself, each run
would push all later ones, and after a day they would be minutes off.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from ...wheel.checks import is_time
from ...wheel.texts import time_text
from .cron import cron_expression
from .fields import InvalidField
from .spec import Schedule
from .zones import MINUTE_MS


def next_run(schedule: Schedule, after_ms: int, runs: int = 0) -> int | None:
    """The nominal time of the first run behind ``after_ms``, ms since the epoch; None: the schedule
    has ended. ``runs``: how many messages it has made so far; its ``count`` ends it. Being paused
    changes no nominal time."""
    if schedule.count is not None and runs >= schedule.count:
        return None
    if schedule.start_ms is not None:
        after_ms = max(after_ms, schedule.start_ms - 1)
    nominal_ms = _next_nominal(schedule, after_ms)
    if nominal_ms is None or (schedule.end_ms is not None and nominal_ms >= schedule.end_ms):
        return None
    return nominal_ms


def next_runs(schedule: Schedule, after_ms: int, runs: int = 0) -> Iterator[int]:
    """The nominal times of all runs behind ``after_ms``, in order; mostly without end. ``runs``: as
    of ``next_run``."""
    nominal_ms = next_run(schedule, after_ms, runs)
    while nominal_ms is not None:
        yield nominal_ms
        runs += 1
        nominal_ms = next_run(schedule, nominal_ms, runs)


def due_ms(schedule: Schedule, nominal_ms: int, following_ms: int | None) -> int:
    """When the message of a run is due, ms since the epoch: at its nominal time or up to the jitter
    later, and before the run that follows it at ``following_ms``.

    The same run always gets the same jitter: a digest of the schedule's name and the nominal time
    decides. Otherwise a failover between two tries would give one run two due times."""
    span_ms = schedule.jitter_ms
    if following_ms is not None:
        span_ms = min(span_ms, following_ms - nominal_ms - 1)
    if span_ms <= 0:
        return nominal_ms
    seed = schedule.name.encode() + b"\0" + nominal_ms.to_bytes(8, "little")
    digest = blake2b(seed, digest_size=8).digest()
    return nominal_ms + int.from_bytes(digest, "little") % (span_ms + 1)


def check_fires(schedule: Schedule, now_ms: int, runs: int = 0) -> None:
    """Refuse a schedule that would never fire, as it ends before its first run, or has sent all its
    messages. ``runs``: how many were sent under its name already. Errors: ``InvalidField``."""
    if schedule.count is not None and runs >= schedule.count:
        raise InvalidField(
            f"schedule {schedule.name!r}, count: it has sent all its messages",
            path="$.count",
            got=schedule.count,
            limit=f"more than the {runs} that it has sent under this name",
            remedy="Write a larger count, or delete it first: a new one begins with run 1",
        )
    if next_run(schedule, now_ms - 1) is None:
        end = "the year 9999" if schedule.end_ms is None else time_text(schedule.end_ms)
        raise InvalidField(
            f"schedule {schedule.name!r}, end_ms: it ends before its first run",
            path="$.end_ms",
            got=end,
            limit=f"an end behind the first run that is due from {time_text(now_ms)} on",
            remedy="Let it end later, or leave the end out",
        )


def _next_nominal(schedule: Schedule, after_ms: int) -> int | None:
    if schedule.every_ms is not None:
        anchor_ms, every_ms = schedule.anchor_ms, schedule.every_ms
        if anchor_ms is None:
            anchor_ms = schedule.start_ms or 0
        nominal_ms = after_ms + every_ms - (after_ms - anchor_ms) % every_ms
        return nominal_ms if is_time(nominal_ms) else None
    assert schedule.cron is not None
    minute = cron_expression(schedule.cron).next_minute(schedule.zone, after_ms // MINUTE_MS)
    return None if minute is None else minute * MINUTE_MS

"""A second implementation of cron: it walks minute by minute and asks each one for its local time.

It shares nothing with `slotwheel.policy.schedules`: fields are read by a few lines here, and there
is no arithmetic with offsets. Times are minutes of UTC since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE_EPOCH = datetime(1970, 1, 1)
WEEKDAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(8))
Minutes = npt.NDArray[np.int64]


def minute_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(minutes=1)


def local_minutes(zone: str, minutes: range) -> Minutes:
    """The local time of each minute, as minutes since 1970-01-01T00:00 local time."""
    info = ZoneInfo(zone)
    step = timedelta(minutes=1)
    moment = EPOCH + timedelta(minutes=minutes.start)
    local = np.empty(len(minutes), np.int64)
    for number in range(len(minutes)):
        shown = moment.astimezone(info).replace(tzinfo=None)
        local[number] = (shown - NAIVE_EPOCH) // step
        moment += step
    return local


def changes(zone: str, first: datetime, last: datetime) -> list[int]:
    """The hours in which a zone's offset changes, each by its first minute."""
    info, hour = ZoneInfo(zone), timedelta(hours=1)
    hours, moment = [], first
    while moment < last:
        if moment.astimezone(info).utcoffset() != (moment + hour).astimezone(info).utcoffset():
            hours.append(minute_of(moment))
        moment += hour
    return hours


def field(text: str, allowed: range) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        if span == "*":
            begin, end = allowed.start, allowed.stop - 1
        else:
            begin = WEEKDAYS[low] if low in WEEKDAYS else int(low)
            end = (WEEKDAYS[high] if high in WEEKDAYS else int(high)) if high else begin
        numbers |= set(range(begin, end + 1, int(step or 1)))
    return numbers


@cache
def day_matches(day: int, days: str, months: str, weekdays: str) -> bool:
    moment = date(1970, 1, 1) + timedelta(days=day)
    if moment.month not in field(months, RANGES[3]):
        return False
    of_month = moment.day in field(days, RANGES[2])
    of_week = moment.isoweekday() % 7 in {number % 7 for number in field(weekdays, RANGES[4])}
    both = days.startswith("*") or weekdays.startswith("*")
    return of_month and of_week if both else of_month or of_week


def fires(expression: str, minutes: range, local: Minutes) -> list[int]:
    """The minutes of a range at which an expression fires; ``local``: their local times.

    Where minute or hour begin with a star, each minute whose local time matches fires. Otherwise a
    local time fires when the clock reaches it for the first time, or goes beyond it.
    """
    minute, hour, *day = expression.split()
    times = {60 * h + m for h in field(hour, RANGES[1]) for m in field(minute, RANGES[0])}
    wanted = np.zeros(1440, np.bool_)
    wanted[sorted(times)] = True

    def matches(local: Minutes) -> npt.NDArray[np.bool_]:
        days = local // 1440
        first = int(days.min())
        table = [day_matches(number, *day) for number in range(first, int(days.max()) + 1)]
        matching: npt.NDArray[np.bool_] = wanted[local % 1440] & np.array(table)[days - first]
        return matching

    if minute.startswith("*") or hour.startswith("*"):
        fired = matches(local)
    else:
        highest = np.maximum.accumulate(local)
        before = np.concatenate([[local[0] - 1], highest[:-1]])
        fired = matches(local) & (local > before)
        for at in np.flatnonzero(local > before + 1).tolist():
            passed = np.arange(int(before[at]) + 1, int(local[at]) + 1)
            fired[at] = matches(passed).any()
    return [minutes[at] for at in np.flatnonzero(fired).tolist()]


def windows(zone: str, first: datetime, last: datetime, around: int, each: int) -> Iterator[range]:
    """Ranges of minutes: so many before and behind each change of the clock, and as many at each
    ``each`` minutes in between."""
    for change in changes(zone, first, last):
        yield range(change - around, change + around)
    for sample in range(minute_of(first), minute_of(last), each):
        yield range(sample, sample + 2 * around)

"""A cron expression, and the minutes at which it fires.

Theory: an expression is one of two kinds, as in Debian's cron. One whose minute or hour begins
with ``*`` fires at *each* minute whose local time it matches: in an hour that the clock skips it
does not fire, in one that comes twice it does so twice. Any other names times of the day, and each
of them must come once a day: one that the clock skips fires at the first minute behind the gap, one
that comes twice fires the first time. Otherwise a backup at 02:30 would be missing on one day of
the year, and a bill be sent twice on another.

Example (Europe/Berlin, where 2026-03-29 has no local times from 02:00 to 03:00, and 2026-10-25 has
them twice): ``30 2 * * *`` fires at 03:00 on the first day, and at the first 02:30 on the second;
``*/30 * * * *`` fires at 01:30 and then 03:00, half an hour later; on the second day it fires at
02:00, 02:30, 02:00 and 02:30.

The package cronsim reads the fields and decides which days match (day of month *and* day of week
where one of them begins with ``*``, else *or*). The minutes are computed here: cronsim skips runs
where a clock is set by half an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, date, datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

from ...wheel.errors import InvalidMessage
from .zones import DAY_MINUTES, EPOCH_DAY, stretches_from

CHARACTERS_MAX = 200
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS_AHEAD_MAX = 50 * 366
"""An expression without a day within fifty years never fires: the rarest, such as a leap day on a
Sunday, has one in forty."""
_FIRST_DAY = date(2000, 1, 1).toordinal() - EPOCH_DAY
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_LAST_DAY = date(9998, 12, 1).toordinal() - EPOCH_DAY
_OFFSET_MAX = DAY_MINUTES
"""No offset of a zone is as large as a day, minutes."""
_ALLOWED = {
    "minute": "a minute of 0 to 59",
    "hour": "an hour of 0 to 23",
    "day-of-month": "a day of 1 to 31 that a month of the expression has, L, LW",
    "month": "a month of 1 to 12 or JAN to DEC",
    "day-of-week": "a day of the week of 0 to 7 or SUN to SAT, 5L, MON#2",
}
"""What each field may hold besides lists and the like, by cronsim's name of it, in their order."""
_REMEDY = (
    "Write minute, hour, day of month, month and day of week, as in 30 8 * * MON-FRI, or one of"
    f" {', '.join(_ALIASES)}"
)


class CronExpression:
    """A cron expression of five fields, or an alias as ``@daily``. ``text``: as it is stored."""

    __slots__ = ("_days", "_each_match", "_times", "text")

    def __init__(self, text: str) -> None:
        """Errors: ``InvalidMessage``: no cron expression, or one that never fires."""
        self.text = " ".join(text.split()) if len(text) <= CHARACTERS_MAX else text
        fields = _ALIASES.get(self.text.lower(), self.text).split()
        if len(text) > CHARACTERS_MAX or len(fields) != 5:
            raise _unusable(
                text,
                f"five fields, none of them for seconds or years; {CHARACTERS_MAX} characters"
                " at most",
            )
        minute, hour, *day = fields
        try:
            self._times = _times_of(minute, hour)
            self._days = _days_of(*day)
        except CronSimError as error:
            raise _unusable(text, _limit_of(str(error), fields)) from None
        self._each_match = minute.startswith("*") or hour.startswith("*")
        if self._days is None:
            raise _unusable(text, "a day that there is: it would never fire")

    def next_minute(self, zone: str, after: int) -> int | None:
        """The first minute behind ``after`` (both UTC, since the epoch) at which it fires in a
        zone; None: there is none within fifty years, or before the year 9999."""
        return self._next_match(zone, after) if self._each_match else self._next_time(zone, after)

    def _next_match(self, zone: str, after: int) -> int | None:
        for start, end, offset in stretches_from(zone, after + 1):
            local = self._next_local(max(after, start - 1) + offset)
            if local is None:
                return None
            if local - offset < end:
                return local - offset
        return None

    def _next_time(self, zone: str, after: int) -> int | None:
        """Times of the day in their order never go back when they become minutes of UTC, so the
        first one behind ``after`` is the next."""
        local = self._next_local(after + next(stretches_from(zone, after)).offset)
        while local is not None:
            minute = _minute_of(zone, local)
            if minute is None or minute > after:
                return minute
            local = self._next_local(local)
        return None

    def _next_local(self, local: int) -> int | None:
        """The next local time that matches, minutes since 1970-01-01T00:00 local time."""
        day, minute = divmod(local + 1, DAY_MINUTES)
        match = self._day_from(day)
        if match is None:
            return None
        if match > day:
            return match * DAY_MINUTES + self._times[0]
        at = bisect_left(self._times, minute)
        if at < len(self._times):
            return day * DAY_MINUTES + self._times[at]
        match = self._day_from(day + 1)
        return None if match is None else match * DAY_MINUTES + self._times[0]

    def _day_from(self, day: int) -> int | None:
        assert self._days is not None
        return _day_from(self._days, day)


def _minute_of(zone: str, local: int) -> int | None:
    """The first minute (UTC) with that local time; that behind the gap, if the clock skips it."""
    for start, end, offset in stretches_from(zone, local - _OFFSET_MAX):
        if local - offset < end:
            return max(local - offset, start)
    return None


@lru_cache(maxsize=4096)
def cron_expression(text: str) -> CronExpression:
    """The expression of a text. Errors: ``InvalidMessage``."""
    return CronExpression(text)


@lru_cache(maxsize=4096)
def _times_of(minute: str, hour: str) -> tuple[int, ...]:
    """The times of the day that two fields name, minutes, in order. Errors: ``CronSimError``."""
    fields = CronSim(f"{minute} {hour} * * *", _ANY_TIME)
    return tuple(sorted(hour * 60 + minute for hour in fields.hours for minute in fields.minutes))


@lru_cache(maxsize=4096)
def _days_of(day: str, month: str, weekday: str) -> CronSim | None:
    """What decides by these fields which days match; None: there is no such day. Errors:
    ``CronSimError``."""
    fields = CronSim(f"0 0 {day} {month} {weekday}", _ANY_TIME)
    return None if _day_from(fields, _FIRST_DAY) is None else fields


def _day_from(fields: CronSim, day: int) -> int | None:
    """The first day from ``day`` on that matches, days since 1970-01-01."""
    last = min(day + _DAYS_AHEAD_MAX, _LAST_DAY)
    while day < last:
        moment = date.fromordinal(day + EPOCH_DAY)
        if moment.month not in fields.months:
            day += 32 - moment.day  # in the next month
            day -= date.fromordinal(day + EPOCH_DAY).day - 1
        elif fields.match_day(moment):
            return day
        else:
            day += 1
    return None


def _limit_of(fault: str, fields: list[str]) -> str:
    """What belongs in place of the field that is wrong. ``fault``: as cronsim says it, such as
    ``Bad hour``."""
    name = fault.removeprefix("Bad ")
    field = fields[[*_ALLOWED].index(name)]
    return f"{_ALLOWED[name]}, *, a range that goes up, a list or a step in place of {field!r}"


def _unusable(text: str, limit: str) -> InvalidMessage:
    return InvalidMessage("not a cron expression", got=repr(text[:80]), limit=limit, remedy=_REMEDY)

"""Time zones as stretches of constant offset: local time is UTC plus an offset that changes now and
then.

Theory: within a stretch the arithmetic of a cron expression is that of plain numbers, so only the
ends of stretches need care. A walk in local time that adds hours across such an end misses 02:00
where the clock is set by half an hour (Lord Howe).

Rules
- Times are minutes: since 2000 every offset, and every change of one, is a whole minute.
- The table of zones is that of the machine, or the package ``tzdata`` where the machine has none.
  All peers of a group, and who proves what they did, need the same one: a government that moves a
  change of the clock by a week moves the runs of that week.
- The zone of the machine itself (``localtime``) is no zone: each peer may have another one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
DAY_MINUTES = 1440
EPOCH_DAY = date(1970, 1, 1).toordinal()
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
_OF_THE_MACHINE = ("localtime", "posixrules", "Factory", "posix/", "right/")
_YEARS = range(1999, 9999)


class OffsetStretch(NamedTuple):
    """From ``start`` until before ``end``, minutes since the epoch (UTC), local time is UTC plus
    ``offset`` minutes."""

    start: int
    end: int
    offset: int


def is_zone(name: str) -> bool:
    """True if ``name`` is a time zone of the IANA table, such as ``Europe/Berlin`` or ``UTC``."""
    if not _NAME.fullmatch(name) or name.startswith(_OF_THE_MACHINE):
        return False
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def stretches_from(zone: str, minute: int) -> Iterator[OffsetStretch]:
    """The stretches of a zone in order, first the one that has ``minute`` (UTC, since the epoch);
    they end with the year 9998. A stretch ends with its year (UTC) at the latest."""
    year = date.fromordinal(minute // DAY_MINUTES + EPOCH_DAY).year
    stretches = _stretches_of_year(zone, year)
    yield from stretches[bisect_right(stretches, (minute, 1 << 62, 0)) - 1 :]
    while (year := year + 1) in _YEARS:
        yield from _stretches_of_year(zone, year)


@lru_cache(maxsize=8192)
def _stretches_of_year(zone: str, year: int) -> tuple[OffsetStretch, ...]:
    """The stretches of a year (UTC). Two changes within one day that undo each other would be
    overlooked; no zone has had any since 2000."""
    info = ZoneInfo(zone)
    begin, end = ((date(of, 1, 1).toordinal() - EPOCH_DAY) * DAY_MINUTES for of in (year, year + 1))
    stretches = []
    start, offset = begin, _offset(info, begin)
    for minute in range(begin, end, DAY_MINUTES):
        last = minute + DAY_MINUTES - 1
        while _offset(info, last) != offset:
            change = _first_change(info, max(start, minute - 1), last, offset)
            stretches.append(OffsetStretch(start, change, offset))
            start, offset = change, _offset(info, change)
    stretches.append(OffsetStretch(start, end, offset))
    return tuple(stretches)


def _first_change(info: ZoneInfo, low: int, high: int, offset: int) -> int:
    """The first minute with another offset than ``low``, which has ``offset``; ``high`` has
    another one."""
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(info, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(info: ZoneInfo, minute: int) -> int:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    offset = moment.astimezone(info).utcoffset()
    assert offset is not None
    return offset // timedelta(minutes=1)

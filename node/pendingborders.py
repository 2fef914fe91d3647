"""Where a table of what is pending has seconds, where hours, where days.

Theory: as the wheel's files, the table's slots are seconds for what is due soon, hours behind them,
days behind these. The *borders* between them are a value (``Widths``): the begin of an hour, before
which what is due counts by second, and the begin of a day, before which it counts by hour. They go
ahead with the marks, up to the first slot that has to be split; when it is, up to its end.

    08:00   marks          10:00          Saturday
      |       |   seconds    |    hours      |    days
                             ^               ^  the borders

Rules
- Slots are split in the order of time. If one that cannot be read were passed over, what comes for
  it would count by second, and again when it is read at last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..wheel.config import TICK_MS
from ..wheel.slots.slot import (
    DAY_S,
    HOUR_S,
    HOURS_UNTIL_MS,
    Widths,
    begins_ms,
    ends_ms,
    is_wide,
    width_s,
)
from ..wheel.slots.storage import StockPoint

_HOUR_MS = HOUR_S * TICK_MS
_DAY_MS = DAY_S * TICK_MS


def wanted_borders(point: StockPoint, ahead_ms: int) -> Widths:
    """The borders as they should be: the first one ``ahead_ms`` ahead of the marks, and behind the
    hour in which these are."""
    last_ms = max(mark.furthest_ms for mark in point.marks.every)
    if last_ms < 0:  # nothing has ever left
        earliest = [*map(begins_ms, point.catalog), *(piece.earliest for piece in point.pieces)]
        if not earliest:
            return Widths()
        last_ms = min(earliest)
    seconds_until_ms = last_ms + max(ahead_ms, _HOUR_MS)
    hours_until_ms = last_ms + HOURS_UNTIL_MS
    return Widths(
        seconds_until_ms - seconds_until_ms % _HOUR_MS, hours_until_ms - hours_until_ms % _DAY_MS
    )


def earlier_borders(one: Widths, other: Widths) -> Widths:
    """Of each border the earlier one."""
    return Widths(
        min(one.seconds_until_ms, other.seconds_until_ms),
        min(one.hours_until_ms, other.hours_until_ms),
    )


def borders_before(wide: Sequence[int], wanted: Widths) -> Widths:
    """The borders ``wanted``, but none behind the begin of a slot that it would split. ``wide``:
    the table's slots of hours and days, ascending."""
    days = [slot for slot in wide if width_s(slot) == DAY_S]
    first = [begins_ms(slots[0]) if slots else 1 << 62 for slots in (wide, days)]
    return earlier_borders(Widths(*first), wanted)


def is_to_split(slot: int, wanted: Widths) -> bool:
    """True for an hour, or a day, before that border of ``wanted`` which splits its kind."""
    width = width_s(slot)
    until_ms = wanted.hours_until_ms if width == DAY_S else wanted.seconds_until_ms
    return is_wide(slot) and ends_ms(slot) <= until_ms


def borders_behind(slot: int, wide: Sequence[int], now: Widths, wanted: Widths) -> Widths | None:
    """The borders when a slot is split; None: it is not to be split now. ``now``: the borders until
    then; ``wide``: as of ``borders_before``."""
    if not is_to_split(slot, wanted):
        return None
    width = width_s(slot)
    if slot != next((other for other in wide if width_s(other) == width), None):
        return None
    if width == DAY_S:
        return replace(now, hours_until_ms=ends_ms(slot))
    return replace(now, seconds_until_ms=ends_ms(slot))

"""A delay in the place of a due time: the node adds it to its own clock when it takes the row.

Theory: whoever sends a delay has a clock of his own, and one that is a minute behind would make
three attempts out of one. So a delay travels as what it is, in the column of the due times, and
only the clock by which the row will leave is asked. A batch may have rows of both kinds. The entry
in the journal has due times alone.

    +--------------------+--------------------------------------+
    | 0xDE1A: 16 bits    | delay: ms, 48 bits, two's complement |
    +--------------------+--------------------------------------+

No due time looks like that: as a number it is some 2.4 * 10^18 below zero, and a due time is not
negative. A node that knows no delays refuses it as *due before 1970*.

Rules
- Delays of one entry begin when it was created, so a repeat of a batch has the due times, and the
  ids, of the first time: whoever has the receipt's ``created`` can compute them.
- A row with a delay may say ``slotwheel-expires-ms: +60000``: so many ms after it is due. It
  becomes a time together with the due time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np

from .schema import Int64s, Mask, bounds

_BITS = 48
_MARK = 0xDE1A - (1 << 16)
DELAY_LIMIT_MS = 1 << _BITS - 1
"""A delay is shorter: 4 459 years."""


def as_due(delay_ms: int) -> int:
    """A delay as it stands in a due time's place. Errors: ``OverflowError``."""
    if not -DELAY_LIMIT_MS <= delay_ms < DELAY_LIMIT_MS:
        raise OverflowError(f"a delay of {delay_ms} ms")
    return _MARK << _BITS | (delay_ms & (1 << _BITS) - 1)


def delay_of(due: int) -> int | None:
    """The delay in a due time's place, ms; None: it is a due time."""
    if due >> _BITS != _MARK:
        return None
    delay_ms = due & (1 << _BITS) - 1
    return delay_ms - (1 << _BITS) if delay_ms >= DELAY_LIMIT_MS else delay_ms


def due_time(due: int, start_ms: int) -> int:
    """A due time, ms; a delay in its place is counted from ``start_ms``."""
    delay = delay_of(due)
    return due if delay is None else start_ms + delay


def are_delays(due: Int64s) -> Mask:
    """The mask of those that are delays, shape (rows,)."""
    delays: Mask = due >> _BITS == _MARK
    return delays


@overload
def due_times(due: list[int], start_ms: int) -> list[int]: ...
@overload
def due_times(due: Int64s, start_ms: int) -> Int64s: ...
def due_times(due: Int64s | list[int], start_ms: int) -> Int64s | Sequence[int]:
    """Due times, ms; delays among them counted from ``start_ms``."""
    if isinstance(due, list):
        if min(due, default=0) >= 0:
            return due
        return [due_time(value, start_ms) for value in due]
    if not len(due) or bounds(due)[0] >= 0:
        return due
    times: Int64s = np.where(are_delays(due), (due << 64 - _BITS >> 64 - _BITS) + start_ms, due)
    return times

"""Which seconds are read at once.

Theory: rows of one second may lie in the files of that second, of its hour and of its day. A
*stretch* is a range of seconds that share files with each other, and with no second outside: a
single second, or all seconds of an hour or a day that has a file. Nothing that is said of a stretch
depends on files of another one. One that is a day is read in *strips*, as many of its seconds at a
time as memory allows.

*Example.* There are files of the seconds 3600, 3601 and 9000, and of the hour from 3600 on. The
stretches are ``range(3600, 7200)`` and ``range(9000, 9001)``. If the seconds 3600 and 3601 were
looked at apart from their hour, a cancel in the file of one would have no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..wheel.schema import Int64s
from ..wheel.slots.slot import bounds_of, places_within, seconds_of

STRIP_BYTES = 32 << 20
"""So much memory the rows of a strip take, about; more where a single second needs it."""


def stretches_of(slots: Int64s, seconds: Sequence[Int64s]) -> tuple[Int64s, Int64s]:
    """The first second of each stretch, ascending, and the second behind it, shape (stretches,)
    both. ``slots``: those with files. ``seconds``: others with rows."""
    files, widths = bounds_of(slots)
    first = np.concatenate([files, *seconds])
    behind = np.concatenate([files + widths, *(each + 1 for each in seconds)])
    # What lies inside of an hour or a day is sorted behind it, and ends with it or before.
    order = np.lexsort((-behind, first))
    first, behind = first[order], behind[order]
    begins = np.ones(len(first), np.bool_)
    begins[1:] = first[1:] >= np.maximum.accumulate(behind)[:-1]
    return first[begins], behind[begins]


def strips_of(stretch: range, load: Callable[[range], int], limit: int) -> Iterator[range]:
    """The strips of a stretch, one after the other. ``load``: the bytes that some seconds take, of
    which a strip has at most ``limit``, or it is one second."""
    first, most = stretch.start, len(stretch)
    while first < stretch.stop:
        strip = range(first, min(first + most, stretch.stop))
        while len(strip) > 1 and (nbytes := load(strip)) > limit:
            strip = strip[: max(1, len(strip) // -(-nbytes // limit))]
        yield strip
        first, most = strip.stop, 2 * len(strip)


def files_of(slots: Int64s, seconds: range) -> list[int]:
    """Those of ``slots``, ascending numbers, that may have rows of these seconds."""
    places = places_within(slots, seconds[0], seconds[-1])
    return [slot for at in places for slot in slots[at].tolist()]


def overlap(slot: int, seconds: range) -> bool:
    """Returns True when rows of a slot may be due in these seconds."""
    of_slot = seconds_of(slot)
    return of_slot.start < seconds.stop and seconds.start < of_slot.stop


def covers(seconds: range, slot: int) -> bool:
    """Returns True when all rows of a slot are due in these seconds."""
    of_slot = seconds_of(slot)
    return seconds.start <= of_slot.start and of_slot.stop <= seconds.stop

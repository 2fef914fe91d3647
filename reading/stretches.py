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

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.schema import Int64s
from ..wheel.slots.secondsums import NO_SUMS, SecondSums
from ..wheel.slots.slot import bounds_of, first_second, is_wide, places_within

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


def load_of(
    stretch: range, files: Mapping[int, int], rows_of: Callable[[int], SecondSums], limit: int
) -> SecondSums:
    """The bytes that each second of a stretch takes in memory; none if all of it takes ``limit`` at
    most, as then it is one strip. ``files``: the bytes of each of its slot files. ``rows_of``: the
    rows of a file of an hour or a day by second; it is asked about as few as can be, since it reads
    the file. One that cannot be read takes no memory."""
    if sum(files.values()) <= limit:
        return NO_SUMS
    parts = []
    for slot, nbytes in files.items():
        if not is_wide(slot):
            parts.append(SecondSums.of(np.array([first_second(slot)]), np.array([nbytes])))
            continue
        with suppress(Damaged, UnsupportedVersion, OSError):
            rows = rows_of(slot)
            each = SecondSums(rows.seconds, rows.sums * nbytes // max(1, rows.total))
            parts.append(each.within(stretch))
    return SecondSums.joined(parts)


def files_of(slots: Int64s, seconds: range) -> list[int]:
    """Those of ``slots``, ascending numbers, that may have rows of these seconds."""
    places = places_within(slots, seconds[0], seconds[-1])
    return [slot for at in places for slot in slots[at].tolist()]

"""A slot: which due times belong into it, its number, and what its file is called.

Theory: the wheel has one layer. A slot is a second, and where a message is due so far ahead that a
file for each second would be too many, an hour or a day. Which one a row goes to is decided once,
when it is spilled, and never changes; so the rows of one second may lie in three files, and who
reads a second reads all of them. A slot is named by its absolute first second, so it cannot be
taken for the same place of another revolution.

    bit 63   62 ... 56   55 ... 0
    +------+-----------+--------------+
    | sign | width     | first second |   width 0: a second, 1: an hour, 2: a day
    +------+-----------+--------------+

The number of a slot of a second is that second, also before 1970. The numbers of all slots of one
width are in the order of time, those of seconds before those of hours before those of days.

Who deletes, repairs, searches or proves asks here from when to when the rows of a slot are due, and
by which name its file is found: if each of them computed that for itself, one that was forgotten
would delete the file of a day whose last rows are still to leave.

*Example.* Slot 1800000060 has the rows due from 1800000060000 ms on and before 1800000061000 ms, in
``slots/1800000060.arrows``; while a repair makes it anew, in ``mended/1800000060.arrows``. The slot
of the hour from 1800000000 on has the number ``1 << 56 | 1800000000``, and its rows lie in
``slots/1800000000+3600.arrows``.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..config import TICK_MS, WIDTH_BITS
from ..files import SLOT_DIRECTORY
from ..schema import Int64s, Mask

SUFFIX = ".arrows"
SECOND_S, HOUR_S, DAY_S = WIDTHS_S = (1, 3_600, 86_400)
"""The widths of slots in seconds, in the order of their numbers."""
HOURS_UNTIL_MS = 48 * HOUR_S * TICK_MS
"""What is due so far ahead of now when it is spilled, or less, and too far for a slot of a second,
goes to a slot of an hour; the rest to one of a day."""
_FIRST_SECOND = (1 << WIDTH_BITS) - 1
_STEM = re.compile(r"(0|-?[1-9]\d*)(?:\+([1-9]\d*))?")


def width_s(slot: int) -> int:
    """The length of a slot in seconds."""
    return WIDTHS_S[slot >> WIDTH_BITS] if slot >= 0 else SECOND_S


def is_wide(slot: int) -> bool:
    """True for a slot of more than a second."""
    return slot >> WIDTH_BITS > 0


def first_second(slot: int) -> int:
    """The first second of a slot."""
    return slot & _FIRST_SECOND if is_wide(slot) else slot


def begins_ms(slot: int) -> int:
    """The first due time of a slot, ms."""
    return first_second(slot) * TICK_MS


def ends_ms(slot: int) -> int:
    """The first due time behind a slot, ms."""
    return begins_ms(slot) + width_s(slot) * TICK_MS


def seconds_of(slot: int) -> range:
    """The seconds of a slot."""
    return range(first_second(slot), first_second(slot) + width_s(slot))


def overlap(seconds: range, others: range) -> bool:
    """True if two ranges have a second in common."""
    return seconds.start < others.stop and others.start < seconds.stop


def bounds_of(slots: Int64s) -> tuple[Int64s, Int64s]:
    """The first seconds of slots, and their lengths in seconds, shape (slots,) all."""
    width = np.where(slots >= 0, slots >> WIDTH_BITS, 0)
    return np.where(width > 0, slots & _FIRST_SECOND, slots), np.array(WIDTHS_S)[width]


def slot_with(second: int, width: int) -> int:
    """The slot of ``width`` seconds that a second belongs to."""
    return WIDTHS_S.index(width) << WIDTH_BITS | second - second % width if width > 1 else second


def slots_with(second: int) -> tuple[int, ...]:
    """The slots that may have rows of a second, one of each width, the narrowest first."""
    if second < 0:
        return (second,)
    return tuple([slot_with(second, width) for width in WIDTHS_S])


def places_within(slots: Sequence[int] | Int64s, first: int, last: int) -> Iterator[slice]:
    """The places, in ascending ``slots``, of those that have seconds from ``first`` to ``last``."""
    for high in slots_with(last):
        low = slot_with(max(first, 0), width_s(high)) if is_wide(high) else first
        yield slice(bisect_left(slots, low), bisect_right(slots, high))


def is_slot(number: int) -> bool:
    """True for the number of a slot. Who takes a number from outside asks: of one with an unknown
    width, or of an hour that begins at a quarter past, nobody could say when it ends."""
    width, first = number >> WIDTH_BITS, number & _FIRST_SECOND
    return number < 0 or (width < len(WIDTHS_S) and first % WIDTHS_S[width] == 0)


def by_begin(slot: int) -> tuple[int, int]:
    """Sorts slots in the order of time; of those that begin together the narrower comes first."""
    return first_second(slot), slot


def by_begin_widest(slot: int) -> tuple[int, int]:
    """Sorts slots in the order of time; a wider one comes before those that lie inside of it."""
    return first_second(slot), -width_s(slot)


def wider_slots(slot: int) -> list[int]:
    """The slots that a slot lies inside of, the narrower first."""
    return [wide for wide in slots_with(first_second(slot)) if width_s(wide) > width_s(slot)]


def in_slots(slots: Iterable[int], due: Int64s) -> Mask:
    """The mask of due times in ms, shape (rows,) both, that are of one of ``slots``."""
    mask: Mask = np.zeros(len(due), np.bool_)
    for slot in slots:
        mask |= (due >= begins_ms(slot)) & (due < ends_ms(slot))
    return mask


def nested(slots: Iterable[int]) -> dict[int, list[int]]:
    """Slots, in the order of time, each with those that lie inside of it and itself. A slot inside
    of another one has no entry of its own.

    *Example.* The day from 0 on, its hours 2 and 3, and second 90000 of the next day: two entries,
    of the day with its hours, and of the second.
    """
    inside: dict[int, list[int]] = {}
    end_ms = None
    for slot in sorted(slots, key=by_begin_widest):
        if end_ms is None or begins_ms(slot) >= end_ms:
            widest, end_ms = slot, ends_ms(slot)
            inside[widest] = []
        inside[widest].append(slot)
    return inside


def rows_by_slot(slots: Container[int], due: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Those of ``slots`` that may hold rows of these due times (ms, shape (rows,)), the narrowest
    first, each with the positions of such rows. A row may be in up to three of them.

    *Example.* Of the slots of second 7 and of the day from 0 on, and due times 9500, 7001 and 7002:
    second 7 with positions 1 and 2, then the day with 1, 2 and 0.
    """
    order = np.argsort(due, kind="stable")
    for width in WIDTHS_S:
        second = due[order] // TICK_MS
        if width > SECOND_S:  # before 1970 there are slots of a second only
            order, second = order[second >= 0], second[second >= 0]
        if not len(order):
            return
        distinct, starts = np.unique(_numbers(second, width), return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        for slot, start, end in zip(distinct.tolist(), starts.tolist(), ends, strict=True):
            if slot in slots:
                yield slot, order[start:end]


def _numbers(second: Int64s, width: int) -> Int64s:
    """``slot_with`` of many seconds."""
    return slot_with(0, width) | second - second % width if width > SECOND_S else second


def stem_of(slot: int) -> str:
    """The name of a slot in names of files and in texts: ``1800000060``, ``1800000000+3600``."""
    return f"{first_second(slot)}+{width_s(slot)}" if is_wide(slot) else str(slot)


def slot_of_stem(stem: str) -> int | None:
    """The slot that a stem stands for; None if it is not one."""
    fields = _STEM.fullmatch(stem)
    if fields is None:
        return None
    first, width = int(fields[1]), int(fields[2] or SECOND_S)
    known = width in WIDTHS_S and first % width == 0 and first <= _FIRST_SECOND
    if not known or (fields[2] and (width == SECOND_S or first < 0)):
        return None
    return slot_with(first, width)


def file_name(slot: int) -> str:
    """The name of a slot's file, in whatever directory."""
    return f"{stem_of(slot)}{SUFFIX}"


def path_of(slot: int) -> str:
    """The place of a slot's file in the data directory."""
    return f"{SLOT_DIRECTORY}/{file_name(slot)}"


def slot_of_name(name: str) -> int | None:
    """The slot that a file name stands for, or None if it is not a slot file's name."""
    stem = name.removesuffix(SUFFIX)
    return None if stem == name else slot_of_stem(stem)


@dataclass(frozen=True, slots=True)
class Widths:
    """Which slot a row goes to by its due time, for one spill. Both bounds are whole seconds, in
    ms: if a second were shared between two files, a spill would write rows of one second with
    offsets that interleave into both.

    *Example.* At 10:00:00.5 with 7,200 slots what is due before 12:00:01 goes to slots of a second,
    what is due before 10:00:00 of the day after tomorrow to slots of an hour, the rest to slots of
    a day. The hour of 12:00 then lies in 1 + 1 files: its first second in one of its own.
    """

    seconds_until_ms: int = 1 << 62
    hours_until_ms: int = 1 << 62

    @classmethod
    def at(cls, now_ms: int, slots: int) -> Widths:
        """The widths of a spill at ``now_ms`` of a wheel with so many slots of a second."""
        now_s = now_ms // TICK_MS
        return cls((now_s + slots + 1) * TICK_MS, now_s * TICK_MS + HOURS_UNTIL_MS)

    def slots(self, due: Int64s) -> Int64s:
        """The slots of rows by their due times in ms, shape (rows,) both."""
        second = due // TICK_MS
        if not len(due) or int(due.max()) < self.seconds_until_ms:
            return second
        hours, days = _numbers(second, HOUR_S), _numbers(second, DAY_S)
        far = np.where(due < self.hours_until_ms, hours, days)
        return np.where(due < self.seconds_until_ms, second, far)

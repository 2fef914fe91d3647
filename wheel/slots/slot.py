"""A slot: which due times belong into it, and what its file is called.

Theory: a slot is named by its absolute second, so it cannot be taken for the same place of another
revolution. Who deletes, repairs, searches or proves asks here from when to when its rows are due,
and by which name its file is found: if each of them computed that for itself, one that was
forgotten when it changes would delete a file whose last rows are still to leave.

*Example.* Slot 1800000060 has the rows due from 1800000060000 ms on and before 1800000061000 ms, in
``slots/1800000060.arrows``; while a repair makes it anew, in ``mended/1800000060.arrows``.
"""

from __future__ import annotations

from ..config import TICK_MS
from ..files import SLOT_DIRECTORY

SUFFIX = ".arrows"


def begins_ms(second: int) -> int:
    """The first due time of a slot, ms."""
    return second * TICK_MS


def ends_ms(second: int) -> int:
    """The first due time behind a slot, ms."""
    return (second + 1) * TICK_MS


def file_name(second: int) -> str:
    """The name of a slot's file, in whatever directory."""
    return f"{second}{SUFFIX}"


def path_of(second: int) -> str:
    """The place of a slot's file in the data directory."""
    return f"{SLOT_DIRECTORY}/{file_name(second)}"


def second_of(name: str) -> int | None:
    """The second a file name stands for, or None if it is not a slot file's name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or not stem.lstrip("-").isdigit() or file_name(int(stem)) != name:
        return None
    return int(stem)

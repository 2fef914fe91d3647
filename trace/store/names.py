"""The files of a trace store, by their names.

A segment is named by the numbers of the flushes that it holds, ``FIRST-LAST``. Its events are in
``FIRST-LAST.arrow``, and ``FIRST-LAST.index`` says where. The events get their name last, so a
segment exists when that file does. A segment that lies within another one was merged into it, and
does not count: ``000000000003-000000000003`` beside ``000000000000-000000000007``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

EVENTS_SUFFIX, INDEX_SUFFIX, NEW_SUFFIX = ".arrow", ".index", ".new"
_FORM = re.compile(r"([0-9]{12})-([0-9]{12})\.arrow")


class SegmentName(NamedTuple):
    """The first and the last flush of a segment."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:012d}-{self.last:012d}"

    @property
    def events_file(self) -> str:
        return f"{self}{EVENTS_SUFFIX}"

    @property
    def index_file(self) -> str:
        return f"{self}{INDEX_SUFFIX}"

    def contains(self, other: SegmentName) -> bool:
        return self.first <= other.first and other.last <= self.last


def segment_names(names: Iterable[str]) -> list[SegmentName]:
    """The segments among the files of a directory, also those that do not count, sorted."""
    matches = (_FORM.fullmatch(name) for name in names)
    return sorted(
        SegmentName(int(match[1]), int(match[2])) for match in matches if match is not None
    )


def those_that_count(names: Iterable[SegmentName]) -> list[SegmentName]:
    """The names that lie in no other one, sorted."""
    kept: list[SegmentName] = []
    for name in sorted(names, key=lambda name: (name.first, -name.last)):
        if not kept or not kept[-1].contains(name):
            kept.append(name)
    return kept


def missing_segments(names: Iterable[SegmentName]) -> list[SegmentName]:
    """The flushes that are missing between two segments. Retention deletes only the oldest, so
    these were lost."""
    return [
        SegmentName(before.last + 1, behind.first - 1)
        for before, behind in pairwise(names)
        if behind.first > before.last + 1
    ]


def list_segments(root: Path | str) -> list[SegmentName]:
    """The segments that count now. A directory that changes while it is listed may lack the old
    name and the new one, so it is listed until it says the same twice."""
    before = None
    while (names := segment_names(_names(Path(root)))) != before:
        before = names
    return those_that_count(names)


def _names(root: Path) -> list[str]:
    try:
        return [path.name for path in root.iterdir()]
    except FileNotFoundError:
        return []

"""Whose place a newcomer gets where there are only so many: connections, streams, readers of pages.

Theory: whoever holds a place and does nothing with it keeps everybody else out, so the one that has
been of no use for longest leaves, once that is long enough. One that is always a little busy does
not leave by this; but nobody needs most of the places. So an address that has more of them than
the newcomer's gives one up, though it may be in use: 64 streams of one machine leave the first
stream of another one its place, and a machine that is alone has all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

K = TypeVar("K")


_Place = tuple[K, str, float]
"""Who has it, from which host, and for how many seconds it has been of no use; below 0: it is in
use."""


def who_leaves(host: str, places: Collection[_Place[K]], quiet_s: float) -> K | None:
    """Who gives up a place for a newcomer from ``host``; None: nobody. ``quiet_s``: for how long
    whoever has a place may be of no use."""
    if not places:
        return None
    holder, _, longest_s = max(places, key=_quiet_s)
    if longest_s >= quiet_s:
        return holder
    held = Counter(whose for _, whose, _ in places)
    greedy, count = held.most_common(1)[0]
    if count < held[host] + 2:
        return None
    return max((one for one in places if one[1] == greedy), key=_quiet_s)[0]


def _quiet_s(place: _Place[K]) -> float:
    return place[2]

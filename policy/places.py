"""Chooses who gives up a place for a newcomer, where places are few: connections, streams, readers
of pages.

Theory: a holder that does nothing with its place keeps others out, so the one that has been idle
for longest leaves, once that is long enough. Holders that are always a little busy do not leave by
this, so one machine could keep all places. Therefore an address that has at least two more than
the newcomer's gives one up, though it may be in use: with 64 streams of one machine the first
stream of another gets a place, and a machine that is alone has all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

K = TypeVar("K")


_Place = tuple[K, str, float]
"""A place: its holder, the holder's host, and the seconds for which it has been idle; below 0: it
is in use."""


def who_leaves(host: str, places: Collection[_Place[K]], quiet_s: float) -> K | None:
    """The holder that gives up its place for a newcomer from ``host``; None: nobody does. A holder
    may be idle for ``quiet_s``."""
    if not places:
        return None
    holder, _, longest_s = max(places, key=_quiet_s)
    if longest_s >= quiet_s:
        return holder
    held = Counter(holder_host for _, holder_host, _ in places)
    greedy, count = held.most_common(1)[0]
    if count < held[host] + 2:
        return None
    return max((place for place in places if place[1] == greedy), key=_quiet_s)[0]


def _quiet_s(place: _Place[K]) -> float:
    return place[2]

"""How late messages were: histograms that add up.

Theory: a histogram is small whatever the number of messages, and those of several ranges, tasks or
topics add up; percentiles are taken from the sum. Three are kept, each of which is as long as its
own groups need: of all messages, by topic, and by time bucket.

Rules
- Milliseconds are exact up to 4096; beyond that three digits are kept. The maximum is exact.
- A time bucket begins at ``t - t % interval`` of due times; the begin belongs to it, the end not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...wheel.schema import Int64s

EXACT_MS = 4096


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of a histogram, by group and lateness; all of shape (bars,). ``group``: CRC of a topic,
    begin of a bucket, or 0 for all messages."""

    group: Int64s
    lateness_ms: Int64s
    count: Int64s
    max_ms: Int64s

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Lateness of all messages, by topic, and by time bucket."""

    whole: Bars
    by_topic: Bars
    by_time: Bars

    def __len__(self) -> int:
        return len(self.whole) + len(self.by_topic) + len(self.by_time)


def histogram(topic: Int64s, bucket_ms: Int64s, lateness_ms: Int64s) -> Histogram:
    """The histogram of messages; all of shape (messages,)."""
    # Most messages share a bar with others: what follows works on the bars alone.
    topics, topic = np.unique(topic, return_inverse=True)
    buckets, bucket = np.unique(bucket_ms, return_inverse=True)
    both = topic * len(buckets) + bucket
    bars = _bars(both, rounded(lateness_ms), np.ones(len(both), np.int64), lateness_ms)
    topic, bucket = np.divmod(bars.group, max(1, len(buckets)))
    rest = bars.lateness_ms, bars.count, bars.max_ms
    return Histogram(
        _bars(np.zeros(len(bars), np.int64), *rest),
        _bars(topics[topic], *rest),
        _bars(buckets[bucket], *rest),
    )


def total(histograms: Sequence[Histogram]) -> Histogram:
    """The sum of at least one histogram."""
    return Histogram(
        _total([one.whole for one in histograms]),
        _total([one.by_topic for one in histograms]),
        _total([one.by_time for one in histograms]),
    )


def rounded(lateness: Int64s) -> Int64s:
    """Lateness, ms, exact up to ``EXACT_MS``, and with three digits beyond."""
    result = lateness.copy()
    large = np.flatnonzero(lateness > EXACT_MS)
    if len(large):
        values = lateness[large]
        unit = 10 ** np.maximum(np.floor(np.log10(values)).astype(np.int64) - 2, 0)
        result[large] = values // unit * unit
    return result


def _total(some: Sequence[Bars]) -> Bars:
    names = Bars.__slots__
    return _bars(*(np.concatenate([getattr(bars, name) for bars in some]) for name in names))


def _bars(group: Int64s, lateness: Int64s, count: Int64s, highest: Int64s) -> Bars:
    """Sum the bars of the same group and lateness."""
    if not len(group):
        return Bars(group, lateness, count, highest)
    order = np.lexsort((lateness, group))
    group, lateness = group[order], lateness[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (lateness[1:] != lateness[:-1])
    starts = np.flatnonzero(new)
    return Bars(
        group[starts],
        lateness[starts],
        np.add.reduceat(count[order], starts),
        np.maximum.reduceat(highest[order], starts),
    )

"""How many messages of each class there are, by topic and time bucket: sums that add up.

Theory: a class is a mask over the messages of a board, or a number for each message. Groups are
numbered once for a board; counting a class is then one ``bincount``. The counts of several ranges
or tasks are summed by the pair of topic and bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...wheel.schema import Int64s

TALLIED = (
    *("accepted", "delivered", "pending", "cancelled", "dead", "lost", "undecided"),
    *("overdue", "repeated", "late"),
)
"""The columns of a tally: accepted messages, their classes, and some kinds of problems."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts by group. ``topic`` (CRC of its name) and ``bucket_ms`` (its begin): shape (groups,);
    ``counts``: shape (groups, ``TALLIED``)."""

    topic: Int64s
    bucket_ms: Int64s
    counts: Int64s

    def __len__(self) -> int:
        return len(self.topic)


EMPTY = Tally(*(np.zeros(0, np.int64),) * 2, np.zeros((0, len(TALLIED)), np.int64))


def tally(
    topic: npt.NDArray[np.uint32],
    due: Int64s,
    interval_ms: int,
    counted: Mapping[str, npt.NDArray[Any]],
) -> Tally:
    """Count messages; arrays have shape (messages,). ``counted``: by a name in ``TALLIED``, how
    often each message counts; a missing name is 0. A bucket begins at ``t - t % interval``."""
    some = np.zeros(len(due), np.bool_)
    for often in counted.values():
        some |= often != 0
    rows = np.flatnonzero(some)
    if not len(rows):
        return EMPTY
    bucket = due[rows] // interval_ms
    first = bucket.min()
    # One number for topic and bucket: a topic has 32 bits, and the bucket fits into the rest.
    width = int(bucket.max() - first) + 1
    pairs = topic[rows].astype(np.uint64) * np.uint64(width) + (bucket - first).astype(np.uint64)
    groups, at = np.unique(pairs, return_inverse=True)
    counts = np.zeros((len(groups), len(TALLIED)), np.int64)
    for name, often in counted.items():
        sums = np.bincount(at, often[rows], minlength=len(groups))
        counts[:, TALLIED.index(name)] = sums
    topics, buckets = np.divmod(groups, np.uint64(width))
    return Tally(topics.astype(np.int64), (buckets.astype(np.int64) + first) * interval_ms, counts)


def total(tallies: Sequence[Tally]) -> Tally:
    """The sum of tallies."""
    some = [one for one in tallies if len(one)]
    if len(some) < 2:
        return some[0] if some else EMPTY
    topic, bucket_ms, counts = (
        np.concatenate([getattr(one, name) for one in some]) for name in Tally.__slots__
    )
    order = np.lexsort((bucket_ms, topic))
    topic, bucket_ms = topic[order], bucket_ms[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (topic[1:] != topic[:-1]) | (bucket_ms[1:] != bucket_ms[:-1])
    starts = np.flatnonzero(new)
    return Tally(topic[starts], bucket_ms[starts], np.add.reduceat(counts[order], starts))

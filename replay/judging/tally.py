"""How many messages of each class there are, by topic and time bucket: sums that add up.

Theory: a class is a mask over the messages of a board (or a number for each), and so is what counts
them. Groups are numbered once for a board; a class is then one ``bincount``. What several ranges or
tasks have counted is put together by the pair of topic and bucket.
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
"""What is counted: accepted messages, the classes they are in, and some of what is told of them."""


@dataclass(frozen=True, slots=True)
class Tally:
    """``topic`` (CRC of its name) and ``bucket_ms`` (its begin): shape (groups,); ``counts``: shape
    (groups, ``TALLIED``)."""

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
    """Of messages, shape (messages,) each. ``counted``: of a name in ``TALLIED``, how often each
    message counts; what is not named counts nothing. A bucket begins at ``t - t % interval``."""
    some = np.zeros(len(due), np.bool_)
    for often in counted.values():
        some |= often != 0
    rows = np.flatnonzero(some)
    if not len(rows):
        return EMPTY
    bucket = due[rows] // interval_ms
    first = bucket.min()
    # One number for both: a topic has 32 bits, and there are fewer buckets than milliseconds.
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
    """The sum."""
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

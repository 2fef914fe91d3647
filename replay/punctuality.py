"""Validator *punctuality*: never before its due time, and how late.

Theory: lateness is when a message first arrived, less what came later, its due time or its
acceptance (``created``), as they were accepted. A histogram of it is small whatever the number of
messages, and adds up over tasks: percentiles are taken from the sum.

Rules
- Milliseconds are exact up to 4096; beyond that three digits are kept. The maximum is exact.
- A time bucket begins at ``t - t % interval`` of due times; the begin belongs to it, the end not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..wheel.schema import Int64s
from .board import Board
from .conservation import wanted
from .facts import FORGED, Seen
from .found import Found
from .problems import PUNCTUALITY

EXACT_MS = 4096


@dataclass(frozen=True, slots=True)
class Histogram:
    """One place a bar: all of shape (bars,)."""

    topic: npt.NDArray[np.uint32]
    bucket_ms: Int64s
    lateness_ms: Int64s
    count: Int64s
    max_ms: Int64s


def judge_punctuality(board: Board, found: Found) -> Histogram:
    """Early and late ones are told; the lateness of all others is counted."""
    facts = board.arrivals(Seen.DELIVERED)
    facts = facts[board.facts["flags"][facts] & FORGED == 0]
    messages = board.place[facts]
    judged = (board.known & ~board.is_cancel & wanted(board))[messages]
    facts, messages = facts[judged], messages[judged]
    at = board.facts["at"][facts]
    first = np.full(board.n, np.iinfo(np.int64).max)
    np.minimum.at(first, messages, at)
    there = np.flatnonzero(first < np.iinfo(np.int64).max)
    first, due = first[there], board.due[there]
    early = there[first < due]
    by = (due - first)[first < due]
    found.tell(
        board, PUNCTUALITY, "early", early, lambda at: f"arrived {by[at]} ms before it was due"
    )
    lateness = np.maximum(first - np.maximum(due, board.created[there]), 0)
    limit = board.context.options.late_ms
    if limit is not None:
        late = there[lateness > limit]
        behind = lateness[lateness > limit]
        found.tell(board, PUNCTUALITY, "late", late, lambda at: f"arrived {behind[at]} ms late")
        _overdue(board, found, limit, first_of=there)
    return _histogram(board, there, due, lateness)


def _overdue(board: Board, found: Found, limit: int, first_of: Int64s) -> None:
    """Held still, and later by now than is allowed."""
    arrived = np.zeros(board.n, np.bool_)
    arrived[first_of] = True
    waiting = board.committed & ~board.is_cancel & wanted(board) & ~arrived & ~board.claimed
    waiting &= board.count(board.of(Seen.CANCELLED, Seen.DEAD)) == 0
    over = board.context.made_ms - board.due
    late = np.flatnonzero(waiting & (over > limit))
    found.tell(
        board, PUNCTUALITY, "late", late, lambda at: f"not sent yet, {over[late[at]]} ms overdue"
    )


def rounded(lateness: Int64s) -> Int64s:
    """Exact up to ``EXACT_MS``, three digits beyond."""
    result = lateness.copy()
    large = np.flatnonzero(lateness > EXACT_MS)
    if len(large):
        values = lateness[large]
        unit = 10 ** np.maximum(np.floor(np.log10(values)).astype(np.int64) - 2, 0)
        result[large] = values // unit * unit
    return result


def _histogram(board: Board, there: Int64s, due: Int64s, lateness: Int64s) -> Histogram:
    interval = board.context.options.interval_ms
    bucket = due - due % interval
    topics, topic = np.unique(board.topic[there], return_inverse=True)
    buckets, at = np.unique(bucket, return_inverse=True)
    lates, late = np.unique(rounded(lateness), return_inverse=True)
    if len(there) == 0:
        none = np.zeros(0, np.int64)
        return Histogram(np.zeros(0, np.uint32), none, none, none, none)
    code = (topic * len(buckets) + at) * len(lates) + late
    codes, bar, count = np.unique(code, return_inverse=True, return_counts=True)
    highest = np.zeros(len(codes), np.int64)
    np.maximum.at(highest, bar, lateness)
    which, late_at = np.divmod(codes, len(lates))
    topic_at, bucket_at = np.divmod(which, len(buckets))
    return Histogram(topics[topic_at], buckets[bucket_at], lates[late_at], count, highest)

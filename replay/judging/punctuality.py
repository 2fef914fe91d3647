"""Validator *punctuality*: no message before its due time, and how late each was.

Theory: lateness is the time from a message's due time or its acceptance (``created``), whichever is
later, to its first arrival.
"""

from __future__ import annotations

import numpy as np

from ...reading.problems import PUNCTUALITY
from ...wheel.schema import Int64s
from ..facts.fact import FORGED, Seen
from .board import Board
from .conservation import wanted
from .found import Judged
from .lateness import Histogram, histogram


def judge_punctuality(board: Board, found: Judged) -> Histogram:
    """Report early and late messages; returns the lateness of all others."""
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
    found.report(
        board, PUNCTUALITY, "early", early, lambda at: f"arrived {by[at]} ms before it was due"
    )
    lateness = np.maximum(first - np.maximum(due, board.created[there]), 0)
    limit = board.context.options.late_ms
    if limit is not None:
        late = there[lateness > limit]
        behind = lateness[lateness > limit]
        found.report(board, PUNCTUALITY, "late", late, lambda at: f"arrived {behind[at]} ms late")
        too_late = np.zeros(board.n, np.bool_)
        too_late[late] = True
        too_late[_overdue(board, found, limit, first_of=there)] = True
        found.count_each("late", too_late)
    interval = board.context.options.interval_ms
    topic = board.topic[there].astype(np.int64)
    return histogram(topic, due - due % interval, lateness)


def _overdue(board: Board, found: Judged, limit: int, first_of: Int64s) -> Int64s:
    """Report messages that are held still and overdue by more than ``limit``, ms; their numbers."""
    arrived = np.zeros(board.n, np.bool_)
    arrived[first_of] = True
    waiting = board.committed & ~board.is_cancel & wanted(board) & ~arrived & ~board.claimed
    waiting &= board.count(board.of(Seen.CANCELLED, Seen.DEAD)) == 0
    over = board.context.made_ms - board.due
    late = np.flatnonzero(waiting & (over > limit))
    found.report(
        board, PUNCTUALITY, "late", late, lambda at: f"not sent yet, {over[late[at]]} ms overdue"
    )
    return late

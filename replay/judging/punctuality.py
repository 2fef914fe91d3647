"""Validator *punctuality*: no message before its due time, and how late each was.

Theory: lateness is the time from when a message could leave (``account.limits.ready_ms``) to its
first arrival.
"""

from __future__ import annotations

import numpy as np

from ...account.limits import NEVER_MS
from ...reading.problems import PUNCTUALITY
from ...wheel.schema import Int64s
from ..facts.fact import Seen
from .board import Board
from .conservation import wanted
from .found import Judged


def judge_punctuality(board: Board, found: Judged) -> tuple[Int64s, Int64s]:
    """Report early and late messages, and those that are overdue. Returns as ``judge_arrivals``."""
    there, lateness = judge_arrivals(board, found)
    limit = board.context.options.late_ms
    if limit is not None:
        too_late = np.zeros(board.n, np.bool_)
        too_late[there[lateness > limit]] = True
        too_late[_overdue(board, found, limit, first_of=there)] = True
        found.count_each("late", too_late)
    return there, lateness


def judge_arrivals(board: Board, found: Judged) -> tuple[Int64s, Int64s]:
    """Report early and late messages among those that arrived. Returns the numbers of all that
    arrived, and the lateness of each, ms, both of shape (arrived,)."""
    first = board.arrived_ms
    judged = board.known & ~board.is_cancel & wanted(board)
    there = np.flatnonzero(judged & (first < NEVER_MS))
    first, due = first[there], board.due[there]
    by = (due - first)[first < due]
    found.report(
        board,
        PUNCTUALITY,
        "early",
        there[first < due],
        lambda at: f"arrived {by[at]} ms before it was due",
    )
    lateness = np.maximum(first - board.ready_ms[there], 0)
    limit = board.context.options.late_ms
    if limit is not None:
        behind = lateness[lateness > limit]
        late = there[lateness > limit]
        found.report(board, PUNCTUALITY, "late", late, lambda at: f"arrived {behind[at]} ms late")
    return there, lateness


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

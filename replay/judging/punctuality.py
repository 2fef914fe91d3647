"""Validator *punctuality*: no message before its due time, and how late each was.

Theory: lateness is the time from when a message could leave (``account.limits.ready_ms``) to its
first arrival: due at 10 s, accepted at 12 s and arrived at 13 s, it is one second late.
"""

from __future__ import annotations

import numpy as np

from ...account.limits import NEVER_MS
from ...reading.problems import PUNCTUALITY
from ...wheel.schema import Int64s
from ..facts.fact import Seen
from .board import Board
from .conservation import wanted
from .judged import Judged


def judge_punctuality(board: Board, result: Judged) -> tuple[Int64s, Int64s]:
    """Report early and late messages, and those that are overdue. Returns as ``judge_arrivals``."""
    arrived, lateness = judge_arrivals(board, result)
    limit = board.context.options.late_ms
    if limit is not None:
        too_late = np.zeros(board.n, np.bool_)
        too_late[arrived[lateness > limit]] = True
        too_late[_overdue(board, result, limit, arrived)] = True
        result.count_each("late", too_late)
    return arrived, lateness


def judge_arrivals(board: Board, result: Judged) -> tuple[Int64s, Int64s]:
    """Report early and late messages among those that arrived. Returns the numbers of all that
    arrived, and the lateness of each, ms, both of shape (arrived,)."""
    first = board.arrived_ms
    judged = board.known & ~board.is_cancel & wanted(board)
    arrived = np.flatnonzero(judged & (first < NEVER_MS))
    first, due = first[arrived], board.due[arrived]
    by = (due - first)[first < due]
    result.report(
        board,
        PUNCTUALITY,
        "early",
        arrived[first < due],
        lambda at: f"arrived {by[at]} ms before it was due",
    )
    lateness = np.maximum(first - board.ready_ms[arrived], 0)
    limit = board.context.options.late_ms
    if limit is not None:
        behind = lateness[lateness > limit]
        late = arrived[lateness > limit]
        result.report(board, PUNCTUALITY, "late", late, lambda at: f"arrived {behind[at]} ms late")
    return arrived, lateness


def _overdue(board: Board, result: Judged, limit: int, arrived: Int64s) -> Int64s:
    """Report messages that are held still and overdue by more than ``limit``, ms. Returns their
    numbers. ``arrived``: the numbers of those that arrived."""
    waiting = board.committed & ~board.is_cancel & wanted(board) & ~board.claimed
    waiting[arrived] = False
    waiting &= board.count(board.of(Seen.CANCELLED, Seen.DEAD)) == 0
    over = board.context.made_ms - board.due
    late = np.flatnonzero(waiting & (over > limit))
    result.report(
        board, PUNCTUALITY, "late", late, lambda at: f"not sent yet, {over[late[at]]} ms overdue"
    )
    return late

"""Validator *conservation* for messages that come once more: no letter is redriven twice, and no
attempt is left out.

Rules
- A letter that was redriven twice has two rows, each stored with the note of a redrive.
- A group's attempts at a message are numbered. Where one is there, all before it are, unless the
  journal that would have them is gone.
- How long a retry waited is held against no policy, and where a message was routed to against no
  rule: no file says which held then.
"""

from __future__ import annotations

import numpy as np

from ...reading.problems import CONSERVATION
from ..facts.fact import Seen
from .board import Board
from .judged import Judged

REDRIVEN_TWICE, SKIPPED = "redriven twice", "attempt skipped"
RETRIES, RETRIES_UNJUDGED = "again:retries", "unjudged:retries"
"""Counts beside the classes: retries, and those whose attempts before may be in a journal that is
gone."""


def judge_again(board: Board, result: Judged) -> None:
    _redriven(board, result)
    _retried(board, result)


def _redriven(board: Board, result: Judged) -> None:
    facts = board.of(Seen.REDRIVEN)
    if not len(facts):
        return
    # Each peer has the row.
    rows = np.unique(np.stack([board.place[facts], board.facts["where"][facts]], axis=1), axis=0)
    times = np.bincount(rows[:, 0], minlength=board.n)
    again = np.flatnonzero((times > 1) & board.context.options.judges(board.due_anywhere))
    result.report(
        board,
        CONSERVATION,
        REDRIVEN_TWICE,
        again,
        lambda at: f"its dead letter was sent again {times[again[at]]} times, by notes of redrives",
        due=board.due_anywhere[again],
    )


def _retried(board: Board, result: Judged) -> None:
    facts = board.of(Seen.RETRIED)
    if not len(facts):
        return
    fields = board.facts
    columns = [board.place[facts], fields["created"][facts], fields["at"][facts]]
    rows = np.unique(np.stack(columns, axis=1), axis=0)
    result.count(RETRIES, len(rows))
    if board.context.unread.shape[1] or any(peer.missing.shape[1] for peer in board.context.peers):
        result.count(RETRIES_UNJUDGED, len(rows))
        return
    follows = np.zeros(len(rows), np.bool_)
    follows[1:] = (rows[1:, :2] == rows[:-1, :2]).all(axis=1)
    before = np.where(follows, np.concatenate([[0], rows[:-1, 2]]), 1)
    skipped = rows[:, 2] > before + 1
    messages, first = np.unique(rows[skipped, 0], return_index=True)
    wanted = board.context.options.judges(board.due_anywhere[messages])
    messages, first = messages[wanted], first[wanted]
    tried, last = rows[skipped, 2][first], before[skipped][first]
    result.report(
        board,
        CONSERVATION,
        SKIPPED,
        messages,
        lambda at: f"attempt {tried[at]} was asked for, and the one before it was {last[at]}",
        due=board.due_anywhere[messages],
    )

"""Slot files that are another wheel's: the journals have none of their rows.

Theory: a slot file does not say which wheel made it, and its name fits any wheel. Its rows tell,
when they are compared with the journals. Then the file is one problem, and not each of its rows:
they do not count, and the rows that are missing in its slot are no further problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...reading.problems import INTEGRITY, Problem
from ...wheel.texts import counted
from ..facts.fact import Facts, Seen
from .board import Board
from .context import Context
from .judged import Judged

_ROWS_MIN = 2
"""A file with fewer rows may be the right one, with a row that is wrong."""


def without_strangers(facts: Facts, context: Context, result: Judged) -> Board:
    """The board of these facts without those of another wheel's slot files. Each such file is
    reported."""
    board = Board(facts, context)
    strange = _strangers(board)
    if not strange:
        return board
    spans: dict[int, list[tuple[int, int]]] = {}
    for file, rows in sorted(strange.items()):
        of_file = facts[facts["file"] == file]
        name, due_ms = context.slot_files[file]
        spans.setdefault(int(of_file["peer"][0]), []).append(due_ms)
        text = (
            f"none of its {counted(rows, 'row')} is one of the journals: it is another wheel's slot"
            " file most likely. Give that of this one"
        )
        result.problem_counts["foreign"] = result.problem_counts.get("foreign", 0) + 1
        result.problems.append(Problem(INTEGRITY, "foreign", text, file=name))
    peers = [view.with_damaged(spans.get(at, ())) for at, view in enumerate(context.peers)]
    own = ~np.isin(facts["file"], np.array(list(strange), np.uint32))
    return Board(facts[own], replace(context, peers=peers))


def _strangers(board: Board) -> Mapping[int, int]:
    """The number of rows of each such file among these facts, by ``File.number``."""
    facts = board.of(Seen.SLOT, Seen.ARCHIVED)
    messages = board.place[facts]
    known = board.in_journals[messages]
    wrong = ~board.known & (board.readable | board.behind_the_log) & ~board.may_be_missing
    wrong = wrong[messages]
    judged = known | wrong
    wrong[known] = ~board.same(facts[known], board.reference[messages[known]])
    files, at = np.unique(board.facts["file"][facts], return_inverse=True)
    rows = np.bincount(at[judged], minlength=len(files))
    bad = np.bincount(at[wrong], minlength=len(files))
    strange = (rows == bad) & (rows >= _ROWS_MIN)
    return dict(zip(files[strange].tolist(), rows[strange].tolist(), strict=True))

"""Validator *order*: within a partition, messages come in the order of their due times.

Theory: a message behind a later one in the same chunk is flagged in its fact (``chunks.py``), and
the key above which a chunk must be, because of earlier chunks, is in the context (``behind.py``).
Here both are judged together with the message's other facts.

Rules
- If a message arrived several times, its first arrival is judged.
- A record that should not have arrived at all is not judged for order.
- Only messages that were accepted some time before they were due are judged: how long an entry took
  to be committed is not recorded, so of others it is not known whether they were there in time.
  They are counted.
"""

from __future__ import annotations

import numpy as np

from ...reading.problems import ORDER
from ...wheel.schema import Int64s, Mask
from ..facts.behind import Behind
from ..facts.chunks import in_time, well_before
from ..facts.fact import OUT_OF_ORDER, Seen
from .board import Board
from .found import Judged

ORDER_UNJUDGED = "unjudged:order"
"""Counted: messages that arrived, and were accepted too late for their order to be judged."""


def judge_order(board: Board, found: Judged) -> None:
    """Report messages out of order. Call it after *conservation*, which fills ``strange``."""
    context = board.context
    facts = board.of(Seen.DELIVERED)
    others = facts[~well_before(board.facts["created"][facts], board.facts["due"][facts])]
    others = others[context.options.judges(board.facts["due"][others])]
    found.count(ORDER_UNJUDGED, (board.count(others) > 0).sum())
    if not context.behind:
        return
    fields = board.facts.rows(facts)
    judged = in_time(fields)
    facts, fields = facts[judged], fields[judged]
    late = fields["flags"] & OUT_OF_ORDER != 0
    which = np.full(len(facts), -1)
    for number, one in enumerate(context.behind):
        inside = one.has(fields)
        which[inside] = number
        if one.key is not None:
            due, offset = one.key
            lower = (fields["due"] < due) | ((fields["due"] == due) & (fields["offset"] < offset))
            late |= inside & lower
    late &= (which >= 0) & _first_arrivals(board, facts) & context.options.judges(fields["due"])
    late &= ~np.isin(board.place[facts], found.strange)
    messages, first = np.unique(board.place[facts[late]], return_index=True)
    chosen = np.flatnonzero(late)[first]
    fields, which = fields[chosen], which[chosen]
    found.report(
        board,
        ORDER,
        "out of order",
        messages,
        lambda at: _text(board, context.behind[which[at]], fields[at]),
        due=fields["due"],
        position=fields["where"],
        file=lambda at: context.behind[which[at]].chunk.file,
    )


def _first_arrivals(board: Board, facts: Int64s) -> Mask:
    """Which of these facts are, or repeat, the first arrival of their message."""
    every = board.of(Seen.DELIVERED)
    at, where = board.facts["at"][every], board.facts["where"][every]
    place = board.place[every]
    order = np.lexsort((where, at, place))
    messages, first = np.unique(place[order], return_index=True)
    earliest = np.zeros((2, board.n), np.int64)
    earliest[:, messages] = at[order[first]], where[order[first]]
    mine = board.place[facts]
    same: Mask = board.facts["at"][facts] == earliest[0][mine]
    same &= board.facts["where"][facts] == earliest[1][mine]
    return same


def _text(board: Board, one: Behind, fact: np.void) -> str:
    chunk, before = one.chunk, one.named.get(int(fact["where"]), one.key)
    log = f"partition {chunk.partition} of {chunk.topic}" if chunk.partition >= 0 else chunk.topic
    whom = "a message that is due later"
    if before is not None:
        whom = f"{board.context.terms.id_of(*before)} of due {before[0]} ms"
    return f"due {fact['due']} ms stands at position {fact['where']} of {log}, behind {whom}"

"""Validator *order*: within a partition, messages come in the order of their due times.

Theory: a message behind a later one in the same chunk is flagged in its fact (``chunks.py``), and
the key above which a chunk must be, because of earlier chunks, is in the context (``behind.py``).
Here both are judged together with the message's other facts.

Rules
- If a message arrived several times, its first arrival is judged: a repeat stands behind later
  messages by its nature.
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
from .judged import Judged

ORDER_UNJUDGED = "unjudged:order"
"""Counted: messages that arrived, and were accepted too late for their order to be judged."""


def judge_order(board: Board, result: Judged) -> None:
    """Report messages out of order. Call it after *conservation*, which fills ``strange``."""
    context = board.context
    facts = board.of(Seen.DELIVERED)
    others = facts[~well_before(board.facts["created"][facts], board.facts["due"][facts])]
    others = others[context.options.judges(board.facts["due"][others])]
    result.count(ORDER_UNJUDGED, (board.count(others) > 0).sum())
    if not context.behind:
        return
    fields = board.facts.rows(facts)
    judged = in_time(fields)
    facts, fields = facts[judged], fields[judged]
    late = fields["flags"] & OUT_OF_ORDER != 0
    chunk_of = np.full(len(facts), -1)
    for number, behind in enumerate(context.behind):
        inside = behind.has(fields)
        chunk_of[inside] = number
        if behind.key is not None:
            due, offset = behind.key
            lower = (fields["due"] < due) | ((fields["due"] == due) & (fields["offset"] < offset))
            late |= inside & lower
    late &= (chunk_of >= 0) & _first_arrivals(board, facts) & context.options.judges(fields["due"])
    late &= ~np.isin(board.place[facts], result.strange)
    messages, first = np.unique(board.place[facts[late]], return_index=True)
    chosen = np.flatnonzero(late)[first]
    fields, chunk_of = fields[chosen], chunk_of[chosen]
    result.report(
        board,
        ORDER,
        "out of order",
        messages,
        lambda at: _text(board, context.behind[chunk_of[at]], fields[at]),
        due=fields["due"],
        position=fields["where"],
        file=lambda at: context.behind[chunk_of[at]].chunk.file,
    )


def _first_arrivals(board: Board, facts: Int64s) -> Mask:
    """True for facts that are, or repeat, the first arrival of their message."""
    every = board.of(Seen.DELIVERED)
    at, where = board.facts["at"][every], board.facts["where"][every]
    place = board.place[every]
    order = np.lexsort((where, at, place))
    messages, first = np.unique(place[order], return_index=True)
    earliest = np.zeros((2, board.n), np.int64)
    earliest[:, messages] = at[order[first]], where[order[first]]
    message = board.place[facts]
    same: Mask = board.facts["at"][facts] == earliest[0][message]
    same &= board.facts["where"][facts] == earliest[1][message]
    return same


def _text(board: Board, behind: Behind, fact: np.void) -> str:
    chunk, before = behind.chunk, behind.named.get(int(fact["where"]), behind.key)
    log = f"partition {chunk.partition} of {chunk.topic}" if chunk.partition >= 0 else chunk.topic
    other = "a message that is due later"
    if before is not None:
        other = f"{board.context.terms.id_of(*before)} of due {before[0]} ms"
    return f"due {fact['due']} ms stands at position {fact['where']} of {log}, behind {other}"

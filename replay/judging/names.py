"""Validator *conservation* for names: at most one message of a name is pending in its topic.

Theory: the messages of a name, in the order of their offsets, follow each other: when one is
accepted, the one before must have left, or be cancelled by then. Which messages had the name, and
what became of each, is known when its range of offsets has been judged; so ranges give their named
messages, these come together by the keys of their names, and neighbours of one key are compared. If
all neighbours are apart, all are. The wheel's own word, that a message was *replaced* or *kept*, is
not asked.

*Example.* Entry 7 accepts ``order-17`` at offset 70, and entry 9 at offset 90, with a row 91 that
cancels 70: the entry ends behind 91, so 70 was cancelled by then. Without that row 70 was pending,
and 90 is blamed: it should not have been accepted as it was.

Rules
- A message that its own entry cancels was never pending: it was kept out by the one that had the
  name, or replaced by a later row of its batch.
- One that was due has left unless it is held still, or was cancelled later and did not arrive. As
  clocks of masters differ, five seconds (``IN_TIME_MS``) before it was due it may have left.
- A message of which it is not decided what became of it is held against nobody: the row that
  cancelled it may be what is damaged.
- Where a journal is gone, the entry of a row in a slot file is not known, nor which cancels came
  with it. Then the row is left out if it was cancelled, and else every cancel of the one before
  counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from ...reading.problems import CONSERVATION, Problem
from ...wheel.schema import Mask
from ..facts.chunks import IN_TIME_MS
from ..facts.fact import SHARES, UNKNOWN_END, Seen, compress, decompress
from ..facts.scan import Batches
from .board import Board
from .context import Context
from .judged import NAMED, Judged
from .shares import by_share, in_shares
from .sums import JUDGED_ARROW, counts, problem_rows, rows

NAME_TWICE = "name twice"
NamedMessages = npt.NDArray[np.void]
"""Shape (n,), dtype ``NAMED``."""


def find_named(board: Board, result: Judged) -> None:
    """Put the accepted messages that had names into ``result``, but for those that were never
    pending and those that are undecided. Call it after *conservation*, which has found out what
    became of them."""
    facts = board.of(Seen.NAMED)
    if not len(facts):
        return
    fields, place = board.facts, board.place[facts]
    end = np.full(board.n, UNKNOWN_END)
    np.minimum.at(end, place, fields["where"][facts])
    clock = np.zeros(board.n, np.int64)
    np.maximum.at(clock, place, fields["created"][facts])
    cancel = np.full(board.n, UNKNOWN_END)
    cancels = board.of(Seen.CANCELLED)
    np.minimum.at(cancel, board.place[cancels], fields["where"][cancels])
    cancel[~board.cancelled] = UNKNOWN_END
    messages, first = np.unique(place, return_index=True)
    judged = (result.counted["accepted"] & ~result.counted["undecided"])[messages]
    judged &= (cancel >= end)[messages] | (cancel == UNKNOWN_END)[messages]
    messages, first = messages[judged], facts[first[judged]]
    named = np.zeros(len(messages), NAMED)
    named["key"], named["rest"] = fields["digest"][first], fields["at"][first]
    named["offset"], named["due"] = board.offset[messages], board.due[messages]
    named["clock"], named["end"], named["cancel"] = (
        column[messages] for column in (clock, end, cancel)
    )
    entry = fields["where"][board.reference[messages]]
    named["entry"] = np.where(board.in_journals[messages], entry, -1)
    named["pending"] = result.counted["pending"][messages]
    for name in ("delivered", "dead", "expired"):
        named["arrived"] |= result.counted[name][messages]
    result.named = named


def judge_names(named: NamedMessages, context: Context, result: Judged) -> None:
    """Report messages that were accepted while another one of their name was pending. ``named``:
    all there are of some keys, in any order."""
    ordered = named[np.lexsort((named["offset"], named["rest"], named["key"]))]
    before, after = ordered[:-1], ordered[1:]
    same = (before["key"] == after["key"]) & (before["rest"] == after["rest"])
    wrong = np.flatnonzero(same & _was_pending(before, after))
    if not len(wrong):
        return
    result.problem_counts[NAME_TWICE] = result.problem_counts.get(NAME_TWICE, 0) + len(wrong)
    for at in wrong[: context.options.problems_max].tolist():
        result.problems.append(_problem(before[at], after[at], context))


def _was_pending(before: NamedMessages, after: NamedMessages) -> Mask:
    """True where the one before was pending when the one after was accepted; pair by pair."""
    cancelled = before["cancel"] != UNKNOWN_END
    early = after["clock"] + IN_TIME_MS < before["due"]
    stayed = (before["pending"] != 0) | (cancelled & (before["arrived"] == 0))
    wrong: Mask = ~(cancelled & (before["cancel"] < after["end"])) & (early | stayed)
    return wrong


def _problem(before: np.void, after: np.void, context: Context) -> Problem:
    offset, due = int(after["offset"]), int(after["due"])
    other = context.terms.id_of(int(before["due"]), int(before["offset"]))
    entry = f"entry {after['entry']}" if after["entry"] >= 0 else "its entry"
    cancel = int(before["cancel"])
    until = "no row cancels it" if cancel == UNKNOWN_END else f"row {cancel} cancels it later"
    text = (
        f"accepted by {entry} while {other}, of the same name and topic, was pending: it is due"
        f" {before['due']} ms, and {until}"
    )
    return Problem(CONSERVATION, NAME_TWICE, text, context.terms.id_of(due, offset), offset, due)


def named_rows(named: NamedMessages) -> Iterator[pa.RecordBatch]:
    """Named messages as rows of ``JUDGED_ARROW``, by the share of their keys."""
    if not len(named):
        return
    share = (named["key"] % SHARES).astype(np.int64)
    shares = np.unique(share)
    parts = [named[share == number] for number in shares.tolist()]
    yield from rows(
        "named",
        len(parts),
        bucket_ms=pa.array(shares),
        count=pa.array([len(part) for part in parts], pa.int64()),
        data=pa.array([compress(part.tobytes()) for part in parts], pa.binary()),
    ).to_batches()


def judge_all_names(judged: DataFrame, context: Context, partitions: int) -> DataFrame:
    """Judge the named messages of all ranges. Columns: ``JUDGED_ARROW``. ``judged``: of
    ``ranges.judge``. ``partitions``: of the shuffle."""

    def judge_shares(batches: Batches) -> Batches:
        for _, parts in by_share(batches, "bucket_ms"):
            result = Judged()
            named = [decompress(part["data"], NAMED) for part in parts]
            judge_names(np.concatenate(named), context, result)
            if result.problems:
                yield from problem_rows(result.problems).to_batches()
                yield from counts("problems", result.problem_counts).to_batches()

    shares = judged.where("what = 'named'").select("bucket_ms", "data")
    together = in_shares(shares, "bucket_ms", partitions)
    return together.mapInArrow(judge_shares, from_arrow_schema(JUDGED_ARROW))

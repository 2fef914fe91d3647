"""One delivery: a batch of due rows to the sink, and refused rows to the dead letters.

This is the part of the hand that may wait for a disk or a broker, so it is a function of its
arguments alone: the hand calls it for the main mark in its own thread and for held-back topics in
others. A row that is neither accepted nor refused stays unanswered: ``wheel/due/lines.py`` holds
its topic back, and ``held.py`` tries it again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..wheel.due.chunk import Chunk
from ..wheel.expiry import expires_ms
from ..wheel.schema import Int64s, Mask, times
from .ask import ask
from .deadletters import DeadLetters
from .names import EXPIRED_REASON
from .ports import DuePort
from .sink import Answer, Answers, Sink


@dataclass(slots=True)
class BatchOutcome:
    """The outcome of a batch. ``answered``: rows the mark may pass; ``accepted``: those of them
    that the sink accepted; ``unknown``: rows that may have left, or may yet; ``dead``: how many
    dead letters by reason, but for those that ``expired``; ``why_not``: why other rows are not
    answered."""

    answered: Mask
    accepted: Mask
    unknown: Mask
    dead: Counter[str] = field(default_factory=Counter)
    expired: int = 0
    why_not: str = ""
    down: bool = False
    errors: list[str] = field(default_factory=list)
    """Errors that the sink raised instead of answering."""

    @property
    def complete(self) -> bool:
        return bool(self.answered.all())


def hand_over(
    sink: Sink,
    dead_letters: DeadLetters,
    rows: pa.RecordBatch,
    now_ms: int,
    *,
    trial: bool = False,
) -> BatchOutcome:
    """Deliver those of ``rows`` that have not expired at ``now_ms``; returns within the limits of
    the sinks. Errors: ``SyncFailed``."""
    errors: list[str] = []
    until = expires_ms(rows.column("headers"))
    expired = np.zeros(rows.num_rows, np.bool_) if until is None else until <= now_ms
    if expired.any():
        answers = Answers.same(rows.num_rows, Answer.REFUSED)
        fresh = np.flatnonzero(~expired)
        if len(fresh):
            found = ask(sink, rows.take(pa.array(fresh)), errors, trial=trial)
            answers.fill(fresh, found)
            answers.down = found.down
        answers.reasons |= dict.fromkeys(np.flatnonzero(expired).tolist(), EXPIRED_REASON)
    else:
        answers = ask(sink, rows, errors, trial=trial)
    accepted = answers.which(Answer.ACCEPTED)
    unknown = answers.which(Answer.UNKNOWN)
    outcome = BatchOutcome(accepted.copy(), accepted, unknown, down=answers.down, errors=errors)
    outcome.why_not = answers.why_not
    refused = answers.which(Answer.REFUSED)
    if refused.any():
        at = np.flatnonzero(refused)
        reasons = [answers.reasons.get(row, "refused") for row in at.tolist()]
        buried = dead_letters.bury(rows.take(pa.array(at)), reasons, errors, trial=trial)
        stored = buried.which(Answer.ACCEPTED)
        outcome.answered[at[stored]] = True
        outcome.unknown[at[buried.which(Answer.UNKNOWN)]] = True
        outcome.expired = int(np.count_nonzero(stored & expired[at]))
        outcome.dead.update(itertools.compress(reasons, (stored & ~expired[at]).tolist()))
        outcome.why_not = outcome.why_not or buried.why_not
        outcome.down |= buried.down
    return outcome


def lateness(rows: pa.RecordBatch, delivered_ms: int) -> Int64s:
    """How late each row was, ms, shape (rows,): ``delivered - max(due, created)``."""
    late: Int64s = delivered_ms - np.maximum(times(rows, "due"), times(rows, "created"))
    return late


def release(wheel: DuePort, chunk: Chunk, *, handed: bool, sink_down: bool = False) -> None:
    """Release a chunk without any answer. ``handed``: the sink got it: all rows may have left."""
    count = chunk.rows.num_rows
    nothing = np.zeros(count, np.bool_)
    wheel.answer(chunk, nothing, unknown=np.full(count, handed), sink_down=sink_down)

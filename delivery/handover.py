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
from typing import Self

import numpy as np
import pyarrow as pa

from ..policy.deadletters import EXPIRED
from ..wheel.due.chunk import Chunk
from ..wheel.expiry import expires_ms
from ..wheel.schema import Int64s, Mask, times
from .ask import ask
from .deadletters import DeadLetters
from .ports import DuePort
from .sink import Answer, Sink, deliver_rest


@dataclass(slots=True)
class BatchOutcome:
    """The outcome of a batch; each mask has shape (rows,).

    The mark may pass the rows of ``answered``; the sink took those of ``accepted``. Those of
    ``outdated`` have expired and are dead letters; ``dead`` counts the other dead letters by
    reason. Rows of ``unknown`` may have left, or may leave yet. ``down``: the sink as a whole takes
    nothing. ``why_not`` says why rows are not answered, ``reasons`` the same for single topics."""

    answered: Mask
    accepted: Mask
    unknown: Mask
    outdated: Mask
    dead: Counter[str] = field(default_factory=Counter)
    why_not: str = ""
    down: bool = False
    errors: list[str] = field(default_factory=list)
    """Errors that the sink raised instead of answering."""
    stop: bool = False
    """Rows that are not answered come again, and no topic is held back for them."""
    reasons: dict[str, str] = field(default_factory=dict)
    hold: list[str] = field(default_factory=list)
    """Topics that are to be held back with all of their rows."""
    begin_again: bool = False
    """Nobody knows any more which rows have left: the semantics have to ``begin`` again."""

    @classmethod
    def nothing(cls, rows: int, why_not: str, *, down: bool = False, stop: bool = False) -> Self:
        """The outcome of a batch of ``rows`` rows of which the sink got none."""
        no = np.zeros(rows, np.bool_)
        return cls(no, no.copy(), no.copy(), no.copy(), why_not=why_not, down=down, stop=stop)

    @property
    def expired(self) -> int:
        """The number of rows that expired."""
        return int(np.count_nonzero(self.outdated))

    @property
    def complete(self) -> bool:
        return bool(self.answered.all())

    def why(self, topic: str) -> str:
        """The reason for which rows of this topic are not answered."""
        return self.reasons.get(topic) or self.why_not

    def add(self, found: BatchOutcome, at: Int64s) -> None:
        """Add the outcome of a part of the batch, which has the rows at positions ``at``."""
        self.answered[at] |= found.answered
        self.accepted[at] |= found.accepted
        self.unknown[at] |= found.unknown
        self.outdated[at] |= found.outdated
        self.dead.update(found.dead)
        self.why_not, self.reasons = found.why_not, found.reasons
        self.errors += found.errors


def hand_over(
    sink: Sink,
    dead_letters: DeadLetters,
    rows: pa.RecordBatch,
    now_ms: int,
    *,
    trial: bool = False,
) -> BatchOutcome:
    """Deliver those of ``rows`` (schema ``ROW``, at least one) that have not expired at ``now_ms``,
    and bury those that have, or that the sink refuses. Returns within the limits of the sinks.

    Errors: ``SyncFailed``."""
    if int(times(rows, "due").max()) > now_ms:
        return BatchOutcome.nothing(rows.num_rows, "the clock was set back", down=True)
    errors: list[str] = []
    until = expires_ms(rows.column("headers"))
    if until is None:
        expired = np.zeros(rows.num_rows, np.bool_)
        answers = ask(sink, rows, errors, trial=trial)
    else:
        expired = until <= now_ms
        answers = deliver_rest(rows, expired, lambda part: ask(sink, part, errors, trial=trial))
    if not answers.codes.any():  # the usual case: all were accepted
        everything = BatchOutcome.nothing(rows.num_rows, "")
        everything.answered[:] = everything.accepted[:] = True
        everything.down, everything.errors = answers.down, errors
        return everything
    answers.reasons |= dict.fromkeys(np.flatnonzero(expired).tolist(), EXPIRED)
    accepted = answers.which(Answer.ACCEPTED)
    unknown = answers.which(Answer.UNKNOWN)
    outcome = BatchOutcome.nothing(rows.num_rows, answers.why_not)
    outcome.answered |= accepted
    outcome.accepted, outcome.unknown = accepted, unknown
    outcome.down, outcome.errors = answers.down, errors
    reasons_by_row = dict(answers.reasons)
    refused = answers.which(Answer.REFUSED)
    if refused.any():
        at = np.flatnonzero(refused)
        reasons = [answers.reasons.get(row, "refused") for row in at.tolist()]
        buried = dead_letters.bury(rows.take(pa.array(at)), reasons, errors, trial=trial)
        stored = buried.which(Answer.ACCEPTED)
        outcome.answered[at[stored]] = True
        outcome.unknown[at[buried.which(Answer.UNKNOWN)]] = True
        outcome.outdated[at[stored & expired[at]]] = True
        outcome.dead.update(itertools.compress(reasons, (stored & ~expired[at]).tolist()))
        outcome.why_not = outcome.why_not or buried.why_not
        outcome.down |= buried.down
        reasons_by_row |= {int(at[row]): why for row, why in buried.reasons.items()}
    left = np.flatnonzero(~outcome.answered)
    if len(left) and not outcome.down:  # else no topic is at fault
        names = rows.column("topic").take(pa.array(left)).to_pylist()
        for topic, row in zip(names, left.tolist(), strict=True):
            outcome.reasons.setdefault(topic, reasons_by_row.get(row, ""))
    return outcome


def release(wheel: DuePort, chunk: Chunk, *, handed: bool, sink_down: bool = False) -> None:
    """Release a chunk without an answer. ``handed``: the sink got it, so all rows may have left."""
    count = chunk.rows.num_rows
    nothing = np.zeros(count, np.bool_)
    wheel.answer(chunk, nothing, unknown=np.full(count, handed), sink_down=sink_down)

"""The interface between the hand of the wheel and the target of its messages.

Theory: the mark may only move past an answered row, so a sink must answer for *every* row, within a
time limit, and each answer is one of four:

    ACCEPTED   the row is safe at its target; it will never be handed out again
    REFUSED    it can never be taken as it is; it becomes a dead letter, with the reason
    NOT_NOW    certainly not taken; its topic is held back and tried again
    UNKNOWN    it may have been taken, or may be yet; tried again like NOT_NOW, and the answer to a
               cancel of it is *unknown*

Rules
- Only a row that was never sent is NOT_NOW; a row that was sent and not answered is UNKNOWN, also
  when a sink raises. It may be repeated. Were it NOT_NOW, a cancel of a message that has arrived
  would be answered with *cancelled*.
- Rows of one topic partition are sent in the order in which they stand in the batch.
- Nothing waits without a limit, also not ``close``: one dead broker would stop the hand for good.
- Every sink passes ``tests/support/sinkcontract.py``.
- Two calls of ``deliver`` may run at once (one for the main mark, others for held-back topics),
  never with rows of the same topic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..wheel.ids import IdMint
from ..wheel.schema import Int64s, Mask, distinct

Int8s = npt.NDArray[np.int8]


class Answer(IntEnum):
    ACCEPTED = 0
    REFUSED = 1
    NOT_NOW = 2
    UNKNOWN = 3


@dataclass(slots=True)
class Answers:
    """The answers for one batch.

    ``codes``: an ``Answer`` a row, shape (rows,). ``reasons``: text for rows that were not
    accepted, if there is more to say than the code. ``down``: the sink as a whole can accept
    nothing now, so that no single topic is at fault.
    """

    codes: Int8s
    reasons: dict[int, str] = field(default_factory=dict)
    down: bool = False

    @classmethod
    def same(cls, rows: int, answer: Answer, reason: str = "", *, down: bool = False) -> Answers:
        """The same answer for each of ``rows`` rows."""
        codes = np.full(rows, answer, np.int8)
        return cls(codes, dict.fromkeys(range(rows), reason) if reason else {}, down)

    def set(self, row: int, answer: Answer, reason: str) -> None:
        self.codes[row] = answer
        self.reasons[row] = reason

    def fill(self, rows: Int64s, found: Answers) -> None:
        """Set the answers of ``rows``, shape (n,), to those in ``found``, which has n rows."""
        self.codes[rows] = found.codes
        self.reasons |= {int(rows[at]): why for at, why in found.reasons.items()}

    def which(self, answer: Answer) -> Mask:
        """A mask of the rows that got this answer, shape (rows,)."""
        mask: Mask = self.codes == answer
        return mask

    @property
    def why_not(self) -> str:
        """The first reason of a row that is neither accepted nor refused, or an empty text."""
        for row in np.flatnonzero(self.codes >= Answer.NOT_NOW).tolist():
            if row in self.reasons:
                return self.reasons[row]
        return ""


class Sink(ABC):
    """The target of due rows. ``mint``: makes the ids that are sent with them."""

    def __init__(self, mint: IdMint) -> None:
        self.mint = mint

    @abstractmethod
    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        """Deliver ``rows`` (schema ``ROW``) and answer for each of them.

        ``trial``: they belong to a held-back topic. It is likely to fail again, so a sink may use a
        shorter limit, and a failure must not affect a delivery at the same time.
        """

    def expect(self, topics: Collection[str]) -> None:  # noqa: B027
        """Rows of these topics come soon: the sink may look them up, or make them. Never blocks."""

    @abstractmethod
    def probe(self, topic: str) -> bool:
        """Returns True when a held-back topic is worth a try. Sends nothing; may take a second."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Topics that take nothing until a person acts, each with the reason (a wrong clock)."""
        return {}

    @abstractmethod
    def healthy(self) -> bool:
        """Returns True when the sink as a whole can be reached now. May block for a second."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections and end threads; may be called twice, and from any thread.

        A ``deliver`` that is waiting for a broker returns soon, its rows NOT_NOW or UNKNOWN.
        """


def deliver_rest(
    rows: pa.RecordBatch, refused: Mask, deliver: Callable[[pa.RecordBatch], Answers]
) -> Answers:
    """Answers for all ``rows``: those of the mask ``refused``, shape (rows,), are REFUSED without a
    reason and not sent; ``deliver`` gets the others."""
    if not refused.any():
        return deliver(rows)
    answers = Answers.same(rows.num_rows, Answer.REFUSED)
    sendable = np.flatnonzero(~refused)
    if len(sendable):
        sent = deliver(rows.take(pa.array(sendable)))
        answers.fill(sendable, sent)
        answers.down = sent.down
    return answers


def split_by_topic(rows: pa.RecordBatch) -> tuple[list[str], list[Int64s]]:
    """The topics of a batch (at least one row), and the row numbers of each, ascending."""
    column = rows.column("topic")
    topics = distinct(column)
    if len(topics) == 1:  # the usual case
        return topics, [np.arange(rows.num_rows, dtype=np.int64)]
    encoded = column.dictionary_encode()
    topics = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(1, len(topics)))
    return topics, np.split(order, ends)

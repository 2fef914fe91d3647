"""Delivery semantics: when a chunk reaches the sink, and when the mark moves past it.

Theory: the mark and the delivery are two writes in two places, and a crash can come between them.
What is repeated or lost then depends on their order alone:

    at least once   deliver, then the mark: rows behind the last mark are delivered again
    at most once    the mark, then deliver: rows of the chunk in flight are not delivered at all
    exactly once    both in one write (``kafka/exactly_once.py``), or the sink is read before
                    anything is delivered (``embedded/exactly_once.py``)

Everything runs in the hand's thread, except deliveries to held-back topics where not ``in_turn``.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ..wheel.due.chunk import Chunk
from ..wheel.errors import SyncFailed
from ..wheel.schema import Int64s
from .deadletters import DeadLetters
from .handover import BatchOutcome, hand_over
from .ports import DuePort
from .sink import Answer, Sink

log = logging.getLogger(__name__)

AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE = SEMANTICS = (
    "at-least-once",
    "at-most-once",
    "exactly-once",
)
_NOT_NOW_S = 5.0
_AGAIN_S = 0.05


class NotReady(Exception):
    """Delivery cannot begin yet; the text says why. Nothing was handed to the sink."""


class AtLeastOnce:
    """Deliver, then move the mark."""

    in_turn = False
    """True: held-back topics are delivered between the main line's chunks, not beside them."""

    def __init__(self, sink: Sink, dead_letters: DeadLetters) -> None:
        self.sink = sink
        self.dead_letters = dead_letters
        self.stopping: Callable[[], bool] = lambda: False

    def begin(self, wheel: DuePort, now_ms: int) -> None:
        """Find out which rows have left. Called before the first chunk of an epoch, when an outcome
        has ``begin_again``, and again after an error. Errors: ``NotReady``, ``Damaged``."""

    def deliver(
        self, wheel: DuePort, chunk: Chunk, clock: Callable[[], int], *, trial: bool = False
    ) -> BatchOutcome:
        """Deliver a chunk. ``trial``: it belongs to a held-back topic. Errors: ``SyncFailed``."""
        del wheel
        return hand_over(self.sink, self.dead_letters, chunk.rows, clock(), trial=trial)

    def idle(self, wheel: DuePort, now_ms: int) -> None:
        """Called when no row is due. Errors: ``NotReady``: ``begin`` has to be called again."""


class AtMostOnce(AtLeastOnce):
    """Move the mark, wait until that is durable, then deliver.

    A row that was certainly not sent is tried again for as long as the sink is down, and for
    ``_NOT_NOW_S`` when only its topic is: then it becomes a dead letter, so that others go on.
    """

    in_turn = True

    def deliver(
        self, wheel: DuePort, chunk: Chunk, clock: Callable[[], int], *, trial: bool = False
    ) -> BatchOutcome:
        del trial
        count = chunk.rows.num_rows
        if not self.sink.healthy():  # asked before the mark moves, which it does for good
            return BatchOutcome.nothing(count, "the sink cannot be reached", down=True)
        if not wheel.mark_first(chunk, clock()):
            return BatchOutcome.nothing(count, "no mark could be written", down=True)
        outcome = BatchOutcome.nothing(count, "")
        left = np.arange(count)
        try:
            left = self._deliver_marked(chunk.rows, left, clock, outcome)
        except SyncFailed:
            raise
        except Exception as error:
            log.exception("a delivery failed under at-most-once")
            outcome.errors.append(f"{type(error).__name__}: {error}")
            left = np.flatnonzero(~outcome.answered)
        if len(left):
            outcome.errors.append(f"{len(left)} messages may be lost: their mark is behind them")
        outcome.unknown[left] = True
        outcome.answered[:] = True  # the mark is past them, whatever became of them
        return outcome

    def _deliver_marked(
        self,
        rows: pa.RecordBatch,
        left: Int64s,
        clock: Callable[[], int],
        outcome: BatchOutcome,
    ) -> Int64s:
        """Deliver the rows ``left`` of ``rows``, which a durable mark has passed, and add their
        outcome. Returns those that were certainly not sent when the node stopped."""
        bury_at_s = time.monotonic() + _NOT_NOW_S
        while len(left) and not self.stopping():
            pending = rows.take(pa.array(left))
            attempt = hand_over(self.sink, self.dead_letters, pending, clock())
            if not attempt.down and time.monotonic() >= bury_at_s:
                self._bury(pending, attempt)
            outcome.add(attempt, left)
            left = left[~attempt.answered & ~attempt.unknown]
            if not len(left):
                break
            if attempt.down:  # no topic is at fault
                bury_at_s = time.monotonic() + _NOT_NOW_S
            time.sleep(_AGAIN_S)
        return left

    def _bury(self, rows: pa.RecordBatch, outcome: BatchOutcome) -> None:
        """Make dead letters of the rows that were not sent, except in topics with a ``problem``: a
        clock that is wrong makes the broker refuse their dead letters, too."""
        problems = self.sink.problems
        topics = rows.column("topic").to_pylist()
        left = np.flatnonzero(~outcome.answered & ~outcome.unknown)
        again = np.array([at for at in left if topics[at] not in problems], np.int64)
        if not len(again):
            return
        reasons = [
            f"not taken within {_NOT_NOW_S:.0f} s: {outcome.why(topics[at])}" for at in again
        ]
        buried = self.dead_letters.bury(rows.take(pa.array(again)), reasons, outcome.errors)
        stored = buried.which(Answer.ACCEPTED)
        outcome.answered[again[stored]] = True
        outcome.unknown[again[buried.which(Answer.UNKNOWN)]] = True
        outcome.dead.update(itertools.compress(reasons, stored.tolist()))

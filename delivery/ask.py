"""Calls a sink that may raise instead of answering.

A sink that raises has a bug, or got a row that triggers one. It is called again topic by topic, so
that only the topics it raises for are held back, and not all rows behind them. A failed sync is no
answer either, but is raised again: it must end the process.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from ..wheel.errors import SyncFailed
from .sink import Answer, Answers, Sink, split_by_topic

log = logging.getLogger(__name__)


def ask(sink: Sink, rows: pa.RecordBatch, errors: list[str], *, trial: bool = False) -> Answers:
    """The sink's answers; UNKNOWN for the topics for which it raises, whose errors are added to
    ``errors``. Errors: ``SyncFailed``."""
    try:
        return sink.deliver(rows, trial=trial)
    except SyncFailed:
        raise
    except Exception as error:
        log.exception("the sink failed instead of answering")
        text = f"{type(error).__name__}: {error}"
        topics, parts = split_by_topic(rows)
        if len(topics) == 1:
            errors.append(text)
            return Answers.same(rows.num_rows, Answer.UNKNOWN, text)
    answers = Answers.same(rows.num_rows, Answer.UNKNOWN)
    for part in parts:
        found = ask(sink, rows.take(pa.array(part)), errors, trial=trial)
        # Not sent now, but the first call may have sent it.
        found.codes[found.which(Answer.NOT_NOW)] = Answer.UNKNOWN
        answers.fill(part, found)
        answers.down |= found.down
    return answers

"""Calls a sink that may raise instead of answering.

A sink that raises has a bug, or got a row that triggers one. It is called again topic by topic:
otherwise one bad row of one topic would hold back every topic of the chunk. A failed sync is raised
again, as it must end the process.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from ..wheel.errors import SyncFailed
from .sink import Answer, Answers, Sink, split_by_topic

log = logging.getLogger(__name__)


def ask(sink: Sink, rows: pa.RecordBatch, errors: list[str], *, trial: bool = False) -> Answers:
    """Deliver ``rows`` (schema ``ROW``, at least one) and return the sink's answers. The rows of a
    topic for which the sink raises are UNKNOWN, and its error is appended to ``errors``.

    Errors: ``SyncFailed``."""
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
        part_answers = ask(sink, rows.take(pa.array(part)), errors, trial=trial)
        # The first call, which raised, may have sent rows that the sink now says are unsent.
        part_answers.codes[part_answers.which(Answer.NOT_NOW)] = Answer.UNKNOWN
        answers.fill(part, part_answers)
        answers.down |= part_answers.down
    return answers

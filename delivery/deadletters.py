"""Dead letters: rows that a sink refused for good, or that have expired, kept with the reason.

A refused row is sent to the dead-letter topic as it is - key, value, headers - with three more
headers: the reason, its topic and its partition. If that topic refuses it too (it may not exist, or
the row is too large for any topic), the row is written to an embedded topic of the same name in the
data directory. So it is never lost, and it never blocks the rows behind it.

When the dead-letter topic answers NOT_NOW or UNKNOWN, the row is not answered: its own topic is
held back and the row is tried again from the start.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..wheel.checks import check_topic
from ..wheel.rows import headers_of, with_headers
from ..wheel.schema import ROW
from .ask import ask
from .names import (
    DEAD_LETTER_TOPIC,
    EXPIRED_REASON,
    PARTITION_HEADER,
    REASON_HEADER,
    TOPIC_HEADER,
)
from .sink import Answer, Answers, Sink

_REASON_BYTES_MAX = 1000


class DeadLetters:
    """Stores refused rows. ``sink``: has the dead-letter topic; ``local``: an embedded sink, the
    last resort; None when ``sink`` is an embedded one itself."""

    def __init__(self, sink: Sink, local: Sink | None, topic: str = DEAD_LETTER_TOPIC) -> None:
        check_topic(topic)
        self._sink = sink
        self._local = local
        self.topic = topic

    def bury(
        self, rows: pa.RecordBatch, reasons: list[str], errors: list[str], *, trial: bool = False
    ) -> Answers:
        """Send refused ``rows`` (schema ``ROW``) to the dead letters; ``reasons``: one a row.
        ``errors``: as for ``ask``."""
        letters = self._letters(rows, reasons)
        answers = Answers.same(rows.num_rows, Answer.REFUSED)
        # A row for the dead-letter topic itself was refused by it already, unless it has expired.
        tried = np.flatnonzero(
            [
                topic != self.topic or why == EXPIRED_REASON
                for topic, why in zip(rows.column("topic").to_pylist(), reasons, strict=True)
            ]
        )
        if len(tried):
            found = ask(self._sink, letters.take(pa.array(tried)), errors, trial=trial)
            answers.fill(tried, found)
            answers.down = found.down
        homeless = np.flatnonzero(answers.which(Answer.REFUSED))
        if len(homeless):
            local = self._local or self._sink
            answers.fill(homeless, ask(local, letters.take(pa.array(homeless)), errors))
        answers.codes[answers.which(Answer.REFUSED)] = Answer.NOT_NOW
        for row in np.flatnonzero(answers.codes != Answer.ACCEPTED).tolist():
            answers.reasons.setdefault(row, "the dead-letter topic does not take it now")
        return answers

    def _letters(self, rows: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
        """The rows for the dead-letter topic, with further headers. Offset and times stay, so the
        usual three headers still identify the message."""
        count = rows.num_rows
        why = [one.encode("utf-8", "replace")[:_REASON_BYTES_MAX] for one in reasons]
        added = headers_of(
            {
                REASON_HEADER: pa.array(why, pa.binary()),
                TOPIC_HEADER: rows.column("topic").cast(pa.binary()),
                PARTITION_HEADER: rows.column("partition").cast(pa.utf8()).cast(pa.binary()),
            }
        )
        changed = {
            "topic": pa.array([self.topic] * count, pa.utf8()),
            "partition": pa.nulls(count, pa.int32()),
            "headers": with_headers(rows.column("headers"), added),
        }
        columns = [changed.get(name, rows.column(name)) for name in ROW.names]
        return pa.RecordBatch.from_arrays(columns, schema=ROW)

"""Dead letters: rows that a sink refused for good, or that have expired, kept with the reason.

A refused row is sent to the dead-letter topic as it is - key, value, headers - with further headers
that give the reason and the topic it was addressed to (``policy/deadletters.py``). If that topic
refuses it too (it may not exist, or the row is too large for any topic), the row is written to an
embedded topic of the same name in the data directory. Otherwise a message would be lost because
nobody made a topic, or would block every row behind it.

When the dead-letter topic answers NOT_NOW or UNKNOWN, the row is not answered: its own topic is
held back and the row is tried again from the start.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from ..policy.deadletters import DEAD_LETTER_TOPIC, DELIVERY, EXPIRED, REFUSED, letter_headers
from ..wheel.checks import check_topic
from ..wheel.rows import Header, from_numpy, header_column, with_headers
from ..wheel.schema import ROW
from .ask import ask
from .sink import Answer, Answers, Sink, deliver_rest

log = logging.getLogger(__name__)

_EXPIRED_TEXT = "it expired before it could be delivered"


class DeadLetters:
    """Stores refused and expired rows. ``sink`` has the dead-letter topic ``topic``. ``local`` is
    an embedded sink, the last resort; None when ``sink`` is an embedded one itself."""

    def __init__(self, sink: Sink, local: Sink | None, topic: str = DEAD_LETTER_TOPIC) -> None:
        check_topic(topic)
        self._sink = sink
        self._local = local
        self.topic = topic

    def bury(
        self, rows: pa.RecordBatch, reasons: list[str], errors: list[str], *, trial: bool = False
    ) -> Answers:
        """Send ``rows`` (schema ``ROW``) to the dead letters. ``reasons`` has a text for each row:
        the sink's, or ``EXPIRED``. Errors that the sinks raise are appended to ``errors``.

        Returns an answer for each row: ACCEPTED when its letter is stored, never REFUSED.
        Errors: ``SyncFailed``."""
        letters = self._letters(rows, reasons)
        # A row for the dead-letter topic itself was refused by it already, unless it has expired.
        hopeless = np.array(
            [
                topic == self.topic and reason != EXPIRED
                for topic, reason in zip(rows.column("topic").to_pylist(), reasons, strict=True)
            ],
            np.bool_,
        )
        answers = deliver_rest(
            letters, hopeless, lambda part: ask(self._sink, part, errors, trial=trial)
        )
        homeless = np.flatnonzero(answers.which(Answer.REFUSED))
        if len(homeless):
            local = self._local or self._sink
            if self._local is not None:
                reason = answers.reasons.get(int(homeless[0]), "refused")
                log.warning(
                    "%d dead letters are kept in the data directory, as %s refuses them: %s",
                    len(homeless),
                    self.topic,
                    reason,
                )
            answers.fill(homeless, ask(local, letters.take(pa.array(homeless)), errors))
        answers.codes[answers.which(Answer.REFUSED)] = Answer.NOT_NOW
        for row in np.flatnonzero(answers.codes != Answer.ACCEPTED).tolist():
            answers.reasons.setdefault(row, "the dead-letter topic does not take it now")
        return answers

    def _letters(self, rows: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
        """Readdress rows to the dead-letter topic. Offset and times stay, so that the three headers
        of every delivered record still identify the message."""
        count = rows.num_rows
        addresses = (rows.column(name).to_pylist() for name in ("topic", "partition"))
        numbers: dict[tuple[str, str, int | None], int] = {}
        kinds = [
            numbers.setdefault(kind, len(numbers)) for kind in zip(reasons, *addresses, strict=True)
        ]
        # Most letters of a batch have the same headers: they are encoded once for each kind.
        added = header_column([_added(*kind) for kind in numbers])
        added = added.take(from_numpy(np.array(kinds, np.int64), pa.int64()))
        changed = {
            "topic": pa.array([self.topic] * count, pa.utf8()),
            "partition": pa.nulls(count, pa.int32()),
            "headers": with_headers(rows.column("headers"), added),
        }
        columns = [changed.get(name, rows.column(name)) for name in ROW.names]
        return pa.RecordBatch.from_arrays(columns, schema=ROW)


def _added(reason: str, topic: str, partition: int | None) -> list[Header]:
    expired = reason == EXPIRED
    kind, text = (EXPIRED, _EXPIRED_TEXT) if expired else (REFUSED, reason)
    return letter_headers(DELIVERY, kind, text, topic.encode(), partition=partition)

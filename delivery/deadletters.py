"""Dead letters: rows that a sink refused for good, kept with the reason.

A refused row is sent to the dead-letter topic as it is - key, value, headers - with three more
headers: the reason, its topic and its partition. If that topic refuses it too (it may not exist, or
the row is too large for any topic), the row is written to an embedded topic of the same name in the
data directory. So it is never lost, and it never blocks the rows behind it.

When the dead-letter topic answers NOT_NOW or UNKNOWN, the row is not answered: its own topic is
held back and the row is tried again from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ..wheel.checks import check_topic
from ..wheel.rows import Header, header_column
from ..wheel.schema import ROW, Mask
from .ask import ask
from .names import DEAD_LETTER_TOPIC, PARTITION_HEADER, REASON_HEADER, TOPIC_HEADER
from .sink import Answer, Sink

_REASON_BYTES_MAX = 1000


@dataclass(slots=True)
class DeadLettered:
    """The result for refused rows. ``stored``: which are safe, ``unknown``: which may be, both
    shape (rows,). ``local``: how many are in the data directory. ``held``: why others are not safe,
    or empty. ``down``: the sink is down. ``errors``: raised by a sink instead of an answer."""

    stored: Mask
    unknown: Mask
    local: int = 0
    held: str = ""
    down: bool = False
    errors: list[str] = field(default_factory=list)


class DeadLetters:
    """Stores refused rows. ``sink``: has the dead-letter topic; ``local``: an embedded sink, the
    last resort; None when ``sink`` is an embedded one itself."""

    def __init__(self, sink: Sink, local: Sink | None, topic: str = DEAD_LETTER_TOPIC) -> None:
        check_topic(topic)
        self._sink = sink
        self._local = local
        self.topic = topic

    def bury(
        self, rows: pa.RecordBatch, reasons: list[str], *, trial: bool = False
    ) -> DeadLettered:
        """Send refused ``rows`` (schema ``ROW``) to the dead letters; ``reasons``: one a row."""
        letters = self._letters(rows, reasons)
        # A row for the dead-letter topic itself was refused by it already.
        tried = np.array([t != self.topic for t in rows.column("topic").to_pylist()], np.bool_)
        codes = np.full(rows.num_rows, Answer.REFUSED, np.int8)
        nothing = np.zeros(rows.num_rows, np.bool_)
        buried = DeadLettered(nothing, nothing.copy())
        if tried.any():
            answers = ask(self._sink, letters.filter(pa.array(tried)), buried.errors, trial=trial)
            codes[tried] = answers.codes
            buried.held = answers.why_not
            buried.down = answers.down
        homeless: Mask = codes == Answer.REFUSED
        if homeless.any():
            local = self._local or self._sink
            answers = ask(local, letters.filter(pa.array(homeless)), buried.errors)
            codes[homeless] = answers.codes
            buried.local = int(answers.which(Answer.ACCEPTED).sum())
            buried.held = buried.held or answers.why_not
        buried.stored, buried.unknown = codes == Answer.ACCEPTED, codes == Answer.UNKNOWN
        if not buried.stored.all() and not buried.held:
            buried.held = "the dead-letter topic does not take it now"
        return buried

    def _letters(self, rows: pa.RecordBatch, reasons: list[str]) -> pa.RecordBatch:
        """The rows for the dead-letter topic, with further headers. Offset and times stay, so the
        usual three headers still identify the message."""
        count = rows.num_rows
        topics = rows.column("topic").to_pylist()
        partitions = rows.column("partition").to_pylist()
        own = rows.column("headers").to_pylist()
        headers: list[list[Header]] = []
        for at in range(count):
            why = reasons[at].encode("utf-8", "replace")[:_REASON_BYTES_MAX]
            added: list[Header] = [(REASON_HEADER, why), (TOPIC_HEADER, topics[at].encode())]
            if partitions[at] is not None:
                added.append((PARTITION_HEADER, b"%d" % partitions[at]))
            headers.append([(one["key"], one["value"]) for one in own[at]] + added)
        changed = {
            "topic": pa.array([self.topic] * count, pa.utf8()),
            "partition": pa.nulls(count, pa.int32()),
            "headers": header_column(headers),
        }
        columns = [changed.get(name, rows.column(name)) for name in ROW.names]
        return pa.RecordBatch.from_arrays(columns, schema=ROW)

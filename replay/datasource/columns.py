"""The views of the data source, and their columns.

    rows       journals, slot files and, if asked for, embedded topics, as they stand
    delivered  what arrived: embedded topics, and dumps of topics
    receipts   what producers were promised
    facts      every sighting of a message, as the proof compares them
    problems   what is damaged

Spark knows no unsigned numbers: a digest has the same 64 bits, signed.
"""

from __future__ import annotations

import pyarrow as pa

from ...reading.problems import PROBLEM_ARROW
from ...wheel.schema import HEADERS, ROW, TIME

ROWS, PROBLEMS, DELIVERED, RECEIPTS, FACTS = "rows", "problems", "delivered", "receipts", "facts"
SCAN = "scan"
"""For the audit's stream alone: packed facts, summaries and problems."""
STREAM_VIEWS = (ROWS, PROBLEMS, SCAN)

PLACE = [
    pa.field("peer", pa.utf8()),
    pa.field("file", pa.utf8()),
    pa.field("kind", pa.utf8()),
    pa.field("archived", pa.bool_()),
    pa.field("entry_index", pa.int64()),
    pa.field("epoch", pa.int64()),
    pa.field("delivered", TIME),
]
"""Further columns of a row: the place where it was found. ``entry_index`` and ``epoch`` are those
of the journal, ``delivered`` of a topic; null elsewhere."""
COLUMNS = pa.schema([*(field.with_nullable(True) for field in ROW), *PLACE])
_MESSAGE = [("offset", pa.int64()), ("due", TIME), ("created", TIME)]
SCHEMAS = {
    ROWS: COLUMNS,
    PROBLEMS: PROBLEM_ARROW,
    DELIVERED: pa.schema(
        [
            ("id", pa.utf8()),
            *_MESSAGE,
            ("topic", pa.utf8()),
            ("partition", pa.int32()),
            ("position", pa.int64()),
            ("delivered", TIME),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", HEADERS),
            ("peer", pa.utf8()),
            ("file", pa.utf8()),
        ]
    ),
    RECEIPTS: pa.schema(
        [
            ("id", pa.utf8()),
            *_MESSAGE[:2],
            ("topic", pa.utf8()),
            ("digest", pa.int64()),
            ("sent", TIME),
            ("received", TIME),
            ("file", pa.utf8()),
        ]
    ),
    FACTS: pa.schema(
        [
            ("seen", pa.utf8()),
            *_MESSAGE,
            ("topic", pa.utf8()),
            ("partition", pa.int32()),
            ("digest", pa.int64()),
            ("at", pa.int64()),
            ("where", pa.int64()),
            ("forged", pa.bool_()),
            ("peer", pa.utf8()),
            ("file", pa.utf8()),
        ]
    ),
}

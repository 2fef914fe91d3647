"""Converts Arrow columns into the arguments of a Kafka client's ``send``.

Clients want Python objects for each record; only here rows become Python objects. Each column is
converted in one call, and the three headers that slotwheel adds are made for all rows at once, so
that a record costs a few list entries.

Content is not changed: null and empty are different in key, value and header value, and a header
key may occur twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...policy.headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from ...wheel import compute as pc
from ...wheel.ids import IdMint, id_texts
from ...wheel.rows import Header
from ...wheel.schema import Int64s, times


@dataclass(frozen=True, slots=True)
class ProducerRecords:
    """Columns of Python values, each of length rows."""

    topics: list[str]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[Header]]


def to_records(rows: pa.RecordBatch, mint: IdMint) -> ProducerRecords:
    """The records of ``rows`` (schema ``ROW``), with slotwheel's headers behind their own."""
    return ProducerRecords(
        topics=rows.column("topic").to_pylist(),
        keys=rows.column("key").to_pylist(),
        values=rows.column("value").to_pylist(),
        headers=_headers(rows, mint),
    )


def _headers(rows: pa.RecordBatch, mint: IdMint) -> list[list[Header]]:
    due = times(rows, "due")
    texts = id_texts(mint.group, due, times(rows, "offset"), mint.checks_of(rows))
    ids = texts.cast(pa.binary()).to_pylist()
    added: list[list[Header]] = [
        [(ID_HEADER, id_), due_header, created_header]
        for id_, due_header, created_header in zip(
            ids,
            _decimals(DUE_HEADER, due),
            _decimals(CREATED_HEADER, times(rows, "created")),
            strict=True,
        )
    ]
    column = rows.column("headers")
    flat = column.flatten()
    if not len(flat):
        return added
    pairs: list[Header] = list(
        zip(flat.field(0).to_pylist(), flat.field(1).to_pylist(), strict=True)
    )
    ends = np.cumsum(np.asarray(pc.list_value_length(column), dtype=np.int64)).tolist()
    at = 0
    for row, end in enumerate(ends):
        if end > at:
            added[row] = pairs[at:end] + added[row]
        at = end
    return added


def _decimals(key: str, values: Int64s) -> list[Header]:
    """A header for each value; rows with the same time share an object."""
    made: dict[int, Header] = {}
    return [
        made.get(number) or made.setdefault(number, (key, b"%d" % number))
        for number in values.tolist()
    ]

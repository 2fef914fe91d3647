"""How many rows and bytes a batch has of each topic, before anybody has validated it.

A quota of what is pending is looked at where rows are offered, and most batches are for one topic.
Then two numbers of each column are enough, and no row is looked at. The bytes are those of keys,
values and headers, as ``wheel.schema.sizes`` has them of stored rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa

from ...security.pending import Amounts, PendingOffer
from ...wheel.arrowbytes import PlainRow
from ...wheel.errors import SlotwheelError
from ...wheel.schema import sizes
from .callers import TopicColumn

_END = struct.Struct("<i")


def amounts_of(rows: pa.RecordBatch, topics: TopicColumn | None = None) -> Amounts:
    """Rows and bytes by topic. Empty for a batch that cannot be read: the wheel refuses it.
    ``topics``: of the rows; None: they are read here."""
    if topics is None and rows.num_rows:
        topics = TopicColumn.of(rows)
    if topics is None:
        return {}
    distinct = list(topics.distinct())
    try:
        if len(distinct) == 1:
            [topic] = distinct
            return {topic.decode(): (rows.num_rows, _content_bytes(rows))}
        rows.validate(full=True)  # what follows would read outside of a forged batch
        return _by_topic(rows)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError, struct.error):
        return {}


def _by_topic(rows: pa.RecordBatch) -> Amounts:
    topics = rows.column("topic").dictionary_encode()
    at, names = np.asarray(topics.indices), topics.dictionary.to_pylist()
    counts = np.bincount(at, minlength=len(names)).tolist()
    nbytes = np.bincount(at, sizes(rows), len(names)).astype(np.int64).tolist()
    return dict(zip(names, zip(counts, nbytes, strict=True), strict=True))


def _content_bytes(rows: pa.RecordBatch) -> int:
    """The bytes of keys, values and headers together."""
    total = sum(_width(rows.column(name), 0, rows.num_rows) for name in ("key", "value"))
    headers = rows.column("headers")
    first, last = _bounds(headers, 0, rows.num_rows)
    if last > first:
        pairs = headers.values
        total += sum(_width(pairs.field(part), first, last) for part in (0, 1))
    return max(0, total)


def _width(column: pa.Array, first: int, last: int) -> int:
    if column.null_count == len(column):
        return 0
    start, end = _bounds(column, first, last)
    return end - start


def _bounds(column: pa.Array, first: int, last: int) -> tuple[int, int]:
    """Where the content of the values ``first`` to ``last`` begins and ends."""
    ends = column.buffers()[1]
    start = column.offset
    return (
        _END.unpack_from(ends, 4 * (start + first))[0],
        _END.unpack_from(ends, 4 * (start + last))[0],
    )


def amounts_of_plain(rows: Sequence[PlainRow]) -> Amounts:
    """Rows and bytes of plain rows by topic."""
    amounts: dict[str, tuple[int, int]] = {}
    for _, topic, _, key, value, headers in rows:
        nbytes = len(key or b"") + len(value or b"")
        for name, content in headers:
            nbytes += len(name) + len(content or b"")
        text = topic.decode(errors="replace")
        count, before = amounts.get(text, (0, 0))
        amounts[text] = count + 1, before + nbytes
    return amounts


def settle(offer: PendingOffer, outcome: Future[Any] | SlotwheelError) -> None:
    """Settle an offer when it is known whether its rows are stored. ``outcome``: a future of an
    ``AppendReceipt``, or the error with which they were refused."""
    if not isinstance(outcome, Future):
        offer.settle(-1)
        return

    def done(future: Future[Any]) -> None:
        failed = future.cancelled() or future.exception() is not None
        receipt = None if failed else future.result()
        offer.settle(-1 if receipt is None else receipt.base_offset + receipt.count)

    outcome.add_done_callback(done)

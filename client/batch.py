"""What goes to the node as one batch, under one sequence: a shipment, or some that waited together.

Theory: whoever hands over rows holds a shipment; what travels is a batch. Its rows are those of its
shipments, one after the other, so an answer is shared out by counting. All that is known of the way
(when it was sent, whether the node may have it) belongs to the batch, and is the same for each
shipment in it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise

import pyarrow as pa

from ..wheel.digest import UInt64s, digests
from ..wheel.errors import SlotwheelError
from ..wheel.rows import from_columns
from .columns import Errors
from .receipts import Columns, Shipment


class Batch:
    """Written by the sender alone, under its lock."""

    __slots__ = (
        "digest",
        "last_error",
        "rows",
        "sent_at",
        "sent_ms",
        "sequence",
        "shipments",
        "starts",
        "uncertain",
    )

    def __init__(self, sequence: int, shipments: Sequence[Shipment]) -> None:
        self.sequence = sequence
        self.shipments = shipments
        self.rows: pa.RecordBatch | None = None
        """Made when it is first sent."""
        self.sent_at = 0.0
        self.uncertain = False
        """Whether the node may have stored it without our knowing."""
        self.last_error: SlotwheelError | None = None
        self.digest: UInt64s | None = None
        """Of ``rows``, when there is a file of receipts; from the first sending on."""
        self.sent_ms = 0
        self.starts = list(accumulate((one.count for one in shipments), initial=0))
        """Where each shipment's rows begin, and where the last one's end."""
        for shipment in shipments:
            shipment.batch = self

    def note_content(self, now_ms: int) -> None:
        """What a receipt says of the content, before ``rows`` may go."""
        if self.digest is None and self.rows is not None:
            columns = (self.rows.column(name) for name in ("topic", "key", "value", "headers"))
            self.digest = digests(*columns)
            self.sent_ms = now_ms

    def spans(self) -> Iterator[tuple[Shipment, range]]:
        """Each shipment with the numbers of its rows."""
        for shipment, (start, stop) in zip(self.shipments, pairwise(self.starts), strict=True):
            yield shipment, range(start, stop)

    def by_shipment(self, bad: Errors) -> dict[int, Errors]:
        """Errors of rows, by the shipment's number and the row's number in it."""
        found: dict[int, Errors] = {}
        for row, error in bad.items():
            number = bisect.bisect_right(self.starts, row) - 1
            found.setdefault(number, {})[row - self.starts[number]] = error
        return found


def gathered(contents: Sequence[Columns | pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of what several shipments hold, at least one row each."""
    columns = [one for one in contents if isinstance(one, tuple)]
    if len(columns) == len(contents):
        # Single messages: lists joined cost a fraction of batches joined.
        joined = (list(chain.from_iterable(parts)) for parts in zip(*columns, strict=True))
        return from_columns(*joined)
    parts = [from_columns(*one) if isinstance(one, tuple) else one for one in contents]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

"""When and how messages left the wheel, beside their events."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...account.limits import ready_ms
from ...reading.search.fate import MessageState
from ...wheel.ids import IdMint
from ...wheel.schema import TIME, Int64s, Mask
from ..events import ID

LEFT = pa.schema(
    [
        pa.field("due", TIME, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("created", TIME),
        pa.field("at", TIME, nullable=False),
        pa.field("state", pa.utf8(), nullable=False),
        pa.field("topic", pa.utf8()),
    ]
)
"""A message that left the wheel at ``at``. ``state``: a ``MessageState``; ``created``, ``topic``:
null: not known."""


class Departures:
    """Messages of the wheel's group ``group`` that left; ``rows``: schema ``LEFT``, or with further
    columns. A message that was delivered again after a crash is there twice. ``mint``: of the
    group; without it ids have no check."""

    def __init__(
        self,
        group: str = "",
        rows: Iterable[pa.RecordBatch] = (),
        mint: IdMint | None = None,
    ) -> None:
        self.group = group
        self._mint = mint
        every = pa.Table.from_batches([batch.select(LEFT.names) for batch in rows], LEFT)
        self.rows = every.combine_chunks()
        delivered = self.delivered
        due, offset, at = (integers(delivered, name) for name in ("due", "offset", "at"))
        order = np.lexsort((at, offset))
        self._offset, self._due, self.at = offset[order], due[order], at[order]
        self.ready = ready(delivered)[order]

    @property
    def delivered(self) -> pa.Table:
        return self.rows.filter(pc.equal(self.rows.column("state"), MessageState.DELIVERED))

    def ids(self, rows: pa.Table) -> pa.StructArray:
        """The ids (type ``ID``) of some of ``rows``."""
        due, offset = integers(rows, "due"), integers(rows, "offset")
        checks = np.zeros(len(due), np.uint64)
        if self._mint is not None:
            checks = self._mint.checks(due, offset)
        parts = [
            pa.repeat(self.group, len(due)),
            *(rows.column(name).combine_chunks() for name in ("due", "offset")),
            pa.array(checks),
        ]
        return pa.StructArray.from_arrays(parts, fields=list(ID))

    def find(self, ids: pa.StructArray) -> tuple[Int64s, Mask]:
        """Look messages up by their ids (type ``ID``). Returns the place of each in ``at`` (when it
        was first delivered, ms) and in ``ready`` (when it could have been), and a mask of those
        that are there; shape (ids,) each."""
        offset, due = np.asarray(ids.field("offset")), due_of(ids)
        if not len(self._offset):
            return np.zeros(len(due), np.int64), np.zeros(len(due), np.bool_)
        place = np.minimum(np.searchsorted(self._offset, offset), len(self._offset) - 1)
        same = np.asarray(pc.equal(ids.field("group"), self.group))
        return place, same & (self._offset[place] == offset) & (self._due[place] == due)


def ready(rows: pa.Table) -> Int64s:
    """When a message could have left, ms: its due time if it is not known when it was accepted."""
    created = rows.column("created").cast(pa.int64())
    return ready_ms(integers(rows, "due"), np.asarray(pc.fill_null(created, -(1 << 62))))


def due_of(ids: pa.StructArray) -> Int64s:
    """Due times of ids that are not null, ms."""
    return np.asarray(ids.field("due").cast(pa.int64()))


def integers(batch: pa.RecordBatch | pa.Table, name: str) -> Int64s:
    """A column without nulls as whole numbers; times in ms."""
    return np.asarray(batch.column(name).cast(pa.int64()))

"""Messages of many requests on their way to the wheels of a fleet.

Rules
- A message goes to the wheel of its key or name, one with neither to the next wheel that answers.
- A request for several messages is split by wheel. Each wheel stores its part whole or not at all;
  where one fails, others may be stored, and the error says so.
- A repeat of a request with a key of its own finds each part where the first try sent it: parts are
  chosen among all wheels of the file, also those that take no new messages now. Such a wheel knows
  the part, if it has it, and refuses it if not; only then its messages go elsewhere. *Example.* The
  first try is stored by North, and its answer is lost. North begins to drain, and the repeat comes:
  North answers with the ids of the first time. Had the repeat gone to South, it would be stored
  twice.
- Each part has a request key of its own, or two parts at one wheel would be taken for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...client import Receipts
from ...client.asynclink import MessageAnswer
from ...client.message import FlatMessage
from ...fleet.fleet import NO_KEY, Fleet, bucket_of_row, buckets_of_rows
from ...fleet.routing import BUCKETS
from ...wheel.errors import Draining, SlotwheelError
from ...wheel.request import RequestKey
from ...wheel.schema import Int64s
from ..gathering import Gatherer, Room, Stored

BatchRows: TypeAlias = pa.RecordBatch | Sequence[FlatMessage]


class FleetGatherer:
    """``gatherers``: one for each wheel, with one room for all. Belongs to one event loop."""

    def __init__(self, fleet: Fleet, gatherers: Mapping[str, Gatherer], room: Room) -> None:
        self._fleet = fleet
        self._gatherers = gatherers
        self.room = room

    @property
    def batches(self) -> int:
        """The number of batches sent."""
        return sum(gatherer.batches for gatherer in self._gatherers.values())

    @property
    def messages(self) -> int:
        return sum(gatherer.messages for gatherer in self._gatherers.values())

    def store(self, flat: FlatMessage, body_bytes: int = 0) -> asyncio.Future[str]:
        """As of ``Gatherer``."""
        return self._of(flat).store(flat, body_bytes)

    def store_for(self, taker: MessageAnswer, flat: FlatMessage, body_bytes: int = 0) -> None:
        """As of ``Gatherer``."""
        self._of(flat).store_for(taker, flat, body_bytes)

    def _of(self, flat: FlatMessage) -> Gatherer:
        return self._gatherers[self._fleet.wheel_at(bucket_of_row(flat))]

    def store_whole(
        self,
        rows: BatchRows,
        request: RequestKey | None = None,
        body_bytes: int = 0,
    ) -> asyncio.Future[Stored]:
        """Store all of the messages, those of one wheel together. Errors: that of the first wheel
        that has one, ``uncertain`` where another one has stored its part."""
        return asyncio.ensure_future(self._store_parts(rows, request, body_bytes))

    async def _store_parts(
        self,
        rows: BatchRows,
        request: RequestKey | None,
        body_bytes: int,
    ) -> Stored:
        buckets = _buckets(rows)
        if request is not None:
            # Without a key of its own, a message of a repeat would go to the next wheel in turn.
            buckets = np.where(buckets == NO_KEY, request.producer & (BUCKETS - 1), buckets)
        share_bytes = body_bytes // len(rows)
        shares = self._fleet.shares(buckets, of_all=request is not None)
        parts = await asyncio.gather(
            *(self._part(wheel, rows, numbers, request, share_bytes) for wheel, numbers in shares)
        )
        stored = [each for part in parts for each in part]
        places = np.empty(len(rows), np.int64)
        places[np.concatenate([numbers for numbers, _ in stored])] = np.arange(len(rows))
        receipts = Receipts.joined([each.receipts for _, each in stored], places)
        _raise_what_failed(stored)
        return Stored(receipts)

    async def _part(
        self,
        wheel: str,
        rows: BatchRows,
        numbers: Int64s,
        request: RequestKey | None,
        share_bytes: int,
    ) -> list[tuple[Int64s, Stored]]:
        """Store the messages ``numbers`` of ``rows`` at a wheel; or, if it takes no new ones and
        has no such request, where its keys go meanwhile."""
        part = _taken(rows, numbers)
        own = None if request is None else request.within(wheel.encode())
        gatherer = self._gatherers[wheel]
        stored = await gatherer.store_whole(part, own, share_bytes * len(numbers))
        if own is None or not isinstance(_error_of(stored), Draining):
            return [(numbers, stored)]
        buckets = _buckets(part)
        buckets = np.where(buckets == NO_KEY, own.producer & (BUCKETS - 1), buckets)
        found: list[tuple[Int64s, Stored]] = []
        for other, among in self._fleet.shares(buckets):
            again = self._gatherers[other].store_whole(
                _taken(part, among), own.within(other.encode()), share_bytes * len(among)
            )
            found.append((numbers[among], await again))
        return found


def _buckets(rows: BatchRows) -> Int64s:
    if isinstance(rows, pa.RecordBatch):
        return buckets_of_rows(rows)
    return np.fromiter(map(bucket_of_row, rows), np.int64, len(rows))


def _taken(rows: BatchRows, numbers: Int64s) -> BatchRows:
    if len(numbers) == len(rows):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return rows.take(pa.array(numbers))
    return [rows[number] for number in numbers.tolist()]


def _outcomes(stored: Stored) -> Iterator[Any]:
    return iter(stored.receipts.outcomes())


def _error_of(stored: Stored) -> SlotwheelError | None:
    """The error of a part that was not stored."""
    first = next(_outcomes(stored))
    return None if isinstance(first, str) else first


def _raise_what_failed(parts: Sequence[tuple[Int64s, Stored]]) -> None:
    """Errors: that of the first part that failed, about the row of the whole request."""
    failed = [(numbers, error) for numbers, part in parts if (error := _error_of(part))]
    if not failed:
        return
    numbers, error = failed[0]
    error = copy(error)
    if error.row is not None:
        error.row = int(numbers[error.row])
    count = sum(len(stored) for stored, part in parts if _error_of(part) is None)
    if count:
        error.uncertain = True
        error.message += f"; {count} messages of this request are stored by other wheels"
        error.remedy = (
            f"{error.remedy}. A request with an Idempotency-Key may be sent again: what is stored"
            " is not stored twice"
        )
    raise error

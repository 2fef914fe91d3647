"""Receipts of messages: a caller waits on them, and reads ids from them.

Theory: messages are sent in shipments of many; a shipment has one event, one base offset and one
array of checks. A ``Receipt`` is only (shipment, row), a ``Receipts`` only a list of shipments, so
a table of a million rows costs no object a row. Ids are made when they are read.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar, overload

import numpy as np

from ..wheel.delay import delay_of
from ..wheel.errors import SlotwheelError
from ..wheel.schema import Int64s
from .columns import Errors
from .failures import CountedShipment
from .predecessor import Predecessor

T = TypeVar("T")


class Receipt:
    """The receipt of one message. ``result()`` waits and returns its id, or raises its error."""

    __slots__ = ("_row", "_shipment")

    def __init__(self, shipment: CountedShipment, row: int) -> None:
        self._shipment = shipment
        self._row = row

    def __repr__(self) -> str:
        error = self._shipment.error(self._row)
        state = "done" if self.done() else "under way"
        if error is not None:
            state = f"failed: {error.message}"
        due = int(self._shipment.due[self._row])
        when = f"due {due} ms" if delay_of(due) is None else f"due after {delay_of(due)} ms"
        return f"<Receipt {when}, {state}>"

    @property
    def due_ms(self) -> int:
        """The due time, ms since the epoch. For a delay it waits until the message is stored, as it
        begins by the node's clock. For a message that was not stored, or without receipts
        (``acks="0"``), the delay counts by this machine's clock."""
        return self._shipment.due_ms(self._row)

    @property
    def id(self) -> str:
        """The message's id; waits for it, at most for the client's timeout. Where a message was
        dropped because another one of its name was kept, the id of the kept one."""
        return self.result()

    @property
    def ids(self) -> list[str]:
        """The ids for all topics of a message with a route, in their order; waits for them. A
        cancel needs them all."""
        self._shipment.wait(None)
        self._shipment.read(self._row)
        return self._shipment.ids(self._row)

    @property
    def before(self) -> Predecessor | None:
        """The message that had the name of this one before; None: no message of that name was
        known, or this one has none. Of a message with a route, that of its first topic. Waits as
        ``id`` does, and has its errors."""
        return self.befores[0]

    @property
    def befores(self) -> list[Predecessor | None]:
        """The messages before of all topics of a message with a route, in the order of ``ids``."""
        self._shipment.wait(None)
        self._shipment.read(self._row)
        return self._shipment.befores(self._row)

    def done(self) -> bool:
        return self._shipment.done

    def result(self, timeout_s: float | None = None) -> str:
        """The id, once the message is stored. Errors: ``TimeoutError``, ``SlotwheelError``."""
        self._shipment.wait(timeout_s)
        self._shipment.read(self._row)
        return self._shipment.id(self._row)

    def error(self, timeout_s: float | None = None) -> SlotwheelError | None:
        """The message's error, None when it is stored. Errors: ``TimeoutError``."""
        self._shipment.wait(timeout_s)
        self._shipment.read(self._row)
        return self._shipment.error(self._row)


class Receipts(Sequence[Receipt]):
    """The receipts of many messages, in the order in which they were sent. ``places``: of each
    message, its number among those of ``shipments``, shape (len(self),); None: they are in that
    order already."""

    def __init__(self, shipments: Sequence[CountedShipment], places: Int64s | None = None) -> None:
        self._shipments = shipments
        self._places = places
        self._starts = [0]
        for shipment in shipments:
            self._starts.append(self._starts[-1] + len(shipment.due))

    @classmethod
    def joined(cls, parts: Sequence[Receipts], places: Int64s) -> Self:
        """The receipts of all ``parts``. ``places``: of each message, its number when those of the
        parts are counted one after the other."""
        starts = np.cumsum([0, *map(len, parts)])
        orders = [
            start + (np.arange(len(part)) if part._places is None else part._places)
            for start, part in zip(starts, parts, strict=False)
        ]
        order = np.concatenate(orders) if orders else np.zeros(0, np.int64)
        return cls([shipment for part in parts for shipment in part._shipments], order[places])

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, number: int) -> Receipt: ...
    @overload
    def __getitem__(self, number: slice) -> list[Receipt]: ...
    def __getitem__(self, number: int | slice) -> Receipt | list[Receipt]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(number)
        if self._places is not None:
            row = int(self._places[row])
        place = bisect.bisect_right(self._starts, row) - 1
        return Receipt(self._shipments[place], row - self._starts[place])

    def __iter__(self) -> Iterator[Receipt]:
        rows = (
            Receipt(shipment, row)
            for shipment in self._shipments
            for row in range(len(shipment.due))
        )
        return rows if self._places is None else iter(self._in_order(list(rows)))

    def _in_order(self, listed: list[T]) -> list[T]:
        """What was listed shipment by shipment, in the order of the messages."""
        return listed if self._places is None else [listed[place] for place in self._places]

    def _numbered(self, by_place: dict[int, T]) -> dict[int, T]:
        """What is known by the number among the shipments, by the message's number."""
        if self._places is None or not by_place:
            return by_place
        numbers = np.argsort(self._places).tolist()
        numbered = {numbers[place]: value for place, value in by_place.items()}
        return dict(sorted(numbered.items()))

    @property
    def due_ms(self) -> Int64s:
        """The due times of all messages, ms since the epoch, shape (len(self),); waits for delays,
        as ``Receipt.due_ms`` does."""
        for shipment in self._shipments:
            if min(shipment.due, default=0) < 0:
                shipment.wait(None)
        parts = [np.asarray(shipment.due, np.int64) for shipment in self._shipments]
        due = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return due if self._places is None else due[self._places]

    def done(self) -> bool:
        return all(shipment.done for shipment in self._shipments)

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until every message is stored or has failed. Errors: ``TimeoutError``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if len(self._shipments) > 1:
            for shipment in self._shipments:  # several wheels: none of them lingers for another
                shipment.hurry()
        for shipment in self._shipments:
            shipment.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self

    def errors(self, timeout_s: float | None = None) -> Errors:
        """The errors of messages that were not stored, by number. Errors: ``TimeoutError``."""
        self._read(timeout_s)
        errors: Errors = {}
        for start, shipment in zip(self._starts, self._shipments, strict=False):
            if shipment.failure is not None:
                errors |= {start + row: shipment.failure for row in range(len(shipment.due))}
            errors |= {start + row: error for row, error in shipment.errors.items()}
        return self._numbered(errors)

    def result(self, timeout_s: float | None = None) -> list[str]:
        """The ids of all messages. Errors: that of the first message that was not stored."""
        self._read(timeout_s)
        return self._in_order(
            [shipment.id(row) for shipment in self._shipments for row in range(len(shipment.due))]
        )

    def outcomes(self, timeout_s: float | None = None) -> list[str | SlotwheelError]:
        """The id or the error of each message. Several may share an error: raise a copy of it.
        Errors: ``TimeoutError``."""
        self._read(timeout_s)
        return self._in_order(
            [outcome for shipment in self._shipments for outcome in shipment.outcomes()]
        )

    @property
    def failure(self) -> SlotwheelError | None:
        """The error of a single batch that failed whole, perhaps by one message; or None."""
        return self._shipments[0].failure if len(self._shipments) == 1 else None

    def befores(self) -> dict[int, Predecessor]:
        """By the number of its id in ``result``, the message before of each message whose name was
        known before; mostly none. Errors: as of ``result``."""
        self._read(None)
        befores: dict[int, Predecessor] = {}
        start = 0
        for shipment in self._shipments:
            count = len(shipment.due)
            if shipment.stored is not None and shipment.stored.prior:
                for row in range(count):
                    before = shipment.befores(row)[0]
                    if before is not None:
                        befores[start + row] = before
            start += count
        return self._numbered(befores)

    def offsets(self, timeout_s: float | None = None) -> Int64s:
        """The offsets in the wheel's log, shape (len(self),); -1 for a message that was not
        stored. Errors: ``TimeoutError``."""
        self._read(timeout_s)
        offsets = np.full(len(self), -1, np.int64)
        for start, shipment in zip(self._starts, self._shipments, strict=False):
            if shipment.stored is not None:
                kept = shipment.kept
                rows = np.arange(len(shipment.due)) if kept is None else kept
                offsets[start + rows] = shipment.stored.base_offset + np.arange(len(rows))
        return offsets if self._places is None else offsets[self._places]

    def _read(self, timeout_s: float | None) -> None:
        """Wait, and note that the caller gets all results. Errors: ``TimeoutError``."""
        self.wait(timeout_s)
        for shipment in self._shipments:
            shipment.read()

"""What a caller holds while its messages travel, and what the ids follow from afterwards.

Theory: messages travel in shipments of many; a shipment has one event, one base offset and one
array of checks. A ``Receipt`` is only (shipment, row), a ``Receipts`` only a list of shipments, so
a table of a million rows costs no object a row. Ids are made when somebody asks for them.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import pyarrow as pa

from ..wheel.errors import SlotwheelError
from ..wheel.ids import MessageId
from ..wheel.protocol import Stored
from ..wheel.schema import Int64s
from .columns import Errors, without

if TYPE_CHECKING:
    from .batch import Batch


Columns = tuple[list[Any], ...]
"""Of many messages, in the order of ``rows.from_columns``."""


class Shipment:
    """Rows that go to the node as one batch. Written by the sender, read by receipts once done.

    ``rows``, or ``columns`` of single messages, is what is to be sent (neither: nothing, or sent
    already); ``kept`` gives the numbers of these rows among those the caller handed over (None: all
    of them).
    """

    __slots__ = (
        "_done",
        "_group",
        "_nudge",
        "_places",
        "alone",
        "batch",
        "columns",
        "deadline",
        "due",
        "errors",
        "failure",
        "kept",
        "nbytes",
        "rows",
        "stored",
    )

    def __init__(self, deadline: float, nudge: Callable[[], None]) -> None:
        self.rows: pa.RecordBatch | None = None
        self.columns: Columns | None = None
        self.due: Int64s | list[int] = []
        self.kept: Int64s | None = None
        self.errors: Errors = {}
        self.nbytes = 0
        self.deadline = deadline
        self.batch: Batch | None = None
        """What it travels in, from the first sending on."""
        self.alone = False
        """It was in a batch that was refused as a whole: it goes by itself."""
        self.failure: SlotwheelError | None = None
        self.stored: Stored | None = None
        self._group = ""
        self._places: Int64s | None = None
        self._nudge = nudge
        self._done = threading.Event()

    @property
    def count(self) -> int:
        """How many rows there are to send."""
        if self.rows is not None:
            return int(self.rows.num_rows)
        return 0 if self.columns is None else len(self.columns[0])

    @property
    def content(self) -> Columns | pa.RecordBatch:
        """What there is to send, at least one row."""
        return self.rows if self.columns is None else self.columns

    def drop(self, bad: Errors) -> None:
        """Take rows out (by their number in ``rows``) and keep their errors for their receipts."""
        assert self.rows is not None
        kept, rest = without(self.rows, list(bad))
        numbers = np.arange(self.rows.num_rows) if self.kept is None else self.kept
        for row, error in bad.items():
            self.errors[int(numbers[row])] = error
        self.kept, self.rows = numbers[kept], rest

    def finish(self, stored: Stored | None, group: str) -> None:
        self.stored, self._group = stored, group
        self.rows = self.columns = None
        if self.kept is not None and stored is not None:
            self._places = np.full(len(self.due), -1, np.int64)
            self._places[self.kept] = np.arange(len(self.kept))
        self._done.set()

    def fail(self, error: SlotwheelError) -> None:
        self.failure = error
        self.rows = self.columns = None
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float | None) -> None:
        """Errors: ``TimeoutError``. Somebody waits, so the sender is told to linger no longer."""
        if self._done.is_set():
            return
        self._nudge()
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"no receipt within {timeout_s} s; the message is still being sent")

    def error(self, row: int) -> SlotwheelError | None:
        return self.errors.get(row) or self.failure

    def id(self, row: int) -> str:
        """Errors: the row's own, or ``SlotwheelError`` when receipts were not asked for."""
        error = self.error(row)
        if error is not None:
            raise error
        if self.stored is None:
            raise SlotwheelError(
                "there is no id", got='acks="0"', remedy='Use acks="all" to get receipts'
            )
        place = row if self._places is None else int(self._places[row])
        check = int(self.stored.checks[place])
        return str(MessageId(self._group, self.due_ms(row), self.stored.base_offset + place, check))

    def due_ms(self, row: int) -> int:
        return int(self.due[row])


class Receipt:
    """The fate of one message. ``result()`` waits and gives its id, or raises its error."""

    __slots__ = ("_row", "_shipment")

    def __init__(self, shipment: Shipment, row: int) -> None:
        self._shipment = shipment
        self._row = row

    def __repr__(self) -> str:
        state = "done" if self.done() else "under way"
        return f"<Receipt due {self.due_ms} ms, {state}>"

    @property
    def due_ms(self) -> int:
        """When the message is due, ms since the epoch; fixed when it was handed to ``send``."""
        return self._shipment.due_ms(self._row)

    @property
    def id(self) -> str:
        """The message's id; waits for it as long as the client's timeout lets it take."""
        return self.result()

    def done(self) -> bool:
        return self._shipment.done

    def result(self, timeout_s: float | None = None) -> str:
        """The id, once the message is stored. Errors: ``TimeoutError``, ``SlotwheelError``."""
        self._shipment.wait(timeout_s)
        return self._shipment.id(self._row)

    def error(self, timeout_s: float | None = None) -> SlotwheelError | None:
        """The message's error, None when it is stored. Errors: ``TimeoutError``."""
        self._shipment.wait(timeout_s)
        return self._shipment.error(self._row)


class Receipts(Sequence[Receipt]):
    """The receipts of many messages, in the order they were handed over."""

    def __init__(self, shipments: Sequence[Shipment]) -> None:
        self._shipments = shipments
        self._starts = [0]
        for shipment in shipments:
            self._starts.append(self._starts[-1] + len(shipment.due))

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
        place = bisect.bisect_right(self._starts, row) - 1
        return Receipt(self._shipments[place], row - self._starts[place])

    def __iter__(self) -> Iterator[Receipt]:
        for shipment in self._shipments:
            for row in range(len(shipment.due)):
                yield Receipt(shipment, row)

    @property
    def due_ms(self) -> Int64s:
        """Due times of all messages, ms since the epoch, shape (len(self),)."""
        parts = [np.asarray(shipment.due, np.int64) for shipment in self._shipments]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def done(self) -> bool:
        return all(shipment.done for shipment in self._shipments)

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until the fate of every message is known. Errors: ``TimeoutError``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for shipment in self._shipments:
            shipment.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self

    def errors(self, timeout_s: float | None = None) -> Errors:
        """The error of each message that was not stored, by its number."""
        self.wait(timeout_s)
        found: Errors = {}
        for start, shipment in zip(self._starts, self._shipments, strict=False):
            if shipment.failure is not None:
                found |= {start + row: shipment.failure for row in range(len(shipment.due))}
            found |= {start + row: error for row, error in shipment.errors.items()}
        return found

    def result(self, timeout_s: float | None = None) -> list[str]:
        """The ids of all messages. Errors: that of the first message that was not stored."""
        self.wait(timeout_s)
        return [
            shipment.id(row) for shipment in self._shipments for row in range(len(shipment.due))
        ]

    def offsets(self, timeout_s: float | None = None) -> Int64s:
        """Offsets in the wheel's log, shape (len(self),); -1 for a message not stored."""
        self.wait(timeout_s)
        found = np.full(len(self), -1, np.int64)
        for start, shipment in zip(self._starts, self._shipments, strict=False):
            if shipment.stored is not None:
                kept = shipment.kept
                rows = np.arange(len(shipment.due)) if kept is None else kept
                found[start + rows] = shipment.stored.base_offset + np.arange(len(rows))
        return found

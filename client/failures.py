"""Failures that nobody has read from a receipt: counted, so that the client can log them when it
is closed.

Theory: the client keeps a number and one error, however many messages fail. Only the shipment
knows which of its rows were read, and it lives as long as its receipts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ..wheel.errors import SlotwheelError
from .batch import Shipment


class UnreadFailures:
    """The unread failures of a client: the number of messages, and the first error since there was
    none. ``lock`` guards both."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.first: SlotwheelError | None = None


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class CountedShipment(Shipment):
    """A shipment whose failures are counted when it is done."""

    counted_in: UnreadFailures | None
    """None where a callback gets the receipts, so that none stays unread."""
    _unread: set[int] | None = field(default=None, init=False)
    """Rows that failed; None: not counted yet."""

    def _end(self) -> None:
        Shipment._end(self)  # no ``super()`` where ``slots`` makes the class anew
        if self.counted_in is not None and (self.failure is not None or self.errors):
            with self.counted_in.lock:
                self._counted(self.counted_in)

    def read(self, row: int | None = None) -> None:
        """Note that a caller got the result of a row, or of all, of a shipment that is done."""
        if self.counted_in is None or (self.failure is None and not self.errors):
            return
        with self.counted_in.lock:
            unread = self._counted(self.counted_in)
            before = len(unread)
            if row is None:
                unread.clear()
            else:
                unread.discard(row)
            self.counted_in.count -= before - len(unread)
            if not self.counted_in.count:
                self.counted_in.first = None

    def _counted(self, failures: UnreadFailures) -> set[int]:
        """The unread rows. Counts them at the first call: a caller may be faster than the thread
        that reports the end."""
        if self._unread is None:
            failed = self.errors if self.failure is None else range(len(self.due))
            self._unread = set(failed)
            failures.count += len(self._unread)
            if failures.first is None:
                failures.first = self.error(next(iter(failed)))
        return self._unread

"""Sends messages once more, from whatever source: in order, and counted to the end.

Receipts are handled in the order in which batches were sent. So after any interruption the number
of messages is known that are stored or refused, from the first one on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..wheel.errors import InvalidBatch, InvalidMessage, SlotwheelError
from .receipts import Receipts

WAITING_MAX = 16
"""The most batches with open receipts."""
_REFUSED_SHOWN = 20


@dataclass(slots=True)
class Resending:
    """The state of sending. ``done``: the number of messages that are stored or refused, with those
    that were skipped. ``report`` is called with the number of a refused message, from 0, and its
    error."""

    done: int
    report: Callable[[int, SlotwheelError], None]
    sent: int = 0
    refused: int = 0
    under_way: int = 0
    """The number of further messages that were sent, and may be stored."""
    waiting: deque[tuple[Receipts, int]] = field(default_factory=deque)
    """Receipts, and the number of them, from the first on, that are messages'."""

    def put(self, receipts: Receipts) -> int:
        """Add receipts, all of them messages'. Returns the number of messages done since."""
        self.waiting.append((receipts, len(receipts)))
        before = self.done
        while len(self.waiting) > WAITING_MAX:
            self.settle()
        return self.done - before

    def settle(self) -> None:
        """Wait for the oldest receipts. Errors: of the first message neither stored nor refused."""
        receipts, count = self.waiting[0]
        errors = {row: error for row, error in receipts.errors().items() if row < count}
        bad = {
            row: error
            for row, error in errors.items()
            if isinstance(error, InvalidMessage | InvalidBatch)
        }
        failed = sorted(errors.keys() - bad.keys())
        self.waiting.popleft()
        stored = failed[0] if failed else count
        for row, error in sorted(bad.items()):
            if row < stored:
                self.refuse(self.done + row, error)
        self.done += stored
        self.sent += stored - sum(row < stored for row in bad)
        if failed:
            self.under_way += count - stored
            raise errors[failed[0]]

    def send_in_parts(self, send: Callable[[], Sequence[tuple[Receipts, int]]]) -> None:
        """Send the messages of the oldest receipts, which were refused together, in parts, by
        ``send``; the parts' receipts take their place. If a part cannot be sent, others may be
        stored. Errors: those of ``send``."""
        _, count = self.waiting.popleft()
        self.under_way += count
        self.waiting.extendleft(reversed(send()))
        self.under_way -= count

    def settle_rest(self) -> None:
        """After the client is closed: count messages with a known result, ignoring errors."""
        while self.waiting and not self.under_way:
            try:
                self.settle()
            except SlotwheelError:
                break
        self.under_way += sum(count for _, count in self.waiting)
        self.waiting.clear()

    def refuse(self, number: int, error: SlotwheelError) -> None:
        """Count and report a message that is not stored, for a reason of its own."""
        self.refused += 1
        if self.refused <= _REFUSED_SHOWN:
            self.report(number, error)

"""Sends messages once more, whatever they come from: in order, and counted to the end.

Receipts are handled in the order in which batches were sent; so whatever stops it, it is known up
to where everything is stored or refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..wheel.errors import InvalidBatch, InvalidMessage, SlotwheelError
from .receipts import Receipts

WAITING_MAX = 16
"""Batches with open receipts."""
_REFUSED_SHOWN = 20


@dataclass(slots=True)
class Resending:
    """The state of sending. ``done``: how many messages, with skipped ones, are stored or refused.
    ``report``: called with the number of each refused message, from 0, and why."""

    done: int
    report: Callable[[int, SlotwheelError], None]
    sent: int = 0
    refused: int = 0
    under_way: int = 0
    """Messages sent besides these, and perhaps stored."""
    waiting: deque[tuple[Receipts, int]] = field(default_factory=deque)
    """Receipts, and how many of them, the first ones, are of messages."""

    def put(self, receipts: Receipts) -> int:
        """Add receipts, all of them of messages. Returns how many messages are done since."""
        self.waiting.append((receipts, len(receipts)))
        before = self.done
        while len(self.waiting) > WAITING_MAX:
            self.settle()
        return self.done - before

    def settle(self) -> None:
        """Wait for the oldest receipts. Errors: why a message was not stored, if it was not
        refused."""
        receipts, count = self.waiting[0]
        errors = {row: one for row, one in receipts.errors().items() if row < count}
        bad = {
            row: one
            for row, one in errors.items()
            if isinstance(one, InvalidMessage | InvalidBatch)
        }
        others = sorted(errors.keys() - bad.keys())
        self.waiting.popleft()
        stored = others[0] if others else count
        for row, error in sorted(bad.items()):
            if row < stored:
                self.refuse(self.done + row, error)
        self.done += stored
        self.sent += stored - sum(row < stored for row in bad)
        if others:
            self.under_way += count - stored
            raise errors[others[0]]

    def send_in_parts(self, send: Callable[[], Sequence[tuple[Receipts, int]]]) -> None:
        """The messages of the oldest receipts were refused together: ``send`` sends them in parts,
        whose receipts are waited for in their place. If one part cannot be sent, others may be
        stored."""
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
        """A message is not stored, for a reason of its own."""
        self.refused += 1
        if self.refused <= _REFUSED_SHOWN:
            self.report(number, error)

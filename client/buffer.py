"""What was handed over and is not answered yet: gathered, joined into batches, kept to its end.

Theory: a batch gets a *sequence* when it is first sent, and keeps it through every retry, so that
the node recognises it. The node remembers the last five sequences of a producer; therefore
the newest sequence is never five or more ahead of the oldest unanswered one. The peers of a group
share what they remember, so the same holds when the next master is another one.

    lingering --sealed--> fresh --first send: sequence--> unanswered --answer--> done
                            ^                               |   ^
                            | rows dropped: new sequence    |   | sent again, same sequence
                            +-------------------------------+-> resend (overloaded, link lost)

What waits because five batches are unanswered leaves in one batch, as far as it fits: the slower
the node, the larger the batches, and the less each message costs.

No thread, no lock and no clock: the sender calls everything here under its lock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from ..wheel.protocol import IN_FLIGHT_MAX
from .batch import Batch, Shipment
from .columns import Errors, Limits
from .message import FlatMessage

ROW_OVERHEAD = 64
"""What a row costs in memory beyond its content, roughly."""
_JOIN_WITHIN = 0.1
"""Shipments leave together if their time runs out within this part of the client's timeout."""


class Buffer:
    """``timeout_s``, ``batch_rows``, ``batch_bytes``: as of ``Client``. ``bytes_max``: how much may
    wait. ``now``: monotonic, in seconds, like every deadline."""

    def __init__(
        self,
        *,
        timeout_s: float,
        linger_s: float,
        batch_rows: int,
        batch_bytes: int,
        bytes_max: int,
    ) -> None:
        self._join_within_s = _JOIN_WITHIN * timeout_s
        self._linger_s = linger_s
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self.bytes_max = bytes_max
        self.nbytes = 0
        """Of what waits: open shipments, and receipts that are not in their file yet."""
        self.open: set[Shipment] = set()
        """All shipments whose fate is not known."""
        self.unanswered: dict[int, Batch] = {}
        """By sequence."""
        self.lingering: Shipment | None = None
        self._seal_at = 0.0
        self._hurry = False
        self._fresh: deque[Shipment] = deque()
        self._resend: list[int] = []
        self._next_sequence = 0
        self.keep_to(Limits())

    def keep_to(self, limits: Limits) -> None:
        """What the node takes: no batch becomes larger."""
        self.limits = limits
        self.batch_rows_max = min(self._batch_rows, limits.batch_rows)
        self.batch_bytes_max = min(self._batch_bytes, limits.batch_bytes)

    # In

    def has_room(self, nbytes: int) -> bool:
        return not self.nbytes or self.nbytes + nbytes <= self.bytes_max

    def add(self, shipment: Shipment) -> None:
        """A shipment with its ``rows`` and ``nbytes``, behind what lingers."""
        self.nbytes += shipment.nbytes
        self.seal()
        self.open.add(shipment)
        self._fresh.append(shipment)

    def linger(
        self, flat: FlatMessage, nbytes: int, now: float, new_shipment: Callable[[], Shipment]
    ) -> tuple[Shipment, int]:
        """Add a message to the shipment being gathered; gives it and the row's number in it."""
        self.nbytes += nbytes
        shipment = self.lingering
        if shipment is not None and shipment.nbytes + nbytes > self.batch_bytes_max:
            self.seal()
            shipment = None
        if shipment is None:
            shipment = self.lingering = new_shipment()
            shipment.columns = ([], [], [], [], [], [])
            shipment.due = shipment.columns[0]
            self._seal_at = now + self._linger_s
            self.open.add(shipment)
        assert shipment.columns is not None
        row = len(shipment.due)
        for column, value in zip(shipment.columns, flat, strict=False):
            column.append(value)
        shipment.nbytes += nbytes
        # Company is worth waiting for only while something is under way already.
        if row + 1 >= self.batch_rows_max or len(self.open) == 1:
            self.seal()
        return shipment, row

    def hurry(self) -> bool:
        """Somebody waits for what lingers. Whether it may leave now: nothing else is under way."""
        if self.lingering is None:
            return False
        self._hurry = True
        return not self.unanswered

    def seal(self) -> None:
        if self.lingering is not None:
            self._fresh.append(self.lingering)
            self.lingering = None
            self._hurry = False

    def seal_in_time(self, now: float) -> float | None:
        """Seal what has lingered for long enough; when to do it, if something still lingers."""
        if self.lingering is None:
            return None
        if now < self._seal_at and (not self._hurry or self.unanswered):
            return self._seal_at
        self.seal()
        return None

    # Out, and again

    @property
    def waits_to_be_sent(self) -> bool:
        return bool(self._fresh or self._resend)

    def next_batch(self) -> Batch | None:
        """What is to be sent again, or what is new, with a sequence."""
        while self._resend:
            batch = self.unanswered.get(heapq.heappop(self._resend))
            if batch is not None:
                return batch
        oldest = min(self.unanswered, default=self._next_sequence)
        if not self._fresh or self._next_sequence - oldest >= IN_FLIGHT_MAX:
            return None
        batch = Batch(self._next_sequence, self._first_and_following())
        self._next_sequence += 1
        self.unanswered[batch.sequence] = batch
        return batch

    def _first_and_following(self) -> list[Shipment]:
        """The first of ``fresh``, and what waits behind it as far as it fits."""
        shipments = [self._fresh.popleft()]
        first = shipments[0]
        if first.alone:
            return shipments
        rows_left = self.batch_rows_max - first.count
        bytes_left = self.batch_bytes_max - first.nbytes
        while self._fresh:
            following = self._fresh[0]
            apart_s = abs(following.deadline - first.deadline)
            if following.alone or apart_s > self._join_within_s:
                break
            rows_left -= following.count
            bytes_left -= following.nbytes
            if rows_left < 0 or bytes_left < 0:
                break
            shipments.append(self._fresh.popleft())
        # Given up together, or one would be told that it was not stored while the batch, and so
        # it, is sent again.
        earliest = min(shipment.deadline for shipment in shipments)
        for shipment in shipments:
            shipment.deadline = earliest
        return shipments

    def awaits(self, batch: Batch) -> bool:
        """Whether it still is to be answered: not given up, and not refused meanwhile."""
        return self.unanswered.get(batch.sequence) is batch

    def sent_at(self) -> float | None:
        """When the oldest batch was sent of which nothing is known since; None: there is none."""
        return min((one.sent_at for one in self.unanswered.values() if one.sent_at), default=None)

    def send_again(self, batch: Batch) -> None:
        batch.sent_at = 0.0
        heapq.heappush(self._resend, batch.sequence)

    def send_all_again(self) -> None:
        """The link is lost: what was sent may be stored, and nothing more will be heard of it."""
        for batch in self.unanswered.values():
            batch.uncertain |= bool(batch.sent_at)
            batch.sent_at = 0.0
        self._resend = sorted(self.unanswered)

    def take_apart(self, batch: Batch, rows: pa.RecordBatch, bad: Errors) -> list[Shipment]:
        """Begin anew with the rows of a batch that was refused, without bad ones; if there are
        none, with each shipment by itself. Gives the shipments that have no row left: they end."""
        # The rest is a new batch: the old sequence is answered, and never used again.
        del self.unanswered[batch.sequence]
        wrong = batch.by_shipment(bad)
        empty = []
        for number, (shipment, mine) in reversed(list(enumerate(batch.spans()))):
            shipment.batch = None
            shipment.rows = rows.slice(mine.start, len(mine))
            if number in wrong:
                shipment.drop(wrong[number])
            # What is wrong with a whole batch shows when each goes by itself.
            shipment.alone = not bad
            if shipment.rows is None:
                self.end(shipment)
                empty.append(shipment)
            else:
                self._fresh.appendleft(shipment)
        return empty

    # Ends

    def remove(self, shipment: Shipment) -> None:
        """It is given up, wherever it is."""
        if shipment in self._fresh:
            self._fresh.remove(shipment)
        if shipment is self.lingering:
            self.lingering, self._hurry = None, False
        self.end(shipment)

    def end(self, shipment: Shipment) -> None:
        """Its fate is known."""
        self.open.discard(shipment)
        # A receipt that somebody keeps must not keep all that travelled with it.
        batch, shipment.batch = shipment.batch, None
        if batch is not None:
            self.unanswered.pop(batch.sequence, None)
        self.nbytes -= shipment.nbytes
        shipment.nbytes = 0

"""Messages that are not answered yet: gathered, joined into batches, kept until they are done.

Theory: a batch gets a *sequence* when it is first sent, and keeps it through every retry, so that
the node recognises it. The node keeps the last five sequences of a producer; therefore the newest
sequence is never five or more ahead of the oldest unanswered one. The peers of a group share this
record, so the same holds for another master.

    lingering --sealed--> fresh --first send: sequence--> unanswered --answer--> done
                            ^                               |   ^
                            | rows dropped: new sequence    |   | sent again, same sequence
                            +-------------------------------+-> resend (overloaded, link lost)

What lingers are single messages, while something is in flight, and *shares* of larger calls that a
fleet has split. It ends when they fill a batch, when their time is over, or when somebody waits for
them and nothing is in flight. A share lingers also while nothing is in flight: of calls of 1,000
messages over three wheels each wheel would else have answered to 333 of them before the next call.

Messages of one name keep their order: of batches that have it one is unanswered at a time.

Shipments that wait because five batches are unanswered are sent in one batch, as far as they fit:
the slower the node, the larger the batches, and the less each message costs. A request is a batch
by itself, with a producer of its own: so it is not one of the five, and its sequence only tells its
answer from those of other batches.

There is no thread, no lock and no clock here: the sender makes all calls under its lock. Limits may
be read without it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

import pyarrow as pa

from ..wheel.errors import SlotwheelError
from ..wheel.protocol import IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX
from .batch import Batch, Shipment
from .columns import Errors, Limits
from .message import FlatMessage

_FIRST_REQUEST = 1 << 62
"""Sequences of requests begin here, above all others."""
_JOIN_WITHIN = 0.1
"""Shipments are joined if their deadlines differ by at most this part of the client's timeout."""


class Buffer:
    """The unanswered messages of a client. ``timeout_s``, ``batch_rows``, ``batch_bytes``: as of
    ``Client``. ``bytes_max``: the limit of ``nbytes``. All times are monotonic, s."""

    def __init__(
        self,
        *,
        timeout_s: float,
        linger_s: float,
        batch_rows: int,
        batch_bytes: int,
        bytes_max: int,
        first_sequence: int = 0,
    ) -> None:
        self._join_within_s = _JOIN_WITHIN * timeout_s
        self._linger_s = linger_s
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self.bytes_max = bytes_max
        self.nbytes = 0
        """The bytes of open shipments, and of receipts that are not in their file yet."""
        self.open: set[Shipment] = set()
        """All shipments that are not done."""
        self.unanswered: dict[int, Batch] = {}
        """Batches by sequence."""
        self._shares: OrderedDict[Shipment, None] = OrderedDict()
        """Shipments that linger and get no further message, in front of the lingering one."""
        self._share_rows = self._share_bytes = 0
        self._lingering: Shipment | None = None
        """The shipment that gets the next single message."""
        self._seal_at = 0.0
        self._hurry = False
        # Ordered sets: many may be given up at once, wherever they stand.
        self._fresh: OrderedDict[Shipment, None] = OrderedDict()
        self._requests: OrderedDict[Shipment, None] = OrderedDict()
        """Requests that were not sent yet."""
        self._postponed: list[tuple[float, Shipment]] = []
        """Shipments that wait until a message has left, whose name they have, and until when."""
        self._requests_open = 0
        """The number of batches in ``unanswered`` that are requests."""
        self._next_request = _FIRST_REQUEST
        self._resend: list[int] = []
        self._next_sequence = first_sequence
        self.keep_to(Limits())

    def keep_to(self, limits: Limits) -> None:
        """Apply the node's limits: no batch becomes larger."""
        self.limits = limits
        self.batch_rows_max = min(self._batch_rows, limits.batch_rows)
        self.batch_bytes_max = min(self._batch_bytes, limits.batch_bytes)

    # In

    def has_room(self, nbytes: int) -> bool:
        return not self.nbytes or self.nbytes + nbytes <= self.bytes_max

    def occupy(self, nbytes: int) -> None:
        """Count bytes besides those of shipments."""
        self.nbytes += nbytes

    def free(self, nbytes: int) -> None:
        self.nbytes -= nbytes

    def add(self, shipment: Shipment) -> None:
        """Add a shipment with its ``nbytes``, behind what lingers."""
        self.nbytes += shipment.nbytes
        self.seal()
        self.open.add(shipment)
        (self._fresh if shipment.request is None else self._requests)[shipment] = None

    def add_share(self, shipment: Shipment, now: float) -> None:
        """Add a shipment that lingers, to leave in one batch with others."""
        self.nbytes += shipment.nbytes
        self.open.add(shipment)
        if not self.lingers:
            self._seal_at = now + self._linger_s
        if self._lingering is not None:  # its messages came earlier
            self._to_shares(self._lingering)
            self._lingering = None
        self._to_shares(shipment)
        full = self._share_rows >= self.batch_rows_max or self._share_bytes >= self.batch_bytes_max
        if full or not self._linger_s:
            self.seal()

    def _to_shares(self, shipment: Shipment) -> None:
        self._shares[shipment] = None
        self._share_rows += shipment.count
        self._share_bytes += shipment.nbytes

    def linger(
        self, flat: FlatMessage, nbytes: int, now: float, new_shipment: Callable[[], Shipment]
    ) -> tuple[Shipment, int]:
        """Add a message to the lingering shipment. Returns it and the row's number in it.
        ``new_shipment`` makes one that has no message yet."""
        self.nbytes += nbytes
        shipment = self._lingering
        if shipment is not None and shipment.nbytes + nbytes > self.batch_bytes_max:
            self.seal()
            shipment = None
        if shipment is None:
            if not self.lingers:
                self._seal_at = now + self._linger_s
            shipment = self._lingering = new_shipment()
            self.open.add(shipment)
        row = shipment.add(flat, nbytes)
        # Waiting for further messages pays only while something is in flight already.
        if row + 1 >= self.batch_rows_max or len(self.open) == 1:
            self.seal()
        return shipment, row

    def hurry(self) -> bool:
        """Note that a caller waits for what lingers. Returns True when that may be sent now, as no
        batch is in flight."""
        if not self.lingers:
            return False
        self._hurry = True
        return not self.unanswered

    def seal(self) -> None:
        """Queue what lingers."""
        self._fresh.update(self._shares)
        self._shares.clear()
        self._share_rows = self._share_bytes = 0
        if self._lingering is not None:
            self._fresh[self._lingering] = None
            self._lingering = None
        self._hurry = False

    def queue_in_time(self, now: float) -> float | None:
        """Queue what has lingered long enough, and those that were postponed until now.
        Returns the time at which the next one is, if one still has to wait."""
        for until, shipment in self._postponed:
            if until <= now:
                self._queue_first(shipment)
        self._postponed = [later for later in self._postponed if later[0] > now]
        wake = min((until for until, _ in self._postponed), default=None)
        if not self.lingers:
            return wake
        if now < self._seal_at and (not self._hurry or self.unanswered):
            return self._seal_at if wake is None else min(wake, self._seal_at)
        self.seal()
        return wake

    # Out, and repeats

    @property
    def lingers(self) -> bool:
        """True while messages wait for others to share their batch."""
        return self._lingering is not None or bool(self._shares)

    @property
    def waits_to_be_sent(self) -> bool:
        return bool(self._fresh or self._resend or self._requests)

    def next_batch(self) -> Batch | None:
        """The next batch to be sent again, or a new one, with a sequence."""
        while self._resend:
            batch = self.unanswered.get(heapq.heappop(self._resend))
            if batch is not None:
                return batch
        oldest = min((self._next_sequence, *self.unanswered))
        if self._may_begin(oldest):
            batch = Batch(self._next_sequence, self._first_and_following())
            self._next_sequence += 1
        elif self._requests and self._requests_open < REQUESTS_IN_FLIGHT_MAX:
            batch = Batch(self._next_request, [self._requests.popitem(last=False)[0]])
            self._next_request += 1
            self._requests_open += 1
        else:
            return None
        self.unanswered[batch.sequence] = batch
        return batch

    def _may_begin(self, oldest: int) -> bool:
        """Returns True when the first fresh shipment may be sent. It waits for an earlier one that
        has one of its names: that one may be refused for now and sent again, and of two messages of
        one name the earlier one would replace the later one then."""
        if not self._fresh or self._next_sequence - oldest >= IN_FLIGHT_MAX:
            return False
        return self._is_free(next(iter(self._fresh)))

    def _is_free(self, shipment: Shipment) -> bool:
        """True if none of a shipment's names is under way. Each batch is asked by itself: a set of
        all their names would have to be made anew with each of them, 25,000 names for 1,000."""
        names = shipment.names
        if not names:
            return True
        sent = (batch.names for batch in self.unanswered.values())
        postponed = (later.names for _, later in self._postponed)
        return all(map(names.isdisjoint, chain(sent, postponed)))

    def postpone(
        self, batch: Batch, rows: pa.RecordBatch, error: SlotwheelError, until: float
    ) -> None:
        """Queue the rows of a refused batch again: the shipment of the row that ``error`` names, as
        a message of its name is just leaving, not before ``until``, and the others at once. None of
        them keeps a sequence: a message may be leaving for long while a sink does not answer, and a
        sequence that waits stops all that come behind it."""
        del self.unanswered[batch.sequence]
        self._requests_open -= batch.request is not None
        for shipment, span in reversed(list(batch.spans())):
            reason = None
            if error.row in span:
                reason = error.of_rows_from(span.start) if shipment.whole else error.without_row()
            part = rows.slice(span.start, len(span))
            shipment.take_back(part, None, alone=shipment.alone, postponed_for=reason)
            if reason is None:
                self._queue_first(shipment)
            else:
                self._postponed.append((until, shipment))

    def _queue_first(self, shipment: Shipment) -> None:
        queue = self._fresh if shipment.request is None else self._requests
        queue[shipment] = None
        queue.move_to_end(shipment, last=False)

    def _first_and_following(self) -> list[Shipment]:
        """The first fresh shipment, and those behind it as far as they fit."""
        shipments = [self._fresh.popitem(last=False)[0]]
        first = shipments[0]
        if first.by_itself:
            return shipments
        rows_left = self.batch_rows_max - first.count
        bytes_left = self.batch_bytes_max - first.nbytes
        while self._fresh:
            following = next(iter(self._fresh))
            apart_s = abs(following.deadline - first.deadline)
            if following.by_itself or apart_s > self._join_within_s:
                break
            if not self._is_free(following):
                break
            rows_left -= following.count
            bytes_left -= following.nbytes
            if rows_left < 0 or bytes_left < 0:
                break
            shipments.append(self._fresh.popitem(last=False)[0])
        # They are given up together: otherwise one would be reported as not stored while the batch
        # is sent again with it.
        earliest = min(shipment.deadline for shipment in shipments)
        for shipment in shipments:
            shipment.try_until(earliest)
        return shipments

    def awaits(self, batch: Batch) -> bool:
        """Returns True when the batch is still unanswered: neither given up nor refused."""
        return self.unanswered.get(batch.sequence) is batch

    def sent_at(self) -> float | None:
        """The time at which the oldest unanswered batch was sent; None: there is none."""
        times = (batch.sent_at for batch in self.unanswered.values() if batch.sent_at)
        return min(times, default=None)

    def send_again(self, batch: Batch) -> None:
        batch.to_be_sent_again()
        heapq.heappush(self._resend, batch.sequence)

    def send_all_again(self) -> None:
        """Send all unanswered batches again: the link is lost, and no answer will come over it."""
        for batch in self.unanswered.values():
            batch.to_be_sent_again()
        self._resend = sorted(self.unanswered)

    def take_apart(self, batch: Batch, rows: pa.RecordBatch, bad: Errors) -> list[Shipment]:
        """Queue the rows of a refused batch again without bad ones; if no bad one is known, each
        shipment by itself. Returns the shipments that have no row left: they are done."""
        # The good rows get a new sequence: the old one is answered, and never used again.
        del self.unanswered[batch.sequence]
        wrong = batch.by_shipment(bad)
        empty = []
        for number, (shipment, span) in reversed(list(enumerate(batch.spans()))):
            # Sending each shipment by itself shows the one that spoils the batch.
            part = rows.slice(span.start, len(span))
            shipment.take_back(part, wrong.get(number), alone=not bad)
            if shipment.rows is None:
                self.end(shipment)
                empty.append(shipment)
            else:
                self._fresh[shipment] = None
                self._fresh.move_to_end(shipment, last=False)
        return empty

    # Done

    def remove(self, shipment: Shipment) -> None:
        """Remove a shipment that is given up, wherever it is."""
        if shipment in self._shares:
            self._share_rows -= shipment.count
            self._share_bytes -= shipment.nbytes
        for waiting in (self._shares, self._fresh, self._requests):
            waiting.pop(shipment, None)
        self._postponed = [later for later in self._postponed if later[1] is not shipment]
        if shipment is self._lingering:
            self._lingering = None
        self._hurry = self._hurry and self.lingers
        self.end(shipment)

    def end(self, shipment: Shipment) -> None:
        """Let go of a shipment that is done."""
        self.open.discard(shipment)
        batch, nbytes = shipment.leave_buffer()
        self.free(nbytes)
        if batch is not None and self.unanswered.pop(batch.sequence, None) is not None:
            self._requests_open -= batch.request is not None

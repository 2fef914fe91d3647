"""The engine of a client: lingers, sends, retries without repeating, and bounds all of it.

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

Three daemon threads: the *sender* connects and writes; the *reader* brings a link's answers; the
*watch* gives up what is past its deadline and cuts a link that answers nothing, because the
sender may be blocked in a write at that time. With several addresses it asks another peer, too: a
master that is cut off or stands still cannot say that it was replaced. One lock guards all state;
nothing blocks under it.
"""

from __future__ import annotations

import heapq
import logging
import queue
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from ..wheel.backoff import Backoff
from ..wheel.checks import bad_rows
from ..wheel.errors import (
    InvalidBatch,
    InvalidMessage,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    SlotwheelError,
)
from ..wheel.protocol import IN_FLIGHT_MAX, PRODUCER_LIMIT, AppendCommand, RefusedBatch, StoredBatch
from ..wheel.schema import times
from .addresses import Addresses
from .batch import Batch, Shipment, gathered
from .columns import Errors, Limits
from .message import FlatMessage
from .receiptfile import BatchReceipts, ReceiptFile

_log = logging.getLogger("slotwheel.client")

ROW_OVERHEAD = 64
"""What a row costs in memory beyond its content, roughly."""
_BACKOFF_S = 0.02
_WATCH_S = 0.1
_JOIN_WITHIN = 0.1
"""Shipments leave together if their time runs out within this part of the client's timeout."""
_SUSPECT_S = 1.0
"""No answer for so long: ask another peer whether there is a new master, and again each ..."""
_ASK_EVERY_S = 0.5
_ASK_TIMEOUT_S = 0.4


class LinkLike(Protocol):
    """What the sender needs of ``link.Link``."""

    group: str
    limits: Limits
    epoch: int
    error: SlotwheelError | None

    def write(self, rows: pa.RecordBatch, sequence: int) -> None: ...
    def cut(self) -> None: ...
    def close(self, timeout_s: float = 1.0) -> None: ...


OnAnswer = Callable[[StoredBatch | RefusedBatch], None]
OnLost = Callable[[LinkLike, SlotwheelError], None]
ReadInThread = Callable[[Callable[[], None]], None]
Connect = Callable[[str, AppendCommand, float, OnAnswer, OnLost, ReadInThread], LinkLike]
EpochOfMaster = Callable[[str, float], int]


class Sender:
    """``connect`` opens a link; ``epoch_of_master`` asks a peer. Times in seconds. Thread-safe."""

    def __init__(
        self,
        addresses: Addresses,
        connect: Connect,
        epoch_of_master: EpochOfMaster,
        *,
        acks: str,
        timeout_s: float,
        linger_s: float,
        batch_rows: int,
        batch_bytes: int,
        buffer_bytes: int,
        answer_timeout_s: float,
        receipts: ReceiptFile | None = None,
    ) -> None:
        self._addresses = addresses
        self._connect = connect
        self._epoch_of_master = epoch_of_master
        self._ask_at = 0.0
        self._asked = 0
        # Never zero (no protection from repeats), never one of a delay topic's partitions.
        self._command = AppendCommand(secrets.randbelow(PRODUCER_LIMIT - 1) + 1, acks)
        self._timeout_s = timeout_s
        self._linger_s = linger_s
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._answer_timeout_s = answer_timeout_s
        self._receipts = receipts
        self.limits = Limits()
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """The sender waits for it: there may be something to do."""
        self._ended = threading.Condition(lock)
        """Others wait for it: there is more room, or less that is open."""
        self._link: LinkLike | None = None
        self._group = ""
        self._lingering: Shipment | None = None
        self._seal_at = 0.0
        self._hurry = False
        self._fresh: deque[Shipment] = deque()
        self._resend: list[int] = []
        self._unanswered: dict[int, Batch] = {}
        self._next_sequence = 0
        self._open: set[Shipment] = set()
        self._buffered = 0
        self._not_before = 0.0
        self._backoff = Backoff(_BACKOFF_S)
        self._last_error: SlotwheelError | None = None
        self._closed = False
        # Started here and not with each link: a script's last messages are sent while the
        # interpreter ends, and from then on it starts no threads.
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=target, name=f"slotwheel-{name}", daemon=True)
            for name, target in (
                ("sender", self._run),
                ("reader", self._read),
                ("watch", self._watch),
            )
        ]
        for thread in self._threads:
            thread.start()
        if receipts is not None:
            receipts.start(self._release_room)

    # Called by the application's threads

    def new_shipment(self) -> Shipment:
        return Shipment(time.monotonic() + self._timeout_s, self.nudge)

    def submit(self, shipment: Shipment) -> None:
        """Queue a shipment whose ``rows`` are set. Errors: ``Overloaded``, ``NotRunning``."""
        assert shipment.rows is not None
        shipment.nbytes = shipment.rows.nbytes + ROW_OVERHEAD
        with self._changed:
            self._acquire_room(shipment.nbytes)
            self._seal()
            shipment.deadline = time.monotonic() + self._timeout_s
            self._open.add(shipment)
            self._fresh.append(shipment)
            self._changed.notify_all()

    def linger(self, flat: FlatMessage) -> tuple[Shipment, int]:
        """Add a message to the shipment being gathered; gives it and the row's number in it."""
        nbytes = flat.nbytes + ROW_OVERHEAD
        with self._changed:
            self._acquire_room(nbytes)
            shipment = self._lingering
            if shipment is not None and shipment.nbytes + nbytes > self._bytes_max:
                self._seal()
                shipment = None
            if shipment is None:
                shipment = self._lingering = self.new_shipment()
                shipment.columns = ([], [], [], [], [], [])
                shipment.due = shipment.columns[0]
                self._seal_at = time.monotonic() + self._linger_s
                self._open.add(shipment)
            assert shipment.columns is not None
            row = len(shipment.due)
            for column, value in zip(shipment.columns, flat, strict=False):
                column.append(value)
            shipment.nbytes += nbytes
            # Company is worth waiting for only while something is under way already.
            if row + 1 >= self._rows_max or len(self._open) == 1:
                self._seal()
                self._changed.notify_all()
            elif row == 0:
                self._changed.notify_all()
            return shipment, row

    def nudge(self) -> None:
        """Somebody waits: send what lingers now, or when nothing else is under way.

        Until then others may join it, who wait as well: a commit for all of them, not one each.
        """
        with self._changed:
            if self._lingering is not None:
                self._hurry = True
                if not self._unanswered:
                    self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the fate of all that was handed over is known. Errors: ``TimeoutError``."""
        self.nudge()
        with self._changed:
            waiting = set(self._open)
            if not self._ended.wait_for(lambda: waiting.isdisjoint(self._open), timeout_s):
                raise TimeoutError(f"not everything was answered within {timeout_s} s")

    def close(self) -> None:
        """End at once; what is not answered yet fails with ``NotRunning``."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._seal()
            for shipment in list(self._open):
                self._give_up(shipment, NotRunning("the client was closed"))
            link, self._link = self._link, None
            self._changed.notify_all()
            self._ended.notify_all()
        if link is not None:
            link.close()
        self._reads.put(None)
        for thread in self._threads:
            thread.join(1.0)

    # Under the lock

    def _acquire_room(self, nbytes: int) -> None:
        def has_room() -> bool:
            return self._closed or not self._buffered or self._buffered + nbytes <= limit

        limit = self._buffer_bytes
        if not has_room():
            self._seal()
            self._changed.notify_all()
            if not self._ended.wait_for(has_room, self._timeout_s):
                raise self._reason() or Overloaded(
                    "the client's buffer is full and the node takes nothing",
                    got=f"{self._buffered} bytes",
                    limit=f"{limit} bytes",
                    remedy="Send slower, or give the client more buffer_bytes",
                )
        if self._closed:
            raise NotRunning("the client is closed", remedy="Make a new Client")
        self._buffered += nbytes

    def _seal(self) -> None:
        if self._lingering is not None:
            self._fresh.append(self._lingering)
            self._lingering = None
            self._hurry = False

    def _end(self, shipment: Shipment) -> None:
        self._open.discard(shipment)
        # A receipt that somebody keeps must not keep all that travelled with it.
        batch, shipment.batch = shipment.batch, None
        if batch is not None:
            self._unanswered.pop(batch.sequence, None)
        self._buffered -= shipment.nbytes
        shipment.nbytes = 0
        self._ended.notify_all()
        self._wake_sender()

    def _wake_sender(self) -> None:
        """If there is something to do for it; each waking costs the others the interpreter."""
        if self._fresh or self._resend or self._lingering is not None:
            self._changed.notify_all()

    def _give_up(self, shipment: Shipment, error: SlotwheelError) -> None:
        batch = shipment.batch
        if batch is not None and (batch.uncertain or batch.sent_at):
            error = type(error)(
                f"{error.message}; whether the messages are stored is not known",
                got=error.got,
                limit=error.limit,
                remedy=error.remedy,
            )
        if shipment in self._fresh:
            self._fresh.remove(shipment)
        if shipment is self._lingering:
            self._lingering = None
        self._end(shipment)
        shipment.fail(error)

    def _awaited(self, batch: Batch) -> bool:
        """Whether it still is to be answered: not given up, and not refused meanwhile."""
        return self._unanswered.get(batch.sequence) is batch

    def _window_open(self) -> bool:
        oldest = min(self._unanswered, default=self._next_sequence)
        return self._next_sequence - oldest < IN_FLIGHT_MAX

    def _back_off(self) -> None:
        pause_s = min(self._addresses.pause_max_s, self._backoff.failed())
        self._not_before = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        self._changed.notify_all()

    # The sender's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                batch = self._wait_for_work()
                if self._closed:
                    return
                link = self._link
            try:
                if batch is None or link is None:
                    self._open_link()
                else:
                    self._write(link, batch)
            except Exception as error:  # a defect, or memory: this batch's, not the next one's
                _log.exception("slotwheel client: sending failed")
                self._lost(link, NodeUnreachable(f"sending failed: {error!r}"))

    def _wait_for_work(self) -> Batch | None:
        """The next batch to write; None when a link has to be opened first, or closed."""
        while not self._closed:
            now = time.monotonic()
            wake: float | None = None
            if self._lingering is not None:
                if now >= self._seal_at or (self._hurry and not self._unanswered):
                    self._seal()
                else:
                    wake = self._seal_at
            if self._fresh or self._resend:
                if now < self._not_before:
                    wake = min(wake or self._not_before, self._not_before)
                elif self._link is None:
                    return None
                else:
                    while self._resend:
                        batch = self._unanswered.get(heapq.heappop(self._resend))
                        if batch is not None:
                            return batch
                    if self._fresh and self._window_open():
                        return self._next_batch()
            self._changed.wait(None if wake is None else max(0.0, wake - now))
        return None

    @property
    def _rows_max(self) -> int:
        return min(self._batch_rows, self.limits.batch_rows)

    @property
    def _bytes_max(self) -> int:
        return min(self._batch_bytes, self.limits.batch_bytes)

    def _next_batch(self) -> Batch:
        """The first of ``fresh``, and what waits behind it as far as it fits, with a sequence."""
        shipments = [self._fresh.popleft()]
        first = shipments[0]
        if not first.alone:
            rows_left = self._rows_max - first.count
            bytes_left = self._bytes_max - first.nbytes
            apart_s = _JOIN_WITHIN * self._timeout_s
            while self._fresh:
                following = self._fresh[0]
                if following.alone or abs(following.deadline - first.deadline) > apart_s:
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
        batch = Batch(self._next_sequence, shipments)
        self._next_sequence += 1
        self._unanswered[batch.sequence] = batch
        return batch

    def _open_link(self) -> None:
        address = self._addresses.current
        wait_s = min(self._answer_timeout_s, self._timeout_s, self._addresses.attempt_s)
        ours = (self._answered, self._lost, self._reads.put)
        try:
            link = self._connect(address, self._command, wait_s, *ours)
        except SlotwheelError as error:
            self._lost(None, error)
            return
        with self._changed:
            self.limits, self._group = link.limits, link.group
            if not self._closed:
                self._link = link
        if self._link is not link:
            link.close()
        elif link.error is not None:  # lost before it was ours
            self._lost(link, link.error)

    def _write(self, link: LinkLike, batch: Batch) -> None:
        rows = self._rows_of(batch)
        if rows is None:  # given up in this moment
            return
        if self._receipts is not None:
            # Now, for an answer comes under the lock, and takes the rows away.
            batch.note_content(_now_ms())
        with self._changed:
            if not self._awaited(batch):
                return  # given up meanwhile, and told that it was never sent
            batch.sent_at = time.monotonic()
        try:
            link.write(rows, batch.sequence)
        except SlotwheelError as error:
            self._lost(link, error)
            return
        if self._command.acks == "0":
            with self._changed:
                for shipment in batch.shipments:
                    # One that was refused meanwhile waits for another batch, without its bad rows.
                    if shipment.batch is batch and shipment in self._open:
                        self._end(shipment)
                        shipment.finish(None, self._group)

    def _rows_of(self, batch: Batch) -> pa.RecordBatch | None:
        """Made when it is first sent; None if it was given up."""
        if batch.rows is None:
            with self._changed:
                if not self._awaited(batch):
                    return None
                contents = [shipment.content for shipment in batch.shipments]
            rows = gathered(contents)
            with self._changed:
                batch.rows = rows
                for shipment in batch.shipments:
                    shipment.rows = shipment.columns = None
        return batch.rows

    # The reader's thread

    def _read(self) -> None:
        while (read := self._reads.get()) is not None:
            read()

    def _answered(self, answer: StoredBatch | RefusedBatch) -> None:
        with self._changed:
            batch = self._unanswered.get(answer.sequence)
            if batch is None or batch.rows is None:  # given up earlier
                return
            if isinstance(answer, StoredBatch):
                self._stored(batch, batch.rows, answer)
            else:
                self._refused(batch, batch.rows, answer.error)

    def _stored(self, batch: Batch, rows: pa.RecordBatch, answer: StoredBatch) -> None:
        self._backoff.worked()
        self._addresses.served()
        if answer.count == rows.num_rows:
            self._keep_receipts(batch, rows, answer)
        for shipment, mine in batch.spans():
            self._end(shipment)
            if answer.count == rows.num_rows:
                shipment.finish(answer.part(mine.start, len(mine)), self._group)
            else:
                shipment.fail(SlotwheelError("a receipt for another batch", got=answer.count))

    def _refused(self, batch: Batch, rows: pa.RecordBatch, error: SlotwheelError) -> None:
        if error.retryable:
            batch.last_error = self._last_error = error
            batch.uncertain |= isinstance(error, NotRunning)
            batch.sent_at = 0.0
            heapq.heappush(self._resend, batch.sequence)
            self._back_off()
            return
        bad = self._rows_to_drop(rows, error)
        sure = isinstance(error, InvalidMessage | InvalidBatch) and not batch.uncertain
        if not bad and (len(batch.shipments) == 1 or not sure):
            # What may be stored already must not be sent under another sequence.
            for shipment in batch.shipments:
                self._end(shipment)
                shipment.fail(error)
            return
        # The rest is a new batch: the old sequence is answered, and never used again.
        del self._unanswered[batch.sequence]
        wrong = batch.by_shipment(bad)
        for number, (shipment, mine) in reversed(list(enumerate(batch.spans()))):
            shipment.batch = None
            shipment.rows = rows.slice(mine.start, len(mine))
            if number in wrong:
                shipment.drop(wrong[number])
            # What is wrong with a whole batch shows when each goes by itself.
            shipment.alone = not bad
            if shipment.rows is None:
                self._end(shipment)
                shipment.finish(None, self._group)
            else:
                self._fresh.appendleft(shipment)
        self._changed.notify_all()

    def _keep_receipts(self, batch: Batch, rows: pa.RecordBatch, stored: StoredBatch) -> None:
        if self._receipts is None or batch.digest is None:
            return
        promised = BatchReceipts(
            self._group,
            stored.base_offset,
            times(rows, "due"),
            stored.checks,
            rows.column("topic"),
            batch.digest,
            batch.sent_ms,
            _now_ms(),
        )
        if self._receipts.put(promised):
            self._buffered += promised.nbytes

    def _release_room(self, nbytes: int) -> None:
        with self._changed:
            self._buffered -= nbytes
            self._ended.notify_all()

    def _rows_to_drop(self, rows: pa.RecordBatch, error: SlotwheelError) -> Errors:
        """The row the node named, and every other one that we can see it would name next."""
        if error.row is None or not isinstance(error, InvalidMessage | InvalidBatch):
            return {}
        if not 0 <= error.row < rows.num_rows:
            return {}
        limits = self.limits
        latest = limits.latest_due_ms(_now_ms())
        bad = bad_rows(rows, latest_due_ms=latest, message_bytes_max=limits.message_bytes)
        row, error.row = error.row, None  # its number in a batch that only we have seen
        return {**bad, row: error}

    def _lost(self, link: LinkLike | None, error: SlotwheelError) -> None:
        with self._changed:
            if self._closed or link is not self._link:
                return
            self._link = None
            self._last_error = error
            for batch in self._unanswered.values():
                batch.uncertain |= bool(batch.sent_at)
                batch.sent_at = 0.0
            self._resend = sorted(self._unanswered)
            address, doubt = self._addresses.current, link is None
            if self._addresses.failed(address, error, doubt=doubt):
                self._not_before = 0.0
                self._changed.notify_all()
            elif not self._addresses.hopeless:
                self._back_off()
            else:  # it would say the same again: wrong version, not a slotwheel node
                self._seal()
                for shipment in list(self._open):
                    self._give_up(shipment, error)
        if link is not None:
            link.close()

    # The watch's thread

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                link = self._link
                sent = [one.sent_at for one in self._unanswered.values() if one.sent_at]
                for shipment in [s for s in self._open if s.deadline < now]:
                    self._give_up(shipment, self._why(shipment))
            if link is not None and sent:
                quiet_s = now - min(sent)
                if quiet_s > self._answer_timeout_s or self._replaced(link, quiet_s):
                    link.cut()
            time.sleep(_WATCH_S)

    def _replaced(self, link: LinkLike, quiet_s: float) -> bool:
        """Whether another peer knows a newer master than the one that does not answer."""
        others = self._addresses.others
        if not others or quiet_s < _SUSPECT_S or time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + _ASK_EVERY_S
        self._asked += 1
        asked = others[self._asked % len(others)]
        return self._epoch_of_master(asked, _ASK_TIMEOUT_S) > link.epoch

    def _why(self, shipment: Shipment) -> SlotwheelError:
        last = None if shipment.batch is None else shipment.batch.last_error
        if last is not None and not self._addresses.several:
            return last
        if self._link is None and (reason := self._reason()) is not None:
            return reason
        return last or NodeUnreachable(
            "no answer in time",
            limit=f"{self._timeout_s} s",
            remedy="Look after the node, or give the client a longer timeout_s",
        )

    def _reason(self) -> SlotwheelError | None:
        """What was last seen to be wrong."""
        if self._link is None and self._last_error is not None:
            return self._addresses.explain(self._last_error)
        return self._last_error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

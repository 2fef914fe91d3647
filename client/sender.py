"""The engine of a client: sends the batches of its buffer, and handles their answers.

Theory: the buffer (``buffer.py``) holds waiting shipments and unanswered batches; here are the
threads that send them. The *sender* connects and writes; the *reader* receives a link's answers;
the *watch* gives up shipments past their deadline and cuts a link that does not answer, as the
sender may be blocked in a write at that time. One lock guards all state; nothing blocks under it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from copy import copy
from functools import partial

import pyarrow as pa

from ..wheel.backoff import Backoff
from ..wheel.delay import due_times
from ..wheel.errors import (
    Forbidden,
    InvalidBatch,
    InvalidMessage,
    NameTaken,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    SlotwheelError,
    UnknownTopic,
    UnsupportedVersion,
)
from ..wheel.protocol import AppendCommand, RefusedBatch, StoredBatch
from ..wheel.schema import times
from .addresses import Addresses
from .asking import EpochOfMaster, Suspicion
from .batch import (
    PLAIN_BYTES_MAX,
    ROW_OVERHEAD,
    Batch,
    ClientObserver,
    Columns,
    Shipment,
    gathered,
    plain_records,
)
from .buffer import Buffer
from .columns import Errors
from .failures import CountedShipment, UnreadFailures
from .message import FlatMessage, clock_ms
from .receiptfile import BatchReceipts, ReceiptFile
from .transport import LinkPort, OpenLink

_log = logging.getLogger("slotwheel.client")

_BACKOFF_S = 0.02
_WATCH_S = 0.1
_LEAVING_S = 0.05
"""A message whose name's message is just leaving is sent again after so long, s."""
_WRITTEN_HERE_MAX = 16 << 10
"""The most bytes of a batch that the caller's thread may write."""

_OF_A_ROW = InvalidMessage | InvalidBatch | Forbidden
"""Errors of single rows, of which nothing is stored: the others can be sent without them."""


class Sender:
    """Sends the batches of ``buffer``. ``open_link``, ``epoch_of_master``: as of a
    ``ClientTransport``. Thread-safe."""

    def __init__(
        self,
        addresses: Addresses,
        open_link: OpenLink,
        epoch_of_master: EpochOfMaster,
        buffer: Buffer,
        *,
        producer: int,
        acks: str,
        timeout_s: float,
        answer_timeout_s: float,
        receipts: ReceiptFile | None = None,
        observer: ClientObserver | None = None,
    ) -> None:
        self._addresses = addresses
        self._new_link = open_link
        self._suspicion = Suspicion(addresses, epoch_of_master)
        self._buffer = buffer
        self._command = AppendCommand(producer, acks)
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._receipts = receipts
        self._observer = observer
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """Notified when there may be work for the sender."""
        self._ended = threading.Condition(lock)
        """Notified when there is more room, or a shipment is done."""
        self._link: LinkPort | None = None
        self._group = ""
        self._writing = False  # a thread has a batch that it is writing
        self._not_before = 0.0
        self._backoff = Backoff(_BACKOFF_S)
        self._last_error: SlotwheelError | None = None
        self._closed = threading.Event()
        self.unread = UnreadFailures()
        self.new_shipment = partial(
            CountedShipment,
            wait_for=self.wait_for,
            hurried=self._hurry,
            counted_in=self.unread,
        )
        """Makes a shipment; its arguments are the fields of the content."""
        self._reads: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        if receipts is not None:
            receipts.start(self._release_room)

    # Called by the application's threads

    def _start(self) -> None:
        """Under the lock: start the threads with the first message, as a client may only ask
        questions. They do not start with each link: a script's last messages are sent while the
        interpreter ends, when no more threads can be started."""
        if not self._threads and not self._closed.is_set():
            loops = {"sender": self._run, "reader": self._read, "watch": self._watch}
            self._threads = [
                threading.Thread(target=loop, name=f"slotwheel-{name}", daemon=True)
                for name, loop in loops.items()
            ]
            for thread in self._threads:
                thread.start()

    def _new_lingering(self) -> CountedShipment:
        columns: Columns = ([], [], [], [], [], [])
        shipment = self.new_shipment(due=columns[0], columns=columns)
        shipment.try_until(time.monotonic() + self._timeout_s)
        if self._observer is not None:
            shipment.observe(self._observer)
        return shipment

    def submit(
        self,
        shipment: Shipment,
        *,
        wait: bool = True,
        timeout_s: float | None = None,
        lingers: bool = False,
    ) -> None:
        """Queue a shipment of ``new_shipment``. ``wait``: the call waits for room in the buffer.
        The shipment is tried for ``timeout_s``; None: for the client's. ``lingers``: it waits for
        others to share its batch, as single messages do. Errors: ``Overloaded``,
        ``NodeUnreachable``, ``NotRunning``."""
        if not shipment.count:  # all of its rows were refused here
            shipment.finish(None, "")
            return
        assert shipment.nbytes
        if self._observer is not None:
            shipment.observe(self._observer)
        with self._changed:
            self._start()
            self._wait_for_room(shipment.nbytes, self._timeout_s if wait else 0.0)
            tried_s = self._timeout_s if timeout_s is None else timeout_s
            now = time.monotonic()
            shipment.try_until(now + tried_s)
            lingered = self._buffer.lingers
            if lingers:
                self._buffer.add_share(shipment, now)
            else:
                self._buffer.add(shipment)
            if not (lingered and self._buffer.lingers):
                self._changed.notify_all()

    def linger(self, flat: FlatMessage) -> tuple[CountedShipment, int]:
        """Add a message to the lingering shipment. Returns that and the row's number in it. Errors:
        as of ``submit``."""
        nbytes = flat.nbytes + ROW_OVERHEAD
        with self._changed:
            self._start()
            self._wait_for_room(nbytes, self._timeout_s)
            buffer = self._buffer
            lingered = buffer.lingers
            shipment, row = buffer.linger(flat, nbytes, time.monotonic(), self._new_lingering)
            link, batch = self._link, self._batch_to_write_here()
            if batch is None and not (lingered and buffer.lingers):
                self._changed.notify_all()
        assert isinstance(shipment, CountedShipment)  # ``_new_lingering`` made it
        if link is not None and batch is not None:
            self._write(link, batch, read=False)
        return shipment, row

    def wait_for(self, shipment: Shipment, timeout_s: float | None) -> None:
        """Send what lingers now, or when no batch is in flight, as a caller waits. Until
        then messages of other waiting callers may join it: one commit for all.

        The caller's thread handles answers meanwhile, if no other does. It may return before the
        shipment is done.
        """
        self._hurry()
        link = self._link
        if link is not None:
            link.read_while(lambda: not shipment.done, timeout_s)

    def _hurry(self) -> None:
        with self._changed:
            if self._buffer.hurry():
                self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every shipment so far is done. Errors: ``TimeoutError``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        self._hurry()
        with self._changed:
            waiting = set(self._buffer.open)
            link = self._link

        def done() -> bool:
            with self._changed:
                return waiting.isdisjoint(self._buffer.open)

        if link is not None:
            link.read_while(lambda: not done(), timeout_s)
        with self._changed:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            if not self._ended.wait_for(done, left_s):
                raise TimeoutError(f"not everything was answered within {timeout_s} s")

    def close(self) -> None:
        """End at once; messages not answered yet fail with ``NotRunning``."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            for shipment in list(self._buffer.open):
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

    def _wait_for_room(self, nbytes: int, timeout_s: float) -> None:
        buffer = self._buffer
        if not buffer.has_room(nbytes) and not self._closed.is_set():
            buffer.seal()
            self._changed.notify_all()
            if not timeout_s or not self._ended.wait_for(
                lambda: self._closed.is_set() or buffer.has_room(nbytes), timeout_s
            ):
                # Without a wait, an old failure is no reason while a link is open.
                reason = self._reason() if timeout_s or self._link is None else None
                raise reason or Overloaded(
                    "the client's buffer is full and the node takes nothing",
                    got=f"{buffer.nbytes} bytes",
                    limit=f"{buffer.bytes_max} bytes",
                    remedy="Send slower, or give the client more buffer_bytes",
                )
        if self._closed.is_set():
            raise NotRunning("the client is closed", remedy="Make a new Client")

    def _batch_to_write_here(self) -> Batch | None:
        """Take a small batch that is the only one, for the caller's thread to write: that is
        quicker than waking the sender, and cannot block, as no other batch is on its way."""
        buffer = self._buffer
        alone = len(buffer.open) == 1 and not buffer.lingers and buffer.waits_to_be_sent
        if not alone or self._link is None or self._writing or buffer.unanswered:
            return None
        if buffer.nbytes > _WRITTEN_HERE_MAX or time.monotonic() < self._not_before:
            return None
        batch = buffer.next_batch()
        self._writing = batch is not None
        return batch

    def _notify_of_end(self) -> None:
        """Notify threads that wait for shipments. The sender is woken only if it has work: each
        waking costs other threads the interpreter."""
        self._ended.notify_all()
        if self._buffer.waits_to_be_sent or self._buffer.lingers:
            self._changed.notify_all()

    def _give_up(self, shipment: Shipment, error: SlotwheelError) -> None:
        batch = shipment.batch
        if error.uncertain or (batch is not None and batch.tries.in_doubt):
            error = error.in_doubt()
        self._buffer.remove(shipment)
        shipment.fail(error)
        self._notify_of_end()

    def _back_off(self, at_least_s: float = 0.0) -> None:
        pause_s = min(self._addresses.pause_max_s, self._backoff.failed())
        pause_s *= random.uniform(0.5, 1.0)
        self._not_before = time.monotonic() + max(at_least_s, pause_s)
        self._changed.notify_all()

    # The sender's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                batch = self._wait_for_work()
                if self._closed.is_set():
                    return
                link = self._link
            try:
                if batch is None or link is None:
                    self._open_link()
                else:
                    self._write(link, batch)
            except Exception as error:  # a bug, or memory: only this batch fails
                _log.exception("slotwheel client: sending failed")
                self._lost(link, NodeUnreachable(f"sending failed: {error!r}"))

    def _wait_for_work(self) -> Batch | None:
        """Wait for the next batch to write. None: a link must be opened first, or it is closed."""
        while not self._closed.is_set():
            now = time.monotonic()
            wake = self._buffer.queue_in_time(now)
            if self._buffer.waits_to_be_sent and not self._writing:
                if now < self._not_before:
                    wake = min(wake or self._not_before, self._not_before)
                elif self._link is None:
                    return None
                elif (batch := self._buffer.next_batch()) is not None:
                    self._writing = True
                    return batch
            self._changed.wait(None if wake is None else max(0.0, wake - now))
        return None

    def _open_link(self) -> None:
        address = self._addresses.current
        wait_s = min(self._answer_timeout_s, self._timeout_s, self._addresses.attempt_s)
        try:
            link = self._new_link(
                address, self._command, wait_s, self._answered, self._lost, self._reads.put
            )
        except SlotwheelError as error:
            self._lost(None, error)
            return
        with self._changed:
            self._buffer.keep_to(link.limits)
            if not self._closed.is_set():
                self._link = link
        if self._link is not link:
            link.close()
        elif link.error is not None:  # lost before it was in use
            self._lost(link, link.error)

    def _write(self, link: LinkPort, batch: Batch, *, read: bool = True) -> None:
        try:
            self._write_to(link, batch, read=read)
        except SlotwheelError as error:
            self._lost(link, error)
        finally:
            with self._changed:
                self._writing = False
                if not self._on_senders_thread and self._buffer.waits_to_be_sent:
                    self._changed.notify_all()

    @property
    def _on_senders_thread(self) -> bool:
        return threading.current_thread() is self._threads[0]

    def _write_to(self, link: LinkPort, batch: Batch, *, read: bool) -> None:
        """Errors: ``SlotwheelError``: the link is lost."""
        if batch.request is not None and not link.limits.requests:
            with self._changed:
                self._give_up(batch.shipments[0], _without_requests())
            return
        if not batch.was_made:
            self._make(batch, plain=link.takes_records and self._receipts is None)
        if not batch.was_made:  # given up just now
            return
        if self._receipts is not None:
            # Computed before sending: the answer drops the rows.
            batch.note_content(clock_ms())
        with self._changed:
            if not self._buffer.awaits(batch):
                return  # given up meanwhile, and reported as never sent
            batch.sent(time.monotonic())
        if batch.rows is None:
            link.write_records(batch.records, batch.count, batch.sequence, batch.request, read=read)
        else:
            link.write(batch.rows, batch.sequence, batch.request, read=read)
        if self._command.acks == "0":
            with self._changed:
                for shipment in batch.shipments:
                    # A shipment that was refused meanwhile waits for another batch.
                    if shipment.batch is batch and shipment in self._buffer.open:
                        self._buffer.end(shipment)
                        shipment.finish(None, self._group)
                self._notify_of_end()

    def _make(self, batch: Batch, *, plain: bool) -> None:
        """Join the rows of a batch, unless it was given up. ``plain``: they become plain rows where
        that is cheaper."""
        with self._changed:
            if not self._buffer.awaits(batch):
                return
            contents = [shipment.content for shipment in batch.shipments]
            nbytes = sum(shipment.nbytes for shipment in batch.shipments)
        if plain and nbytes <= PLAIN_BYTES_MAX:
            batch.keep_plain(plain_records(contents))
        if not batch.records:
            rows = gathered(contents)
            with self._changed:
                batch.keep(rows)

    # The reader's thread

    def _read(self) -> None:
        while (read := self._reads.get()) is not None:
            read()

    def _answered(self, answer: StoredBatch | RefusedBatch) -> None:
        with self._changed:
            batch = self._buffer.unanswered.get(answer.sequence)
            if batch is None or not batch.was_made:  # given up earlier
                return
            if isinstance(answer, StoredBatch):
                self._stored(batch, answer)
            else:
                self._refused(batch, answer.error)
            self._notify_of_end()

    def _stored(self, batch: Batch, answer: StoredBatch) -> None:
        self._backoff.worked()
        self._addresses.served()
        if self._link is not None:
            self._group = self._link.group
        if answer.count == batch.count and batch.rows is not None:
            self._keep_receipts(batch, batch.rows, answer)
        for shipment, span in batch.spans():
            self._buffer.end(shipment)
            if answer.count == batch.count:
                shipment.finish(answer.part(span.start, len(span)), self._group)
            else:
                shipment.fail(SlotwheelError("a receipt for another batch", got=answer.count))

    def _refused(self, batch: Batch, error: SlotwheelError) -> None:
        batch.refused(error)
        names_a_row = error.row is not None and isinstance(error, Overloaded)
        if names_a_row and not batch.tries.in_doubt:
            rows = batch.rows
            if rows is None:
                rows = gathered([shipment.content for shipment in batch.shipments])
            self._buffer.postpone(batch, rows, error, time.monotonic() + _LEAVING_S)
            self._changed.notify_all()
            return
        if error.retryable:
            self._last_error = error
            self._buffer.send_again(batch)
            self._back_off(error.retry_after_ms / 1000)
            return
        if batch.rows is None:
            batch.keep(gathered([shipment.content for shipment in batch.shipments]))
        rows = batch.rows
        bad = {} if batch.shipments[0].whole else self._rows_to_drop(rows, error)
        sure = isinstance(error, _OF_A_ROW) and not batch.tries.in_doubt
        if not bad and (len(batch.shipments) == 1 or not sure):
            # Rows that may be stored already must not be sent under another sequence.
            if batch.tries.in_doubt:
                error = error.in_doubt()
            for shipment in batch.shipments:
                self._buffer.end(shipment)
                shipment.fail(error)
            return
        for shipment in self._buffer.take_apart(batch, rows, bad):
            shipment.finish(None, self._group)

    def _keep_receipts(self, batch: Batch, rows: pa.RecordBatch, stored: StoredBatch) -> None:
        if self._receipts is None or batch.digest is None:
            return
        promised = BatchReceipts(
            group=self._group,
            base_offset=stored.base_offset,
            due=due_times(times(rows, "due"), stored.created_ms) + stored.shift_ms,
            check=stored.checks,
            topic=rows.column("topic"),
            digest=batch.digest_of(rows, stored.created_ms),
            sent_ms=batch.sent_ms,
            received_ms=clock_ms(),
        )
        if self._receipts.put(promised):
            self._buffer.occupy(promised.nbytes)

    def _release_room(self, nbytes: int) -> None:
        with self._changed:
            self._buffer.free(nbytes)
            self._ended.notify_all()

    def _rows_to_drop(self, rows: pa.RecordBatch, error: SlotwheelError) -> Errors:
        """The errors of the row that the node named, and of others that it would name next."""
        if error.row is None or not isinstance(error, _OF_A_ROW):
            return {}
        if not 0 <= error.row < rows.num_rows:
            return {}
        bad: Errors = {**self._buffer.limits.bad_rows_at(rows, clock_ms())}
        if isinstance(error, NameTaken):
            return {**bad, **error.by_row(rows.num_rows)}
        row, error.row = error.row, None  # its number in a batch that the caller does not know
        if isinstance(error, UnknownTopic):
            topics = rows.column("topic").to_pylist()
            absent = {topic: UnknownTopic.of([topic]) for topic in error.topics}
            bad |= {at: absent[topic] for at, topic in enumerate(topics) if topic in absent}
            return bad
        if isinstance(error, Forbidden):  # so is each other row of that topic
            topics = rows.column("topic").to_pylist()
            return bad | {
                at: copy(error) for at, topic in enumerate(topics) if topic == topics[row]
            }
        return {**bad, row: error}

    def _lost(self, link: LinkPort | None, error: SlotwheelError) -> None:
        with self._changed:
            if self._closed.is_set() or link is not self._link:
                return
            self._link = None
            self._last_error = error
            self._buffer.send_all_again()
            address, doubt = self._addresses.current, link is None
            if self._addresses.failed(address, error, doubt=doubt):
                self._not_before = 0.0
                self._changed.notify_all()
            elif not self._addresses.hopeless:
                self._back_off()
            else:  # another try would fail again: wrong version, a caller that nobody knows
                reason = self._addresses.explain(error)
                for shipment in list(self._buffer.open):
                    self._give_up(shipment, reason)
        if link is not None:
            link.close()

    # The watch's thread

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_S):
            with self._changed:
                now = time.monotonic()
                link = self._link
                sent_at = self._buffer.sent_at()
                for shipment in [late for late in self._buffer.open if late.deadline < now]:
                    self._give_up(shipment, self._why(shipment))
            if link is not None and sent_at is not None:
                quiet_s = now - sent_at
                dead = quiet_s > self._answer_timeout_s
                if dead or self._suspicion.proves_true(link.epoch, quiet_s):
                    link.cut()

    def _why(self, shipment: Shipment) -> SlotwheelError:
        last = None if shipment.batch is None else shipment.batch.last_error
        last = last or shipment.postponed_for
        if last is not None and not self._addresses.several:
            return last
        if self._link is None and (reason := self._reason()) is not None:
            return reason
        return last or no_answer(self._timeout_s)

    def _reason(self) -> SlotwheelError | None:
        if self._link is None and self._last_error is not None:
            return self._addresses.explain(self._last_error)
        return self._last_error


def no_answer(timeout_s: float) -> NodeUnreachable:
    """The error for messages that were tried for ``timeout_s``."""
    return NodeUnreachable(
        "no answer in time",
        limit=f"{timeout_s} s",
        remedy="Look after the node, or give the client a longer timeout_s",
    )


def _without_requests() -> UnsupportedVersion:
    return UnsupportedVersion(
        "the node knows no requests with a key",
        limit="a node of this version",
        remedy="Update all nodes, or send without an Idempotency-Key",
    )

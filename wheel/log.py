"""The log: entries get their place, wait for the group's one sync, and are committed.

Theory: many callers append; one syncer thread takes everything that has gathered, writes it with
one call and syncs once (group commit). An entry gets its index and its offsets when it is queued,
under the owner's lock, so their order is the journal's order. It is *durable* after the sync, and
*committed* when a majority of the peers has it - at once, on a node without peers. Only committed
rows are visible to delivery and spill.

A write that fails (a full disk) takes back everything queued, including what came after it: the
places those entries had are given out again. A sync that fails ends the process.

Source: DESIGN section 2 (Append, Replicate) and I1, I2.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from .entry import Entry, Kind
from .errors import NotRunning, Overloaded, SlotwheelError
from .files import Bytes
from .journal import Journal
from .mark import Marks
from .producers import Producers
from .receipt import Receipt
from .state import Sent
from .tail import Piece

_GROUP_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class Carried:
    """What a ROWS entry carries on its way: its rows for the tail, and its caller's answer."""

    piece: Piece
    receipt: Receipt
    future: Future[Receipt]


@dataclass(slots=True)
class Queued:
    """An entry on its way. ``cancels``: (due, target) of the cancel rows in it."""

    entry: Entry
    carried: Carried | None = None
    marks: Marks | None = None
    cancels: Sequence[tuple[int, int]] = field(default=())

    @property
    def nbytes(self) -> int:
        return len(self.entry.payload)

    def fail(self, error: SlotwheelError) -> None:
        if self.carried is not None:
            self.carried.future.set_exception(error)


class Log:
    """Queue, journal and positions. ``lock`` is the owner's lock of the wheel."""

    def __init__(
        self,
        journal: Journal,
        producers: Producers,
        epoch: int,
        next_offset: int,
        lock: threading.RLock,
    ) -> None:
        self.journal = journal
        self.producers = producers
        self.epoch = epoch
        self.next_index = journal.last_index + 1
        self.next_offset = next_offset
        self.commit_index = journal.last_index
        self.committed_offset = next_offset
        """Offsets below this are committed (the high watermark is one less)."""
        self.queued_bytes = 0
        self._queue: deque[Queued] = deque()
        self._writing: list[Queued] = []
        self._written: deque[Queued] = deque()
        self._lock = lock
        self._work = threading.Condition(lock)
        self._closed = False

    # -- any thread, under the lock --------------------------------------------------------------

    def queue(
        self,
        kind: Kind,
        payload: Bytes,
        *,
        count: int = 0,
        producer: int = 0,
        sequence: int = -1,
        created_ms: int = 0,
    ) -> Queued:
        """Give an entry its place and queue it. The caller fills in the other fields."""
        if self._closed:
            raise NotRunning("the wheel is closed", remedy="Send it to a running node")
        entry = Entry(
            kind=kind,
            epoch=self.epoch,
            index=self.next_index,
            base_offset=self.next_offset,
            count=count,
            producer=producer,
            sequence=sequence,
            payload=payload,
        )
        queued = Queued(entry)
        if producer:
            self.producers.record(
                producer, Sent(sequence, entry.base_offset, created_ms, entry.index, count)
            )
        self.next_index += 1
        self.next_offset += count
        self.queued_bytes += queued.nbytes
        self._queue.append(queued)
        if len(self._queue) == 1:
            self._work.notify()
        return queued

    def newest(self) -> Queued:
        """The entry queued last."""
        return self._queue[-1]

    def in_queue(self, index: int) -> Queued | None:
        """The entry with that index while it is not committed."""
        for queued in (*self._written, *self._writing, *self._queue):
            if queued.entry.index == index:
                return queued
        return None

    # -- the syncer ------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> bool:
        """Wait for something to write; whether there is."""
        with self._lock:
            if not self._queue and not self._closed:
                self._work.wait(timeout_s)
            return bool(self._queue)

    def write(self) -> list[Queued]:
        """Write and sync what is queued. Returns entries that could not be written, if any.

        Errors: ``SyncFailed`` passes through: the process has to end.
        """
        with self._lock:
            group: list[Queued] = []
            size = 0
            while self._queue and (not group or size + self._queue[0].nbytes <= _GROUP_BYTES_MAX):
                size += self._queue[0].nbytes
                group.append(self._queue.popleft())
            self._writing = group
        if not group:
            return []
        try:
            self.journal.append([queued.entry for queued in group])
        except OSError as error:
            return self._take_back(group, error)
        self.journal.sync()
        with self._lock:
            self._written.extend(group)
            self._writing = []
        return []

    def _take_back(self, group: list[Queued], error: OSError) -> list[Queued]:
        with self._lock:
            failed = [*group, *self._queue]
            self._queue.clear()
            self._writing = []
            first = failed[0].entry
            self.next_index = first.index
            self.next_offset = first.base_offset
            self.queued_bytes -= sum(queued.nbytes for queued in failed)
            self.producers.roll_back(first.index - 1)
        refusal = Overloaded(
            f"the journal could not be written: {error.strerror or error}",
            remedy="Nothing was stored. Free disk space on the node, then send again",
        )
        for queued in failed:
            queued.fail(refusal)
        return failed

    def committed(self, index: int) -> list[Queued]:
        """Take out what is committed up to ``index``; the caller makes it visible (``advance``)."""
        with self._lock:
            done = []
            while self._written and self._written[0].entry.index <= index:
                done.append(self._written.popleft())
            return done

    def advance(self, done: Sequence[Queued]) -> None:
        """Under the lock, in the same instant in which the rows become visible."""
        last = done[-1].entry
        self.commit_index = last.index
        self.committed_offset = last.base_offset + last.count
        self.queued_bytes -= sum(queued.nbytes for queued in done)

    def close(self) -> list[Queued]:
        """Stop taking entries. Returns those that were queued and will not be written."""
        with self._lock:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._work.notify_all()
            return left

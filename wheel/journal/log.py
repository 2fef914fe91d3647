"""The log: entries get their place, wait for the group's one sync, and are committed.

Theory: many callers append; whoever writes (the node's syncer, or its wire) takes everything
that has gathered, writes it with one call and syncs once (group commit). An entry gets its index
and its offsets when it is queued, under the owner's lock, so their order is the journal's order. It
is *written*, then *durable* after the sync, and *committed* when a majority of the peers has it -
at once, on a node without peers. Only committed rows are visible to delivery and spill.

    queue --> journal (written) --> sync (durable) --> waiting --> committed
      ^ own entries of a master, or entries received from one

Rules
- A write that fails (a full disk) takes back everything queued, including what came after it: the
  places those entries had are given out again. So an entry is shown to peers only when it has been
  written. A sync that fails ends the process.
- One lock for writing: while it is held, the journal's end stands still for whoever cuts it.
- Only what was never committed is cut. Places, offsets and producers' sequences go back with it: a
  producer that sends a cut batch again would else be told that it is stored.

It keeps I1 and I2 (docs/design.md, "What always holds").
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import (
    NOTHING_STORED,
    NotRunning,
    Overloaded,
    SlotwheelError,
    SyncFailed,
    remedy_for,
)
from ..files import Bytes
from ..mark import Marks
from .entry import (
    ENTRY_VERSION,
    NOTES_VERSION,
    PARTS_VERSION,
    Entry,
    EntryKind,
    EntryPart,
    Notes,
    with_parts,
)
from .journal import Journal
from .producers import Producers
from .queued import QueuedEntry, named_in, sent_of
from .recent import RecentEntries

_GROUP_BYTES_MAX = 8 << 20
_NOBODY = EntryPart(0, -1, 0)


@dataclass(frozen=True, slots=True)
class LogPositions:
    """The log's indexes at one instant, and whether its last write failed."""

    first: int
    """The oldest entry in the journal."""
    placed: int
    """The last entry that was queued or written."""
    written: int
    durable: int
    commit: int
    failing: bool
    """The last write failed, as on a full disk."""


class Log:
    """Queue, journal and positions. ``lock`` is the owner's lock of the wheel.

    ``waiting``: entries that recovery read behind ``commit_index``. ``changed`` is called by the
    thread that writes, after every sync and every failed write; among peers also before the sync of
    a master's own entries, which are shipped meanwhile.
    """

    def __init__(
        self,
        journal: Journal,
        producers: Producers,
        epoch: int,
        lock: threading.RLock,
        *,
        commit_index: int,
        committed_offset: int,
        waiting: Sequence[QueuedEntry] = (),
        keep_recent: bool = False,
    ) -> None:
        self.journal = journal
        self.producers = producers
        self.epoch = epoch
        self.commit_index = commit_index
        self.committed_offset = committed_offset
        """Offsets below this are committed (the high watermark is one less)."""
        self.next_index = journal.last_index + 1
        self.next_offset = _end(waiting[-1].entry) if waiting else committed_offset
        self.queued_bytes = sum(queued.nbytes for queued in waiting)
        self.changed: Callable[[], None] = lambda: None
        self._failing = False
        self._sync_failed: SyncFailed | None = None
        self._queue: deque[QueuedEntry] = deque()
        self._writing: list[QueuedEntry] = []
        self._waiting: deque[QueuedEntry] = deque(waiting)
        self._recent = RecentEntries() if keep_recent else None
        self._lock = lock
        self._write_lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._woken = False  # the thread in ``wait`` was notified already
        self._closed = False

    # -- any thread, under the lock --------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Give this epoch to all entries that are queued from here on."""
        self.epoch = epoch

    def skip_to(self, offset: int) -> None:
        """Give out offsets from ``offset`` on. All of the log has to be committed. Otherwise a new
        row would get the id of one that was delivered and that the disk has lost since."""
        self.next_offset = self.committed_offset = max(self.next_offset, offset)

    def queue(
        self,
        kind: EntryKind,
        payload: Bytes,
        *,
        parts: Sequence[EntryPart] = (),
        notes: Notes | None = None,
        created_ms: int = 0,
        marks: Marks | None = None,
        config: Mapping[str, Any] | None = None,
        wake: bool = True,
    ) -> QueuedEntry:
        """Give an entry its place and queue it. ``parts``: whose rows they are; the rows follow by
        ``QueuedEntry.carry``. ``notes``: what is said of them besides. ``marks``, ``config``: the
        decoded payload of an entry of that kind. ``wake``: notify the thread in ``wait``; False:
        the caller will call ``write``."""
        several = len(parts) > 1 or notes is not None
        alone = NOTES_VERSION if kind is EntryKind.SCHEDULES else ENTRY_VERSION
        producer, sequence, count = _NOBODY if several or not parts else parts[0]
        version = NOTES_VERSION if notes is not None else PARTS_VERSION
        entry = Entry(
            kind=kind,
            epoch=self.epoch,
            index=self.next_index,
            base_offset=self.next_offset,
            count=sum([part.rows for part in parts]) if several else count,
            producer=producer,
            sequence=sequence,
            payload=with_parts(payload, parts, notes) if several else payload,
            version=version if several else alone,
        )
        sent = sent_of(entry, parts, created_ms, named_in(notes))
        queued = QueuedEntry(entry, marks=marks, config=config, sent=sent, own=True)
        self._place(queued, wake=wake)
        return queued

    def receive(self, arrived: Sequence[QueuedEntry]) -> None:
        """Queue entries that a master has placed: they follow on from the last one here.

        Errors: ``LookupError`` when those before them were taken back meanwhile (a full disk).
        """
        if arrived and arrived[0].entry.index > self.next_index:
            raise LookupError(f"entry {self.next_index} is missing")
        for queued in arrived:
            assert queued.entry.index == self.next_index, "received entries do not follow on"
            assert queued.entry.base_offset == self.next_offset, "offsets are not dense"
            self._place(queued)

    def _place(self, queued: QueuedEntry, *, wake: bool = True) -> None:
        if self._closed:
            raise NotRunning("the wheel is closed", remedy="Send it to a running node")
        for producer, record in queued.sent:
            self.producers.record(producer, record, self.commit_index)
        self.next_index = queued.entry.index + 1
        self.next_offset = _end(queued.entry)
        self.queued_bytes += queued.nbytes
        self._queue.append(queued)
        if wake and not self._woken:
            self._woken = True
            self._work.notify()

    def awaited(self, index: int, *, early: bool) -> QueuedEntry | None:
        """The entry at ``index`` until it is committed; ``early``: until it is durable here."""
        if early and index <= self.journal.durable_index:
            return None
        for queued in (*self._waiting, *self._writing, *self._queue):
            if queued.entry.index == index:
                return queued
        return None

    def awaited_row(self, offset: int, *, early: bool) -> QueuedEntry | None:
        """The entry that has the row at ``offset``, as ``awaited``."""
        if offset < self.committed_offset:  # mostly, and then nothing is searched
            return None
        for queued in self.uncommitted():
            if offset < _end(queued.entry):
                return self.awaited(queued.entry.index, early=early)
        return None

    def positions(self) -> LogPositions:
        return LogPositions(
            first=self.journal.first_index,
            placed=self.next_index - 1,
            written=self.journal.last_index,
            durable=self.journal.durable_index,
            commit=self.commit_index,
            failing=self._failing,
        )

    def written_after(self, index: int) -> list[QueuedEntry]:
        """Uncommitted entries in the journal behind ``index``, oldest first."""
        written = self.journal.last_index
        entries: list[QueuedEntry] = []
        for part in (self._writing, self._waiting):
            for queued in reversed(part):
                if queued.entry.index <= index:
                    break
                if queued.entry.index <= written:
                    entries.append(queued)
        entries.reverse()
        return entries

    def uncommitted(self) -> list[QueuedEntry]:
        """All that has a place and is not committed, oldest first."""
        return [*self._waiting, *self._writing, *self._queue]

    def recent(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        return [] if self._recent is None else self._recent.get(first, last, bytes_max)

    # -- who writes ------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds for queued entries; True if there are any."""
        with self._lock:
            if not self._queue and timeout_s:  # also when closed, or the caller's loop would spin
                self._woken = False
                self._work.wait(timeout_s)
            return bool(self._queue)

    def write(self) -> list[QueuedEntry]:
        """Write and sync the queue's next entries. Returns those that a failed write took back.

        Errors: ``SyncFailed`` passes through: the process has to end. It comes again to whoever
        writes meanwhile, as a later sync would not tell what this one has lost.
        """
        with self._write_lock:
            if self._sync_failed is not None:
                raise self._sync_failed
            try:
                group, failed = self._write()
            except SyncFailed as error:
                self._sync_failed = error
                raise
        for queued in group:
            for caller in queued.callers:
                if caller.early:
                    caller.answer()
        if group or failed:
            self.changed()
        return failed

    def _write(self) -> tuple[list[QueuedEntry], list[QueuedEntry]]:
        """Write and sync one group. Returns its entries, and those that could not be written."""
        with self._lock:
            group = self._next_group()
            self._writing = group
        if not group:
            return [], []
        entries = [queued.entry for queued in group]
        try:
            self.journal.append(entries)
        except OSError as error:
            self._failing = True
            return [], self._roll_back(group, error)
        self._failing = False
        if self._recent is not None:
            with self._lock:
                self._recent.add(entries)
            if group[-1].own:  # shipped while it is synced here
                self.changed()
        self.journal.sync()
        with self._lock:
            self._waiting.extend(group)
            self._writing = []
        return group, []

    def _next_group(self) -> list[QueuedEntry]:
        group: list[QueuedEntry] = []
        size = 0
        while self._queue and (not group or size + self._queue[0].nbytes <= _GROUP_BYTES_MAX):
            size += self._queue[0].nbytes
            group.append(self._queue.popleft())
        return group

    def _roll_back(self, group: list[QueuedEntry], error: OSError) -> list[QueuedEntry]:
        with self._lock:
            failed = [*group, *self._queue]
            self._queue.clear()
            self._writing = []
            self._go_back_to(failed)
        refusal = Overloaded(
            f"the journal could not be written: {error.strerror or error}",
            remedy=f"{NOTHING_STORED} {remedy_for(error)}, then send again",
        )
        for queued in failed:
            queued.fail(refusal)
        return failed

    def _go_back_to(self, gone: Sequence[QueuedEntry]) -> None:
        """Give free the places of ``gone``, the last entries of the log."""
        first = gone[0].entry
        self.next_index = first.index
        self.next_offset = first.base_offset
        self.queued_bytes -= sum(queued.nbytes for queued in gone)
        self.producers.roll_back(first.index - 1)

    # -- who decides what is committed, and where the log ends ----------------------------------

    def committed(self, index: int) -> list[QueuedEntry]:
        """Take out what is committed up to ``index``; the caller makes it visible (``advance``)."""
        with self._lock:
            done = []
            while self._waiting and self._waiting[0].entry.index <= index:
                done.append(self._waiting.popleft())
            return done

    def advance(self, done: Sequence[QueuedEntry]) -> None:
        """Move the commit index past ``done``, under the lock that makes their rows visible."""
        last = done[-1].entry
        self.commit_index = last.index
        self.committed_offset = _end(last)
        self.queued_bytes -= sum(queued.nbytes for queued in done)

    def withdraw(self, error: SlotwheelError) -> list[QueuedEntry]:
        """End this node's mastership: its queued own entries are removed and returned. Written ones
        may still be committed by the next master. Whoever waits for either gets ``error``."""
        with self._write_lock, self._lock:
            gone: list[QueuedEntry] = []
            while self._queue and self._queue[-1].own:
                gone.append(self._queue.pop())
            gone.reverse()
            if gone:
                self._go_back_to(gone)
            waiting = [*self._waiting]
        for queued in (*gone, *waiting):
            queued.fail(error)
        return gone

    def cut_after(self, index: int) -> list[QueuedEntry]:
        """Remove and return the entries behind ``index``: another master has others there.

        Errors: ``SyncFailed``, ``OSError``.
        """
        with self._write_lock:
            with self._lock:
                assert index >= self.commit_index, "what is committed is never cut"
                gone: list[QueuedEntry] = []
                for part in (self._queue, self._waiting):
                    while part and part[-1].entry.index > index:
                        gone.append(part.pop())
                gone.reverse()
                if gone:
                    self._go_back_to(gone)
                if self._recent is not None:
                    self._recent.cut_after(index)
            if self.journal.last_index > index:
                self.journal.truncate_after(index)
            return gone

    @contextlib.contextmanager
    def still(self) -> Any:
        """Keep every writer out for the length of the ``with`` block."""
        with self._write_lock:
            yield

    def close(self) -> list[QueuedEntry]:
        """Stop taking entries. Returns those that were queued and will not be written."""
        with self._lock:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            if left:
                self._go_back_to(left)  # else a repeat would be answered as stored, which it is not
            self._work.notify_all()
            return left


def _end(entry: Entry) -> int:
    """The offset behind the last row of an entry."""
    return entry.base_offset + entry.count

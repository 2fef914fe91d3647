"""The master's part of a wheel: due rows, the moving marks, the decisions about cancels.

Theory: every peer holds log, tail and slot files; one of them also delivers. This is that one's
part. It begins when the first entry of its epoch is committed, with the marks that are committed by
then, and ends for good when the epoch is lost: what a sink answers after that changes nothing, and
the next master repeats at most what no committed mark covers.

A mark also says how far rows may be handed out before the next one is durable: its reach. It is
extended ahead of time, with each mark, and where there was none for a while, before the next row is
due. So delivery does not wait for it, and the next master need not guess what may have left.

See docs/design.md, "The mark".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .config import WheelConfig
from .due.canceller import Canceller
from .due.cancels import Cancels
from .due.chunk import Chunk
from .due.due import DueQueue
from .due.namer import Namer
from .errors import Overloaded
from .ids import IdMint
from .journal.log import Log
from .mark import Marks
from .schema import Int64s, Mask
from .slots.storage import Storage

_NEVER = 1 << 62
_TO_BE_QUEUED = Marks()


class Dispatcher:
    """Hands out what is due, and appends how far delivery has come as marks. Thread-safe.

    ``marks``: the committed ones. ``epoch_offset``: rows from there on are of this epoch.
    ``queue_mark`` puts marks into the log. ``disk_is_low(now_ms)``: there may soon be no room for
    them. ``lost``: as of ``Canceller``.
    """

    def __init__(
        self,
        log: Log,
        storage: Storage,
        cancels: Cancels,
        config: WheelConfig,
        mint: IdMint,
        marks: Marks,
        lock: threading.RLock,
        queue_mark: Callable[[Marks], None],
        *,
        epoch_offset: int,
        now_ms: int,
        disk_is_low: Callable[[int], bool],
        lost: Callable[[Int64s], Mask],
    ) -> None:
        self._config = config
        self._storage = storage
        self._lock = lock
        self._queue_marks = queue_mark
        self._due_changed = threading.Condition(lock)
        self._ended = False
        self.mint = mint
        # A mark of version 1 has no reach: then the clock has to do.
        before_ms = max(now_ms, marks.main.c) if marks.reach == -1 else marks.reach
        self._handed_before = epoch_offset, before_ms
        """Offset and due time, ms: a row of an earlier epoch, so with a lower offset, may have been
        handed out only if it was due by then."""
        self.due = DueQueue(
            storage,
            cancels,
            config,
            mint,
            replace(marks, epoch=log.epoch),
            lock,
            lambda: log.committed_offset - 1,
        )
        self.canceller = Canceller(
            mint,
            self.due.lines,
            storage,
            cancels,
            lock,
            epoch_offset=epoch_offset,
            reach_ms=before_ms,
            lost=lost,
        )
        self.namer = Namer(mint, self.due.lines, self.canceller)
        self._reach_ms = marks.reach
        """The reach of the newest mark that was queued."""
        self._disk_is_low = disk_is_low
        self._log = log
        self._exact = 0
        """The kind of sink that also knows what has left, as in ``Marks``; 0: none yet."""
        self._awaited: Marks | None = None
        """Nothing is handed out before this mark is committed."""
        self._first: Marks | None = None
        """The marks behind the chunk in flight, if the journal has them already."""
        self._mark_changes = 0
        self._mark_ms = now_ms - config.mark_interval_ms  # none yet: the first need not wait
        self._appended_c = -1
        self._wake_before_ms: int | None = None

    def end(self) -> None:
        """Hand out nothing more: another peer is master, or may be soon."""
        with self._lock:
            self._ended = True
            self._due_changed.notify_all()
            self.due.lines.answered.notify_all()

    def committed(self, earliest_ms: int) -> None:
        """Under the lock: rows were committed, the first of them due at ``earliest_ms``."""
        self.due.committed(earliest_ms)
        if self._wake_before_ms is not None and earliest_ms < self._wake_before_ms:
            self._due_changed.notify_all()

    # -- delivery --------------------------------------------------------------------------------

    def next_chunk(self, now_ms: int) -> Chunk | None:
        """Rows due at ``now_ms``, None if there are none. Each chunk has to be answered.

        Errors: ``ClockBehind``; ``Damaged`` when a slot file is not what was written.
        """
        if self._ended:
            return None
        if self.due.lines.exact and not self._exact:  # these semantics keep no marks elsewhere
            with self._lock:
                self.due.lines.keep_with(0)
                self._await_mark(now_ms)
        self.append_mark(now_ms)
        self._set_aside(now_ms)
        chunk = self.due.next_chunk(now_ms)
        if chunk is None:
            self._set_aside(now_ms)
            self._look_ahead(now_ms)
        return chunk

    def _set_aside(self, now_ms: int) -> None:
        """Give topics that are too large to be read with the others lines of their own."""
        large = self.due.too_large()
        if large:
            self.hold(large, now_ms)

    def _look_ahead(self, now_ms: int) -> None:
        """Extend the reach where the next row needs it, and while there is room for a mark."""
        if self.due.beyond is not None:
            self._extend_reach(self.due.beyond, now_ms)
        elif self._reach_ms < now_ms + self._config.reach_ahead_ms // 2:
            self._extend_reach(self.due.next_due_ms(), now_ms)
        enough_ms = now_ms + self._config.short_horizon_ms // 2
        if self._reach_ms < enough_ms and self._disk_is_low(now_ms):
            self._queue_mark_in_time(now_ms)

    def next_topic_chunk(self, topic: str, now_ms: int) -> Chunk | None:
        """Rows of a held-back topic; None when it has caught up and is released."""
        if self._ended:
            return None
        chunk = self.due.next_topic_chunk(topic, now_ms)
        if chunk is None and self.due.beyond is not None:
            self._extend_reach(self.due.beyond, now_ms)
        return chunk

    def prepare_topic(self, topic: str) -> None:
        """Read ahead for ``next_topic_chunk``; for another thread, while nobody calls that."""
        if not self._ended:
            self.due.prepare_topic(topic)

    def has_to_read(self, topic: str, now_ms: int) -> bool:
        """True if ``next_topic_chunk`` has to read first."""
        return self.due.has_to_read(topic, now_ms)

    def large_topics(self) -> set[str]:
        """Topics that have a line of their own, or will, as they have too many bytes in a slot."""
        return self.due.large_topics()

    def answer(
        self,
        chunk: Chunk,
        answered: npt.NDArray[np.bool_],
        dead: int = 0,
        *,
        expired: int = 0,
        unknown: npt.NDArray[np.bool_] | None = None,
        sink_down: bool = False,
    ) -> None:
        """The sink's answer to a chunk. ``answered[i]``: row ``i`` was accepted, by the sink or as
        a dead letter, or has expired. ``unknown[i]``: it was not, and may have left all the same.

        Topics of the other rows are held back; ``sink_down`` pauses all of delivery instead.
        """
        with self._lock:
            self._first = None
            self.due.lines.answer(
                chunk, answered, dead, expired=expired, unknown=unknown, sink_down=sink_down
            )

    def after(
        self,
        chunk: Chunk,
        answered: npt.NDArray[np.bool_],
        dead: int = 0,
        *,
        expired: int = 0,
        sink_down: bool = False,
    ) -> Marks:
        """The marks as they will stand once this ``answer`` is given."""
        with self._lock:
            return self.due.lines.after(chunk, answered, dead, expired=expired, sink_down=sink_down)

    def prepare(self, now_ms: int, ahead_ms: int = 2_000) -> bool:
        """Read ahead: the next window of the slot that is delivered, or the next slot. True if
        there was one. For a thread of its own."""
        return not self._ended and self.due.prepare(now_ms, ahead_ms)

    def coming_topics(self) -> set[str]:
        """The topics of what was read ahead since the last call."""
        return self.due.coming_topics()

    def held_topics(self) -> list[str]:
        with self._lock:
            return list(self.due.lines.held)

    def next_due_ms(self) -> int | None:
        """The time to ask again, ms: the next row's due time, or when a mark is to be appended."""
        due = self.due.next_due_ms()
        with self._lock:
            if self.due.lines.changes != self._mark_changes:
                mark_ms = self._mark_ms + self._config.mark_interval_ms
                return mark_ms if due is None else min(due, mark_ms)
        return due

    def wait_for_due(self, until_ms: int | None, now_ms: int, timeout_s: float) -> None:
        """Sleep until ``until_ms``, at most ``timeout_s``, less if something earlier comes in."""
        wait = timeout_s if until_ms is None else min(timeout_s, (until_ms - now_ms) / 1000)
        if wait <= 0:
            return
        with self._lock:
            before = until_ms if until_ms is not None else _NEVER
            fresh = self.due.unseen
            if self._ended or (fresh is not None and fresh < before):
                return  # it was committed after the caller had asked
            self._wake_before_ms = before
            self._due_changed.wait(wait)
            self._wake_before_ms = None

    # -- delivery that knows more than the journal -------------------------------------------------

    @property
    def marks(self) -> Marks:
        """The marks as they stand now, committed or not."""
        with self._lock:
            return self.due.lines.marks()

    @property
    def room(self) -> int:
        """The number of topics that can still be held back."""
        with self._lock:
            return self.due.lines.room

    @property
    def end_offset(self) -> int:
        """The offset behind the last committed row."""
        return self._log.committed_offset

    def begin_epoch(self, now_ms: int) -> None:
        """Under the lock, alone: queue the first mark. Before it is committed the group's key may
        not be on disk, and the sink gets no mark that is made with it."""
        self._awaited = _TO_BE_QUEUED
        self.queue_mark(now_ms)

    def settle(self, now_ms: int) -> bool:
        """True if no row has to wait for a mark; queues again a mark that was lost."""
        with self._lock:
            if self._awaited is _TO_BE_QUEUED and not self._ended:
                self.queue_mark(now_ms)
            return self._awaited is None

    def resume(
        self, now_ms: int, marks: Marks | None = None, *, exact: int, certain: bool = True
    ) -> None:
        """Go on when the sink has found out what has left: the rows that ``marks`` cover (None: the
        present ones), and those that ``answered_before`` was told. ``exact``: the kind of sink that
        keeps this knowledge; rows wait until the journal says so. No chunk may be in flight.

        ``certain``: nothing of that knowledge was missing. If the same kind of sink kept it in the
        earlier epoch, too, cancels of that epoch's rows get true answers then. Errors:
        ``Overloaded``: the marks were set back since.
        """
        with self._lock:
            lines = self.due.lines
            if marks is not None and marks.resets != lines.resets:
                raise Overloaded("the mark was set back meanwhile", remedy="Begin again")
            if certain and lines.exact == exact and not self._exact:
                self.canceller.know_what_left()
            self._exact = exact
            lines.keep_with(exact)
            lines.forget_unknown()
            if marks is not None:
                self.due.load(replace(marks, epoch=lines.epoch, exact=exact))
            self._await_mark(now_ms)

    def may_have_left(self) -> bool:
        """True if a row that the marks do not cover may have been handed out: in an earlier epoch,
        by what the journal says; always once this epoch may hand out rows. Reads slots."""
        upto, before_ms = self._handed_before
        return bool(self._exact) or self.due.any_uncovered(before_ms, upto)

    def answered_before(
        self, topic: str, due: Int64s, offset: Int64s, *, dead: bool = False, expired: bool = False
    ) -> None:
        """Note rows of a topic that the marks do not cover, and that were answered for before."""
        with self._lock:
            self.due.lines.answered_before(topic, due, offset, dead=dead, expired=expired)

    def uncovered(self, topic: str, due: Int64s, offset: Int64s) -> npt.NDArray[np.bool_]:
        """True for rows of a topic that the marks do not cover, shape (rows,)."""
        with self._lock:
            return self.due.lines.uncovered(topic, due, offset)

    def hold(self, topics: Iterable[str], now_ms: int) -> None:
        """Hold topics back, as many as there is room for; rows wait until the journal has their
        names. No chunk may be in flight."""
        with self._lock:
            for topic in topics:
                self.due.lines.hold(topic)
            self._await_mark(now_ms)

    def mark_first(self, chunk: Chunk, now_ms: int) -> bool:
        """Commit the mark behind a chunk before it is handed to the sink. False when it could not
        be written, or the epoch is over: then no row of the chunk may leave."""
        everything = np.ones(chunk.rows.num_rows, np.bool_)
        with self._lock:
            self._first = self.due.lines.after(chunk, everything)
            self._await_mark(now_ms)
            queued = self._awaited
            while self._awaited is queued and not self._ended:
                self._due_changed.wait()
            if self._awaited is not None or self._ended:
                self._first = None
                return False
            return True

    def _await_mark(self, now_ms: int) -> None:
        """Under the lock: queue a mark, and hand out nothing before it is committed."""
        self.due.hold()
        self._awaited = _TO_BE_QUEUED
        if not self._ended:
            self.queue_mark(now_ms)

    def set_back(self, now_ms: int) -> bool:
        """Set the marks back to ``now_ms``, if they are ahead of it: the clock by which they were
        made was wrong. Nothing is handed out before the journal says so. False: the sink has still
        to say what has left, try again."""
        with self._lock:
            lines = self.due.lines
            if now_ms >= max(mark.c for mark in lines.marks().every):
                return True
            # Under exactly-once the sink's mark may be ahead of these.
            unclear = lines.any_unknown if self._exact else lines.exact
            if self._ended or unclear or not self.due.set_back(now_ms):
                return False
            self._mark_ms = now_ms - self._config.mark_interval_ms
            self._await_mark(now_ms)
            return True

    # -- marks -----------------------------------------------------------------------------------

    def append_mark(self, now_ms: int, *, at_once: bool = False) -> None:
        """Queue a mark for the journal if it has moved and the last one is old enough."""
        with self._lock:
            if self._ended:
                return
            if self.due.lines.changes == self._mark_changes:
                if not self._cleaning_waits():
                    return
            elif not at_once and abs(now_ms - self._mark_ms) < self._config.mark_interval_ms:
                return
            self.queue_mark(now_ms)

    def _cleaning_waits(self) -> bool:
        """True if a slot could be deleted once the mark that time has moved is appended."""
        return self._storage.any_ends_within(self._appended_c, self.due.lines.main.mark.c)

    def appended(self, earliest_ms: int, now_ms: int) -> None:
        """Under the lock: rows were queued. If any is due at once, extend the reach with them."""
        self._extend_reach(earliest_ms, now_ms)

    def _extend_reach(self, due_ms: int | None, now_ms: int) -> None:
        """Queue a mark if a row due soon is beyond the reach."""
        ahead_ms = self._config.reach_ahead_ms
        if due_ms is not None and self._reach_ms < due_ms <= now_ms + ahead_ms // 2:
            self._queue_mark_in_time(now_ms)

    def _queue_mark_in_time(self, now_ms: int) -> None:
        """Queue a mark, not more often than usual."""
        with self._lock:
            if not self._ended and abs(now_ms - self._mark_ms) >= self._config.mark_interval_ms:
                self.queue_mark(now_ms)

    def mark_committed(self, marks: Marks) -> None:
        """Under the lock: ``marks`` are the committed ones now."""
        if self._awaited is not None and self._awaited is not marks:
            return
        self._awaited = None
        self.due.reach_to(marks.reach)
        self._due_changed.notify_all()

    def queue_mark(self, now_ms: int) -> None:
        """Append a mark to the log's queue, under the lock."""
        # Where the next mark may find no room, delivery goes on without it.
        low = self._disk_is_low(now_ms)
        ahead_ms = self._config.short_horizon_ms if low else self._config.reach_ahead_ms
        self._reach_ms = max(self._reach_ms, self.due.lines.main.mark.c, now_ms + ahead_ms)
        marks = replace(self._first or self.due.lines.marks(), reach=self._reach_ms)
        self._queue_marks(marks)
        if self._awaited is _TO_BE_QUEUED:
            self._awaited = marks
        self._mark_changes = self.due.lines.changes
        self._mark_ms = now_ms
        self._appended_c = marks.main.c

    def mark_lost(self, marks: Marks) -> None:
        """Note, under the lock, that a mark could not be written and has to be appended again."""
        self._mark_changes = -1
        if self._awaited is marks:
            self._awaited = _TO_BE_QUEUED
            self._due_changed.notify_all()

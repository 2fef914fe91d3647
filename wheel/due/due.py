"""The due rows of each line, by the clock, as chunks for the sink.

Theory: the marks say what has left (``lines.py``), the clock says what may leave. A chunk is read
in one of two steps: rows that are late for the line's mark, in offset order; then rows in due
order, from the slot that the line's cursor has open. Slots are opened ahead of their time.

The wheel is asked what is due at a time and never sleeps. Marks, cancels and chunks in flight are
judged under the owner's lock; rows are read and sorted outside it.

See docs/design.md, "The mark".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

import numpy as np
import pyarrow as pa

from ..config import TICK_MS, WheelConfig
from ..errors import ClockBehind
from ..ids import IdMint
from ..mark import Mark, Marks, RowKey
from ..rows import members, take_rows
from ..schema import Int64s, Mask, times
from ..slots.storage import Storage
from .cancels import Cancels
from .chunk import Chunk, mark_before
from .lines import Line, Lines
from .reader import SlotCursor, late_rows
from .runs import OFFSET_END, Skipped

_STEPS_MAX = 32
"""Steps without a row to hand out before the caller gets a turn to do something else."""
_PREPARED_MAX = 3
_OPEN_AHEAD_MS = 20_000
"""A large slot file is read this long before its time: a slow disk needs ten seconds for a GB."""
_RENEW_MS = 250
"""A slot is renewed this long before its time: time enough, and few rows come in after it."""


class _Then(Enum):
    AGAIN = "the line has moved: look again"
    WAIT = "the next row's cancel, or a mark that reaches it, is on its way to the journal"
    NOTHING = "no row is left up to the given key"


class DueQueue:
    """Hands out due rows. ``high``: gives the highest committed offset (under the lock)."""

    def __init__(
        self,
        storage: Storage,
        cancels: Cancels,
        config: WheelConfig,
        mint: IdMint,
        marks: Marks,
        lock: threading.RLock,
        high: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._cancels = cancels
        self._config = config
        self._mint = mint
        self._lock = lock
        self._high = high
        self.lines = Lines(marks, config.held_topics_max, lock)
        self.reach = marks.reach
        """The reach of the committed marks, ms: rows due later are not handed out."""
        self.beyond: int | None = None
        """Due time of the row beyond the reach that ended the last chunk; None: no row did."""
        self.new_due: int | None = None
        """The earliest due time of rows committed since a slot was chosen: the cursor may go
        back."""
        self.unseen: int | None = None
        """The earliest due time among rows committed since ``next_chunk`` last looked for some: a
        thread that sleeps until the next row is due has to wake for it."""
        self._prepared: dict[int, SlotCursor] = {}
        self._renewed = -1
        """The last second whose slot was renewed."""
        self._coming: set[str] = set()
        """Topics of rows that were read ahead since the last ``coming_topics``."""

    def committed(self, earliest_due: int) -> None:
        """Under the lock: rows were committed, the first of them due at ``earliest_due`` (ms)."""
        if self.new_due is None or earliest_due < self.new_due:
            self.new_due = earliest_due
        if self.unseen is None or earliest_due < self.unseen:
            self.unseen = earliest_due

    def hold(self) -> None:
        """Under the lock: hand out nothing before ``reach_to``."""
        self.reach = -1

    def reach_to(self, until_ms: int) -> None:
        """Under the lock: committed marks let rows leave that are due up to ``until_ms``."""
        self.reach = max(self.reach, until_ms)

    def load(self, marks: Marks) -> None:
        """Under the lock: go on from ``marks``. No chunk may be in flight."""
        self.lines.load(marks)
        self._prepared.clear()

    def set_back(self, now_ms: int) -> bool:
        """Under the lock: set the marks back to ``now_ms`` (``Lines.set_back``); False if a chunk
        is in flight. A thread that is reading ahead from the old mark moves no mark any more."""
        if any(line.flight is not None for line in (self.lines.main, *self.lines.held.values())):
            return False
        self._prepared.clear()
        self.new_due = None
        self.lines.set_back(now_ms)
        return True

    # -- the deliverer ---------------------------------------------------------------------------

    def next_chunk(self, now_ms: int) -> Chunk | None:
        """The next rows to hand out, or None. Errors: ``ClockBehind``, ``Damaged``."""
        line = self.lines.main
        assert line.flight is None, "the last chunk has not been answered"
        self.beyond = None
        resets = self.lines.resets
        if now_ms < line.mark.c and line.mark.c != -1:
            raise ClockBehind(
                "the wall clock stands behind what was delivered",
                got=f"{now_ms} ms",
                limit=f"{line.mark.c} ms",
                remedy="Delivery goes on when the clock has caught up; check time synchronisation",
            )
        for _ in range(_STEPS_MAX):
            with self._lock:
                if self.lines.resets != resets:
                    return None  # the marks were set back: ``now_ms`` is the old clock's
                high = self._high()
                self.unseen = None
                mark = line.mark
            if high > mark.L:
                chunk = self._late(line, high)
                if chunk is not None or line.mark == mark:
                    return chunk
                continue
            cursor = self._choose_cursor(line, mark, now_ms)
            if cursor is None:
                self._move(line, mark, now_ms)
                return None
            if cursor.seen > mark.L:
                continue  # it was prepared a moment later than the mark looked: look again
            until = (now_ms, OFFSET_END)
            chunk, then = self._due(line, mark, cursor, until)
            if chunk is not None:
                return chunk
            if then is not _Then.AGAIN:
                return None
        with self._lock:
            return self.lines.put_none_in_flight(line)

    def too_large(self) -> list[str]:
        """Topics that have so many bytes in an open slot that all others would wait for them, and
        that have no line of their own yet. Half of the places are kept for topics that fail."""
        with self._lock:
            large = [topic for cursor in self._cursors() for topic in cursor.large]
            room = self.lines.room - (self._config.held_topics_max + 1) // 2
            return [topic for topic in dict.fromkeys(large) if topic not in self.lines.held][
                : max(0, room)
            ]

    def large_topics(self) -> set[str]:
        """The topics that have too many bytes in a slot that is open."""
        with self._lock:
            return {topic for cursor in self._cursors() for topic in cursor.large}

    def _cursors(self) -> list[SlotCursor]:
        current = self.lines.main.cursor
        return [*self._prepared.values(), *([] if current is None else [current])]

    def next_topic_chunk(self, topic: str, now_ms: int) -> Chunk | None:
        """The next rows of a held-back topic; None when it has caught up (and is released)."""
        with self._lock:
            line = self.lines.held.get(topic)
        if line is None:
            return None
        assert line.flight is None, "the last chunk has not been answered"
        self.beyond = None
        resets = self.lines.resets
        if now_ms < line.mark.c:
            return None
        for _ in range(_STEPS_MAX):
            with self._lock:
                if self.lines.resets != resets:
                    return None
                main, mark = self.lines.main.mark, line.mark
                if mark.place == main.place:
                    free = self.lines.main.flight is None and topic not in self.large_topics()
                    if free and not line.behind:  # at equal places former marks may differ
                        self.lines.release(topic)
                    return None
            if mark.L < main.L:
                chunk = self._late(line, main.L)
                if chunk is not None or line.mark == mark:
                    return chunk
                continue
            until = min((main.c, main.r), (now_ms, OFFSET_END))
            cursor = self._choose_cursor(line, mark, until[0])
            if cursor is not None:
                chunk, then = self._due(line, mark, cursor, until)
                if chunk is not None:
                    return chunk
                if then is _Then.AGAIN:
                    continue
                if then is _Then.WAIT:
                    return None
            if until != (main.c, main.r):
                return None  # the clock stands behind the main mark
            self._catch_up(line, mark, main, resets)
        with self._lock:
            return self.lines.put_none_in_flight(line)

    def prepare_topic(self, topic: str) -> None:
        """Read ahead for the next ``next_topic_chunk``, on another thread; that one is not called
        meanwhile. Errors: ``Damaged``."""
        for _ in range(_STEPS_MAX):
            with self._lock:
                line, main = self.lines.held.get(topic), self.lines.main.mark
                resets = self.lines.resets
            if line is None or line.mark.place == main.place:
                return
            mark = line.mark
            if mark.L < main.L:
                if self._late_rows(line, main.L)[0].num_rows or line.mark == mark:
                    return
                continue
            until = (main.c, main.r)
            cursor = self._choose_cursor(line, mark, main.c)
            if cursor is not None:
                cursor.refresh((mark.c, mark.r), mark.L)
                if cursor.peek((mark.c, mark.r), until, 1, 1).num_rows:
                    cursor.read_ahead()
                    return
                if until >= self._end_of(cursor):
                    self._leave(line, cursor, mark)
                    continue
            self._catch_up(line, mark, main, resets)

    def has_to_read(self, topic: str, now_ms: int) -> bool:
        """True if ``next_topic_chunk`` would have to read rows first."""
        with self._lock:
            line, main = self.lines.held.get(topic), self.lines.main.mark
            if line is None or line.mark.place == main.place or now_ms < main.c:
                return False
            cursor, mark = line.cursor, line.mark
        return cursor is None or cursor.has_to_read((mark.c, mark.r), (main.c, main.r))

    def prepare(self, now_ms: int, ahead_ms: int) -> bool:
        """Read ahead, on another thread: the next window of the slot that is delivered, or the next
        slot, which is renewed shortly before its time. True if there was one to read."""
        self._renew(now_ms)
        with self._lock:
            cursor, held = self.lines.main.cursor, {*self.lines.held}
        if cursor is not None and cursor.read_ahead(held):
            self._coming |= cursor.topics_ahead()
            return True
        with self._lock:
            mark, cursor = self.lines.main.mark, self.lines.main.cursor
            high = self._high()
            after = (mark.c, mark.r)
            current = max(after[0] // TICK_MS, cursor.second if cursor is not None else -1)
            behind = max(current, *self._prepared) if self._prepared else current
        second = self._storage.next_second((behind + 1) * TICK_MS - 1)
        if second is None or second * TICK_MS > now_ms + ahead_ms:
            return self._storage.open_ahead(now_ms, now_ms + _OPEN_AHEAD_MS)
        with self._lock:
            if len(self._prepared) >= _PREPARED_MAX:
                return False
        cursor = self._cursor(second)
        cursor.load(after, high, held, find_large=True)
        self._coming |= cursor.topics()
        self._keep(cursor)
        return True

    def coming_topics(self) -> set[str]:
        """The topics of what was read ahead since the last call. For the thread that does it."""
        coming, self._coming = self._coming, set()
        return coming

    def _renew(self, now_ms: int) -> None:
        """Merge a small slot that is prepared, and what came since, into one run, ``_RENEW_MS``
        before its time: else each chunk would merge several."""
        second = (now_ms + _RENEW_MS) // TICK_MS
        if second == self._renewed or second * TICK_MS <= now_ms:
            return
        with self._lock:
            mark = self.lines.main.mark
            cursor = self._prepared.get(second)
            if cursor is None or not cursor.is_small:
                return
            del self._prepared[second]
            high = self._high()
        self._renewed = second
        cursor.renew((mark.c, mark.r), high)
        self._keep(cursor)

    def _keep(self, cursor: SlotCursor) -> None:
        """Put a slot among the prepared ones, unless its time is over or it is open already."""
        with self._lock:
            mark, current = self.lines.main.mark, self.lines.main.cursor
            over = (mark.c, mark.r) >= (cursor.start + TICK_MS - 1, OFFSET_END)
            if not over and (current is None or current.second != cursor.second):
                self._prepared[cursor.second] = cursor

    def any_uncovered(self, until_ms: int, upto: int) -> bool:
        """True if the marks leave a row uncovered that is due up to ``until_ms`` and has an offset
        below ``upto``. Nothing may be in flight."""
        with self._lock:
            mark = self.lines.main.mark
            if any(line.behind for line in self.lines.held.values()):
                return True
        while upto - 1 > mark.L:
            rows, _, reached = late_rows(self._storage, mark, upto - 1, 1, 1)
            if rows.num_rows:
                return True
            mark = mark.upto(reached)
        after, until = (mark.c, mark.r), (until_ms, OFFSET_END)
        second = self._storage.next_second(mark.c - 1)
        while second is not None and second * TICK_MS <= until_ms:
            cursor = self._cursor(second)
            cursor.load(after, upto - 1)
            if cursor.peek(after, until, 1, 1).num_rows:
                return True
            second = self._storage.next_second((second + 1) * TICK_MS - 1)
        return False

    def next_due_ms(self) -> int | None:
        """The earliest time, ms, when a row of the main line may be due; None: none is known."""
        with self._lock:
            mark, cursor, fresh = self.lines.main.mark, self.lines.main.cursor, self.new_due
        after = (mark.c, mark.r)
        if cursor is not None and (fresh is None or fresh // TICK_MS >= cursor.second):
            due = cursor.next_due(after)
            if due is not None:
                return due if fresh is None else min(due, fresh)
            after = ((cursor.second + 1) * TICK_MS - 1, OFFSET_END)
        second = self._storage.next_second(after[0])
        if second is None:
            return fresh
        with self._lock:
            prepared, high = self._prepared.get(second), self._high()
        due = None
        if prepared is not None and prepared.seen >= high:  # else a row may have joined the slot
            due = prepared.next_due(after)
        due = max(due if due is not None else second * TICK_MS, after[0])
        return due if fresh is None else min(due, fresh)

    # -- inside ----------------------------------------------------------------------------------

    def _cursor(self, second: int, topic: str | None = None) -> SlotCursor:
        """A cursor for the main line or a held-back topic; these share one window's bytes."""
        window, chunk = self._config.window_bytes_max, self._config.chunk_bytes_max
        if topic is None:
            return SlotCursor(self._storage, second, window, self._mint, large_bytes=chunk)
        window_share = window // (1 + len(self.lines.held))
        return SlotCursor(self._storage, second, window_share, self._mint, only=topic)

    def _late(self, line: Line, upto: int) -> Chunk | None:
        """Step one: rows that are late for this line leave in offset order, ``L`` follows."""
        mark = line.mark
        rows, cancelled, reached = self._late_rows(line, upto)
        if not rows.num_rows:
            return None
        return self._hand_out(line, mark, rows, cancelled, mark.upto(reached), late=True)

    def _late_rows(self, line: Line, upto: int) -> tuple[pa.RecordBatch, set[int], int]:
        """The next late rows, the offsets that are cancelled, and the offset up to which late rows
        were looked for. Where there are none, the mark moves on to that."""
        mark = line.mark
        rows, cancelled, reached = late_rows(
            self._storage, mark, upto, self._config.chunk_rows_max, self._config.chunk_bytes_max
        )
        if not rows.num_rows:
            with self._lock:
                line.move(mark, mark.upto(reached))
        return rows, cancelled, reached

    def _due(
        self, line: Line, mark: Mark, cursor: SlotCursor, until: RowKey
    ) -> tuple[Chunk | None, _Then]:
        """Step two: rows in due order up to ``until``; or what to do next, without a chunk."""
        after = (mark.c, mark.r)
        cursor.refresh(after, mark.L)
        if line.topic is None and self.too_large():
            return None, _Then.WAIT
        chunk_bytes = self._config.chunk_bytes_max
        if line.topic is not None:  # all others wait meanwhile for the same disk or broker
            chunk_bytes //= 2
        held = self.lines.held.keys()
        rows = cursor.peek(after, until, self._config.chunk_rows_max, chunk_bytes, held)
        if rows.num_rows:
            last = mark.at(int(times(rows, "due")[-1]), int(times(rows, "offset")[-1]))
            chunk = self._hand_out(line, mark, rows, cursor.cancelled, last, late=False)
            return chunk, _Then.AGAIN if line.mark != mark else _Then.WAIT
        skipped = cursor.skipped(after, until)
        if skipped:
            c, r = max((int(part.due[-1]), int(part.offset[-1])) for part in skipped)
            with self._lock:
                self.lines.skip(skipped, mark, mark.at(c, r))
            return None, _Then.AGAIN
        if until < self._end_of(cursor):
            if line.topic is None:
                self._move(line, mark, until[0])
            return None, _Then.NOTHING
        self._leave(line, cursor, mark)
        return None, _Then.AGAIN

    def _catch_up(self, line: Line, mark: Mark, main: Mark, resets: int) -> None:
        """A held-back topic has no row up to the main mark: its mark follows, unless the marks were
        set back since there were ``resets`` resets."""
        with self._lock:
            if self.lines.resets == resets:
                line.move(mark, mark.at(main.c, main.r))
            line.stand_in(None)

    @staticmethod
    def _end_of(cursor: SlotCursor) -> RowKey:
        return cursor.start + TICK_MS - 1, OFFSET_END

    def _leave(self, line: Line, cursor: SlotCursor, mark: Mark) -> None:
        """Leave a slot that is done: move the mark to its end, and choose another one later."""
        with self._lock:
            line.move(mark, mark.at(*max((mark.c, mark.r), self._end_of(cursor))))
            line.stand_in(None)

    def _move(self, line: Line, mark: Mark, now_ms: int) -> None:
        """Move the mark to the clock, as nothing is due: what comes in now counts as late."""
        with self._lock:
            if line.flight is None and (mark.c, mark.r) < (now_ms, OFFSET_END):
                line.move(mark, mark.at(now_ms, OFFSET_END))

    def _choose_cursor(self, line: Line, mark: Mark, until_ms: int) -> SlotCursor | None:
        """Make ``line.cursor`` the first slot that can have rows due up to ``until_ms``. None:
        there is none, or the mark was set back meanwhile."""
        cursor = line.cursor
        if line.topic is None:
            with self._lock:
                fresh, self.new_due = self.new_due, None
            earlier = fresh is not None and max(fresh, mark.c) // TICK_MS < (
                cursor.second if cursor is not None else -1
            )
            if cursor is not None and earlier:
                with self._lock:
                    if len(self._prepared) < _PREPARED_MAX:  # else it is read again
                        self._prepared[cursor.second] = cursor
                line.stand_in(None)
                cursor = None
        # What has come in since to a held-back topic may be due before the slot that it stands at.
        may_be_earlier = line.topic is not None and cursor is not None and cursor.seen < mark.L
        if cursor is not None and not may_be_earlier:
            return cursor
        # Rows at the mark's own millisecond may be left, unless it is known to be done with.
        second = self._storage.next_second(mark.c if mark.r == OFFSET_END else mark.c - 1)
        if cursor is not None and (second is None or second >= cursor.second):
            return cursor
        if second is None or second * TICK_MS > until_ms:
            return None
        with self._lock:
            if line.mark != mark:
                return None
            prepared = self._prepared.pop(second, None) if line.topic is None else None
            for old in [s for s in self._prepared if s < second]:
                del self._prepared[old]
            cursor = prepared or self._cursor(second, line.topic)
            line.stand_in(cursor)
        if prepared is None:  # ``prepare`` opens the slot behind it meanwhile
            try:
                cursor.load((mark.c, mark.r), mark.L, {*self.lines.held}, find_large=True)
            except BaseException:
                line.stand_in(None)
                raise
        with self._lock:  # questions about these rows must find the answer after the file is gone
            self._cancels.add_from_file(second, cursor.cancelled)
        return cursor

    def _hand_out(
        self,
        line: Line,
        mark: Mark,
        rows: pa.RecordBatch,
        cancelled: set[int],
        after: Mark,
        *,
        late: bool,
    ) -> Chunk | None:
        """Judge rows under the lock and put them in flight; None if none is to be handed out, or
        the mark stands elsewhere than at ``mark``. ``after``: the mark behind all of them.
        ``late``: they are in offset order, else in due order.

        A row whose cancel is not committed yet cuts the chunk before it, and so does one beyond
        the reach of the committed marks.
        """
        due, offset = times(rows, "due"), times(rows, "offset")
        if mark.former:
            fresh = np.flatnonzero(~mark.covered(due, offset))
            rows, due, offset = take_rows(rows, fresh), due[fresh], offset[fresh]
        with self._lock:
            if line.mark != mark:
                return None
            gone, stop = self._judge(due, offset, cancelled, late)
            self.beyond = None
            if len(due) and int(due.max() if late else due[-1]) > self.reach:
                beyond = int(np.argmax(due > self.reach))
                self.beyond = int(due[beyond])
                stop = min(stop, beyond)
            if stop < len(due):
                if stop == 0:
                    return None
                after = mark_before(mark, due, offset, stop, late)
                rows, gone = rows.slice(0, stop), gone[:stop]
                due, offset = due[:stop], offset[:stop]
            skipped: list[Skipped] = []
            if line.topic is None and not late and line.cursor is not None:
                skipped = line.cursor.skipped((mark.c, mark.r), (after.c, after.r))
            return self.lines.put_in_flight(
                line, rows, due, offset, gone, after, late=late, skipped=skipped
            )

    def _judge(
        self, due: Int64s, offset: Int64s, cancelled: set[int], late: bool
    ) -> tuple[Mask, int]:
        """The mask of cancelled rows, and the position before which the chunk has to end."""
        stop = len(due)
        gone = np.zeros(stop, np.bool_)
        if not stop:
            return gone, stop
        if cancelled:
            gone |= members(np.sort(np.fromiter(cancelled, np.int64, len(cancelled))), offset)
        # Rows in due order are of one slot.
        seconds = np.unique(due // TICK_MS).tolist() if late else [int(due[0]) // TICK_MS]
        for second in seconds:
            targets, pending = self._cancels.targets(second), self._cancels.pending(second)
            if len(targets):
                gone |= members(targets, offset)
            if pending:
                at = np.flatnonzero(members(np.sort(np.fromiter(pending, np.int64)), offset))
                stop = min(stop, int(at[0])) if len(at) else stop
        return gone, stop

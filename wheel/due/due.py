"""What is due: the moving mark, held-back topics, and the chunks handed to the sink.

Theory: delivery is a *line* that moves a mark: the main line for all topics that are not held back,
and one line for each that is, which drains from its own copy up to the main mark. A line has at
most one chunk in flight. A chunk leads from one mark to another; the mark moves when the sink has
answered. Rows that were answered while an earlier one was not are remembered (``ahead``) and never
handed out again.

The wheel is asked what is due at a time and never sleeps. Marks, cancels and chunks in flight are
judged under the owner's lock; rows are read and sorted outside it.

See docs/design.md, "The mark".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from enum import Enum, IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..config import TICK_MS, WheelConfig
from ..errors import ClockBehind
from ..mark import Mark, Marks, RowKey, TopicMark
from ..rows import from_numpy, members, take_rows
from ..schema import Int64s, Mask, times
from ..slots.storage import Storage
from .cancels import Cancels, among
from .lines import Chunk, ChunkInFlight, Line, mark_before
from .reader import SlotCursor, late_rows
from .runs import EMPTY, OFFSET_END

_STEPS_MAX = 32
"""Steps without a row to hand out before the caller gets a turn to do something else."""
_PREPARED_MAX = 3
_UNKNOWN_MAX = 1 << 18
"""Offsets without an answer that are remembered one by one."""


class HasLeft(IntEnum):
    """Whether a row has been handed to the sink; a cancel is decided by it."""

    NO = 0
    """It has never been handed to the sink."""
    YES = 1
    """The sink has answered for it."""
    IN_FLIGHT = 2
    """It is with the sink, whose answer is awaited."""
    UNKNOWN = 3
    """It was handed to the sink, which gave no clear answer."""
    BY_TOPIC = 4
    """That depends on the row's topic: ask again with it."""


class _Then(Enum):
    AGAIN = "the line has moved: look again"
    WAIT = "the next row's cancel, or a mark that reaches it, is on its way to the journal"
    NOTHING = "no row is left up to the given key"


class DueQueue:
    """Hands out due rows and moves the marks. ``high``: gives the highest committed offset (under
    the lock)."""

    def __init__(
        self,
        storage: Storage,
        cancels: Cancels,
        config: WheelConfig,
        marks: Marks,
        lock: threading.RLock,
        high: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._cancels = cancels
        self._config = config
        self._lock = lock
        self._high = high
        self._main = Line(None, marks.main)
        self._held = {
            topic: Line(topic, copy.mark, copy.behind) for topic, copy in marks.copies.items()
        }
        self._unknown: set[int] = set()
        """Offsets handed to the sink and not clearly answered yet."""
        self._unknown_upto = -1
        """All offsets up to here that have not left count as such, too: there were too many."""
        self.reach = marks.reach
        """The reach of the committed marks, ms: rows due later are not handed out."""
        self.beyond: int | None = None
        """Due time of the row beyond the reach before which the last chunk ended; None: no such
        row."""
        self.epoch = marks.epoch
        self.covered = marks.covered
        self.withdrawn = marks.cancels
        """Rows passed that are cancel rows, or messages that were cancelled."""
        self.delivered = marks.delivered
        self.dead = marks.dead
        self.changes = 0
        """Counts the moves since which a new mark should be appended."""
        self.new_due: int | None = None
        """The earliest due time among rows committed since a slot was last chosen."""
        self.unseen: int | None = None
        """The same since ``next_chunk`` last looked how far rows are committed."""
        self._prepared: dict[int, SlotCursor] = {}
        self.answered = threading.Condition(lock)

    # -- what others ask, under the lock ---------------------------------------------------------

    @property
    def main(self) -> Mark:
        return self._main.mark

    def marks(self, reach: int = -1) -> Marks:
        """The marks as they stand, for a journal entry with that reach."""
        return Marks(
            main=self._main.mark,
            epoch=self.epoch,
            copies={topic: TopicMark(line.mark, line.behind) for topic, line in self._held.items()},
            covered=self.covered,
            cancels=self.withdrawn,
            delivered=self.delivered,
            dead=self.dead,
            reach=reach,
        )

    @property
    def ahead(self) -> int:
        """Messages that were answered ahead of their mark."""
        return len(self._main.ahead) + sum(len(line.ahead) for line in self._held.values())

    def held_topics(self) -> list[str]:
        with self._lock:
            return list(self._held)

    def committed(self, earliest_due: int) -> None:
        """Rows were committed; ``earliest_due``: of the first of them to be due."""
        if self.new_due is None or earliest_due < self.new_due:
            self.new_due = earliest_due
        if self.unseen is None or earliest_due < self.unseen:
            self.unseen = earliest_due

    def has_left(
        self, due: Int64s, offset: Int64s, topics: npt.NDArray[np.object_]
    ) -> npt.NDArray[np.int8]:
        """Whether rows have left: a value of ``HasLeft`` each, shape (rows,) like all arguments.
        ``topics``: None where the topic is not known, which matters only where the answer is
        ``BY_TOPIC``; empty for a row that is stored no longer."""
        unknown = among(self._unknown, offset) | (offset <= self._unknown_upto)
        left = np.where(unknown, HasLeft.UNKNOWN, HasLeft.NO).astype(np.int8)
        passed = self._main.mark.covered(due, offset)
        by_all = passed & self._covered_by_all(due, offset)
        left[by_all] = HasLeft.YES
        held = np.flatnonzero(passed & ~by_all)
        names = topics[held]
        left[held[~among(self._held, names)]] = HasLeft.YES
        left[held[among({None}, names)]] = HasLeft.BY_TOPIC
        for topic in self._held.keys() & set(names.tolist()):
            line, at = self._held[topic], held[np.equal(names, topic)]
            left[at[line.mark.covered(due[at], offset[at])]] = HasLeft.YES
            left[at[line.in_flight(due[at], offset[at])]] = HasLeft.IN_FLIGHT
        left[self._main.in_flight(due, offset)] = HasLeft.IN_FLIGHT
        asked, ahead = set(offset.tolist()), set[int]()
        for line in (self._main, *self._held.values()):
            ahead |= line.ahead & asked
        left[among(ahead, offset)] = HasLeft.YES
        return left

    def _covered_by_all(self, due: Int64s, offset: Int64s) -> Mask:
        """Which rows the lines of all held-back topics cover, shape (rows,)."""
        marks = [line.mark for line in self._held.values()]
        if not marks:
            return np.ones(len(due), np.bool_)
        c, r = min((mark.c, mark.r) for mark in marks)
        return Mark(c, r, min(mark.L for mark in marks)).covered(due, offset)

    def any_in_flight(self, due: Int64s, offset: Int64s, topics: Container[str]) -> bool:
        """Whether one of these rows may be in flight, judged by the marks; shape (rows,).
        ``topics``: of the rows whose answer depends on the topic."""
        return any(
            bool(line.in_flight(due, offset).any())
            for line in (self._main, *self._held.values())
            if line.topic is None or line.topic in topics
        )

    # -- the deliverer ---------------------------------------------------------------------------

    def next_chunk(self, now_ms: int) -> Chunk | None:
        """The next rows to hand out, or None. Errors: ``ClockBehind``, ``Damaged``."""
        line = self._main
        assert line.flight is None, "the last chunk has not been answered"
        self.beyond = None
        if now_ms < line.mark.c and line.mark.c != -1:
            raise ClockBehind(
                "the wall clock stands behind what was delivered",
                got=f"{now_ms} ms",
                limit=f"{line.mark.c} ms",
                remedy="Delivery goes on when the clock has caught up; check time synchronisation",
            )
        for _ in range(_STEPS_MAX):
            with self._lock:
                high = self._high()
                self.unseen = None
                mark = line.mark
            if high > mark.L:
                chunk = self._late(line, high)
                if chunk is not None or line.mark == mark:
                    return chunk
                continue
            self._choose_cursor(line, now_ms)
            if line.cursor is None:
                self._move(line, mark, now_ms)
                return None
            if line.cursor.seen > mark.L:
                continue  # it was prepared a moment later than the mark looked: look again
            until = (now_ms, OFFSET_END)
            chunk, then = self._due(line, until)
            if chunk is not None:
                return chunk
            if then is not _Then.AGAIN:
                return None
        return self._empty(line)

    def next_topic_chunk(self, topic: str, now_ms: int) -> Chunk | None:
        """The next rows of a held-back topic; None when it has caught up (and is released)."""
        with self._lock:
            line = self._held.get(topic)
            for other in self._held.values():
                if other is not line:
                    other.cursor = None  # one held-back topic at a time has rows in memory
        if line is None:
            return None
        assert line.flight is None, "the last chunk has not been answered"
        self.beyond = None
        if now_ms < line.mark.c:
            return None
        for _ in range(_STEPS_MAX):
            with self._lock:
                main = self._main.mark
                if line.mark == main:
                    if self._main.flight is None:
                        del self._held[topic]
                        self.changes += 1
                    return None
            if line.mark.L < main.L:
                before = line.mark
                chunk = self._late(line, main.L)
                if chunk is not None or line.mark == before:
                    return chunk
                continue
            until = min((main.c, main.r), (now_ms, OFFSET_END))
            self._choose_cursor(line, until[0])
            if line.cursor is not None:
                chunk, then = self._due(line, until)
                if chunk is not None:
                    return chunk
                if then is _Then.AGAIN:
                    continue
                if then is _Then.WAIT:
                    return None
            if until != (main.c, main.r):
                return None  # the clock stands behind the main mark
            with self._lock:
                line.mark = Mark(main.c, main.r, line.mark.L)
                line.cursor = None
        return self._empty(line)

    def answer(
        self,
        chunk: Chunk,
        answered: Mask,
        dead: int = 0,
        *,
        unknown: Mask | None = None,
        sink_down: bool = False,
    ) -> None:
        """Move the mark of the chunk's line as far as the sink has answered.

        ``answered``: shape (rows,). ``unknown``, the same shape: which of the others may have left.
        Topics with unanswered rows are held back; where that is not possible (``sink_down``, or too
        many), the main mark pauses before the first of them.
        """
        with self._lock:
            line = self._main if chunk.topic is None else self._held[chunk.topic]
            flight = line.flight
            assert flight is not None, "no chunk is in flight"
            assert flight.chunk is chunk, "not the chunk in flight"
            line.flight = None
            if self._unknown:
                self._unknown.difference_update(flight.offset[flight.kept[answered]].tolist())
            if unknown is not None and unknown.any():
                self._unknown.update(flight.offset[flight.kept[unknown]].tolist())
                if len(self._unknown) > _UNKNOWN_MAX:
                    self._unknown_upto = max(self._unknown_upto, *self._unknown)
                    self._unknown.clear()
            accepted = int(np.count_nonzero(answered))
            self.delivered += accepted - dead
            self.dead += dead
            self.changes += 1
            if accepted == len(flight.kept):
                self._pass(line, flight, len(flight.due), chunk.after)
            else:
                self._answer_partly(line, flight, answered, sink_down)
            self.answered.notify_all()

    def prepare(self, now_ms: int, ahead_ms: int) -> bool:
        """Open the next slot ahead of its time, on another thread; whether one was opened."""
        with self._lock:
            cursor = self._main.cursor
            high = self._high()
            after = (self._main.mark.c, self._main.mark.r)
            current = max(after[0] // TICK_MS, cursor.second if cursor is not None else -1)
            behind = max(current, *self._prepared) if self._prepared else current
        second = self._storage.next_second((behind + 1) * TICK_MS - 1)
        if second is None or second * TICK_MS > now_ms + ahead_ms:
            return False
        with self._lock:
            if len(self._prepared) >= _PREPARED_MAX:
                return False
        cursor = SlotCursor(self._storage, second, self._config.window_bytes_max)
        cursor.load(after, high)
        with self._lock:
            if (self._main.mark.c, self._main.mark.r) < ((second + 1) * TICK_MS - 1, OFFSET_END):
                self._prepared[second] = cursor
        return True

    def next_due_ms(self) -> int | None:
        """When the next row of the main line can be due; None if nothing is known."""
        with self._lock:
            mark, cursor, fresh = self._main.mark, self._main.cursor, self.new_due
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
            prepared = self._prepared.get(second)
        due = prepared.next_due(after) if prepared is not None else None
        due = max(due if due is not None else second * TICK_MS, after[0])
        return due if fresh is None else min(due, fresh)

    # -- inside ----------------------------------------------------------------------------------

    def _late(self, line: Line, upto: int) -> Chunk | None:
        """Step one: rows that are late for this line leave in offset order, ``L`` follows."""
        mark = line.mark
        rows, cancelled, reached = late_rows(
            self._storage, mark, upto, self._config.chunk_rows_max, self._config.chunk_bytes_max
        )
        after = Mark(mark.c, mark.r, reached)
        if not rows.num_rows:
            with self._lock:
                line.mark = after
            return None
        return self._hand_out(line, rows, cancelled, after, late=True)

    def _due(self, line: Line, until: RowKey) -> tuple[Chunk | None, _Then]:
        """Step two: rows in due order up to ``until``; or what to do next, without a chunk."""
        cursor, mark = line.cursor, line.mark
        assert cursor is not None
        after = (mark.c, mark.r)
        cursor.refresh(after, mark.L)
        rows = cursor.peek(after, until, self._config.chunk_rows_max, self._config.chunk_bytes_max)
        if rows.num_rows:
            last = rows.num_rows - 1
            key = int(times(rows, "due")[last]), int(times(rows, "offset")[last])
            before = line.mark
            chunk = self._hand_out(line, rows, cursor.cancelled, Mark(*key, mark.L), late=False)
            return chunk, _Then.AGAIN if line.mark != before else _Then.WAIT
        end = (cursor.start + TICK_MS - 1, OFFSET_END)
        if until < end:
            if line.topic is None:
                self._move(line, mark, until[0])
            return None, _Then.NOTHING
        with self._lock:  # the slot is done: go on to the next one with rows
            if line.mark == mark:
                line.mark = Mark(*max(after, end), mark.L)
            line.cursor = None
        return None, _Then.AGAIN

    def _move(self, line: Line, mark: Mark, now_ms: int) -> None:
        """Nothing is due: the mark follows the clock, so that what comes in now counts as late."""
        with self._lock:
            if (
                line.mark == mark
                and line.flight is None
                and (mark.c, mark.r) < (now_ms, OFFSET_END)
            ):
                line.mark = Mark(now_ms, OFFSET_END, mark.L)

    def _choose_cursor(self, line: Line, until_ms: int) -> None:
        """Make ``line.cursor`` the first slot that can have rows due up to ``until_ms``."""
        mark = line.mark
        if line.topic is None:
            with self._lock:
                fresh, self.new_due = self.new_due, None
            cursor = line.cursor
            earlier = fresh is not None and max(fresh, mark.c) // TICK_MS < (
                cursor.second if cursor is not None else -1
            )
            if cursor is not None and earlier:
                with self._lock:
                    if len(self._prepared) < _PREPARED_MAX:  # else it is read again
                        self._prepared[cursor.second] = cursor
                line.cursor = None
        if line.cursor is not None:
            return
        # Rows at the mark's own millisecond may be left, unless it is known to be done with.
        second = self._storage.next_second(mark.c if mark.r == OFFSET_END else mark.c - 1)
        if second is None or second * TICK_MS > until_ms:
            return
        with self._lock:
            cursor = self._prepared.pop(second, None) if line.topic is None else None
            for old in [s for s in self._prepared if s < second]:
                del self._prepared[old]
        if cursor is None:
            cursor = SlotCursor(self._storage, second, self._config.window_bytes_max)
            cursor.load((mark.c, mark.r), mark.L)
        line.cursor = cursor
        with self._lock:  # questions about these rows must find the answer after the file is gone
            self._cancels.add_from_file(second, cursor.cancelled)

    def _hand_out(
        self, line: Line, rows: pa.RecordBatch, cancelled: set[int], after: Mark, *, late: bool
    ) -> Chunk | None:
        """Judge rows under the lock and put them in flight; None if none is to be handed out.

        A row whose cancel is not committed yet cuts the chunk before it, and so does one beyond
        the reach of the committed marks.
        """
        due, offset = times(rows, "due"), times(rows, "offset")
        with self._lock:
            gone, stop = self._judge(due, offset, cancelled)
            beyond = np.flatnonzero(due > self.reach)
            self.beyond = int(due[beyond[0]]) if len(beyond) else None
            if len(beyond):
                stop = min(stop, int(beyond[0]))
            if stop < len(due):
                if stop == 0:
                    return None
                after = mark_before(line.mark, due, offset, stop, late)
                rows, due, offset, gone = (
                    rows.slice(0, stop),
                    due[:stop],
                    offset[:stop],
                    gone[:stop],
                )
            topics = rows.column("topic")
            cancels = np.asarray(rows.column("cancels").is_valid())
            drop = gone | cancels | line.answered_ahead(offset)
            held: dict[str, Int64s] = {}
            for topic in self._held if line.topic is None else (line.topic,):
                mine = np.asarray(pc.equal(topics, topic)) & ~cancels
                held[topic] = np.flatnonzero(mine)
                drop |= mine if line.topic is None else ~mine
            kept = np.flatnonzero(~drop)
            handed = rows if len(kept) == len(due) else take_rows(rows, kept)
            chunk = Chunk(handed, line.topic, line.mark, after)
            flight = ChunkInFlight(chunk, due, offset, late, kept, cancels, gone, topics, held)
            if not len(kept):
                self.changes += 1
                self._pass(line, flight, len(due), after)
                return None
            line.flight = flight
            return chunk

    def _judge(self, due: Int64s, offset: Int64s, cancelled: set[int]) -> tuple[Mask, int]:
        """Which rows are cancelled, and before which row the chunk has to end."""
        stop = len(due)
        gone = members(np.sort(np.fromiter(cancelled, np.int64, len(cancelled))), offset)
        for second in np.unique(due // TICK_MS).tolist():
            gone |= members(self._cancels.targets(second), offset)
            pending = np.sort(np.fromiter(self._cancels.pending(second), np.int64))
            if len(pending):
                at = np.flatnonzero(members(pending, offset))
                stop = min(stop, int(at[0])) if len(at) else stop
        return gone, stop

    def _pass(self, line: Line, flight: ChunkInFlight, count: int, after: Mark) -> None:
        """Move the line's mark to ``after``, past the first ``count`` rows of a chunk in flight."""
        line.mark = after
        passed = flight.offset[:count]
        done = flight.gone[:count]
        if line.topic is not None:
            mine = flight.of_held[line.topic]
            mine = mine[mine < count]
            line.behind -= len(mine)
            self.withdrawn += int(np.count_nonzero(done[mine]))
        else:
            done = done | flight.cancels[:count]
            for topic, positions in flight.of_held.items():
                left = positions[positions < count]
                held = self._held[topic]
                held.behind += len(left)
                done[left] = False  # its own line will count them
                if line.ahead:
                    held.ahead.update(line.ahead.intersection(passed[left].tolist()))
            self.covered += count
            self.withdrawn += int(np.count_nonzero(done))
        if line.ahead:
            line.ahead.difference_update(passed.tolist())

    def _answer_partly(
        self, line: Line, flight: ChunkInFlight, answered: Mask, sink_down: bool
    ) -> None:
        """Hold topics back as far as that is possible; the line stops before what is left over."""
        line.ahead.update(flight.offset[flight.kept[answered]].tolist())
        stop = int(flight.kept[~answered][0])
        if line.topic is None and not sink_down:
            stop = self._hold_back(flight, answered)
        after = flight.chunk.after
        if stop < len(flight.due):
            after = flight.mark_before(stop)
        self._pass(line, flight, stop, after)

    def _hold_back(self, flight: ChunkInFlight, answered: Mask) -> int:
        """Give each topic with unanswered rows a line of its own, first come first served.

        Returns the position before which the main line has to stop: that of the first row of a
        topic for which there was no room, or the end.
        """
        waiting = flight.kept[~answered]
        topics = flight.topics.take(from_numpy(waiting, pa.int64()))
        names = topics.unique().to_pylist()  # in the order of their first rows
        room = max(0, self._config.held_topics_max - len(self._held))
        first = [int(waiting[pc.index(topics, name).as_py()]) for name in names]
        for name, at in zip(names[:room], first, strict=False):
            mark = flight.mark_before(at)
            self._held[name] = Line(name, mark)
            mine = np.flatnonzero(np.asarray(pc.equal(flight.topics, name)) & ~flight.cancels)
            flight.of_held[name] = mine[mine >= at]
        return first[room] if room < len(names) else len(flight.due)

    def _empty(self, line: Line) -> Chunk:
        """A chunk without rows: the mark passed many rows and nothing is to be handed out yet."""
        with self._lock:
            chunk = Chunk(EMPTY, line.topic, line.mark, line.mark)
            none = np.empty(0, np.int64)
            no = np.empty(0, np.bool_)
            topics = EMPTY.column("topic")
            held = {} if line.topic is None else {line.topic: none}
            line.flight = ChunkInFlight(chunk, none, none, False, none, no, no, topics, held)
        return chunk

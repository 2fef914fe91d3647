"""Lines, which move a mark each, and what the sink's answers do to the marks.

Theory: delivery is a *line* that moves a mark: the main line for all topics that are not held back,
and one line for each that is, which drains from its own copy up to the main mark. A line has at
most one chunk in flight. A chunk leads from one mark to another; the mark moves when the sink has
answered. Rows that were answered while an earlier one was not are remembered (``ahead``) and never
handed out again.

*Example.* A chunk holds rows of topics a, b, a, and the sink refuses the second for now. Topic b
gets a line whose mark stands before that row; the main mark passes all three and leaves b to it.

Nothing here reads rows or asks the clock; all of it is called under the owner's lock.

See docs/design.md, "The mark".
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import compute as pc
from ..mark import Mark, Marks, TopicMark
from ..rows import from_numpy, no_rows, take_rows
from ..schema import Int64s, Mask, bounds, times, valid
from .cancels import among
from .chunk import Chunk, ChunkInFlight
from .reader import SlotCursor
from .runs import OFFSET_END, Skipped

_UNKNOWN_MAX = 1 << 18
"""So many offsets without a clear answer are remembered one by one."""


class HasLeft(IntEnum):
    """A row's place between wheel and sink, by which a cancel of it is decided."""

    NO = 0
    """It has never been handed to the sink."""
    YES = 1
    """The sink has answered for it."""
    IN_FLIGHT = 2
    """It is with the sink, whose answer is awaited."""
    UNKNOWN = 3
    """It was handed to the sink, which gave no clear answer."""
    BY_TOPIC = 4
    """The answer depends on the row's topic: ask again with it."""


@dataclass(slots=True)
class Line:
    """A mark and what moves it: the main mark, of all topics that are not held back (``topic``
    None), or the copy of it that a held-back topic has."""

    topic: str | None
    mark: Mark
    behind: int = 0
    """Messages of the topic between this line's mark and the main mark, whatever became of them."""
    ahead: set[int] = field(default_factory=set)
    """Offsets that were answered but lie beyond the mark; for a held-back topic its own alone."""
    flight: ChunkInFlight | None = None
    cursor: SlotCursor | None = None
    """The slot that is open for it; None: it is to be chosen."""

    def move(self, seen: Mark, to: Mark) -> bool:
        """Move the mark from ``seen``, where the caller read it, to ``to``. False if it stands
        elsewhere by now: it was set back, and would skip what has to be handed out."""
        moves = self.mark == seen
        if moves:
            self.mark = to
        return moves

    def stand_in(self, cursor: SlotCursor | None) -> None:
        """Make ``cursor`` the slot that is open for this line; None: it has to be chosen."""
        self.cursor = cursor

    def set_back(self, now_ms: int) -> None:
        self.mark = self.mark.set_back(now_ms, OFFSET_END)
        self.cursor = None

    def pass_rows(self, offset: Int64s, after: Mark, behind: int = 0) -> None:
        """Move the mark past a chunk's rows, ``behind`` of which waited behind the main mark."""
        self.mark = after
        self.behind -= behind
        if self.ahead:
            self.ahead.difference_update(offset.tolist())

    def fall_behind(self, count: int, answered: set[int]) -> None:
        """The main mark passes ``count`` messages of this topic. Offsets ``answered`` are done
        with: this line hands them out no more."""
        self.behind += count
        self.ahead |= answered

    def copy(self) -> Line:
        """An independent copy, without an open slot."""
        flight = self.flight and replace(self.flight, of_held=dict(self.flight.of_held))
        return replace(self, ahead=set(self.ahead), flight=flight, cursor=None)

    def answered_ahead(self, offset: Int64s) -> Mask:
        """True for rows that were answered before the mark has passed them; shape (rows,)."""
        if not self.ahead:
            return np.zeros(len(offset), np.bool_)
        return np.isin(offset, np.fromiter(self.ahead, np.int64, len(self.ahead)))

    @property
    def furthest_ms(self) -> int:
        """The latest due time of a row that its mark covers, or that may be in flight."""
        mark_ms = self.mark.furthest_ms
        return mark_ms if self.flight is None else max(mark_ms, self.flight.chunk.after.furthest_ms)

    def in_flight(self, due: Int64s, offset: Int64s) -> Mask:
        """True for rows that may be in flight, by the marks; shape (rows,)."""
        if self.flight is None:
            return np.zeros(len(due), np.bool_)
        chunk = self.flight.chunk
        return chunk.after.covered(due, offset) & ~chunk.before.covered(due, offset)


class Lines:
    """The main line, those of held-back topics, and the rows of which there is no clear answer."""

    def __init__(self, marks: Marks, held_max: int, lock: threading.RLock) -> None:
        self._held_max = held_max
        self._lock = lock
        self.load(marks)
        self.changes = 0
        """Counts the moves since which a new mark should be appended."""
        self.answered = threading.Condition(lock)
        """Notified after each answer of the sink."""

    def load(self, marks: Marks) -> None:
        """Stand where ``marks`` do, with nothing in flight and no answer unclear."""
        self.main = Line(None, marks.main)
        self.held = {
            topic: Line(topic, copy.mark, copy.behind) for topic, copy in marks.copies.items()
        }
        self.exact = marks.exact
        self.resets = marks.resets
        self.forget_unknown()
        self.epoch = marks.epoch
        self._covered = marks.covered
        self._withdrawn = marks.cancels
        """Rows passed that are cancel rows, or messages that were cancelled."""
        self._delivered = marks.delivered
        self._dead = marks.dead
        self._expired = marks.expired
        self._counted_ahead = marks.answered - marks.passed
        """Messages that the marks count as answered, although they have not passed them."""

    def keep_with(self, exact: int) -> None:
        """Set the kind of sink that keeps, beside the journal, what has left (``Marks.exact``)."""
        self.exact = exact

    @property
    def any_unknown(self) -> bool:
        """True if it is unknown of some row whether it has left."""
        return bool(self._unknown) or self._unknown_upto >= 0

    def forget_unknown(self) -> None:
        """Forget the rows without a clear answer: by now it is known of each if it has left."""
        self._unknown: set[int] = set()
        """Offsets handed to the sink and not clearly answered yet."""
        self._unknown_upto = -1
        """Offsets up to here that have not left count as such, too: they were too many."""
        self._passes_unknown = False
        """The mark has passed such rows, as it does under at-most-once."""

    def marks(self) -> Marks:
        """The marks as they stand, without a reach."""
        return Marks(
            main=self.main.mark,
            epoch=self.epoch,
            copies={topic: TopicMark(line.mark, line.behind) for topic, line in self.held.items()},
            covered=self._covered,
            cancels=self._withdrawn,
            delivered=self._delivered,
            dead=self._dead,
            expired=self._expired,
            exact=self.exact,
            resets=self.resets,
        )

    def set_back(self, now_ms: int) -> None:
        """Set the marks back to ``now_ms``. What they covered has left: their former ones cover it
        on, and no counter changes. A held-back topic keeps its line while messages of it wait, as
        those are behind the former main mark. No chunk may be in flight."""
        for line in (self.main, *self.held.values()):
            line.set_back(now_ms)
        self.resets += 1
        self.changes += 1

    @property
    def room(self) -> int:
        """The number of topics that can still be held back."""
        return max(0, self._held_max - len(self.held))

    def after(
        self,
        chunk: Chunk,
        answered: Mask,
        dead: int = 0,
        *,
        expired: int = 0,
        sink_down: bool = False,
    ) -> Marks:
        """The marks as they will stand after this ``answer``; nothing changes now."""
        then = Lines(self.marks(), self._held_max, self._lock)
        then.main = self.main.copy()
        then.held = {topic: line.copy() for topic, line in self.held.items()}
        then.answer(chunk, answered, dead, expired=expired, sink_down=sink_down)
        return then.marks()

    def hold(self, topic: str) -> None:
        """Hold a topic back from where the main mark stands; no chunk may be in flight there."""
        assert self.main.flight is None, "a chunk is in flight"
        if self.room and topic not in self.held:
            self.held[topic] = Line(topic, self.main.mark)
            self.changes += 1

    def uncovered(self, topic: str, due: Int64s, offset: Int64s) -> Mask:
        """True for the rows of a topic that its mark does not cover, shape (rows,)."""
        mask: Mask = ~self.held.get(topic, self.main).mark.covered(due, offset)
        return mask

    def answered_before(
        self, topic: str, due: Int64s, offset: Int64s, *, dead: bool = False, expired: bool = False
    ) -> None:
        """Note uncovered rows of a topic that were answered before this epoch all the same."""
        main = self.main.mark.covered(due, offset)
        before = self.ahead
        self.main.ahead.update(offset[~main].tolist())
        if topic in self.held:
            self.held[topic].ahead.update(offset[main].tolist())
        count = self.ahead - before  # before exactly-once one of them may have left twice
        counted = min(count, max(0, self._counted_ahead))
        self._counted_ahead -= counted
        count -= counted
        self._delivered += 0 if dead or expired else count
        self._dead += count if dead else 0
        self._expired += count if expired else 0
        self.changes += 1

    def _line_of(self, chunk: Chunk) -> Line:
        return self.main if chunk.topic is None else self.held[chunk.topic]

    @property
    def ahead(self) -> int:
        """Messages that were answered ahead of their mark."""
        return len(self.main.ahead) + sum(len(line.ahead) for line in self.held.values())

    def has_left(
        self, due: Int64s, offset: Int64s, topics: npt.NDArray[np.object_]
    ) -> npt.NDArray[np.int8]:
        """A value of ``HasLeft`` for each row, shape (rows,) like all arguments. ``topics``: None
        where the topic is not known, which matters only where the answer is ``BY_TOPIC``; empty for
        a row that is stored no longer."""
        if self._are_ahead_of_all(due):
            return np.full(len(due), HasLeft.NO, np.int8)
        unknown = among(self._unknown, offset) | (offset <= self._unknown_upto)
        left = np.where(unknown, HasLeft.UNKNOWN, HasLeft.NO).astype(np.int8)
        passed = self.main.mark.covered(due, offset)
        by_all = passed & self._covered_by_all(due, offset)
        left[by_all] = HasLeft.YES
        held = np.flatnonzero(passed & ~by_all)
        names = topics[held]
        left[held[~among(self.held, names)]] = HasLeft.YES
        left[held[among({None}, names)]] = HasLeft.BY_TOPIC
        for topic in self.held.keys() & set(names.tolist()):
            line, at = self.held[topic], held[np.equal(names, topic)]
            left[at[line.mark.covered(due[at], offset[at])]] = HasLeft.YES
            left[at[line.in_flight(due[at], offset[at])]] = HasLeft.IN_FLIGHT
        if self._passes_unknown:
            left[(left == HasLeft.YES) & unknown] = HasLeft.UNKNOWN
        left[self.main.in_flight(due, offset)] = HasLeft.IN_FLIGHT
        asked, ahead = set(offset.tolist()), set[int]()
        for line in (self.main, *self.held.values()):
            ahead |= line.ahead & asked
        left[among(ahead, offset)] = HasLeft.YES
        return left

    def _are_ahead_of_all(self, due: Int64s) -> bool:
        """True if all rows are due later than any that has left or may have left. Mostly they are,
        and this costs a single row a tenth of what NumPy's calls for all other cases do."""
        if self.any_unknown or not len(due):
            return False
        earliest_ms, _ = bounds(due)
        lines = (self.main, *self.held.values())
        return all(not line.ahead and line.furthest_ms < earliest_ms for line in lines)

    def _covered_by_all(self, due: Int64s, offset: Int64s) -> Mask:
        """True for rows that the marks of all held-back topics cover, shape (rows,). Their former
        marks are left aside: False only means that the row's own topic has to be asked."""
        marks = [line.mark for line in self.held.values()]
        if not marks:
            return np.ones(len(due), np.bool_)
        c, r = min((mark.c, mark.r) for mark in marks)
        return Mark(c, r, min(mark.L for mark in marks)).covered(due, offset)

    def any_in_flight(self, due: Int64s, offset: Int64s, topics: Container[str]) -> bool:
        """True if one of these rows may be in flight, by the marks; ``due``, ``offset``: shape
        (rows,). ``topics``: those of the rows whose answer depends on the topic."""
        return any(
            bool(line.in_flight(due, offset).any())
            for line in (self.main, *self.held.values())
            if line.topic is None or line.topic in topics
        )

    def put_in_flight(
        self,
        line: Line,
        rows: pa.RecordBatch,
        due: Int64s,
        offset: Int64s,
        gone: Mask,
        after: Mark,
        *,
        late: bool,
        skipped: Sequence[Skipped] = (),
    ) -> Chunk | None:
        """Put the rows in flight that the sink is to get, without those that are ``gone``. None if
        there is no such row, and no cancelled one to report: then the mark has passed all of them.
        ``due`` and ``offset``: of the rows, shape (rows,). ``late``: they are in offset order.
        ``skipped``: rows of held-back topics that the mark passes as well."""
        topics = rows.column("topic")
        cancels = valid(rows.column("cancels"))
        held: dict[str, Int64s] = {}
        lines = self.held if line.topic is None else (line.topic,)
        if lines or line.ahead or gone.any() or cancels.any():
            drop = gone | cancels | line.answered_ahead(offset)
            others = np.zeros(len(due), np.bool_)
            for topic in lines:
                of_topic = np.asarray(pc.equal(topics, topic)) & ~cancels
                held[topic] = np.flatnonzero(of_topic)
                others |= of_topic if line.topic is None else ~of_topic
            kept = np.flatnonzero(~(drop | others))
            withdrawn = np.flatnonzero(gone & ~(cancels | others))
        else:  # the usual case: all of them leave
            kept, withdrawn = np.arange(len(due)), np.empty(0, np.int64)
        ready = np.maximum(due, times(rows, "created"))
        handed = rows
        if len(kept) < len(due):
            handed, ready = take_rows(rows, kept), ready[kept]
        chunk = Chunk(handed, line.topic, line.mark, after, ready, rows, withdrawn)
        flight = ChunkInFlight(chunk, due, offset, late, kept, cancels, gone, topics, held, skipped)
        if not len(kept) and not len(withdrawn):
            self.changes += 1
            self._pass(line, flight, len(due), after)
            return None
        line.flight = flight
        return chunk

    def put_none_in_flight(self, line: Line) -> Chunk:
        """Put a chunk without rows in flight after many rows that do not leave, so that the hand
        gets a turn. The mark has passed them."""
        none = np.empty(0, np.int64)
        empty = no_rows()
        chunk = Chunk(empty, line.topic, line.mark, line.mark, none, empty, none)
        no = np.empty(0, np.bool_)
        topics = empty.column("topic")
        held = {} if line.topic is None else {line.topic: none}
        line.flight = ChunkInFlight(chunk, none, none, False, none, no, no, topics, held)
        return chunk

    def release(self, topic: str) -> None:
        """End the line of a topic that has caught up."""
        del self.held[topic]
        self.changes += 1

    def answer(
        self,
        chunk: Chunk,
        answered: Mask,
        dead: int = 0,
        *,
        expired: int = 0,
        unknown: Mask | None = None,
        sink_down: bool = False,
    ) -> None:
        """Move the mark of the chunk's line as far as the sink has answered.

        ``answered``: shape (rows,); ``dead`` and ``expired`` of them were not delivered.
        ``unknown``, the same shape: True for those of the others that may have left. Topics with
        unanswered rows are held back; where that is not possible (``sink_down``, or too many), the
        main mark pauses before the first of them.
        """
        line = self._line_of(chunk)
        flight = line.flight
        assert flight is not None, "no chunk is in flight"
        assert flight.chunk is chunk, "not the chunk in flight"
        line.flight = None
        if self._unknown:
            self._unknown.difference_update(flight.offset[flight.kept[answered]].tolist())
        if unknown is not None and unknown.any():
            self._passes_unknown |= bool((unknown & answered).any())
            self._unknown.update(flight.offset[flight.kept[unknown]].tolist())
            if len(self._unknown) > _UNKNOWN_MAX:
                self._unknown_upto = max(self._unknown_upto, *self._unknown)
                self._unknown.clear()
        accepted = int(np.count_nonzero(answered))
        self._delivered += accepted - dead - expired
        self._dead += dead
        self._expired += expired
        self.changes += 1
        if accepted == len(flight.kept):
            self._pass(line, flight, len(flight.due), chunk.after)
        else:
            self._answer_partly(line, flight, answered, sink_down)
        self.answered.notify_all()

    def _pass(self, line: Line, flight: ChunkInFlight, count: int, after: Mark) -> None:
        """Move the line's mark to ``after``, past the first ``count`` rows of a chunk in flight."""
        passed = flight.offset[:count]
        done = flight.gone[:count]
        waited = 0
        if line.topic is not None:
            own = flight.of_held[line.topic]
            own = own[own < count]
            waited = len(own)
            self._withdrawn += int(np.count_nonzero(done[own]))
        else:
            done = done | flight.cancels[:count]
            for topic, positions in flight.of_held.items():
                left = positions[positions < count]
                done[left] = False  # its own line will count them
                answered = line.ahead and line.ahead.intersection(passed[left].tolist())
                self.held[topic].fall_behind(len(left), answered)
            self._covered += count
            self._withdrawn += int(np.count_nonzero(done))
            before = flight.chunk.before
            for part in flight.skipped:
                self._skip(part.between((before.c, before.r), (after.c, after.r)), before)
        line.pass_rows(passed, after, waited)

    def skip(self, parts: Sequence[Skipped], seen: Mark, after: Mark) -> None:
        """Move the main mark from ``seen`` (``Line.move``) past messages that their topics' own
        lines will hand out, and no others; no chunk may be in flight there."""
        assert self.main.flight is None, "a chunk is in flight"
        if self.main.move(seen, after):
            for part in parts:
                self._skip(part, seen)
            self.changes += 1

    def _skip(self, part: Skipped, before: Mark) -> None:
        held = self.held[part.topic]
        count = len(part.due)
        if before.former:  # those were counted when the mark came there for the first time
            count -= int(np.count_nonzero(before.covered(part.due, part.offset)))
        answered = self.main.ahead and self.main.ahead.intersection(part.offset.tolist())
        held.fall_behind(count, answered)
        self.main.ahead -= answered
        self._covered += count

    def _answer_partly(
        self, line: Line, flight: ChunkInFlight, answered: Mask, sink_down: bool
    ) -> None:
        """Hold topics back while there is room; stop before the first row that gets no line."""
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
        room = self.room
        first = [int(waiting[pc.index(topics, name).as_py()]) for name in names]
        for name, at in zip(names[:room], first, strict=False):
            mark = flight.mark_before(at)
            self.held[name] = Line(name, mark)
            messages = np.flatnonzero(np.asarray(pc.equal(flight.topics, name)) & ~flight.cancels)
            flight.of_held[name] = messages[messages >= at]
        return first[room] if room < len(names) else len(flight.due)

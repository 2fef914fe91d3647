"""What a wheel should do, said with sets: the model that property tests hold a real wheel against.

Every row of the model is one message. The model is told what was committed, what a chunk handed
out, what the sink answered and which marks a restart found; it says at once what is wrong.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.schema import Mask, times

NewRow = tuple[int, str, bytes]
"""Due in ms, topic, value."""


@dataclass(frozen=True)
class Row:
    offset: int
    due: int
    topic: str
    value: bytes

    @property
    def key(self) -> tuple[int, int]:
        return self.due, self.offset


@dataclass
class Model:
    rows: dict[int, Row] = field(default_factory=dict)
    """Every committed message by offset."""
    waiting: dict[int, Row] = field(default_factory=dict)
    """Of those, the ones that are neither answered for nor cancelled."""
    answered: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)
    """Offsets taken by cancel rows."""
    repeated: int = 0
    may_repeat: set[int] = field(default_factory=set)
    """Answered, but not covered by the marks that the last restart found."""
    left: set[int] = field(default_factory=set)
    """Arrived at the target at some time, whatever the sink said and whatever the wheel knows."""
    doubtful: set[int] = field(default_factory=set)
    """The sink could not say, in this life, and has not accepted them since."""

    # -- intake ----------------------------------------------------------------------------------

    def commit(self, base_offset: int, rows: Sequence[NewRow]) -> None:
        for offset, (due, topic, value) in enumerate(rows, base_offset):
            assert offset not in self.rows, f"offset {offset} was given to two messages"
            assert offset not in self.own, f"offset {offset} was given to a cancel before"
            self.rows[offset] = self.waiting[offset] = Row(offset, due, topic, value)

    def commit_cancel(self, offset: int, own: int) -> None:
        assert own not in self.rows, f"offset {own} of a cancel was given to a message"
        assert own not in self.own, f"offset {own} was given to two cancels"
        assert offset not in self.left, f"row {offset} was delivered, then cancelled"
        self.own.add(own)
        self.cancelled.add(offset)
        self.waiting.pop(offset, None)
        self.may_repeat.discard(offset)

    def check_answer(self, offset: int, answer: CancelAnswer, *, certain: bool) -> None:
        """``certain``: the engine has no excuse for not knowing."""
        if answer is CancelAnswer.CANCELLED:
            assert offset in self.cancelled, f"row {offset}: said cancelled, is not"
        elif answer is CancelAnswer.DELIVERED:
            assert offset in self.answered, f"row {offset}: said delivered, is not"
        else:
            assert not certain, f"row {offset}: said unknown, could know"

    # -- delivery --------------------------------------------------------------------------------

    def hand_out(self, chunk: Chunk, now_ms: int, held: Iterable[str]) -> list[Row]:
        """Check a chunk; its rows as the model knows them."""
        offsets = times(chunk.rows, "offset").tolist()
        due = times(chunk.rows, "due").tolist()
        topics = chunk.rows.column("topic").to_pylist()
        values = chunk.rows.column("value").to_pylist()
        handed = []
        for at, offset in enumerate(offsets):
            row = self.rows.get(offset)
            assert row is not None, f"offset {offset} was never accepted"
            assert (row.due, row.topic, row.value) == (due[at], topics[at], values[at])
            assert row.due <= now_ms, f"row {offset} left {row.due - now_ms} ms early"
            assert offset not in self.cancelled, f"row {offset} was cancelled"
            assert offset in self.waiting, f"row {offset} was answered for before"
            handed.append(row)
        assert len(set(offsets)) == len(offsets), "a row twice in one chunk"
        on_hold = set(held)
        if chunk.topic is None:
            assert not on_hold.intersection(topics), "a held-back topic in the main chunk"
        else:
            assert set(topics) <= {chunk.topic}
        self._check_order(chunk, handed, on_hold)
        return handed

    def _check_order(self, chunk: Chunk, handed: Sequence[Row], held: set[str]) -> None:
        """Due rows leave by (due, offset), late ones by offset, and no topic skips a row."""
        before, after = chunk.before, chunk.after
        taken = {row.offset for row in handed}
        mine = {chunk.topic} if chunk.topic is not None else {row.topic for row in handed} - held
        if after.L > before.L:
            order = [row.offset for row in handed]
            assert order == sorted(order), "late rows out of order"
            last = order[-1] if order else -1
            skipped = [
                row
                for row in self.waiting.values()
                if row.topic in mine
                and before.L < row.offset < last
                and row.key <= (before.c, before.r)
                and row.offset not in taken
            ]
        else:
            keys = [row.key for row in handed]
            assert keys == sorted(keys), "due rows out of order"
            end = keys[-1] if keys else (-1, -1)
            skipped = [
                row
                for row in self.waiting.values()
                if row.topic in mine
                and row.offset <= before.L
                and row.key < end
                and row.offset not in taken
            ]
        assert not skipped, f"{handed[-1]} left before {min(skipped, key=lambda row: row.key)}"

    def settle(self, handed: Sequence[Row], answered: Mask, unknown: Mask) -> None:
        """``unknown``: rows that arrived although the sink could not say so."""
        self.doubtful.update(handed[at].offset for at in np.flatnonzero(unknown).tolist())
        self.left |= self.doubtful
        for row, done in zip(handed, answered.tolist(), strict=True):
            if done:
                self.left.add(row.offset)
                self.doubtful.discard(row.offset)
                del self.waiting[row.offset]
                self.answered.add(row.offset)
                if row.offset in self.may_repeat:
                    self.may_repeat.discard(row.offset)
                    self.repeated += 1

    def next_due(self) -> int | None:
        """When the first waiting row is due: the oracle is a heap."""
        heap = [row.key for row in self.waiting.values()]
        heapq.heapify(heap)
        return heap[0][0] if heap else None

    # -- restart ---------------------------------------------------------------------------------

    def restart(self, marks: Marks) -> None:
        """A wheel was opened and found ``marks``: what they do not cover waits again."""
        self.doubtful.clear()
        for offset, row in self.rows.items():
            mark = marks.copies[row.topic].mark if row.topic in marks.copies else marks.main
            done = mark.covers(*row.key)
            assert not (done and offset in self.waiting), f"row {offset} is lost"
            if not done and offset in self.answered:
                self.answered.discard(offset)
                self.may_repeat.add(offset)
                self.waiting[offset] = row

    def uncovered(self, marks: Marks) -> set[int]:
        """Offsets that some mark leaves uncovered: they must be in tail or slot files."""
        every: list[Mark] = [marks.main, *(copy.mark for copy in marks.copies.values())]
        return {
            offset
            for offset, row in self.rows.items()
            if any(not mark.covers(*row.key) for mark in every)
        }

"""Exactly once into embedded topics, on one node: what the topics hold is not delivered again.

Theory: the topics lie on the node's own disk, beside the journal. After a crash they hold every row
that has left, and the last mark in the journal covers all of them but the newest. So before a node
delivers, it reads the newest blocks of each topic, and rows that the mark does not cover count as
answered.

How far back: a row is delivered no earlier than the time ``c`` of the mark of that moment, and a
mark does not go back by itself. So a row that the last mark does not cover lies in a block that was
delivered at ``c`` or later. After a person has set the mark back, blocks are no longer in order of
time: a later one may stand before an earlier one, and reading must not end at the first old block.
``_CLOCK_S`` is for a clock that is set back between the hand's look at it and the sink's.

Among peers this cannot work: each peer has topics of its own, and another master has not seen them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

from ...policy.deadletters import EXPIRED
from ...policy.lettercolumns import sink_letters
from ...wheel import compute as pc
from ...wheel.due.chunk import Chunk
from ...wheel.errors import Damaged, SlotwheelError
from ...wheel.files import Files
from ...wheel.mark import BY_TOPICS
from ...wheel.schema import Int64s, times
from ...wheel.topics.topicdamage import SoundBlocks, records, set_aside_segments
from ...wheel.topics.topicfile import (
    HEADER_BYTES,
    RECORD_BYTES,
    TOPICS_DIRECTORY,
    index_path,
    segment_path,
)
from ...wheel.topics.topiclog import segments
from ..deadletters import DeadLetters
from ..handover import BatchOutcome
from ..ports import DuePort
from ..semantics import AtLeastOnce, NotReady
from .sink import EmbeddedSink

_CLOCK_S = 5
_REMEDY = "start the node once with --accept-repeats to deliver all the same"


class EmbeddedExactlyOnce(AtLeastOnce):
    """Delivers like ``AtLeastOnce``, once it knows which rows have left. ``accept_repeats``: it
    begins once also where nobody can know, because the newest blocks of a topic are damaged."""

    in_turn = True  # so that nothing is in flight when it begins again

    def __init__(
        self,
        sink: EmbeddedSink,
        dead_letters: DeadLetters,
        files: Files,
        *,
        accept_repeats: bool = False,
    ) -> None:
        super().__init__(sink, dead_letters)
        self._topics = sink
        self._files = files
        self._accept_repeats = accept_repeats
        self._certain = True

    def begin(self, wheel: DuePort, now_ms: int) -> None:
        marks = wheel.marks
        self._certain = True
        for topic in self._files.list(TOPICS_DIRECTORY):
            if topic == self.dead_letters.topic:
                c = min(mark.c for mark in marks.every)
            else:
                c = marks.copies[topic].mark.c if topic in marks.copies else marks.main.c
            since_ms, in_order = c - 1000 * _CLOCK_S, not marks.resets
            for rows in delivered_since(
                self._files, topic, since_ms, self._damaged, in_order=in_order
            ):
                self._count(wheel, topic, rows)
        self._accept_repeats = False  # the permission is for one beginning
        wheel.resume(now_ms, exact=BY_TOPICS, certain=self._certain)

    def deliver(
        self, wheel: DuePort, chunk: Chunk, clock: Callable[[], int], *, trial: bool = False
    ) -> BatchOutcome:
        outcome = super().deliver(wheel, chunk, clock, trial=trial)
        if outcome.unknown.any():  # the topics on disk show which rows have left
            self._topics.recover_all()
            outcome.begin_again = outcome.stop = True
        return outcome

    def _damaged(self, error: SlotwheelError) -> None:
        if not self._accept_repeats:
            raise NotReady(f"{error.message}. Nobody knows what has left: {_REMEDY}")
        self._certain = False

    def _count(self, wheel: DuePort, topic: str, rows: pa.RecordBatch) -> None:
        due, offset = times(rows, "due"), times(rows, "offset")
        # Rows of an earlier data directory have checks of another key: they are none of ours.
        genuine = np.asarray(rows.column("check")) == self.sink.mint.checks(due, offset)
        if (genuine & (offset >= wheel.end_offset)).any():
            text = f"topic {topic} holds messages that the journal does not know: it is an old copy"
            self._damaged(SlotwheelError(text))
            genuine &= offset < wheel.end_offset
        if topic != self.dead_letters.topic:
            uncovered = genuine & wheel.uncovered(topic, due, offset)
            wheel.answered_before(topic, due[uncovered], offset[uncovered])
            return
        for target, reason, at in _letters(rows, np.flatnonzero(genuine), topic):
            uncovered = at[wheel.uncovered(target, due[at], offset[at])]
            dead, expired = reason not in (None, EXPIRED), reason == EXPIRED
            wheel.answered_before(
                target, due[uncovered], offset[uncovered], dead=dead, expired=expired
            )


def delivered_since(
    files: Files,
    topic: str,
    since_ms: int,
    on_damage: Callable[[Damaged], None],
    *,
    in_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yields the durable blocks of a topic that were delivered at or after ``since_ms``, the last
    one first. ``on_damage`` gets the error of each block among them that is not sound.
    ``in_order``: no block stands before one that was delivered earlier, so reading ends early."""
    newest = True
    for first in reversed(segments(files, topic)):
        known = records(files, topic, first)
        if newest and first in set_aside_segments(files, topic):
            with closing(files.open(index_path(topic, first))) as index:
                size = index.size()
            if size > HEADER_BYTES + len(known) * RECORD_BYTES:  # broken records have no time
                path = index_path(topic, first)
                on_damage(Damaged(path, size, expected="whole records", found="damage"))
        if not known:
            continue
        if max(record.delivered_ms for record in known) < since_ms:
            if in_order:
                return
            continue
        if newest:  # its last record may not have been synced before the crash
            newest = False
            with closing(files.open(index_path(topic, first))) as index:
                index.sync()
        sound = SoundBlocks(files, topic, first)
        for at in range(len(known), 0, -1):
            if known[at - 1].delivered_ms < since_ms:
                if in_order:
                    return
                continue
            rows = sound.read(at) if at < len(sound.blocks) else None
            if rows is None:
                path = segment_path(topic, first)
                on_damage(
                    Damaged(path, known[at - 1].end, expected="a sound block", found="damage")
                )
                continue
            yield rows


def _letters(
    rows: pa.RecordBatch, at: Int64s, dead_topic: str
) -> Iterator[tuple[str, str | None, Int64s]]:
    """Groups rows of the dead-letter topic: the topic they were addressed to, the reason, and their
    row numbers. Rows without the sink's headers were addressed to the dead-letter topic itself:
    their reason is None."""
    headers = rows.column("headers").take(pa.array(at))
    counts = np.asarray(pc.list_value_length(headers), dtype=np.int64)
    ends = np.cumsum(counts)
    dead = sink_letters(headers.flatten(), ends - counts, ends, np.arange(len(at)))
    addressed = np.delete(at, dead.rows)
    if len(addressed):
        yield dead_topic, None, addressed
    positions = at[dead.rows]
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    keys = zip(dead.topic.to_pylist(), dead.reason.to_pylist(), strict=True)
    for position, key in zip(positions.tolist(), keys, strict=True):
        groups.setdefault(key, []).append(position)
    for (topic, reason), members in groups.items():
        yield topic.decode(), reason.decode("utf-8", "replace"), np.array(members, np.int64)

"""Messages to be sent again: found in journals, live and archived, without Spark.

Theory: a consumer that has lost its results needs a topic's messages of some hour once more. Their
content stands in the journals, in the order of their offsets, on each peer. So the peers' journals
are merged by offset, as sorted streams are: rows with the same offset are one message, and only one
batch a peer is in memory.

    peer a   archive | archive | live      offsets -->
    peer b        archive    |   live      next to read: whichever stream is the furthest behind
    peer c             archive | live
                   ^ all streams have passed it: up to here the union is complete, and leaves

Rules
- The order is that of the offsets, and does not depend on which peers are given or what each of
  them still has; so "the first N are sent already" means the same messages in the next run.
- A message that may never have been committed is not sent. A peer of a group proves what it has
  spilled, and what a mark in its journal covers (``PeerJournal.proven``); the few messages behind
  that are counted.
- A cancelled message is not sent. A cancel stands behind its message, so the first reading finds
  the cancels (of messages due in that time), and the second one, if it is needed, leaves their
  messages out.
- A damaged message cannot be sent. Damage is reported before the user confirms.

Memory: a batch a peer, and a bit for each offset near a cancelled message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..reading.events import Ended, MarkSeen, RowsSeen
from ..reading.files import JOURNAL, File, Layout
from ..reading.problems import Problem
from ..reading.read import read
from ..wheel.checks import REDELIVERED_ID_HEADER, REDELIVERED_PREFIX, RESERVED_PREFIX
from ..wheel.rows import (
    from_numpy,
    header_lists,
    headers_of,
    take_rows,
    with_headers,
    without_header,
)
from ..wheel.schema import INPUT, TIME, Int64s, Mask, sizes, times
from .bits import Bits
from .facts.making import GroupTerms
from .facts.summary import FileSummary

DAMAGE_SHOWN = 20
TOPICS_SHOWN = 100
_READINGS_MAX = 4
_EVERYTHING = (1 << 63) - 1

OnSearched = Callable[[int], None]
"""Called with how many bytes of journals were read; a negative number when reading begins again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages for ``topic`` that were due in [``start_ms``, ``end_ms``)."""

    topic: str
    start_ms: int
    end_ms: int


@dataclass(slots=True)
class RedeliveryCounts:
    """What would be sent. ``nbytes``: of keys, values and headers."""

    messages: int = 0
    nbytes: int = 0
    first_due_ms: int = -1
    last_due_ms: int = -1
    in_doubt: int = 0
    """Messages left out because they may not have been committed."""
    cancelled: int = 0
    """Messages left out because they were cancelled."""
    damage: list[str] = field(default_factory=list)
    """Places that could not be read, the first few."""
    damaged: int = 0
    """The number of places that could not be read."""
    missing: int = 0
    """Rows of any topic and time, between those that were read, that no journal has."""
    topics: set[str] = field(default_factory=set)
    """Some of the topics with messages due in that time."""

    def add(self, rows: pa.RecordBatch) -> None:
        due = times(rows, "due")
        if not len(due):
            return
        first, last = int(due.min()), int(due.max())
        self.first_due_ms = first if not self.messages else min(self.first_due_ms, first)
        self.last_due_ms = max(self.last_due_ms, last)
        self.messages += rows.num_rows
        self.nbytes += int(sizes(rows).sum())

    def problem(self, text: str) -> None:
        self.damaged += 1
        if len(self.damage) < DAMAGE_SHOWN:
            self.damage.append(text)


class Redelivery:
    """The messages of a selection, in the journals of a layout. Not thread-safe."""

    def __init__(self, layout: Layout, selection: Selection) -> None:
        self.selection = selection
        self._terms = GroupTerms.of(layout)
        self._files: dict[int, list[File]] = {number: [] for number in range(len(layout.peers))}
        for file in layout.of(JOURNAL):
            self._files[file.peer].append(file)
        for files in self._files.values():
            files.sort(key=lambda file: file.first)
        self._proven = [peer.spilled if peer.is_replica else _EVERYTHING for peer in layout.peers]
        self._cancelled = Bits()
        self._damage = [str(problem) for problem in layout.problems]

    @property
    def nbytes(self) -> int:
        """Bytes of all journals, which each reading reads."""
        return sum(file.nbytes for files in self._files.values() for file in files)

    def tally(self, progress: OnSearched = lambda _nbytes: None) -> RedeliveryCounts:
        """Read all journals and count. Errors: ``OSError``."""
        tally = RedeliveryCounts()
        for reading in range(_READINGS_MAX):  # a running node may cancel more meanwhile
            progress(-self.nbytes if reading else 0)
            before = (self._cancelled.count, tuple(self._proven))
            tally = RedeliveryCounts()
            for text in self._damage:
                tally.problem(text)
            for rows in self._messages(tally, progress):
                tally.add(rows)
            if before == (self._cancelled.count, tuple(self._proven)):
                break
        return tally

    def batches(
        self, to_topic: str, due_ms: Callable[[], int], skip: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The messages as they are to be sent (schema ``INPUT``), without the first ``skip``.
        ``due_ms`` is called for each batch. Call ``tally`` before. Errors: ``OSError``."""
        for rows in self._messages(RedeliveryCounts(), lambda _nbytes: None):
            left = rows.slice(min(skip, rows.num_rows))
            skip -= rows.num_rows - left.num_rows
            if left.num_rows:
                yield self._again(left, to_topic, due_ms())

    def _again(self, rows: pa.RecordBatch, topic: str, due_ms: int) -> pa.RecordBatch:
        count = rows.num_rows
        ids = self._ids(times(rows, "due"), times(rows, "offset"))
        added = headers_of({REDELIVERED_ID_HEADER: pa.array(ids).cast(pa.binary())})
        before = without_header(as_before(rows.column("headers")), REDELIVERED_ID_HEADER)
        changed = {
            "due": from_numpy(np.full(count, due_ms, np.int64), TIME),
            "topic": pa.repeat(pa.scalar(topic, pa.utf8()), count),
            "headers": with_headers(before, added),
        }
        columns = [changed.get(name, rows.column(name)) for name in INPUT.names]
        return pa.RecordBatch.from_arrays(columns, schema=INPUT)

    def _ids(self, due: Int64s, offset: Int64s) -> list[str]:
        if self._terms.mint is not None:
            return self._terms.mint.many(due, offset)
        return [*map(self._terms.id_of, due.tolist(), offset.tolist())]

    # The merge

    def _messages(self, tally: RedeliveryCounts, progress: OnSearched) -> Iterator[pa.RecordBatch]:
        """Each message once (schema ``ROW``), in the order of the offsets."""
        journals = {peer: FileSummary(peer) for peer in self._files}
        streams = {peer: self._of_peer(seen, tally, progress) for peer, seen in journals.items()}
        reached = dict.fromkeys(streams, -1)
        held: list[_Picked] = []
        done = -1
        while streams:
            peer = min(streams, key=lambda number: reached[number])
            step = next(streams[peer], None)
            if step is None:
                del streams[peer]
            else:
                picked, upto = step
                reached[peer] = max(reached[peer], upto)
                held += picked
            horizon = min((reached[number] for number in streams), default=_EVERYTHING)
            if horizon <= done:
                continue
            ready = [batch.part(times(batch.rows, "offset") <= horizon) for batch in held]
            held = [batch.part(times(batch.rows, "offset") > horizon) for batch in held]
            held = [batch for batch in held if len(batch.doubt)]
            if ready:
                yield from self._union(ready, done, tally)
            done = horizon
        tally.missing = _missing(journals.values())

    def _union(
        self, parts: list[_Picked], done: int, tally: RedeliveryCounts
    ) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_batches([part.rows for part in parts])
        doubt = np.concatenate([part.doubt for part in parts])
        offset = times(rows, "offset")
        # Of rows with the same offset, one that is proven comes first.
        order = np.lexsort((doubt, offset))
        first = np.ones(len(order), np.bool_)
        first[1:] = np.diff(offset[order]) != 0
        chosen = order[first & (offset[order] > done)]
        sure = chosen[~doubt[chosen]]
        tally.in_doubt += len(chosen) - len(sure)
        cancelled = self._cancelled.has(offset[sure])
        tally.cancelled += int(cancelled.sum())
        wanted = sure[~cancelled]
        if len(wanted):
            yield take_rows(rows, wanted)

    def _of_peer(
        self, seen: FileSummary, tally: RedeliveryCounts, progress: OnSearched
    ) -> Iterator[tuple[list[_Picked], int]]:
        """The rows of one peer's journal, and up to which offset it was read. ``seen``: of the
        journal as a whole; its offsets are filled in."""
        peer = seen.number
        for file in self._files[peer]:
            for event in read(file):
                if isinstance(event, RowsSeen):
                    rows, offset = event.rows, times(event.rows, "offset")
                    seen.add_offsets(offset)
                    yield self._pick(peer, rows, tally), int(offset.max())
                elif isinstance(event, MarkSeen):
                    self._proven[peer] = max(self._proven[peer], event.marks.main.L + 1)
                elif isinstance(event, Problem):
                    tally.problem(f"{event.file}: {event.text}")
                elif isinstance(event, Ended) and event.note.startswith("gone meanwhile"):
                    tally.problem(f"{file.name}: gone while it was about to be read")
            progress(file.nbytes)

    def _pick(self, peer: int, rows: pa.RecordBatch, tally: RedeliveryCounts) -> list[_Picked]:
        wanted, due, offset = self.selection, times(rows, "due"), times(rows, "offset")
        mask: Mask = (due >= wanted.start_ms) & (due < wanted.end_ms)
        if not mask.any():
            return []
        sure = offset < self._proven[peer]
        cancels = rows.column("cancels")
        if cancels.null_count < len(cancels):
            # A cancel row has the due time of its message.
            cancel = np.asarray(cancels.is_valid())
            targets = np.asarray(pc.fill_null(cancels, -1), dtype=np.int64)
            self._cancelled.add(targets[cancel & mask & sure])
            mask &= ~cancel
        topics = rows.column("topic")
        if len(tally.topics) < TOPICS_SHOWN:
            tally.topics.update(topics.filter(pa.array(mask)).unique().to_pylist())
        mask &= np.asarray(pc.equal(topics, wanted.topic))
        if not mask.any():
            return []
        return [_Picked(rows.filter(pa.array(mask)), ~sure[mask])]


def _missing(journals: Iterable[FileSummary]) -> int:
    """The number of offsets between the first and the last one that no journal has."""
    missing, reached = 0, -1
    for base, end in sorted(chain.from_iterable(journal.offsets for journal in journals)):
        missing += max(0, base - reached) if reached >= 0 else 0
        reached = max(reached, end)
    return missing


@dataclass(frozen=True, slots=True)
class _Picked:
    """Rows of a batch. ``doubt``: which of them may not have been committed, shape (rows,)."""

    rows: pa.RecordBatch
    doubt: Mask

    def part(self, mask: Mask) -> _Picked:
        if mask.all():
            return self
        return _Picked(self.rows.filter(pa.array(mask)), self.doubt[mask])


def as_before(headers: pa.Array) -> pa.Array:
    """A headers column whose reserved names get the prefix of an earlier delivery. What is sent
    again does not expire."""
    flat = headers.flatten()
    names = flat.field(0)
    ours = pc.and_not(
        pc.starts_with(names, RESERVED_PREFIX), pc.starts_with(names, REDELIVERED_PREFIX)
    )
    if not ours.true_count:
        return headers
    renamed = pc.replace_substring(names, RESERVED_PREFIX, REDELIVERED_PREFIX, max_replacements=1)
    counts = np.asarray(pc.list_value_length(headers), np.int64)
    return header_lists(counts, pc.if_else(ours, renamed, names), flat.field(1))

"""Wide slot files, read in strips: the rows of the next seconds, sorted, a few megabytes at a time.

Theory: delivery reads second by second. A second of a file of a day has rows in up to thousands of
blocks: to look through all of them each second would take a tenth of a core, and to hold the file
in memory would take what nobody has bounded. So the rows due in the next while are copied out of
the file together, in one pass over the blocks that have some, and sorted. A *strip* is what came of
that: all rows of its file due in some seconds, at most ``strip_bytes``, as of one committed length
of the file. Each further second is a slice of it.

    blocks of the file, by spill        strips, by due time
    +--------------------------+        +------+------+-----
    | 08:00  ..  rows  ..  20:00|   ->   | 08:00| 08:07|
    | 08:00  ..  rows  ..  20:00|        | 08:06| 08:15|
    +--------------------------+        +------+------+-----

Rules
- A strip is never changed. When its file has grown, a second's rows are those of the strip and of
  the blocks behind the length that it belongs to. Rows that were committed meanwhile would else
  stay in the file, behind a mark that has passed them. Which blocks these are is told by their
  offsets, as everywhere: positions change when a repair makes the file anew.
- There are some strips in memory, the longest unused go first: the current and the next one of each
  width are four.
- A second that is larger than a strip is not copied: its rows are read as slices of mapped blocks,
  which stay mapped until a minute behind it.
- Questions about single rows take the few blocks that the index names, and keep nothing: they must
  not push out what delivery needs in a moment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..config import TICK_MS
from ..rows import due_in, sort_rows, take_rows
from ..schema import Mask, times
from ..state import SlotInfo
from .blockindex import MAP_FROM_BYTES, BlockIndex, index_of, joined
from .opened import Kept, SlotTurns
from .slot import first_second, overlap, seconds_of
from .slotfile import SlotFiles

STRIP_BYTES = 16 << 20
_STRIPS = 4
"""The memory of so many full strips is used: of two widths the current and the next one."""
_STRIPS_MAX = 64
"""Strips of few rows, or none, that are kept."""
_INDEX_BYTES_MAX = 16 << 20
"""Of all indexes but those of files that have a strip."""
_MAP_SLICES_FROM_BYTES = 16 << 10
"""Of a large second, blocks from this size on are mapped; to map a smaller one costs more memory
than it has bytes."""
_MAPPED_S = 60
"""A large second stays mapped for so long behind the second that is delivered: pages that were read
of it count as the node's memory."""
_BEHIND_MAX = 64
"""Blocks that came behind a strip before it is made anew."""


@dataclass(frozen=True, slots=True)
class _Strip:
    """All rows due in these seconds, as batches in the order of a block."""

    slot: int
    info: SlotInfo
    seconds: range
    batches: tuple[pa.RecordBatch, ...]
    nbytes: int
    """In memory, so without rows of mapped blocks."""
    large: bool
    """True for one second that is larger than a strip, with slices of mapped blocks."""


class WideSlots:
    """The slot files of an hour or a day of one storage. Thread-safe."""

    def __init__(self, files: SlotFiles, strip_bytes: int = STRIP_BYTES) -> None:
        self._files = files
        self._strip_bytes = strip_bytes
        self._indexes = Kept(self._read_index, self._close_oldest)
        self._strips: OrderedDict[tuple[int, int], _Strip] = OrderedDict()
        """By slot and first second, the longest unused first. No two of a slot overlap."""
        self._lock = threading.Lock()  # guards the strips, and is never held while reading
        self._forgotten = 0
        self._turns = SlotTurns()

    def rows(
        self, slot: int, info: SlotInfo, second: int, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The rows of a second in a file up to ``info``, or only those behind ``known``, as batches
        in ``(due, offset)`` order each.

        Errors: ``Damaged``, ``UnsupportedVersion``, ``FileNotFoundError``.
        """
        strip = self._strip_with(slot, second)
        behind: Iterator[pa.RecordBatch] = iter(())
        if strip is None and known is None:
            strip = self._made(slot, info, second)
        upto = known if strip is None else strip.info
        if upto is not None and upto.highest < info.highest:
            index = self._indexes.upto(slot, info)
            new = index.within(upto.highest + 1, info.highest) & index.with_rows_of(second)
            if strip is not None and np.count_nonzero(new) > _BEHIND_MAX:
                strip = self._made(slot, info, second)
            else:
                behind = self._blocks(slot, index, new)
        above = -1 if known is None else known.highest
        batches = [*(() if strip is None else strip.batches), *behind]
        seconds = (due_in(batch, range(second, second + 1)) for batch in batches)
        parts = (_with_offsets(batch, above, info.highest) for batch in seconds)
        return [batch for batch in parts if batch.num_rows]

    def next_second(self, slot: int, info: SlotInfo, second: int) -> int | None:
        """The first second from ``second`` on that has rows in the file, None if none has; without
        an index, the first one that can have some. Reads nothing, and closes large seconds that are
        over for a while."""
        with self._lock:
            for key, strip in list(self._strips.items()):
                if strip.large and strip.slot == slot and strip.seconds[-1] + _MAPPED_S < second:
                    del self._strips[key]
        index = self._indexes.get(slot, info)
        if index is None:
            return max(second, first_second(slot))
        return index.nbytes.next_second(second)

    def read_ahead(self, slot: int, info: SlotInfo, first: int, last: int) -> bool:
        """Make the index of a file, or a strip of it, that is needed for the seconds from ``first``
        to ``last``; True if there was something to make. Errors: as of ``rows``."""
        index = self._indexes.get(slot, info)
        if index is None:
            self._indexes.upto(slot, info)
            return True
        second = index.nbytes.next_second(first)
        for _ in range(2):  # the current strip and the next one: more would push these out
            if second is None or second > last:
                break
            strip = self._strip_with(slot, second)
            if strip is None:
                self._made(slot, info, second)
                return True
            second = index.nbytes.next_second(strip.seconds.stop)
        return False

    def select(
        self, slot: int, info: SlotInfo, wanted: Callable[[BlockIndex], Mask]
    ) -> Iterator[pa.RecordBatch]:
        """The blocks of a file up to ``info`` that are ``wanted`` by the index, each sorted.
        Errors: as of ``rows``."""
        index = self.index(slot, info)
        return self._blocks(slot, index, wanted(index) & index.had_by(info))

    def index(self, slot: int, info: SlotInfo) -> BlockIndex:
        """The index of a file, up to ``info`` or beyond. Errors: as of ``rows``."""
        return self._indexes.upto(slot, info)

    def forget(self, slot: int) -> None:
        """Drop what was read of a file that is deleted, replaced or damaged."""
        self._indexes.forget(slot)
        with self._lock:
            self._forgotten += 1
            for key in [key for key in self._strips if key[0] == slot]:
                del self._strips[key]

    def _read_index(self, slot: int, info: SlotInfo, before: BlockIndex | None) -> BlockIndex:
        return index_of(self._files, slot, info, before)

    def _close_oldest(self, opened: OrderedDict[int, BlockIndex]) -> None:
        with self._lock:
            in_use = {slot for slot, _ in self._strips}
        others = [slot for slot in opened if slot not in in_use]
        nbytes = sum(opened[slot].weight for slot in others)
        for slot in others[:-1]:
            if nbytes > _INDEX_BYTES_MAX:
                nbytes -= opened[slot].weight
                self._indexes.drop(slot)

    def _blocks(self, slot: int, index: BlockIndex, wanted: Mask) -> Iterator[pa.RecordBatch]:
        starts, stops = index.starts[wanted], index.stops[wanted]
        for blocks in self._files.read_at(slot, starts, stops, MAP_FROM_BYTES):
            yield from blocks

    def _strip_with(self, slot: int, second: int) -> _Strip | None:
        with self._lock:
            for key, strip in self._strips.items():
                if strip.slot == slot and second in strip.seconds:
                    self._strips.move_to_end(key)
                    return strip
        return None

    def _made(self, slot: int, info: SlotInfo, second: int) -> _Strip:
        """The strip that begins at ``second``, or one that has it, as of ``info`` at least."""
        with self._turns.of(slot):
            strip = self._strip_with(slot, second)
            if strip is not None and strip.info.length >= info.length:
                return strip
            with self._lock:
                forgotten = self._forgotten
            index = self._indexes.upto(slot, info)
            with self._lock:
                known = [strip for strip in self._strips.values() if strip.slot == slot]
            firsts = [s.seconds.start for s in known if s.info == index.info]
            stop = min((at for at in firsts if at > second), default=seconds_of(slot).stop)
            strip = self._strip(slot, index, range(second, stop))
            with self._lock:
                if forgotten == self._forgotten:  # else it may be another file by now
                    self._keep(strip)
        return strip

    def _keep(self, strip: _Strip) -> None:
        """Under the lock: keep a strip in the place of those of an earlier length."""
        for key, other in list(self._strips.items()):
            if other.slot == strip.slot and overlap(other.seconds, strip.seconds):
                del self._strips[key]
        self._strips[strip.slot, strip.seconds.start] = strip
        nbytes = sum(strip.nbytes for strip in self._strips.values())
        while len(self._strips) > 1 and (
            nbytes > _STRIPS * self._strip_bytes or len(self._strips) > _STRIPS_MAX
        ):
            _, oldest = self._strips.popitem(last=False)
            nbytes -= oldest.nbytes

    def _strip(self, slot: int, index: BlockIndex, within: range) -> _Strip:
        """The strip that takes as many seconds as it may, from the first of ``within`` on."""
        seconds = index.nbytes.strip(within, self._strip_bytes)
        large = index.nbytes.within(seconds).total > self._strip_bytes
        low_ms, high_ms = seconds.start * TICK_MS, seconds.stop * TICK_MS
        wanted = index.due_in(seconds)
        starts, stops = index.starts[wanted], index.stops[wanted]
        map_from = min(_MAP_SLICES_FROM_BYTES if large else MAP_FROM_BYTES, self._strip_bytes)
        batches: list[pa.RecordBatch] = []
        nbytes = 0
        for blocks in self._files.read_at(slot, starts, stops, map_from):
            rows = joined(blocks)
            if len(blocks) == 1:
                rows = due_in(rows, seconds)
            else:
                due = times(rows, "due")
                rows = take_rows(rows, np.flatnonzero((due >= low_ms) & (due < high_ms)))
                rows = sort_rows(rows) if large else rows  # those of a strip are sorted together
            if rows.num_rows:
                batches.append(rows)
                mapped = len(blocks) == 1 and blocks[0].nbytes >= map_from
                nbytes += 0 if mapped else rows.nbytes
        if not large and batches:
            rows = pa.concat_batches(batches)
            batches.clear()  # a strip's rows are in memory twice here, and not three times
            batches.append(sort_rows(rows))
            nbytes = batches[0].nbytes
        return _Strip(slot, index.info, seconds, tuple(batches), nbytes, large)


def _with_offsets(rows: pa.RecordBatch, above: int, upto: int) -> pa.RecordBatch:
    """The rows with offsets ``above < offset <= upto``; all of them are not copied."""
    offset = times(rows, "offset")
    wanted = (offset > above) & (offset <= upto)
    return rows if wanted.all() else take_rows(rows, np.flatnonzero(wanted))

"""Reading rows for delivery: one second in due order, and late rows in offset order.

Theory: a reader takes a *read point* under the owner's lock - the files that have rows of a second,
at most one of each width, the spilled-up-to offset ``S``, and the immutable tail. Rows below ``S``
come from the files, the rest from the tail. If ``S`` has moved when it looks again, what is new in
the files is read as well. A row is read only up to a given offset (``upto``), because the mark may
only pass rows whose offset is at most its ``L``.

See docs/design.md, "The mark", for its two axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import pyarrow as pa

from ..config import TICK_MS
from ..ids import IdMint
from ..mark import Mark, RowKey
from ..rows import no_rows, take_rows
from ..schema import Int64s, distinct, times
from ..slots.storage import ReadPoint, Storage, cancelled_in
from ..state import SlotInfo
from ..tail.tail import Piece
from .runs import (
    ALL,
    OFFSET_END,
    Share,
    Skipped,
    SortedRows,
    Window,
    choose,
    gather,
    large_topics,
    position_after,
    source_of_block,
    source_of_piece,
)

_RENEW_BYTES = 4 << 20
"""A window of at most so many bytes is renewed. A larger one would take more than 10 ms of two
cores, and its chunks are large: to merge them costs less a row."""
_NO_LIMIT = 1 << 62
_LATE_SPAN = 1_000_000
"""Offsets looked at in one go when late rows have to be found in slot files."""


def _restrict(source: SortedRows, first: int, last: int) -> SortedRows | None:
    mask = (source.offset >= first) & (source.offset <= last)
    if mask.all():
        return source
    kept = np.flatnonzero(mask)
    if not len(kept):
        return None
    indices = kept if source.indices is None else source.indices[kept]
    share = source.nbytes * len(kept) // len(source.due)
    return SortedRows(source.due[kept], source.offset[kept], source.rows, indices, share)


class SlotCursor:
    """One slot being delivered: a window of prepared rows, and how to get the next ones.

    Owned by one thread at a time; others may ask it for ``next_due``, and one other may
    ``read_ahead``. ``seen``: rows of this slot up to this offset are accounted for.

    ``only``: the topic whose rows it reads; else those of all topics but of those that have lines
    of their own. ``large_bytes``: a topic with so many in a slot that needs more than one window
    should have a line of its own (``large``).
    """

    def __init__(
        self,
        storage: Storage,
        second: int,
        window_bytes: int,
        mint: IdMint,
        *,
        only: str | None = None,
        large_bytes: int | None = None,
    ) -> None:
        self.second = second
        self.start = second * TICK_MS
        self.cancelled: set[int] = set()
        self.large: Sequence[str] = ()
        """Topics that are too large to be read with the others, the largest first."""
        self.seen = -1
        self._storage = storage
        self._window_bytes = window_bytes
        self._mint = mint
        self._only = only
        self._large_bytes = large_bytes
        self._known: Mapping[int, SlotInfo] | None = None
        """The files up to which its rows were read."""
        self._window = Window(None, (self.start - 1, OFFSET_END))
        self._ahead: tuple[RowKey, SlotCursor] | None = None
        """A key, and the window of this slot that begins behind it."""

    @property
    def _last_key(self) -> RowKey:
        return self.start + TICK_MS - 1, OFFSET_END

    def load(
        self,
        after: RowKey,
        upto: int,
        without: Set[str] = frozenset(),
        *,
        find_large: bool = False,
    ) -> None:
        """Prepare the next window: rows with keys above ``after`` and ``offset <= upto``.

        ``without``: topics that have lines of their own. ``find_large``: look for those that need
        one, and leave them out, too.
        """
        point = self._storage.read_point(self.second)
        sources: list[SortedRows] = []
        for block in self._storage.read_second(self.second, point.files):
            self.cancelled.update(cancelled_in(block))
            sources.append(source_of_block(block))
        sources += self._from_tail(point, 0)
        if (point.pieces and point.pieces[-1].next_offset > upto + 1) or point.spilled > upto + 1:
            sources = [s for s in (_restrict(s, 0, upto) for s in sources) if s is not None]
        self._window = self._choose(sources, after, without, find_large=find_large)
        self.seen = upto
        # The file may hold rows beyond ``upto`` that were left out: then it has to be read again.
        self._known = point.files if point.spilled <= upto + 1 else None

    def _choose(
        self, sources: Sequence[SortedRows], after: RowKey, without: Set[str], *, find_large: bool
    ) -> Window:
        starts = [position_after(s.due, s.offset, after) for s in sources]
        if self._only is None:
            rest = [
                (s.nbytes, len(s.due) - at, len(s.due))
                for s, at in zip(sources, starts, strict=True)
            ]
            if sum(nbytes * rows // max(1, of) for nbytes, rows, of in rest) <= self._window_bytes:
                parts = [s.slice(at, len(s.due)) for s, at in zip(sources, starts, strict=True)]
                return Window(gather(parts, self._mint), self._last_key)
            if find_large and self._large_bytes is not None:
                self.large = large_topics(sources, starts, self._large_bytes)
                without = {*without, *self.large}
        share = Share(self._only, frozenset() if self._only else frozenset(without))
        choice = choose(sources, starts, self._window_bytes, share)
        run = gather([s.take(at) for s, at in zip(sources, choice.at, strict=True)], self._mint)
        return Window(run, choice.end or self._last_key, share, choice.skipped)

    def read_ahead(self, without: Set[str] = frozenset()) -> bool:
        """Prepare the window behind this one, on another thread; True if it did. ``without``: as
        for ``load``."""
        seen, end, ahead = self.seen, self._window.end, self._ahead
        if ahead is not None and ahead[0] == end:
            return False
        self._ahead = None  # it was needed before it was ready
        if seen < 0 or end >= self._last_key:
            return False
        cursor = SlotCursor(
            self._storage, self.second, self._window_bytes, self._mint, only=self._only
        )
        cursor.load(end, seen, without)
        self._ahead = end, cursor
        return True

    def _next_window(self, after: RowKey, without: Set[str]) -> None:
        """Go on above ``after``, the end of the window or a key beyond it."""
        ahead, self._ahead, upto = self._ahead, None, self.seen
        if ahead is None or ahead[0] != self._window.end:
            self.load(after, upto, without)
            return
        _, cursor = ahead
        self.cancelled |= cursor.cancelled
        self._window, self._known, self.seen = cursor._window, cursor._known, cursor.seen
        self.refresh(after, upto)  # with what was committed since it was prepared

    def refresh(self, after: RowKey, upto: int) -> None:
        """Add what was committed to this slot since, up to offset ``upto``."""
        if upto <= self.seen:
            return
        point = self._storage.read_point(self.second)
        first = self.seen + 1
        sources: list[SortedRows] = []
        if point.spilled > first and point.files != self._known:
            for block in self._storage.read_second(self.second, point.files, self._known):
                self.cancelled.update(cancelled_in(block))
                sources.append(source_of_block(block))
            if point.spilled <= upto + 1:
                self._known = point.files
        sources += self._from_tail(point, first)
        sources = [s for s in (_restrict(s, first, upto) for s in sources) if s is not None]
        incoming = sum(source.nbytes for source in sources)
        if sources and self._window.nbytes + incoming > 2 * self._window_bytes:
            # What joins a window must not outgrow it: choose a new end.
            self.load(after, upto, self._window.share.without, find_large=True)
            return
        self._join(sources, after)
        self.seen = upto

    def _join(self, sources: Sequence[SortedRows], after: RowKey) -> None:
        """Add those rows of ``sources`` whose keys lie in the window."""
        window = self._window
        starts = [position_after(s.due, s.offset, after) for s in sources]
        stops = [
            max(start, position_after(s.due, s.offset, window.end))
            for s, start in zip(sources, starts, strict=True)
        ]
        spans = list(zip(sources, starts, stops, strict=True))
        if window.share == ALL:
            parts = [source.slice(start, stop) for source, start, stop in spans]
            window.join(gather(parts, self._mint), after)
            return
        sources = [source.head(stop) for source, _, stop in spans]
        choice = choose(sources, starts, _NO_LIMIT, window.share, look_rows=_NO_LIMIT)
        parts = [s.take(at) for s, at in zip(sources, choice.at, strict=True)]
        window.join(gather(parts, self._mint), after, choice.skipped)

    def topics(self) -> set[str]:
        """The topics of the messages in the window."""
        runs = self._window.runs
        every = {topic for run in runs for topic in distinct(run.rows.column("topic"))}
        return every - {""}  # that of cancel rows

    def topics_ahead(self) -> set[str]:
        """The topics of the messages in the window that was read ahead."""
        ahead = self._ahead
        return set() if ahead is None else ahead[1].topics()

    @property
    def is_small(self) -> bool:
        """True if ``renew`` is soon done."""
        return self._window.nbytes <= _RENEW_BYTES

    def renew(self, after: RowKey, upto: int) -> None:
        """Add what was committed since, and make one run of all."""
        self.refresh(after, upto)
        self._window.merge(after)

    def _from_tail(self, point: ReadPoint, first: int) -> list[SortedRows]:
        low, high = self.start, self.start + TICK_MS
        first = max(first, point.spilled)
        sources: list[SortedRows] = []
        for piece in reversed(point.pieces):  # the newest are last: stop where nothing is new
            if piece.next_offset <= first:
                break
            source = source_of_piece(piece, low, high, first)
            if source is not None:
                sources.append(source)
                if piece.cancels:  # the register may have forgotten them
                    self.cancelled.update(source.cancelled())
        return sources[::-1]  # in offset order, behind those of the file

    def peek(
        self,
        after: RowKey,
        until: RowKey,
        rows_max: int,
        bytes_max: int,
        held: Set[str] = frozenset(),
    ) -> pa.RecordBatch:
        """Rows with keys in ``(after, until]`` in key order; empty if there are none yet, or if
        those that it ``skipped`` come first. ``held``: the topics that have lines of their own."""
        while True:
            if not self._window.share.without <= held:  # one of them has caught up, or got no line
                self._ahead = None
                self.load(after, self.seen, held)
            rows = self._window.peek(after, until, rows_max, bytes_max)
            if rows.num_rows or self._window.end >= min(until, self._last_key):
                return rows
            if self._window.skipped(after, until):
                return rows
            self._next_window(max(after, self._window.end), held)

    def skipped(self, after: RowKey, until: RowKey) -> list[Skipped]:
        """The rows of the window in ``(after, until]`` that are left to other lines."""
        return self._window.skipped(after, until)

    def has_to_read(self, after: RowKey, until: RowKey) -> bool:
        """True if rows have to be read before the next one in ``(after, until]`` is known."""
        window, ahead = self._window, self._ahead
        if window.end >= min(until, self._last_key) or window.next_due(after) is not None:
            return False
        return ahead is None or ahead[0] != window.end

    def next_due(self, after: RowKey) -> int | None:
        """The next row's due time; the window's end if more must be loaded; None at the slot's."""
        window = self._window
        due = window.next_due(after)
        return window.end[0] if due is None and window.end < self._last_key else due


def late_rows(
    storage: Storage, mark: Mark, upto: int, rows_max: int, bytes_max: int
) -> tuple[pa.RecordBatch, set[int], int]:
    """Rows with ``mark.L < offset <= upto`` that ``(c, r)`` has passed already, in offset order.

    Returns the rows (ROW schema, at most about the given limits), offsets cancelled in the files
    that were read, and the offset up to which the search got: the mark's new ``L``.
    """
    first = mark.L + 1
    if first > upto:
        return no_rows(), set(), mark.L
    last_second = mark.c // TICK_MS
    point = storage.read_point(last_second)
    if first < point.spilled:
        span_end = min(upto, point.spilled - 1, first + _LATE_SPAN - 1)
        slots = storage.late_slots(last_second, first)
        if not slots:
            return no_rows(), set(), min(upto, point.spilled - 1)
        rows, cancelled, reached = _late_in_files(
            storage, slots, mark, first, span_end, rows_max, bytes_max
        )
        return _cut(rows, cancelled, reached, rows_max, bytes_max)
    parts: list[pa.RecordBatch] = []
    taken = 0
    for piece in point.pieces:
        if piece.next_offset <= first or piece.base_offset > upto:
            continue
        indices = _late_in_piece(piece, mark, first, upto)
        if len(indices):
            parts.append(piece.take(indices[: rows_max - taken]))
            taken += parts[-1].num_rows
            if taken >= rows_max:
                break
    rows = pa.concat_batches(parts) if parts else no_rows()
    return _cut(rows, set(), upto, rows_max, bytes_max)


def _late_in_piece(piece: Piece, mark: Mark, first: int, upto: int) -> Int64s:
    start = max(0, first - piece.base_offset)
    stop = min(piece.count, upto + 1 - piece.base_offset)
    due = piece.due[start:stop]
    if piece.earliest > mark.c or not len(due):
        return np.empty(0, np.int64)
    offset = np.arange(piece.base_offset + start, piece.base_offset + stop, dtype=np.int64)
    return np.flatnonzero(mark.behind(due, offset)) + start


def _late_in_files(
    storage: Storage,
    slots: Sequence[int],
    mark: Mark,
    first: int,
    last: int,
    rows_max: int,
    bytes_max: int,
) -> tuple[pa.RecordBatch, set[int], int]:
    """The first late rows from ``first`` on, cancelled offsets, and how far the search got."""
    late: list[tuple[pa.RecordBatch, Int64s, Int64s]] = []
    cancelled: set[int] = set()
    for slot in slots:
        for block in storage.late_blocks(slot, first, last, mark.c):
            cancelled.update(cancelled_in(block))
            offset = times(block, "offset")
            mask = (offset >= first) & (offset <= last) & mark.behind(times(block, "due"), offset)
            indices = np.flatnonzero(mask)
            if len(indices):
                late.append((block, indices, offset[indices]))
    if not late:
        return no_rows(), cancelled, last
    # Only a chunk's share is taken, however many there are: the first of them by offset.
    offsets = np.concatenate([offset for _, _, offset in late])
    nbytes = sum(block.nbytes * len(at) // block.num_rows for block, at, _ in late)
    count = min(rows_max, max(1, len(offsets) * 2 * bytes_max // max(1, nbytes)))
    if count < len(offsets):
        last = int(np.partition(offsets, count - 1)[count - 1])
    parts = [
        take_rows(block, at[offset <= last])
        for block, at, offset in late
        if int(offset.min()) <= last
    ]
    rows = pa.concat_batches(parts)
    return take_rows(rows, np.argsort(times(rows, "offset"))), cancelled, last


def _cut(
    rows: pa.RecordBatch, cancelled: set[int], reached: int, rows_max: int, bytes_max: int
) -> tuple[pa.RecordBatch, set[int], int]:
    """Cut late rows to a chunk; a cut chunk reaches only up to its own last row."""
    count = min(rows.num_rows, rows_max)
    while count > 1 and rows.slice(0, count).nbytes > bytes_max:
        count //= 2
    if count < rows.num_rows or count == rows_max:
        rows = rows.slice(0, count)
        reached = int(times(rows, "offset")[-1])
    return rows, cancelled, reached

"""Finds pending messages: counts, and pages in due order.

Theory: slot files are sorted by due time, which most questions ask for; so a page begins at the
slot of its token and reads slot after slot until it is full. There is no other index. The whole
file of a slot is read and its checksum compared, as the node does it: 0.2 ms for 1,400 rows, most
of which is spent once per block; a second thread would not make it faster, as the blocks are small
and Python is in between.

Rules
- Rows that were acknowledged before the call are seen; the answer has the offset up to which.
- A row is pending if the newest mark that was read does not cover it and no cancel names it. Such a
  row may have left since, if it was due (``AnswerPoint``).
- A slot file that cannot be read is looked at again by a new view: the node may have deleted it, as
  all its rows have left. Damage is a problem, and the answer is not complete.
- The work for a page is bounded: by ``rows_max`` rows, though a slot that was begun is read whole,
  and by ``_BYTES_MAX`` of content. The token is where the next page goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from ...wheel.cancelrecord import CancelRecord
from ...wheel.config import TICK_MS
from ...wheel.errors import Damaged, UnknownId, UnsupportedVersion
from ...wheel.ids import MessageId
from ...wheel.mark import RowKey
from ...wheel.rows import from_numpy, members, take_rows
from ...wheel.schema import ROW, Int64s, Mask, sizes, times
from ...wheel.slots.slot import begins_ms, ends_ms, path_of
from ..departures import DepartureReader
from ..files import due_within
from ..problems import INTEGRITY, Problem
from ..recordedblocks import committed_blocks, read_ahead
from ..visible import MayTopic
from .query import LIMIT, ContentMatcher, Query
from .view import AnswerPoint, View, key_columns
from .watch import DirectoryWatch

ROWS_MAX = 20_000_000
"""The default limit of rows that are looked through for a page."""
_BYTES_MAX = 32 << 20
_AHEAD = 4
"""The number of slot files that the kernel reads ahead. It is small, as a sync of the node waits
for earlier reads: a megabyte is a few milliseconds."""
_BEFORE_AHEAD = 4
"""Reading ahead begins after so many slots, when many more are likely to follow."""
_LOOKS = 4
_KEYS = pa.schema([ROW.field("offset"), ROW.field("due")])
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PendingCount:
    """The number of pending messages that fulfil a query."""

    total: int
    point: AnswerPoint
    by_second: dict[int, int] = field(default_factory=dict)
    """The numbers by due second, ascending; empty unless it was asked for."""
    by_topic: dict[str, int] = field(default_factory=dict)
    """The numbers by topic; empty unless it was asked for."""
    looked_through: int = 0
    """The number of rows that were read for it; slots counted by the catalog are not read."""
    problems: tuple[Problem, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class PendingPage:
    """Pending messages in the order of due time and offset."""

    rows: pa.RecordBatch
    """The rows, schema ``ROW``; or only offset and due time, without ``content``."""
    ids: list[str]
    """The id of each row."""
    next: RowKey | None
    """The due time and offset behind which the next page begins; None: this is the last one."""
    point: AnswerPoint
    looked_through: int
    """The number of rows that were read for it."""
    problems: tuple[Problem, ...] = ()

    @property
    def complete(self) -> bool:
        """True when the page has every match up to ``next``."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Slot:
    """The matches of one slot."""

    second: int
    batches: list[pa.RecordBatch]
    """All rows of the slot."""
    keys: pa.RecordBatch
    """The keys of all rows (``key_columns``)."""
    at: Int64s
    """The numbers of the matching rows, shape (matches,)."""
    due: Int64s
    offset: Int64s
    """Like ``due``, of the matches, shape (matches,)."""
    looked: int

    def in_order(self) -> _Slot:
        if len(self.at) < 2:
            return self
        order = np.lexsort((self.offset, self.due))
        return replace(self, at=self.at[order], due=self.due[order], offset=self.offset[order])

    def take(self, schema: pa.Schema, stop: int) -> pa.RecordBatch:
        """The first ``stop`` matches, at least one, with the columns of ``schema``."""
        if schema is not ROW:
            return take_rows(self.keys.select(schema.names), self.at[:stop])
        number, within = self._places(stop)
        parts, order = [], []
        for batch in np.unique(number).tolist():
            places = np.flatnonzero(number == batch)
            parts.append(take_rows(self.batches[batch], within[places]))
            order.append(places)
        return take_rows(pa.concat_batches(parts), np.argsort(np.concatenate(order)))

    def sizes(self, stop: int) -> Int64s:
        """The bytes of content of the first ``stop`` matches, shape (stop,)."""
        number, within = self._places(stop)
        nbytes = np.zeros(len(number), np.int64)
        for batch in np.unique(number).tolist():
            places = number == batch
            nbytes[places] = sizes(self.batches[batch])[within[places]]
        return nbytes

    def _places(self, stop: int) -> tuple[Int64s, Int64s]:
        """The batch of each of the first ``stop`` matches, and its row in that."""
        starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        number = np.searchsorted(starts, self.at[:stop], side="right") - 1
        return number, self.at[:stop] - starts[number]

    def topics(self) -> dict[str, int]:
        column = self.keys.column("topic")
        if len(self.at) < self.looked:
            column = column.take(from_numpy(self.at, pa.int64()))
        return {pair["values"]: pair["counts"] for pair in column.value_counts().to_pylist()}


class PendingReader:
    """Answers questions about one data directory. Not thread-safe. A process may have one for each
    directory, and none for that of a node that it runs: LMDB opens a store once a process."""

    def __init__(self, root: Path | str) -> None:
        """Errors: ``InvalidConfiguration``: it is no data directory."""
        self._watch = DirectoryWatch(root)
        self.root = self._watch.root
        self.departures = DepartureReader(self.root)
        """The reader of departures, which is kept, as it remembers places in their files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._watch.close()

    def view(self) -> View:
        """A view of the directory now. Errors: ``Damaged``, ``UnsupportedVersion``, ``OSError``:
        the state store cannot be read."""
        return self._watch.view()

    def cancelled(self, second: int) -> CancelRecord:
        """The record of cancels of a second, whose slot file has lost its rows. Call it after
        ``view``. It is incomplete where the cancels are not known any more, or cannot be read."""
        try:
            return self._watch.cancelled(second)
        except (Damaged, OSError):
            return CancelRecord(incomplete=True)

    def count(
        self,
        query: Query | None = None,
        *,
        by_second: bool = False,
        by_topic: bool = False,
        may: MayTopic | None = None,
    ) -> PendingCount:
        """Count the pending messages that fulfil a query, of the topics that ``may`` be seen; None:
        of all. If it only asks for due times, slots that no mark has reached are counted by the
        catalog, without reading them.

        Errors: as of ``view``.
        """
        query = query or Query()
        view = self.view()
        by_catalog: dict[int, int] = {}
        if not (query.columns or query.ids or by_topic or may):
            by_catalog = _by_catalog(view, query)
        scan = _Scan(self, view, query, may=may)
        counts, topics, looked = dict(by_catalog), Counter[str](), 0
        for slot in scan.slots(skipped=by_catalog.keys()):
            looked += slot.looked
            if len(slot.at):
                counts[slot.second] = len(slot.at)
                if by_topic:
                    topics.update(slot.topics())
        counts_by_second = dict(sorted(counts.items())) if by_second else {}
        return PendingCount(
            sum(counts.values()),
            view.point,
            counts_by_second,
            dict(sorted(topics.items())),
            looked,
            tuple(scan.problems),
        )

    def page(
        self,
        query: Query | None = None,
        after: RowKey | None = None,
        *,
        limit: int = LIMIT,
        rows_max: int = ROWS_MAX,
        content: bool = True,
        may: MayTopic | None = None,
    ) -> PendingPage:
        """The first ``limit`` pending messages that fulfil a query, behind the due time and offset
        ``after``. ``content``: with topic, key, value and headers. ``may``: as of ``count``.

        Errors: as of ``view``.
        """
        view = self.view()
        scan = _Scan(self, view, query or Query(), after, may)
        page = _PageRows(limit, content)
        looked, following = 0, None
        for slot in scan.slots():
            looked += slot.looked
            following = page.add(slot.in_order())
            if following is None and not scan.at_end and (page.is_full or looked >= rows_max):
                following = ends_ms(slot.second) - 1, _LAST
            if following is not None:
                break
        ids = view.mint.many(page.due, page.offset) if page.count else []
        return PendingPage(page.rows, ids, following, view.point, looked, tuple(scan.problems))

    def read_ahead(self, view: View, second: int) -> None:
        """Let the kernel read a slot's file, which will be needed soon."""
        info = view.slots.get(second)
        if info is not None:
            read_ahead(self.root, second, info)

    def slot(self, view: View, second: int) -> tuple[View, list[pa.RecordBatch], Problem | None]:
        """All rows of a slot; with them the view that they belong to, and the problem for which
        some are missing."""
        problem = None
        for _ in range(_LOOKS):
            info = view.slots.get(second)
            blocks: list[pa.RecordBatch] = []
            problem = None
            if info is not None:
                try:
                    blocks = committed_blocks(self.root, second, info)
                except FileNotFoundError:
                    text = f"expected {info.length} bytes, found no file"
                    problem = Problem(INTEGRITY, "missing", text, file=path_of(second))
                except Damaged as error:
                    text = f"expected {error.expected}, found {error.found}"
                    problem = Problem(
                        INTEGRITY, "damaged", text, file=path_of(second), position=error.position
                    )
                except (UnsupportedVersion, OSError) as error:
                    problem = Problem(INTEGRITY, "damaged", str(error), file=path_of(second))
            if problem is None:
                break
            view = self.view()
        return view, [*blocks, *view.tail_of(second)], problem


class _PageRows:
    """Collects the rows of a page."""

    def __init__(self, limit: int, content: bool) -> None:
        self._limit = limit
        self._schema = ROW if content else _KEYS
        self._parts: list[pa.RecordBatch] = []
        self._nbytes = 0
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._limit or self._nbytes >= _BYTES_MAX

    def add(self, slot: _Slot) -> RowKey | None:
        """Add a slot's matches. Returns the key of the last that fits; None: all fit."""
        many = min(len(slot.at), self._limit - self.count)
        if not many:
            return None
        if self._schema is ROW:
            running = self._nbytes + np.cumsum(slot.sizes(many))
            many = min(many, int(np.searchsorted(running, _BYTES_MAX)) + 1)
            self._nbytes = int(running[many - 1])
        self._parts.append(slot.take(self._schema, many))
        self.count += many
        if many == len(slot.at):
            return None
        return int(slot.due[many - 1]), int(slot.offset[many - 1])

    @property
    def rows(self) -> pa.RecordBatch:
        none = pa.RecordBatch.from_pylist([], schema=self._schema)
        return pa.concat_batches(self._parts or [none])

    @property
    def due(self) -> Int64s:
        return np.concatenate([times(rows, "due") for rows in self._parts])

    @property
    def offset(self) -> Int64s:
        return np.concatenate([times(rows, "offset") for rows in self._parts])


def _by_catalog(view: View, query: Query) -> dict[int, int]:
    """The numbers of pending messages in the slots that no mark has reached, by the catalog."""
    pending, _ = view.counts
    first, behind = query.seconds()
    seconds = view.seconds_within(first, behind)
    start = int(np.searchsorted(view.seconds, seconds[0])) if seconds else 0
    counts = pending[start : start + len(seconds)].tolist()
    return {
        second: count
        for second, count in zip(seconds, counts, strict=True)
        if count > 0 and view.is_untouched(second) and query.holds_whole(second)
    }


class _Scan:
    """The slots that may hold matches, one after the other."""

    def __init__(
        self,
        reader: PendingReader,
        view: View,
        query: Query,
        after: RowKey | None = None,
        may: MayTopic | None = None,
    ) -> None:
        self._reader = reader
        self._view = view
        self._query = query
        self._content = ContentMatcher(query, may)
        self._after = after
        self._offsets = _offsets_of(view, query.ids) if query.ids else None
        self.problems = list(view.problems)
        self.at_end = False
        """True when no slot is left."""

    def slots(self, skipped: Iterable[int] = ()) -> Iterator[_Slot]:
        seconds = self._seconds()
        left_out = set(skipped)
        read = [second for second in seconds if second not in left_out]
        for number, second in enumerate(read, 1):
            self.at_end = number == len(read)
            if number > _BEFORE_AHEAD and number + _AHEAD < len(read):
                self._reader.read_ahead(self._view, read[number + _AHEAD])
            yield self._slot(second)

    def _seconds(self) -> list[int]:
        first, behind = self._query.seconds()
        if self._after is not None:
            due, offset = self._after
            at = (due if offset < _LAST else due + 1) // TICK_MS  # _LAST: this slot is done
            first = at if first is None else max(first, at)
        seconds = self._view.seconds_within(first, behind)
        if self._offsets is not None:
            seconds = [second for second in seconds if second in self._offsets]
        return seconds

    def _slot(self, second: int) -> _Slot:
        self._view, batches, problem = self._reader.slot(self._view, second)
        if problem is not None:
            self.problems.append(problem)
        if second in self._view.lost:
            text = "expected every row of the slot, found that a repair lost some"
            self.problems.append(Problem(INTEGRITY, "repaired", text, file=path_of(second)))
        looked = sum(batch.num_rows for batch in batches)
        mask = self._content.matches(batches) if looked else None
        if mask is None:
            none = np.zeros(0, np.int64)
            return _Slot(second, [], key_columns([]), none, none, none, looked)
        keys = key_columns(batches)
        due, offset = times(keys, "due"), times(keys, "offset")
        mask &= self._view.pending(second, keys) & self._keys(second, due, offset)
        at = np.flatnonzero(mask)
        return _Slot(second, batches, keys, at, due[at], offset[at], looked)

    def _keys(self, second: int, due: Int64s, offset: Int64s) -> Mask:
        """A mask of the rows behind ``after`` that fulfil the conditions on due times and ids."""
        query = self._query
        mask = np.ones(len(due), np.bool_)
        if not query.holds_whole(second):
            mask &= due_within(due, query.from_ms, query.to_ms)
        if self._after is not None and begins_ms(second) <= self._after[0]:
            at_due, at_offset = self._after
            mask &= (due > at_due) | ((due == at_due) & (offset > at_offset))
        if self._offsets is not None:
            mask &= members(self._offsets[second], offset)
        return mask


def _offsets_of(view: View, ids: Sequence[str]) -> dict[int, Int64s]:
    """The offsets of genuine ids, ascending, by second; other texts are left out."""
    by_second: dict[int, list[int]] = {}
    for text in ids:
        try:
            id_ = MessageId.parse(text)
        except UnknownId:
            continue
        if view.mint.genuine(id_):
            by_second.setdefault(id_.due // TICK_MS, []).append(id_.offset)
    return {second: np.array(sorted(offsets), np.int64) for second, offsets in by_second.items()}

"""Finds pending messages: counts, and pages in due order.

Theory: slot files are sorted by due time, which most questions ask for; so a page begins at the
second of its token and reads second after second until it is full. There is no other index. The
whole file of a slot is read and its checksum compared, as the node does it: 0.2 ms for 1,400 rows,
most of which is spent once per block; a second thread would not make it faster, as the blocks are
small and Python is in between.

Seconds that share a file of an hour or a day are read in *strips*: as many of them as have no more
than ``STRIP_BYTES``, over all files of each. If they were read one by one, each would look into
every block of the day's file; if the day were read at once, a file of gigabytes would need as much
memory.

Rules
- Rows that were acknowledged before the call are seen; the answer has the offset up to which.
- A row is pending if the newest mark that was read does not cover it and no cancel names it. Such a
  row may have left since, if it was due (``AnswerPoint``).
- A slot file that cannot be read is looked at again by a new view: the node may have deleted it, as
  all its rows have left. Damage is a problem, and the answer is not complete.
- The work for a page is bounded: by ``rows_max`` rows, though a strip that was begun is read whole,
  and by ``_BYTES_MAX`` of content. The token is where the next page goes on.
- Files of hours and days stay open within a question, one of each width, and not behind it: the
  disk could not free one that the node deletes, as long as nobody asks anything else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from ...wheel.cancelrecord import CancelRecord
from ...wheel.config import TICK_MS
from ...wheel.errors import Damaged, SlotwheelError, UnknownId, UnsupportedVersion
from ...wheel.ids import MessageId
from ...wheel.mark import RowKey
from ...wheel.rows import from_numpy, members, take_rows
from ...wheel.schema import ROW, Int64s, Mask, sizes, times
from ...wheel.slots.secondsums import SecondSums, summed
from ...wheel.slots.slot import (
    DAY_S,
    HOUR_S,
    HOURS_UNTIL_MS,
    Widths,
    bounds_of,
    is_wide,
    overlap,
    path_of,
    seconds_of,
)
from ...wheel.state import SlotInfo
from ..departures import DepartureReader
from ..files import due_within
from ..problems import INTEGRITY, Problem
from ..recordedblocks import WideFiles, committed_blocks, read_ahead
from ..stretches import STRIP_BYTES, load_of
from ..visible import MayTopic
from .query import LIMIT, ContentMatcher, Query
from .view import AnswerPoint, View, key_columns, signed
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
_KEY_BYTES = 64
"""Memory for the keys of a row, about; the content of a row in a wide file is not copied."""
_SIGNED_BYTES = 8 << 20
"""Memory for the seconds that have rows, and as much for their counts: those of 12 days."""
_BY_SECOND_MS = 7_200_000
"""Up to so long ahead messages are counted by second also where they lie in the file of a day."""


@dataclass(frozen=True, slots=True)
class PendingCount:
    """The number of pending messages that fulfil a query."""

    total: int
    point: AnswerPoint
    by_slot: dict[range, int] = field(default_factory=dict)
    """The numbers by the seconds of a slot, in their order; empty unless it was asked for. What is
    due within two hours, or has a file of its second and no other, is counted by second; what is
    due later by its hour, and from the first day on that begins more than 48 hours ahead by its day
    if that has a file. No message is in two of the numbers."""
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
class _Matches:
    """The matches of a strip."""

    seconds: range
    batches: list[pa.RecordBatch]
    """All rows of these seconds."""
    keys: pa.RecordBatch
    """The keys of all rows (``key_columns``)."""
    at: Int64s
    """The numbers of the matching rows, shape (matches,)."""
    due: Int64s
    offset: Int64s
    """Like ``due``, of the matches, shape (matches,)."""

    def in_order(self) -> _Matches:
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
        if len(self.at) < self.keys.num_rows:
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
        self._signed: OrderedDict[int, tuple[SlotInfo, SecondSums]] = OrderedDict()
        """Of files of hours and days, as they were: the ``signed_counts`` of all rows."""
        self._wide = WideFiles(partial(committed_blocks, self.root))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._watch.close()

    def view(self) -> View:
        """A view of the directory now. Errors: ``Damaged``, ``UnsupportedVersion``, ``OSError``:
        the state store cannot be read."""
        view = self._watch.view()
        self._wide.close(but=view.slots)
        return view

    def cancelled(self, second: int) -> CancelRecord:
        """The record of cancels of a second, whose slot files have lost its rows. Call it after
        ``view``. It is incomplete where the cancels are not known any more, or cannot be read."""
        try:
            return self._watch.cancelled(second)
        except (Damaged, OSError):
            return CancelRecord(incomplete=True)

    def count(
        self,
        query: Query | None = None,
        *,
        by_slot: bool = False,
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
        scan = _Scan(self, view, query, may=may)
        counts, topics = Counter[range](), Counter[str]()
        if not (query.columns or query.ids or by_topic or may):
            counts.update(scan.without_reading(by_slot=by_slot))
        for matches in scan.strips():
            if by_slot:
                counts.update(scan.by_slot(matches))
            else:
                counts[matches.seconds] += len(matches.at)
            if by_topic and len(matches.at):
                topics.update(matches.topics())
        self.release()
        slots = [each for each in counts.items() if each[1]] if by_slot else []
        return PendingCount(
            counts.total(),
            view.point,
            dict(sorted(slots, key=lambda each: each[0].start)),
            dict(sorted(topics.items())),
            scan.looked,
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
        following = None
        for matches in scan.strips():
            following = page.add(matches.in_order())
            if following is None and not scan.at_end and (page.is_full or scan.looked >= rows_max):
                following = matches.seconds.stop * TICK_MS - 1, _LAST
            if following is not None:
                break
        self.release()
        ids = view.mint.many(page.due, page.offset) if page.count else []
        return PendingPage(page.rows, ids, following, view.point, scan.looked, tuple(scan.problems))

    def read_ahead(self, view: View, seconds: range) -> None:
        """Let the kernel read a second's own file, which will be needed soon."""
        info = view.slots.get(seconds.start)
        if info is not None and len(seconds) == 1:
            read_ahead(self.root, seconds.start, info)

    def rows_of(
        self, view: View, seconds: range
    ) -> tuple[View, list[pa.RecordBatch], Problem | None]:
        """All rows that are due in these seconds, over all their files; with them the view that
        they belong to, and the problem for which some are missing. Files of hours and days stay
        open for the next call, until ``release``."""
        for _ in range(_LOOKS):
            batches, problem = self._committed(view, view.files_of(seconds), seconds)
            if problem is None:
                break
            view = self.view()
        return view, [*batches, *view.tail_of(seconds)], problem

    def signed(
        self, view: View, seconds: range
    ) -> tuple[View, list[SecondSums], int, Problem | None]:
        """The ``signed_counts`` of the rows that are due in these seconds, but for those in files
        of seconds; with them the view that they belong to, how many rows were read for them, and
        the problem for which some are missing. Those of a file are kept: until it grows, it is not
        read for the next question."""
        looked = 0
        for _ in range(_LOOKS):
            parts = [piece.pending for piece in view.tail]
            problem = None
            for slot in filter(is_wide, view.files_of(seconds)):
                info = view.slots[slot]
                known = self._signed.pop(slot, None)
                if known is None or known[0] != info:
                    batches, problem = self._committed(view, [slot], seconds_of(slot))
                    if problem is not None:
                        break
                    looked += info.rows
                    known = info, SecondSums.of_slot(seconds_of(slot), map(signed, batches))
                self._signed[slot] = known
                parts.append(known[1])
            if problem is None:
                break
            view = self.view()
        while sum(sums.size for _, sums in self._signed.values()) > _SIGNED_BYTES:
            self._signed.popitem(last=False)
        return view, [part.within(seconds) for part in parts], looked, problem

    def strips(self, view: View, stretch: range) -> Iterator[range]:
        """The strips of a stretch: so many of its seconds are judged at once."""
        if len(stretch) == 1:  # of thousands of these no file is looked up twice
            return iter((stretch,))
        infos = {slot: view.slots[slot] for slot in view.files_of(stretch)}
        files = {slot: _judged_bytes(slot, info) for slot, info in infos.items()}

        def rows_of(slot: int) -> SecondSums:
            return self._wide.blocks(slot, infos[slot]).rows

        return load_of(stretch, files, rows_of, STRIP_BYTES).strips(stretch, STRIP_BYTES)

    def release(self) -> None:
        """Close the files of hours and days that ``rows_of`` has left open."""
        self._wide.close()

    def _committed(
        self, view: View, slots: Sequence[int], seconds: range
    ) -> tuple[list[pa.RecordBatch], Problem | None]:
        """The rows of these seconds in files, and the problem with one that cannot be read."""
        batches: list[pa.RecordBatch] = []
        problem = None
        for slot, ahead in zip_longest(slots, slots[_AHEAD:]):
            info = view.slots[slot]
            if ahead is not None:
                self.read_ahead(view, range(ahead, ahead + 1))
            try:
                if is_wide(slot):
                    batches += self._wide.blocks(slot, info).within(seconds)
                else:
                    batches += committed_blocks(self.root, slot, info)
            except (Damaged, UnsupportedVersion, OSError) as error:
                problem = _problem_of(slot, info, error)
        return batches, problem


def _problem_of(slot: int, info: SlotInfo, error: SlotwheelError | OSError) -> Problem:
    """The problem with a slot file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        text = f"expected {info.length} bytes, found no file"
        return Problem(INTEGRITY, "missing", text, file=path_of(slot))
    if isinstance(error, Damaged):
        text = f"expected {error.expected}, found {error.found}"
        return Problem(INTEGRITY, "damaged", text, file=path_of(slot), position=error.position)
    return Problem(INTEGRITY, "damaged", str(error), file=path_of(slot))


def _judged_bytes(slot: int, info: SlotInfo) -> int:
    """About the memory that it takes to judge the rows of a file."""
    return info.rows * _KEY_BYTES + (0 if is_wide(slot) else info.length)


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

    def add(self, matches: _Matches) -> RowKey | None:
        """Add a strip's matches. Returns the key of the last that fits; None: all fit."""
        many = min(len(matches.at), self._limit - self.count)
        if not many:
            return None
        if self._schema is ROW:
            running = self._nbytes + np.cumsum(matches.sizes(many))
            many = min(many, int(np.searchsorted(running, _BYTES_MAX)) + 1)
            self._nbytes = int(running[many - 1])
        self._parts.append(matches.take(self._schema, many))
        self.count += many
        if many == len(matches.at):
            return None
        return int(matches.due[many - 1]), int(matches.offset[many - 1])

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


class _Scan:
    """The seconds that may hold matches, strip after strip."""

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
        self._stretches = self._wanted()
        hours_from_ms = _up_to_whole(view.point.looked_ms + _BY_SECOND_MS, HOUR_S)
        days_from_ms = _up_to_whole(view.point.looked_ms + HOURS_UNTIL_MS, DAY_S)
        self._widths = Widths(hours_from_ms, max(hours_from_ms, days_from_ms))
        """Which slot a message counts for. The bounds are the begins of an hour and of a day, or
        one would be counted in both ways."""
        self.problems = list(view.problems)
        self.looked = 0
        """The number of rows that were read."""
        self.at_end = False
        """True when no second with rows is left."""

    def without_reading(self, *, by_slot: bool) -> dict[range, int]:
        """The numbers of pending messages that are known without judging rows, by slot; ``strips``
        judges the rest. With ``by_slot``, the file of a day within 48 hours is read to see how many
        messages are due in each hour, or in each second if that is soon."""
        view, widths = self._view, self._widths
        read_before = {HOUR_S: widths.seconds_until_ms, DAY_S: widths.hours_until_ms}
        counts = Counter[range]()
        left: list[range] = []
        for stretch in self._stretches:
            count = view.counts.get(stretch, 0)
            start_ms = stretch.start * TICK_MS
            is_read = by_slot and start_ms < read_before.get(len(stretch), start_ms)
            if count > 0 and not is_read and self._is_all_pending(stretch):
                counts[stretch] = count
                continue
            whole = self._untouched(stretch)
            if whole:
                counts.update(self._untouched_by_slot(whole))
            between = whole.start if whole else stretch.stop
            left += [range(stretch.start, between), range(max(between, whole.stop), stretch.stop)]
        self._stretches = [stretch for stretch in left if stretch]
        if not by_slot:
            return counts
        first = np.array([stretch.start for stretch in counts], np.int64)
        return self._by_due(first, np.array([*counts.values()], np.int64))

    def _is_all_pending(self, seconds: range) -> bool:
        return self._view.is_untouched(seconds) and self._query.holds_whole(seconds)

    def _untouched(self, stretch: range) -> range:
        """The seconds of a stretch that no mark has reached and of which all messages are wanted;
        of a single second none, as reading it costs less."""
        query = self._query
        start, stop = max(stretch.start, self._view.passed_ms // TICK_MS + 1), stretch.stop
        if query.from_ms is not None:
            start = max(start, -(-query.from_ms // TICK_MS))
        if query.to_ms is not None:
            stop = min(stop, query.to_ms // TICK_MS)
        is_known = len(stretch) > 1 and not self._view.is_lost(stretch)
        return range(start, stop) if is_known else range(0)

    def by_slot(self, matches: _Matches) -> dict[range, int]:
        """The numbers of matches by slot."""
        return self._by_due(*np.unique(matches.due // TICK_MS, return_counts=True))

    def _untouched_by_slot(self, seconds: range) -> dict[range, int]:
        """The numbers of pending messages in seconds that no mark has reached. A cancel takes one
        away in whichever file its target lies; so only files of hours and days are read, to see
        when their rows are due."""
        self._view, parts, looked, problem = self._reader.signed(self._view, seconds)
        self._note(seconds, problem)
        self.looked += looked
        narrow = [slot for slot in self._view.files_of(seconds) if not is_wide(slot)]
        infos = [self._view.slots[slot] for slot in narrow]
        signed = [info.rows - 2 * info.cancels for info in infos]
        parts.append(SecondSums(np.array(narrow, np.int64), np.array(signed, np.int64)))
        sums = SecondSums.joined(parts)
        return self._by_due(sums.seconds, sums.sums)

    def _by_due(self, seconds: Int64s, counts: Int64s) -> dict[range, int]:
        """The sums of ``counts`` by slot. ``seconds``: in which these messages are due, shape
        (seconds,) both. The slot follows from how far ahead a second is, and not from the files.
        Otherwise the same messages would count for other slots once they are spilled, and those of
        a tail for as many slots as they have seconds.

        *Example.* At 08:10 what is due at 10:59:59 counts by second, what is due at 11:00 by hour,
        and what is due on the third day after this one by day."""
        slots, sums = summed(self._widths.slots(seconds * TICK_MS), counts)
        firsts, widths = bounds_of(slots)
        spans = map(range, firsts.tolist(), (firsts + widths).tolist())
        return dict(zip(spans, sums.tolist(), strict=True))

    def _read(self, seconds: range) -> list[pa.RecordBatch]:
        """The rows of these seconds, by the newest view that was needed for them."""
        self._view, batches, problem = self._reader.rows_of(self._view, seconds)
        self._note(seconds, problem)
        self.looked += sum(batch.num_rows for batch in batches)
        return batches

    def _note(self, seconds: range, problem: Problem | None) -> None:
        text = "expected every row of the slot, found that a repair lost some"
        lost = [slot for slot in self._view.lost if overlap(seconds_of(slot), seconds)]
        problems = [Problem(INTEGRITY, "repaired", text, file=path_of(slot)) for slot in lost]
        for each in (problem, *problems):
            if each is not None and each not in self.problems:
                self.problems.append(each)

    def strips(self) -> Iterator[_Matches]:
        stretches = self._stretches
        for number, stretch in enumerate(stretches, 1):
            if number > _BEFORE_AHEAD and number + _AHEAD < len(stretches):
                self._reader.read_ahead(self._view, stretches[number + _AHEAD])
            for strip in self._reader.strips(self._view, stretch):
                self.at_end = number == len(stretches) and strip.stop == stretch.stop
                yield self._matches(strip)

    def _wanted(self) -> list[range]:
        """The stretches that may hold matches, each cut to the seconds that may."""
        first, behind = self._query.seconds()
        if self._after is not None:
            due, offset = self._after
            at = (due if offset < _LAST else due + 1) // TICK_MS  # _LAST: this second is done
            first = at if first is None else max(first, at)
        stretches = self._view.stretches(first, behind)
        if self._offsets is None:
            return stretches
        starts = [stretch.start for stretch in stretches]
        wanted = []
        for second in sorted(self._offsets):
            at = bisect_right(starts, second) - 1
            if at >= 0 and second in stretches[at]:
                wanted.append(range(second, second + 1))
        return wanted

    def _matches(self, seconds: range) -> _Matches:
        batches = self._read(seconds)
        mask = self._content.matches(pa.Table.from_batches(batches)) if batches else None
        if mask is None:
            none = np.zeros(0, np.int64)
            return _Matches(seconds, [], key_columns([]), none, none, none)
        keys = key_columns(batches)
        due, offset = times(keys, "due"), times(keys, "offset")
        mask &= self._view.pending(seconds, keys) & self._keys(seconds, due, offset)
        at = np.flatnonzero(mask)
        return _Matches(seconds, batches, keys, at, due[at], offset[at])

    def _keys(self, seconds: range, due: Int64s, offset: Int64s) -> Mask:
        """A mask of the rows behind ``after`` that fulfil the conditions on due times and ids."""
        query = self._query
        mask = np.ones(len(due), np.bool_)
        if not query.holds_whole(seconds):
            mask &= due_within(due, query.from_ms, query.to_ms)
        if self._after is not None and seconds.start * TICK_MS <= self._after[0]:
            at_due, at_offset = self._after
            mask &= (due > at_due) | ((due == at_due) & (offset > at_offset))
        if self._offsets is not None:
            mask &= members(self._offsets[seconds.start], offset)
        return mask


def _up_to_whole(ms: int, width_s: int) -> int:
    """The first begin of a slot of so many seconds at a time or later, ms both."""
    width_ms = width_s * TICK_MS
    return -(-ms // width_ms) * width_ms


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

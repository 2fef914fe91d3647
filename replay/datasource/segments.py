"""The segments of a trace store, and their events as rows of Spark.

Theory: a segment ``FIRST-LAST.arrow`` holds the events of the flushes with these numbers, in the
order of their times. Some are merged into one, which replaces them; files that are contained in
another one do not count. A segment that a task was given may be merged away before the task opens
it. Its events are then in the one that contains it, and are told from the others there by their
senders and numbers, which the index of the listed one had.

Rules
- Damage is an error that names the file: figures of what is left would look like those of all. A
  caller that reports what is missing passes a list of ``UnreadEvents``, and gets the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ...reading.problems import INTEGRITY, Problem
from ...trace.events import STORED
from ...trace.store.names import SegmentName, list_segments, missing_segments
from ...trace.store.segment import StoreSegment
from ...wheel.errors import Damaged, InvalidConfiguration, SlotwheelError
from ...wheel.ids import id_texts
from ...wheel.schema import TIME, Mask, times
from ..facts.scan import Batches

_LOOKS = 5
Numbers = Mapping[str, Sequence[tuple[int, int]]]
"""Ranges of the numbers of each sender's events, both ends included."""


def _of_id(name: str, due: str, prefix: str) -> list[pa.Field]:
    return [
        pa.field(name, pa.utf8()),
        pa.field(f"{prefix}group", pa.utf8()),
        pa.field(due, TIME),
        pa.field(f"{prefix}offset", pa.int64()),
        pa.field(f"{prefix}check", pa.int64()),
    ]


_IDS = {
    "id": _of_id("id", "due", "id_"),
    "origin": _of_id("origin", "origin_due", "origin_"),
}
EVENTS = pa.schema(
    [
        column.with_nullable(True)
        for field in STORED
        for column in (
            _IDS.get(field.name)
            or [pa.field(field.name, pa.utf8()) if pa.types.is_dictionary(field.type) else field]
        )
    ]
)
"""An event as a row: ids as texts and by their parts."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment as it was listed. It stands for its events, also when these lie in a merged segment
    by the time they are read."""

    root: str
    name: SegmentName
    nbytes: int = 0
    numbers: Numbers | None = None
    """The numbers of its events; None: if it was merged, all events of the merged one are read."""


@dataclass(frozen=True, slots=True)
class UnreadEvents:
    """Events that cannot be read. ``until_ms``: what they are about had happened by then."""

    problem: Problem
    until_ms: int


def listed_segments(root: str, unread: list[UnreadEvents] | None = None) -> list[ListedSegment]:
    """The segments of a store now. ``unread``: gets those that are damaged, and those that are
    missing between others. Errors: ``InvalidConfiguration``: it is no directory; without ``unread``
    ``Damaged``, ``UnsupportedVersion``, ``OSError``."""
    if not Path(root).is_dir():
        raise InvalidConfiguration(
            "the trace store is not there",
            got=root,
            remedy="Name the directory that the gateway keeps events in",
        )
    for look in reversed(range(_LOOKS)):  # a segment may be merged or deleted since it was listed
        names = list_segments(root)
        opened: list[StoreSegment] = []
        bad: list[tuple[SegmentName, str, str]] = []
        try:
            for name in names:
                try:
                    opened.append(StoreSegment(Path(root), name))
                except (SlotwheelError, OSError) as error:
                    is_gone = isinstance(error, FileNotFoundError)
                    if is_gone and look:
                        raise
                    if unread is None:
                        raise _as_damage(Path(root, name.events_file), error) from None
                    bad.append((name, "missing" if is_gone else "damaged", _text_of(error)))
        except FileNotFoundError:
            continue
        break
    for gap in missing_segments(names):
        bad.append((gap, "missing", f"expected flushes {gap.first} to {gap.last}, found none"))
    if unread is not None:
        for name, kind, text in bad:
            behind = [
                int(segment.first_at.min())
                for segment in opened
                if segment.name > name and segment.blocks
            ]
            until_ms = behind[0] if behind else _written_ms(Path(root, name.events_file))
            unread.append(UnreadEvents(_problem(root, name, kind, text), until_ms))
    return [
        ListedSegment(root, segment.name, segment.nbytes, segment.numbers) for segment in opened
    ]


def _problem(root: str, name: SegmentName, kind: str, text: str) -> Problem:
    return Problem(INTEGRITY, kind, text, file=f"{Path(root).name}/{name.events_file}")


def _text_of(error: SlotwheelError | OSError) -> str:
    if isinstance(error, Damaged):
        return f"expected {error.expected}, found {error.found} ({Path(error.path).name})"
    return str(error)


def _as_damage(path: Path, error: SlotwheelError | OSError) -> SlotwheelError:
    if isinstance(error, SlotwheelError):
        return error
    reason = error.strerror or error
    return Damaged(str(path), 0, expected="a segment that can be read", found=reason)


def _written_ms(path: Path) -> int:
    """When a file was last written to, ms; now, if that is not known."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except OSError:
        return time.time_ns() // 1_000_000


def stored_batches(
    listed: ListedSegment,
    start_ms: int | None = None,
    end_ms: int | None = None,
    unread: list[UnreadEvents] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The events (schema ``STORED``) of a segment that happened from ``start_ms`` to before
    ``end_ms``; None: no limit. What retention has deleted meanwhile is left out. ``unread``: gets
    what is damaged. Errors: without ``unread`` ``Damaged``, ``UnsupportedVersion``."""
    root = Path(listed.root)
    segment = None
    for look in reversed(range(_LOOKS)):
        names = [name for name in list_segments(root) if name.contains(listed.name)]
        if not names:
            return
        try:
            segment = StoreSegment(root, names[0])
        except (SlotwheelError, OSError) as error:
            if isinstance(error, FileNotFoundError) and look:
                continue
            path = root / names[0].events_file
            if unread is None:
                raise _as_damage(path, error) from None
            problem = _problem(listed.root, names[0], "damaged", _text_of(error))
            unread.append(UnreadEvents(problem, _written_ms(path)))
            return
        break
    assert segment is not None
    for block in range(segment.blocks):
        early = start_ms is not None and segment.last_at[block] < start_ms
        if early or (end_ms is not None and segment.first_at[block] >= end_ms):
            continue
        try:
            batch = segment.read(block)
        except Damaged as error:
            if unread is None:
                raise
            problem = _problem(listed.root, segment.name, "damaged", _text_of(error))
            unread.append(UnreadEvents(problem, int(segment.last_at[block])))
            continue
        at = times(batch, "at")
        low = 0 if start_ms is None else int(np.searchsorted(at, start_ms))
        high = len(at) if end_ms is None else int(np.searchsorted(at, end_ms))
        batch = batch.slice(low, high - low)
        if segment.name != listed.name and listed.numbers is not None:
            batch = batch.filter(pa.array(_with_numbers(batch, listed.numbers)))
        yield batch


def event_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Events (schema ``STORED``) as these columns of ``EVENTS``, in Spark's types."""
    made: dict[str, pa.Array] = {}
    for field in STORED:
        column = batch.column(field.name)
        if field.name in _IDS:
            names = [column.name for column in _IDS[field.name]]
            if not set(columns).isdisjoint(names):
                made |= dict(zip(names, _parts_of(column), strict=True))
        elif pa.types.is_dictionary(field.type):
            made[field.name] = column.cast(pa.utf8())
        else:
            made[field.name] = column
    schema = pa.schema([EVENTS.field(name) for name in columns])
    types = to_arrow_schema(from_arrow_schema(schema), timezone="UTC")
    return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=schema).cast(types)


def read_events(
    segments: Iterable[ListedSegment],
    columns: Sequence[str],
    start_ms: int | None,
    end_ms: int | None,
) -> Batches:
    for segment in segments:
        for batch in stored_batches(segment, start_ms, end_ms):
            if batch.num_rows:
                yield event_rows(batch, columns)


def _parts_of(ids: pa.StructArray) -> list[pa.Array]:
    """The text of each id, its group, due time, offset and check; null where there is none."""
    known = ids.is_valid()
    rows = pa.RecordBatch.from_struct_array(ids.filter(known))
    due, offset = times(rows, "due"), times(rows, "offset")
    checks = np.asarray(rows.column("check"))
    text = id_texts(rows.column("group"), due, offset, checks)
    columns = [text, *rows.columns[:3], pa.array(checks.view(np.int64))]  # Spark has no u64
    if len(known) == rows.num_rows:
        return columns
    place = np.cumsum(np.asarray(known)) - 1
    at = pa.array(place, mask=~np.asarray(known))
    return [column.take(at) for column in columns]


def _with_numbers(batch: pa.RecordBatch, numbers: Numbers) -> Mask:
    wanted = np.zeros(batch.num_rows, np.bool_)
    number = np.asarray(batch.column("number"))
    sender = batch.column("sender")
    for name, ranges in numbers.items():
        of_sender = np.asarray(pc.equal(sender, name))
        if not of_sender.any():
            continue
        firsts, lasts = np.array(ranges, np.int64).T
        place = np.searchsorted(firsts, number, "right") - 1
        wanted |= of_sender & (place >= 0) & (number <= lasts[np.maximum(place, 0)])
    return wanted

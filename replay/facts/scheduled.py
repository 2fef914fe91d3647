"""What a journal segment says of schedules: which rows are runs, and how schedules were changed.

Theory: whether each run follows from the one before is seen only with all runs of its schedule side
by side, millions of offsets apart. So runs and changes leave the scan by the share of their
schedule's name, and come together there (``judging/schedules.py``). A run is its row: what a
receiver reads in the headers is judged. What the entry notes of the row is taken along, as it says
which version of the schedule fired it.

*Example.* A row with the headers ``slotwheel-schedule: beat`` and ``slotwheel-schedule-run: 7``, in
an entry that notes run 8 of ``beat``, is a run 7 that differs from its note.

Rules
- Only journals tell: a slot file has no order of entries, and nothing of what changed a schedule.
- What is gathered of a segment is emitted at its end. It is bounded by the segment's size.
- The clock of a run is that of the newest mark before its entry if that is later than its
  ``created``. Otherwise a clock that was set back would make runs look missed that were due.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ...reading.events import Ended, Event, MarkSeen, RowsSeen, SchedulesSeen
from ...reading.scheduledrows import RunHeaders, is_noted, run_headers_of
from ...wheel.digest import topic_crcs
from ...wheel.schedules import FiredRun, ScheduleDelete, SchedulePut
from ...wheel.schema import times
from .fact import SHARES
from .summary import FileSummary

RUNS, SCHEDULES = "runs", "schedules"
"""Kinds of rows of a scan."""
RUNS_ARROW = pa.schema(
    [
        ("name", pa.utf8()),  # of the schedule
        ("index", pa.int64()),  # of the entry
        ("epoch", pa.int64()),
        ("offset", pa.int64()),  # of the row
        ("due", pa.int64()),  # ms
        ("created", pa.int64()),  # ms
        ("clock", pa.int64()),  # of the newest mark before the entry, ms; 0: there is none
        ("number", pa.int64()),  # -1: the header is none, or no number, as for the next two
        ("nominal", pa.int64()),  # ms
        ("missed", pa.int64()),
        ("topic", pa.int64()),  # CRC-32C of its name
        ("version", pa.int64()),  # of the schedule, by the note; -1: no note has the run
        ("decided", pa.int64()),  # by the note, ms; -1
        ("differs", pa.bool_()),  # the note says something else than the row
    ]
)
"""A run as it stands in a journal."""
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
SharePiece = tuple[int, int, bytes]
"""A share of all names, the number of runs, and the runs packed."""


def share_of(name: str) -> int:
    """The share in which everything about a schedule comes together."""
    return crc32c(name.encode()) % SHARES


class ScheduleScan:
    """Gathers what one journal segment says of schedules, while it is read."""

    def __init__(self) -> None:
        self._runs: list[pa.RecordBatch] = []
        self._changes: list[tuple[int, str]] = []
        self._clock_ms = 0
        self._created: list[int] = []
        self._epoch = -1
        self._ended: Ended | None = None

    def add(self, event: Event) -> None:
        """Take in an event of the segment, in their order."""
        if isinstance(event, RowsSeen):
            self._rows(event)
        elif isinstance(event, MarkSeen):
            self._clock_ms = event.marks.main.c
        elif isinstance(event, SchedulesSeen):
            self._changes += [
                (share_of(change.name), _change_text(event, number, change))
                for number, change in enumerate(event.changes)
            ]
        elif isinstance(event, Ended):
            self._ended = event

    def summarize(self, summary: FileSummary) -> None:
        """Fill in what the segment's summary says of its entries as a whole."""
        summary.scheduled = sum(len(runs) for runs in self._runs) + len(self._changes)
        summary.newest = [self._epoch, *self._created] if self._created else []
        if self._ended is not None:
            summary.indexes = [list(pair) for pair in self._ended.indexes]
            summary.epochs = [list(pair) for pair in self._ended.epochs]

    def runs(self) -> Iterator[SharePiece]:
        """The runs, by share."""
        if not self._runs:
            return
        runs = pa.Table.from_batches(self._runs).combine_chunks()
        shares = np.array([share_of(name) for name in runs["name"].to_pylist()])
        for share in np.unique(shares).tolist():
            part = runs.filter(pa.array(shares == share))
            yield share, len(part), _packed(part)

    def changes(self) -> Iterator[tuple[int, str]]:
        """Changes of schedules as JSON, each with its share."""
        yield from self._changes

    def _rows(self, event: RowsSeen) -> None:
        created, epoch = times(event.rows, "created"), event.epoch
        assert not isinstance(epoch, int)
        if not len(created):
            return
        if int(epoch[-1]) != self._epoch:
            self._epoch = int(epoch[-1])
            first = int(np.searchsorted(epoch, self._epoch))
            self._created = [int(created[first])]
        self._created[1:] = [int(created[-1])]
        batch = _runs_among(event, self._clock_ms)
        if batch is not None:
            self._runs.append(batch)


def stored_text(name: str, version: int, spec: bytes) -> str:
    """A version of a schedule as a state store has it, as JSON beside those of ``changes``."""
    return json.dumps({"name": name, "version": version, "spec": spec.decode()})


def unpacked(data: bytes) -> pa.Table:
    """Runs from a piece of ``ScheduleScan.runs``; schema ``RUNS_ARROW``."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _packed(runs: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RUNS_ARROW, options=_COMPRESSED) as out:
        out.write_table(runs)
    return bytes(sink.getvalue().to_pybytes())


def _change_text(event: SchedulesSeen, number: int, change: SchedulePut | ScheduleDelete) -> str:
    fields: dict[str, object] = {
        "name": change.name,
        "index": event.index,
        "epoch": event.epoch,
        "number": number,
    }
    if isinstance(change, SchedulePut):
        fields |= {"spec": change.spec.decode(), "from_ms": change.from_ms}
    return json.dumps(fields)


def _runs_among(event: RowsSeen, clock_ms: int) -> pa.RecordBatch | None:
    """The runs among the rows of an event, in their order; None: there are none."""
    rows = event.rows
    said = run_headers_of(rows)
    if not said and not event.runs:
        return None
    offset = times(rows, "offset")
    row_of = {at: row for row, at in enumerate(offset.tolist())} if event.runs else {}
    noted = {row_of[run.offset]: run for run in event.runs}
    at = sorted(said.keys() | noted.keys())
    pairs = [(said.get(row), noted.get(row)) for row in at]
    picked = np.array(at)
    columns: list[object] = [
        [_name_of(row, note) for row, note in pairs],
        *(np.asarray(column)[picked] for column in (event.index, event.epoch)),
        offset[picked],
        times(rows, "due")[picked],
        times(rows, "created")[picked],
        np.full(len(at), clock_ms),
        *([-1 if row is None else row[place] for row, _ in pairs] for place in (1, 2, 3)),
        topic_crcs(rows.column("topic").take(pa.array(picked))).astype(np.int64),
        [-1 if note is None else note.version for _, note in pairs],
        [-1 if note is None else note.decided_ms for _, note in pairs],
        [note is not None and not is_noted(row, note) for row, note in pairs],
    ]
    arrays = [
        pa.array(values, field.type) for values, field in zip(columns, RUNS_ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RUNS_ARROW)


def _name_of(row: RunHeaders | None, note: FiredRun | None) -> str:
    """The schedule of a run that its row, its note, or both say."""
    if row is not None:
        return row.name.decode("utf-8", "replace")
    return "" if note is None else note.name

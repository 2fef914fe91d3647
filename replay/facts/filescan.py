"""One task of the scan: reads its files, and yields facts and a summary of each.

Each result is a row of ``SCANNED_ARROW``, whose kind is in ``what``:

    facts     ``bucket``, ``count`` and, in ``data``, that many facts of one range of offsets
    file      ``text``: a ``FileSummary``; one a file, after all that is in it was read
    problem   ``text``: a ``Problem`` that is seen without looking at other files
    chunk     ``text``: an ``OrderChunk``
    runs      ``count`` runs of schedules in ``data``, whose names are of the share ``bucket``
    schedules ``text``: a change of a schedule whose name is of the share ``bucket``

Rules
- Memory is bounded, whatever the files hold: a batch of rows, the facts in ``Buckets``, and the
  rows of one output batch. Of a slot file, 8 bytes a row besides.
- Problems of one file are limited; the summary says how many were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from ...reading.events import Event
from ...reading.files import JOURNAL, File
from ...reading.read import read
from .buckets import BucketPiece, Buckets
from .chunks import OrderChunk
from .making import FactBatch, GroupTerms
from .onefile import OneFile
from .scheduled import RUNS, SCHEDULES, ScheduleScan
from .summary import TOPICS_MAX, FileSummary

SCANNED_ARROW = pa.schema(
    [
        ("what", pa.utf8()),
        ("file", pa.int32()),
        ("bucket", pa.int64()),
        ("count", pa.int64()),
        ("data", pa.binary()),
        ("text", pa.utf8()),
    ]
)
_LEAVE_BYTES = 4 << 20


class Output:
    """Gathers rows of ``SCANNED_ARROW`` into batches."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._nbytes = 0

    def pieces(self, pieces: Iterable[BucketPiece]) -> Iterator[pa.RecordBatch]:
        for bucket, count, data in pieces:
            yield from self.packed("facts", bucket, count, data)

    def packed(self, what: str, bucket: int, count: int, data: bytes) -> Iterator[pa.RecordBatch]:
        row = {"what": what, "bucket": bucket, "count": count, "data": data}
        yield from self._add(row, len(data))

    def text(
        self, what: str, file: int, text: str, count: int = 0, bucket: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        row = {"what": what, "file": file, "count": count, "text": text, "bucket": bucket}
        yield from self._add(row, len(text))

    def flush(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield pa.RecordBatch.from_pylist(self._rows, schema=SCANNED_ARROW)
            self._rows, self._nbytes = [], 0

    def _add(self, row: dict[str, Any], nbytes: int) -> Iterator[pa.RecordBatch]:
        self._rows.append(row)
        self._nbytes += nbytes + 64
        if self._nbytes >= _LEAVE_BYTES:
            yield from self.flush()


class TaskScan:
    """One task of the scan. Its methods yield batches of ``SCANNED_ARROW``, whose order must be
    kept."""

    def __init__(self, terms: GroupTerms) -> None:
        self.terms = terms
        self.out = Output()
        self._buckets = Buckets()
        self._topics: set[int] = set()

    def file(self, file: File) -> Iterator[pa.RecordBatch]:
        reading = OneFile(file, self.terms)
        if file.kind != JOURNAL:
            yield from self.events(reading, read(file))
        else:
            yield from self._segment(reading)
        yield from self._close(reading)

    def _segment(self, reading: OneFile) -> Iterator[pa.RecordBatch]:
        """Read a whole segment of a journal, for what it says of schedules, too."""
        number, schedules = reading.file.number, ScheduleScan()

        def events() -> Iterator[Event]:
            for event in read(reading.file):
                schedules.add(event)
                yield event

        yield from self.events(reading, events())
        schedules.summarize(reading.summary)
        for piece in schedules.runs():
            yield from self.out.packed(RUNS, *piece)
        for share, text in schedules.changes():
            yield from self.out.text(SCHEDULES, number, text, bucket=share)

    def events(self, reading: OneFile, events: Iterable[Event]) -> Iterator[pa.RecordBatch]:
        """Read some events of a file. Its summary gets the names of those topics that no summary
        of this task has yet, up to ``TOPICS_MAX`` a task."""
        for event in events:
            yield from self._made(reading, reading.facts_of(event))

    def records(self, batches: Iterable[pa.RecordBatch], file: File) -> Iterator[pa.RecordBatch]:
        """Read batches of Spark's Kafka source to their end; ``file`` stands for the source."""
        reading = OneFile(file, self.terms)
        for batch in batches:
            reading.summary.rows += batch.num_rows
            yield from self._made(reading, reading.records(batch))
        yield from self._close(reading)

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, after the last file."""
        yield from self.out.pieces(self._buckets.drain())
        yield from self.out.flush()

    def _made(self, reading: OneFile, made: FactBatch | None) -> Iterator[pa.RecordBatch]:
        if made is not None:
            if reading.order is not None:  # before the facts are packed: it sets flags in them
                yield from self._chunks(reading, reading.order.add(made.facts, made.topics))
            yield from self.out.pieces(self._buckets.add(made.facts))
            reading.count(made)
            self._topic_rows(reading.summary, made.topics)
        for problem in reading.new_problems():
            yield from self.out.text("problem", reading.file.number, problem.to_json())

    def _topic_rows(self, summary: FileSummary, topics: dict[int, str]) -> None:
        """Add the names of new topics to a summary, each once a task: thousands of slot files have
        rows of the same topics."""
        for crc in topics.keys() - self._topics:
            if len(self._topics) >= TOPICS_MAX:
                summary.topics_omitted = True
                return
            self._topics.add(crc)
            summary.topics[crc] = topics[crc]

    def _chunks(self, reading: OneFile, chunks: Iterable[OrderChunk]) -> Iterator[pa.RecordBatch]:
        for chunk in chunks:
            yield from self.out.text("chunk", reading.file.number, chunk.to_json())

    def _close(self, reading: OneFile) -> Iterator[pa.RecordBatch]:
        if reading.order is not None:
            yield from self._chunks(reading, reading.order.close())
        reading.end()
        for problem in reading.new_problems():
            yield from self.out.text("problem", reading.file.number, problem.to_json())
        summary = reading.summary
        yield from self.out.text("file", summary.number, summary.to_json(), summary.rows)

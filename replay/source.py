"""Spark's data source: ``spark.read.format("slotwheel").load("wheel-a,wheel-b")``.

Every row that lies in journals, slot files and, with ``topics``, in embedded topics, as it stands,
with where it was found. Tasks read files of about equal size together and hand on Arrow batches.

Rules
- Files outside the time range are skipped by name; rows are filtered by their due time.
- Damage is no error: its rows are not there, and ``option("view", "problems")`` tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ..wheel.errors import InvalidConfiguration
from ..wheel.schema import ROW, TIME, times
from .facts.filescan import SCANNED
from .problems import PROBLEM_ARROW, PROBLEM_SCHEMA, Problem, problem_batch
from .reading.events import ROWS_MAX, Event, Rows
from .reading.files import TOPIC, File
from .reading.read import read
from .source_options import VIEWS, SourceOptions, parse

NAME = "slotwheel"
CORES = 16
"""Tasks are made as for so many cores."""
PLACE = [
    pa.field("peer", pa.utf8()),
    pa.field("file", pa.utf8()),
    pa.field("kind", pa.utf8()),
    pa.field("archived", pa.bool_()),
    pa.field("entry_index", pa.int64()),
    pa.field("epoch", pa.int64()),
    pa.field("delivered", TIME),
]
"""Behind the columns of a row: where it was found. ``entry_index`` and ``epoch`` are those of the
journal, ``delivered`` of a topic; null elsewhere."""
COLUMNS = pa.schema([*(field.with_nullable(True) for field in ROW), *PLACE])


def register(spark: SparkSession) -> None:
    """Make ``format("slotwheel")`` known to a session."""
    spark.dataSource.register(SlotwheelSource)


class SlotwheelSource(DataSource):
    """What Spark asks for first: names and schemas."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _parsed(self) -> SourceOptions:
        return parse(dict(self.options), tuple(COLUMNS.names))

    def schema(self) -> Any:
        chosen = self._parsed()
        if chosen.view == "problems":
            return PROBLEM_SCHEMA
        if chosen.view == "facts":
            return SCANNED
        return from_arrow_schema(schema_of(chosen))

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        chosen = self._parsed()
        if chosen.view not in VIEWS:
            raise InvalidConfiguration(f"the view {chosen.view!r} is one of readStream only")
        return _Reader(chosen)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        from .stream import StreamReader

        return StreamReader(self._parsed())


def schema_of(chosen: SourceOptions) -> pa.Schema:
    names = chosen.columns or COLUMNS.names
    return pa.schema([COLUMNS.field(name) for name in names])


@dataclass
class _Task(InputPartition):
    files: Sequence[File]
    problems: Sequence[str] = ()


class _Reader(DataSourceReader):
    def __init__(self, chosen: SourceOptions) -> None:
        self._chosen = chosen

    def partitions(self) -> Sequence[InputPartition]:
        from .reading.layout import find  # reads the state stores: the driver alone can
        from .reading.plan import tasks

        layout = find(self._chosen.paths, wanted=self._chosen.wanted)
        peers = [peer.name for peer in layout.peers]
        files = [
            file
            for file in layout.files
            if not self._chosen.peer or peers[file.peer] == self._chosen.peer
        ]
        found = [_Task(one) for one in tasks(files, CORES)]
        if layout.problems or not found:
            found.append(_Task((), layout.problems))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        if self._chosen.view == "problems":
            yield from _problems(partition)
            return
        for file in partition.files:
            yield from row_batches(read(file), self._chosen)


def row_batches(events: Iterable[Event], chosen: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Rows with their places, as Spark takes them."""
    schema = schema_of(chosen)
    # Spark's own types: microseconds, and another name inside of lists.
    wanted = to_arrow_schema(from_arrow_schema(schema), timezone="UTC")
    for event in events:
        if isinstance(event, Rows):
            for batch in _placed(event, schema, chosen):
                yield batch.cast(wanted)


def _problems(task: _Task) -> Iterator[pa.RecordBatch]:
    found = [Problem.from_json(text) for text in task.problems]
    for file in task.files:
        for event in read(file):
            if isinstance(event, Problem):
                found.append(event)
        if found:
            yield problem_batch(found)
            found = []
    if found:
        yield problem_batch(found)
    elif not task.files:
        yield pa.RecordBatch.from_pylist([], schema=PROBLEM_ARROW)


def _placed(event: Rows, schema: pa.Schema, chosen: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Rows with the columns asked for, not too many at once."""
    rows, file = event.rows, event.file
    count = rows.num_rows
    columns = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name))
        elif field.name == "topic":
            columns.append(pa.repeat(pa.scalar(event.topic, pa.utf8()), count))
        else:
            columns.append(_place(field, event, file, count))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    wanted = chosen.wanted
    if wanted.start_ms is not None or wanted.end_ms is not None:
        due = times(rows, "due")
        keep = np.ones(count, np.bool_)
        if wanted.start_ms is not None:
            keep &= due >= wanted.start_ms
        if wanted.end_ms is not None:
            keep &= due < wanted.end_ms
        batch = pc.filter(batch, pa.array(keep))
    for at in range(0, batch.num_rows, ROWS_MAX):
        yield batch.slice(at, ROWS_MAX)


def _place(field: pa.Field, event: Rows, file: File, count: int) -> pa.Array:
    if field.name == "file":
        return pa.repeat(pa.scalar(file.name, field.type), count)
    values: dict[str, str | bool] = {
        "peer": file.name.split("/", 1)[0],
        "kind": file.kind,
        "archived": file.archived,
    }
    if field.name in values:
        return _repeated(values[field.name], field.type, count)
    numbers = {"entry_index": event.index, "epoch": event.epoch}.get(field.name, -1)
    if not isinstance(numbers, int):
        return pa.array(numbers, field.type)
    known = numbers >= 0 and file.kind != TOPIC
    return _repeated(numbers if known else None, field.type, count)


def _repeated(value: str | bool | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """One value, so many times. Thousands of batches have the same ones."""
    if count > ROWS_MAX:
        return pa.repeat(pa.scalar(value, kind), count)
    return _full(value, kind).slice(0, count)


@lru_cache(64)
def _full(value: str | bool | int | None, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), ROWS_MAX)

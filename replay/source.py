"""Spark's data source: ``spark.read.format("slotwheel").load("wheel-a,wheel-b")``.

Rows of journals, slot files and topics, unchanged, each with where it was found; and other views
(``datasource/columns.py``). Tasks read files of about equal total size and yield Arrow batches.

``option("trace", DIR)`` reads the events of a trace store instead (``datasource/segments.py``).

Rules
- Options say which due times and topics are wanted: other files are skipped, other rows left out.
  Spark's own way for that (``pushFilters``) is not used: in Spark 4.3 a frame that was read with a
  filter gives its next query, or the other side of a join, the rows of that filter.
- Damage is no error: its rows are missing, and ``option("view", "problems")`` reports it.
- A wrong path or option is an error, in one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema

from ..reading.files import File
from ..reading.problems import Problem, problem_batch
from ..wheel.errors import InvalidConfiguration
from .datasource.columns import COLUMNS, PROBLEMS, SCAN, SCHEMAS, STREAM_VIEWS
from .datasource.errors import in_one_line
from .datasource.options import (
    OF_TABLES,
    TRACE,
    SourceOptions,
    TraceOptions,
    parse,
    parse_trace,
    schema_of,
)
from .datasource.paths import layout_of, resolve
from .datasource.segments import EVENTS, ListedSegment, listed_segments, read_events
from .datasource.views import view_batches
from .facts.making import GroupTerms
from .facts.scan import SCANNED, tasks

__all__ = ["COLUMNS", "NAME", "SlotwheelSource", "register"]

NAME = "slotwheel"
_OPTIONS = "slotwheel.options"
"""Key in the metadata of a table's first column, with the options that the table was made with."""
CORES = 16
"""The number of cores that tasks are planned for."""


def register(spark: SparkSession) -> None:
    """Make ``format("slotwheel")`` known to a session."""
    spark.dataSource.register(SlotwheelSource)


class SlotwheelSource(DataSource):
    """The data source as Spark asks for it: name, schema and readers."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @in_one_line
    def schema(self) -> Any:
        options = dict(self.options)
        if options.get("view") == SCAN:
            return SCANNED
        if TRACE in options:
            names = parse_trace(options).columns
            schema = from_arrow_schema(pa.schema([EVENTS.field(name) for name in names]))
        else:
            schema = from_arrow_schema(schema_of(parse(options)))
        if not OF_TABLES.isdisjoint(options):
            schema.fields[0].metadata = {_OPTIONS: json.dumps(options)}
        return schema

    @in_one_line
    def reader(self, schema: Any) -> DataSourceReader:
        # Of a table, Spark keeps the options, and passes a reader only the columns.
        of_table = schema.fields[0].metadata.get(_OPTIONS, "{}")
        options = json.loads(of_table) | dict(self.options)
        if TRACE in options:
            traced = parse_trace(options)
            columns = _columns(schema, EVENTS, "of events")
            return TraceSourceReader(replace(traced, columns=columns))
        chosen = parse(options)
        columns = _columns(schema, SCHEMAS[chosen.view], repr(chosen.view))
        return Reader(replace(chosen, columns=columns))

    @in_one_line
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        from .stream import StreamReader
        from .tracestream import TraceStreamReader

        options = dict(self.options)
        if TRACE in options:
            root = options.pop(TRACE)
            return TraceStreamReader(root, parse(options, (SCAN,)))
        chosen = parse(options, STREAM_VIEWS)
        if chosen.view != SCAN:
            columns = _columns(schema, SCHEMAS[chosen.view], repr(chosen.view))
            chosen = replace(chosen, columns=columns)
        return StreamReader(chosen)


def _columns(schema: Any, all_columns: pa.Schema, view: str) -> tuple[str, ...]:
    """The names of a schema's columns, which the user may have given. Errors:
    ``InvalidConfiguration``."""
    known = {field.name: field.dataType for field in from_arrow_schema(all_columns)}
    for field in schema:
        if known.get(field.name) != field.dataType:
            raise InvalidConfiguration(
                f"the view {view} has no such column",
                got=f"{field.name} {field.dataType.simpleString()}",
                limit=", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items()),
                remedy="Leave the schema out, or give some of these",
            )
    return tuple(schema.names)


@dataclass
class _Task(InputPartition):
    files: Sequence[tuple[File, str]]
    """Files, each with the name of its peer; empty: of no peer."""
    terms: GroupTerms
    problems: Sequence[Problem] = ()


class Reader(DataSourceReader):
    """One query. The tasks carry the results of ``partitions``: Spark serializes the reader
    before."""

    def __init__(self, chosen: SourceOptions) -> None:
        self._chosen = chosen

    @in_one_line
    def partitions(self) -> list[_Task]:
        chosen = self._chosen
        given = resolve(chosen.paths, chosen.view)
        layout = layout_of(given, chosen.wanted, chosen.view, chosen.peer)
        terms = GroupTerms.of(layout, chosen.dead_letter_topic)
        peers = {number: peer.name for number, peer in enumerate(layout.peers)}
        files = [file for file in layout.files if chosen.includes(file, peers.get(file.peer, ""))]
        parts = [
            _Task([(file, peers.get(file.peer, "")) for file in group], terms)
            for group in tasks(files, CORES)
        ]
        if layout.problems or not parts:
            parts.append(_Task((), terms, layout.problems))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Task)
        if self._chosen.view == PROBLEMS and partition.problems:
            rows = problem_batch(partition.problems)
            yield rows.select(self._chosen.columns)
        for file, peer in partition.files:
            yield from view_batches(file, peer, self._chosen, partition.terms)


@dataclass
class _SegmentsTask(InputPartition):
    segments: Sequence[ListedSegment]


class TraceSourceReader(DataSourceReader):
    """One query of a trace store: tasks of about equal size."""

    def __init__(self, chosen: TraceOptions) -> None:
        self._chosen = chosen

    @in_one_line
    def partitions(self) -> list[_SegmentsTask]:
        segments = listed_segments(self._chosen.root)
        parts: list[_SegmentsTask] = []
        size = max(1, sum(segment.nbytes for segment in segments) // CORES)
        room = 0
        for segment in segments:
            if room <= 0:
                parts.append(_SegmentsTask([]))
                room = size
            parts[-1].segments = [*parts[-1].segments, segment]
            room -= segment.nbytes
        return parts or [_SegmentsTask([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _SegmentsTask)
        chosen = self._chosen
        yield from read_events(partition.segments, chosen.columns, chosen.start_ms, chosen.end_ms)

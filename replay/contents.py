"""Reads altered messages a second time, to say whether key, value or headers differ.

Theory: a fact has one digest of all three, so that it stays small. Where digests differ, both sides
are read once more: the journals that hold these few offsets, and all topics. Only digests of single
fields leave a task, one row a sighting. A receipt has only the one digest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ..policy.headercolumns import HeaderColumn, split_dead_letter, split_identity
from ..reading.events import RowsSeen
from ..reading.files import DUMP, JOURNAL, TOPIC, File
from ..reading.problems import Problem
from ..reading.read import read
from ..wheel.schema import Int64s, times
from .facts.making import GroupTerms
from .facts.records import parse_ids
from .facts.scan import RECORD_COLUMNS, Batches, files_of, tasks, tasks_frame
from .facts.summary import FileSummary
from .judging.conservation import CONTENT

MESSAGES_MAX = 100
"""Altered messages that are read again at most."""
FIELDS = ("key", "value", "headers")
SIGHTINGS = pa.schema(
    [("offset", pa.int64()), ("accepted", pa.bool_()), *((name, pa.utf8()) for name in FIELDS)]
)


def offsets_to_reread(problems: Sequence[Problem]) -> list[int]:
    """Offsets of the messages whose content was altered, ascending; at most ``MESSAGES_MAX``."""
    offsets = {problem.offset for problem in problems if CONTENT in problem.text}
    return sorted(offsets)[:MESSAGES_MAX]


def files_with(
    files: Sequence[File], summaries: Sequence[FileSummary], offsets: Sequence[int]
) -> list[File]:
    """Journals that may hold some of the offsets, and all files of topics."""
    ranges = {summary.number: summary.offsets for summary in summaries}
    return [
        file
        for file in files
        if file.kind in (TOPIC, DUMP)
        or (
            file.kind == JOURNAL
            and any(a <= at < b for a, b in ranges.get(file.number, ()) for at in offsets)
        )
    ]


def sightings(
    spark: SparkSession, files: Sequence[File], offsets: Collection[int], terms: GroupTerms
) -> DataFrame:
    """Digests of the messages with these offsets, by their rows in files. Columns:
    ``SIGHTINGS``."""
    planned = tasks(files, spark.sparkContext.defaultParallelism)

    def look(batches: Batches) -> Batches:
        for file in files_of(batches):
            for event in read(file):
                if isinstance(event, RowsSeen):
                    yield _sighted(event, offsets, terms)

    return tasks_frame(spark, planned).mapInArrow(look, from_arrow_schema(SIGHTINGS))


def record_sightings(records: DataFrame, offsets: Collection[int], terms: GroupTerms) -> DataFrame:
    """The same by their records in Kafka, whose ids have the wheel's offsets."""
    kafka = File(-1, DUMP, "", "Kafka", 0)

    def look(batches: Batches) -> Batches:
        for batch in batches:
            yield _sighted(RowsSeen(kafka, batch), offsets, terms)

    return records.select(*RECORD_COLUMNS).mapInArrow(look, from_arrow_schema(SIGHTINGS))


def name_fields(problems: Sequence[Problem], sighted: DataFrame) -> list[Problem]:
    """The problems, with the names of the fields that differ. ``sighted``: columns
    ``SIGHTINGS``."""
    seen: dict[tuple[int, bool, str], set[str]] = defaultdict(set)
    for row in sighted.distinct().collect():
        for name in FIELDS:
            seen[row.offset, row.accepted, name].add(row[name])
    named = []
    for problem in problems:
        others = [
            name
            for name in FIELDS
            if seen[problem.offset, True, name]
            and seen[problem.offset, False, name] - seen[problem.offset, True, name]
        ]
        named.append(
            replace(problem, text=problem.text.replace(CONTENT, ", ".join(others) or CONTENT))
        )
    return named


def _sighted(event: RowsSeen, offsets: Collection[int], terms: GroupTerms) -> pa.RecordBatch:
    rows, accepted = event.rows, event.file.kind == JOURNAL
    if accepted:
        offset, headers = times(rows, "offset"), rows.column("headers")
    else:
        offset, headers = _delivered(event, terms)
    at = pa.array(np.flatnonzero(np.isin(offset, list(offsets))))
    values = (rows.column("key"), rows.column("value"), headers)
    columns = [_digests(column.take(at)) for column in values]
    return pa.RecordBatch.from_arrays(
        [pa.array(offset).take(at), pa.array([accepted] * len(at)), *columns], schema=SIGHTINGS
    )


def _delivered(event: RowsSeen, terms: GroupTerms) -> tuple[Int64s, pa.Array]:
    """Offsets of the group's messages (-1: of another's) and the headers they were sent with."""
    rows, headers = event.rows, HeaderColumn(event.rows.column("headers"))
    count = rows.num_rows
    offset = np.full(count, -1, np.int64)
    if event.topic:
        dead = np.full(count, event.topic == terms.dead_letter_topic)
        if event.group == terms.group:
            offset = times(rows, "offset")
    else:
        dead = np.asarray(rows.column("topic").to_pylist()) == terms.dead_letter_topic
        identity = split_identity(headers)
        ids = parse_ids(identity.id, terms.group)
        offset[identity.rows[ids.rows]] = ids.offset
    split_dead_letter(headers, np.flatnonzero(dead))
    left = headers.left()
    return offset, pa.nulls(count) if left is None else left


def _digests(values: pa.Array) -> pa.Array:
    """One digest a value, for a few values of any type. A null and an empty list have the same."""
    texts = [
        repr(value or None if isinstance(value, list) else value) for value in values.to_pylist()
    ]
    return pa.array(
        [blake2b(text.encode(), digest_size=16).hexdigest() for text in texts], pa.utf8()
    )

"""The scan: all files, and records of Kafka, become facts. Spark's side of it.

A DataFrame of tasks has one row and one partition a task, so that Spark's scheduler assigns them;
``filescan.py`` is the work of one task. Records of Spark's Kafka source become facts in the same
way. Both results have the columns of ``SCANNED`` and can be joined with ``union``.

Theory: the sources are read once. The result is 64 bytes for each row read, and should be kept
(``persist``): it is used twice, for the summaries and for the facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...reading.files import DUMP, File
from .chunks import OrderChunk
from .filescan import SCANNED_ARROW, TaskScan
from .making import GroupTerms
from .summary import FileSummary

SCANNED = from_arrow_schema(SCANNED_ARROW)
"""Spark's schema of a scan (``filescan.py``)."""
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of Spark's Kafka source that are used."""
Batches = Iterator[pa.RecordBatch]


def tasks_frame(spark: SparkSession, tasks: Sequence[Sequence[File]]) -> DataFrame:
    """One row a task, each in a partition of its own; ``files``: the task's files as JSON."""
    rows = [(json.dumps([asdict(file) for file in files]),) for files in tasks]
    # A local relation would be partitioned by Spark's own rules; this one keeps one row a
    # partition.
    parts = spark.sparkContext.parallelize(rows, max(1, len(rows)))
    return spark.createDataFrame(parts, "files string", verifySchema=False)


def files_of(batches: Batches) -> Iterator[File]:
    """The files of a task, from the rows of ``tasks_frame``."""
    for batch in batches:
        for text in batch.column("files").to_pylist():
            for fields in json.loads(text):
                yield File(**fields)


def scan(tasks: DataFrame, terms: GroupTerms) -> DataFrame:
    """Read the files of ``tasks_frame``. Columns: ``SCANNED``."""

    def scan_files(batches: Batches) -> Batches:
        task = TaskScan(terms)
        for file in files_of(batches):
            yield from task.file(file)
        yield from task.end()

    return tasks.mapInArrow(scan_files, SCANNED)


def scan_records(records: DataFrame, terms: GroupTerms, number: int) -> DataFrame:
    """Read records of Spark's Kafka source (with ``includeHeaders``) as deliveries.

    ``number`` stands for the file. Columns: ``SCANNED``, with one summary a task.
    """
    file = File(number, DUMP, "", "Kafka", 0)

    def scan_batches(batches: Batches) -> Batches:
        task = TaskScan(terms)
        yield from task.records(batches, file)
        yield from task.end()

    return records.select(*RECORD_COLUMNS).mapInArrow(scan_batches, SCANNED)


def summaries(scanned: DataFrame) -> tuple[list[FileSummary], list[OrderChunk]]:
    """The summaries of all files, and the chunks of all topics: small values, collected on the
    driver. It runs the whole scan."""
    rows = scanned.where("what in ('file', 'chunk')").select("what", "text").collect()
    files = [FileSummary.from_json(row.text) for row in rows if row.what == "file"]
    return files, [OrderChunk.from_json(row.text) for row in rows if row.what == "chunk"]

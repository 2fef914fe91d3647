"""The scan: all files, and records of Kafka, become facts. Spark's side of it.

Theory: a task costs Spark some tens of milliseconds, and the last one to end decides how long all
take. So files are grouped into tasks of about equal size, several for each core, and not more than
a few thousand files each. A DataFrame of tasks has one row and one partition a task, so that
Spark's scheduler assigns them; ``filescan.py`` is the work of one task. Records of Spark's Kafka
source become facts in the same way. Both results have the columns of ``SCANNED`` and can be joined
with ``union``.

The sources are read once. The result is 64 bytes for each row read, and should be kept
(``persist``): it is used twice, for the summaries and for the facts.

Rules
- Records delivered to one topic are read in the order of positions: segments of a topic stay
  together, in order, until a task is full.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from ...reading.files import DUMP, TOPIC, File
from .chunks import OrderChunk
from .filescan import SCANNED_ARROW, TaskScan
from .making import GroupTerms
from .summary import FileSummary

SCANNED = from_arrow_schema(SCANNED_ARROW)
"""Spark's schema of a scan (``filescan.py``)."""
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
"""The columns of Spark's Kafka source that are used."""
Batches = Iterator[pa.RecordBatch]
TASKS_PER_CORE = 4
TASK_BYTES = (8 << 20, 256 << 20)
"""Smallest and largest size of a task; a single file may be larger."""
TASK_FILES_MAX = 4_000
_OPEN_BYTES = 32 << 10
"""The cost of opening a file, as bytes that could be read meanwhile."""


def tasks(files: Sequence[File], cores: int) -> list[list[File]]:
    """Divide files among tasks. ``cores``: the number of tasks that run at the same time."""
    total = sum(_cost(file) for file in files)
    low, high = TASK_BYTES
    size = min(high, max(low, total // max(1, cores * TASKS_PER_CORE) + 1))
    made: list[list[File]] = []
    topics = [file for file in files if file.kind == TOPIC]
    others = [file for file in files if file.kind != TOPIC]
    for group in (topics, others):
        made += _cut(group, size)
    # The longest first, so that none of them starts when all others are about to end.
    return sorted(made, key=lambda task: -sum(map(_cost, task)))


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


def _cut(files: Iterable[File], size: int) -> list[list[File]]:
    made: list[list[File]] = []
    room = 0
    for file in files:
        cost = _cost(file)
        if not made or cost > room or len(made[-1]) >= TASK_FILES_MAX:
            made.append([])
            room = size
        made[-1].append(file)
        room -= cost
    return made


def _cost(file: File) -> int:
    return file.nbytes + _OPEN_BYTES

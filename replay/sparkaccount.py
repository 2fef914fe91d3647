"""The account of a proof with traces, in Spark: what went into each boundary and what came out of
it, as tables.

    events of the store -> facts --+
    facts of the proof ------------+--> judging/boundaries -> counts and ids -> Parquet, sentences

The tables are partitioned by ``day`` and ``topic`` (of due times). Every row has ``made``: when it
was judged. Of each bucket, the rows that were made last hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from ..account.vocabulary import AuditVerdict
from ..reading.problems import CONSERVATION, Problem
from .datasource.segments import (
    ListedSegment,
    UnreadEvents,
    listed_segments,
    stored_batches,
)
from .facts.buckets import Buckets
from .facts.filescan import Output
from .facts.making import GroupTerms
from .facts.scan import SCANNED, Batches
from .facts.traced import TraceSummary, event_facts, summary_of
from .judging.boundaries import (
    BOUNDARY_ARROW,
    CLASSES,
    CLIENT,
    COUNTS_TABLE,
    IDS_TABLE,
    WHEEL,
    boundaries_of,
)
from .judging.context import Context
from .judging.ranges import facts_by_range, ranges
from .report.tables import named
from .storeaccount import BEFORE, BEHIND, BoundaryAccount, store_account

TRACES = "traces"
"""A further kind of row of a scan. ``text``: a ``TraceSummary`` and names of topics, as JSON."""
PROBLEMS_MAX = 1_000
"""Problems of a store that are described."""
_KEYS = ("boundary", "group", "topic", "bucket_ms")


def facts_of_segments(
    segments: Sequence[ListedSegment], terms: GroupTerms, known: Sequence[UnreadEvents] = ()
) -> Batches:
    """One task: the events of segments as rows of ``SCANNED_ARROW``. ``known``: events that cannot
    be read, besides those of these segments."""
    out, buckets, summary = Output(), Buckets(), TraceSummary()
    topics: dict[int, str] = {}
    unread = list(known)
    for segment in segments:
        for batch in stored_batches(segment, unread=unread):
            made = event_facts(batch, terms)
            topics |= made.topics
            of_batch = summary_of(batch)
            of_batch.own, of_batch.foreign = len(made.facts), made.foreign
            summary.add(of_batch)
            yield from out.pieces(buckets.add(made.facts))
    yield from out.pieces(buckets.drain())
    for events in unread:
        summary.unread_ms = max(summary.unread_ms, events.until_ms)
        yield from out.text("problem", -1, events.problem.to_json())
    text = json.dumps({"summary": summary.to_json(), "topics": topics})
    yield from out.text(TRACES, -1, text)
    yield from out.flush()


def read_traces(texts: Sequence[str]) -> tuple[TraceSummary, dict[int, str]]:
    """The summary and the names of topics that rows of kind ``TRACES`` have together."""
    whole = TraceSummary()
    topics: dict[int, str] = {}
    for text in texts:
        row = json.loads(text)
        whole.add(TraceSummary.of(json.loads(row["summary"])))
        topics |= {int(crc): name for crc, name in row["topics"].items()}
    return whole, topics


def scan_traces(spark: SparkSession, root: str, terms: GroupTerms) -> DataFrame:
    """The events of a store as a scan. Columns: ``SCANNED``. Errors: ``InvalidConfiguration``."""
    unread: list[UnreadEvents] = []
    segments = listed_segments(root, unread)
    cores = spark.sparkContext.defaultParallelism
    tasks = [part for at in range(cores) if (part := segments[at::cores])] or [[]]
    parts = spark.sparkContext.parallelize([(n,) for n in range(len(tasks))], max(1, len(tasks)))
    frame = spark.createDataFrame(parts, "task int", verifySchema=False)

    def scan(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column("task").to_pylist():
                known = unread if number == 0 else ()
                yield from facts_of_segments(tasks[number], terms, known)

    return frame.mapInArrow(scan, SCANNED)


def judge_boundaries(
    scanned: DataFrame,
    context: Context,
    traces: TraceSummary,
    partitions: int,
) -> DataFrame:
    """Counts and messages of all boundaries, in Spark's types of ``BOUNDARY_ARROW``; counts are
    partial sums. ``scanned``: the facts of files, topics and events."""

    def judge(batches: Batches) -> Iterator[pa.RecordBatch]:
        for facts in ranges(batches):
            yield from boundaries_of(facts, context, traces).to_batches()

    return facts_by_range(scanned, partitions).mapInArrow(judge, from_arrow_schema(BOUNDARY_ARROW))


def account(
    scanned: DataFrame,
    events: DataFrame,
    context: Context,
    partitions: int,
    tables: str,
    keep: Callable[[DataFrame], DataFrame],
    store: str,
) -> tuple[BoundaryAccount, DataFrame]:
    """Judge all boundaries, write the tables into the directory ``tables`` (empty: none), and sum
    up. Returns the account, and the losses that the proof does not see, as rows of
    ``PROBLEM_ARROW``. ``events``: of ``scan_traces``, kept; ``keep``: keeps a frame until the proof
    ends; ``store``: directory of the events."""
    texts = [row.text for row in events.where(f.col("what") == TRACES).collect()]
    traces, topics = read_traces(texts)
    both = scanned.union(events)
    judged = keep(judge_boundaries(both, context, traces, partitions))
    counts = judged.where("kind is null").groupBy(*_KEYS)
    sums = counts.agg(*(f.sum(name).alias(name) for name in CLASSES))
    if tables:
        names = {**topics, **context.topics}
        _write(sums, names, context.made_ms, f"{tables}/{COUNTS_TABLE}")
        ids = judged.where("kind is not null").drop(*CLASSES)
        ids = ids.withColumn("due", f.timestamp_millis("due_ms")).drop("due_ms")
        _write(ids, names, context.made_ms, f"{tables}/{IDS_TABLE}")
    whole = sums.groupBy("boundary", "group").agg(*(f.sum(name).alias(name) for name in CLASSES))
    rows = sorted(whole.collect(), key=lambda row: (row.boundary, row.group))
    of_store = store_account(store, traces, [row.asDict() for row in rows])
    problems = events.where(f.col("what") == "problem").limit(PROBLEMS_MAX).collect()
    unread = [Problem.from_json(row.text) for row in problems]
    return replace(of_store, problems=[*unread, *of_store.problems]), lost_messages(judged)


def _write(frame: DataFrame, topics: Mapping[int, str], made_ms: int, path: str) -> None:
    others = [column for column in frame.columns if column not in ("topic", "bucket_ms")]
    made = f.timestamp_millis(f.lit(made_ms)).alias("made")
    day = f.to_date("bucket").alias("day")
    rows = named(frame, topics).select(made, "bucket", *others, day, "topic")
    written = rows.repartition("day", "topic").write.mode("append")
    written.partitionBy("day", "topic").parquet(path)


def lost_messages(judged: DataFrame) -> DataFrame:
    """Messages that were lost where the proof does not see it, in the columns of
    ``PROBLEM_ARROW``."""
    rows = judged.where(
        (f.col("kind") == AuditVerdict.LOST.value) & (f.col("boundary") != WHEEL.value)
    )
    of = f.when(f.col("group") != "", f.concat(f.lit(", "), f.col("group"))).otherwise("")
    text = f.when(f.col("boundary") == CLIENT.value, BEFORE).otherwise(BEHIND)
    return rows.select(
        f.lit(CONSERVATION).alias("validator"),
        f.concat(f.lit(f"{AuditVerdict.LOST}, "), f.col("boundary"), of).alias("kind"),
        "id",
        "offset",
        "due_ms",
        f.lit("").alias("file"),
        f.lit(-1).cast("long").alias("position"),
        text.alias("text"),
    )

"""The account of a proof with traces: what went into each boundary and what came out, as tables.

    events of the store -> facts --+
    facts of the proof ------------+--> judging/boundaries -> counts and ids -> Parquet, sentences

The tables are partitioned by ``day`` and ``topic`` (of due times). Every row has ``made``: when it
was judged. Of each bucket, the rows that were made last hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from .datasource.segments import ListedSegment, listed_segments, stored_batches
from .facts.buckets import Buckets
from .facts.filescan import Output
from .facts.making import GroupTerms
from .facts.scan import SCANNED, Batches
from .facts.traced import TraceSummary, event_facts, summary_of
from .judging.boundaries import BOUNDARY_ARROW, CLASSES, LOST, WHEEL, Boundaries, BoundaryTerms
from .judging.context import Context
from .judging.judge import facts_by_range, ranges

TRACES = "traces"
"""A further kind of row of a scan. ``text``: a ``TraceSummary`` and names of topics, as JSON."""
COUNTS_TABLE, IDS_TABLE = "boundaries", "ids"
_KEYS = ("boundary", "group", "topic", "bucket_ms")


@dataclass(frozen=True, slots=True)
class BoundaryAccount:
    """``sentences``: a line for each boundary; ``reasons``: what fails the proof."""

    sentences: Sequence[str]
    reasons: Sequence[str]


def facts_of_segments(segments: Sequence[ListedSegment], terms: GroupTerms) -> Batches:
    """One task: the events of segments as rows of ``SCANNED_ARROW``."""
    out, buckets, summary = Output(), Buckets(), TraceSummary()
    topics: dict[int, str] = {}
    for segment in segments:
        for batch in stored_batches(segment):
            made = event_facts(batch, terms)
            topics |= made.topics
            summary.add(summary_of(batch))
            yield from out.pieces(buckets.add(made.facts))
    yield from out.pieces(buckets.drain())
    text = json.dumps({"summary": summary.to_json(), "topics": topics})
    yield from out.text(TRACES, -1, text)
    yield from out.flush()


def read_traces(texts: Sequence[str]) -> tuple[TraceSummary, dict[int, str]]:
    """What the rows of kind ``TRACES`` say together."""
    whole = TraceSummary()
    topics: dict[int, str] = {}
    for text in texts:
        found = json.loads(text)
        whole.add(TraceSummary.of(json.loads(found["summary"])))
        topics |= {int(crc): name for crc, name in found["topics"].items()}
    return whole, topics


def scan_traces(spark: SparkSession, root: str, terms: GroupTerms) -> DataFrame:
    """The events of a store as a scan. Columns: ``SCANNED``. Errors: ``InvalidConfiguration``,
    ``Damaged``."""
    segments = listed_segments(root)
    cores = spark.sparkContext.defaultParallelism
    tasks = [part for at in range(cores) if (part := segments[at::cores])]
    parts = spark.sparkContext.parallelize([(n,) for n in range(len(tasks))], max(1, len(tasks)))
    frame = spark.createDataFrame(parts, "task int", verifySchema=False)

    def scan(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column("task").to_pylist():
                yield from facts_of_segments(tasks[number], terms)

    return frame.mapInArrow(scan, SCANNED)


def judge_boundaries(
    scanned: DataFrame,
    context: Context,
    traces: TraceSummary,
    terms: BoundaryTerms,
    partitions: int,
) -> DataFrame:
    """Counts and messages of all boundaries, in Spark's types of ``BOUNDARY_ARROW``; counts are
    partial sums. ``scanned``: the facts of files, topics and events."""

    def judge(batches: Batches) -> Iterator[pa.RecordBatch]:
        for facts in ranges(batches):
            yield from Boundaries(facts, context, traces, terms).judged().to_batches()

    return facts_by_range(scanned, partitions).mapInArrow(judge, from_arrow_schema(BOUNDARY_ARROW))


def account(
    scanned: DataFrame,
    events: DataFrame,
    context: Context,
    terms: BoundaryTerms,
    partitions: int,
    tables: str,
    keep: Callable[[DataFrame], DataFrame],
) -> BoundaryAccount:
    """Judge all boundaries, write the tables (if ``tables`` is not empty), and sum up.
    ``events``: of ``scan_traces``, kept; ``keep``: keeps a frame until the proof ends."""
    texts = [row.text for row in events.where(f.col("what") == TRACES).collect()]
    traces, topics = read_traces(texts)
    both = scanned.union(events)
    judged = keep(judge_boundaries(both, context, traces, terms, partitions))
    counts = judged.where("kind is null").groupBy(*_KEYS)
    sums = counts.agg(*(f.sum(name).alias(name) for name in CLASSES))
    if tables:
        names = {**topics, **context.topics}
        _write(sums, names, context.made_ms, f"{tables}/{COUNTS_TABLE}")
        ids = judged.where("kind is not null").drop(*CLASSES)
        ids = ids.withColumn("due", f.timestamp_millis("due_ms")).drop("due_ms")
        _write(ids, names, context.made_ms, f"{tables}/{IDS_TABLE}")
    whole = sums.groupBy("boundary", "group").agg(*(f.sum(one).alias(one) for one in CLASSES))
    rows = sorted(whole.collect(), key=lambda row: (row.boundary, row.group))
    return BoundaryAccount([_sentence(row.asDict()) for row in rows], _reasons(rows))


def _write(frame: DataFrame, topics: Mapping[int, str], made_ms: int, path: str) -> None:
    spark = frame.sparkSession
    names = spark.createDataFrame(list(topics.items()), "topic bigint, name string")
    joined = frame.join(f.broadcast(names), "topic", "left")
    named = f.coalesce("name", f.format_string("topic %08x", "topic")).alias("topic")
    bucket = f.timestamp_millis("bucket_ms")
    others = [one for one in frame.columns if one not in ("topic", "bucket_ms")]
    made = f.timestamp_millis(f.lit(made_ms)).alias("made")
    day = f.to_date(bucket).alias("day")
    rows = joined.select(made, bucket.alias("bucket"), *others, day, named)
    written = rows.repartition("day", "topic").write.mode("append")
    written.partitionBy("day", "topic").parquet(path)


def _sentence(row: Mapping[str, Any]) -> str:
    of = f", {row['group']}" if row["group"] else ""
    always = [f"{row[name]:,} {name}" for name in ("sent", "arrived")]
    return f"{row['boundary']}{of}: " + ", ".join(
        always + [f"{row[name]:,} {name}" for name in CLASSES[2:] if row[name]]
    )


def _reasons(rows: Sequence[Any]) -> list[str]:
    """Losses that the proof does not see: before the wheel and behind the topics."""
    return [
        f"{LOST}, {row.boundary}{', ' + row.group if row.group else ''}: {row[LOST]:,}"
        for row in rows
        if row[LOST] and row.boundary != WHEEL
    ]

"""Writes a proof as tables, Parquet files that Spark adds to a directory.

    counts    accepted messages and what became of them, by topic and time bucket
    findings  the problems, as the page lists them
    verdict   one row; written last: a proof without it was cut off

Every row names its proof by ``made``. Files are partitioned by ``day``: the day, UTC, when the
messages were due; for the verdict, and rows without a due time, when the proof was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...reading.problems import problem_batch
from .verdict import Verdict

VERDICT_SCHEMA = (
    "group string, outcome string, reasons array<string>, open_points array<string>,"
    " counts map<string,bigint>, problem_counts map<string,bigint>, truncated boolean,"
    " notes array<string>, seconds double, interval_ms bigint, options string,"
    " versions map<string,string>"
)


def write_tables(
    directory: str,
    made_ms: int,
    counts: DataFrame,
    topics: Mapping[int, str],
    verdict: Verdict,
    group: str,
) -> None:
    """Append a proof to the tables in a directory: a path, or an address that Spark can write to.
    ``made_ms``: when the proof was made; ``counts``: of ``validators.tallies``, where a topic is
    its name's CRC; ``topics``: names by CRC. Errors: those of Spark."""
    spark, made = counts.sparkSession, f.timestamp_millis(f.lit(made_ms))
    findings = spark.createDataFrame(pa.Table.from_batches([problem_batch(verdict.problems)]))
    due = f.when(f.col("due_ms") >= 0, f.timestamp_millis("due_ms"))
    for name, frame, day in (
        ("counts", named(counts, topics), f.col("bucket")),
        ("findings", findings, f.coalesce(due, made)),
        ("verdict", _verdict(spark, verdict, group), made),
    ):
        whole = frame.select(made.alias("made"), "*", f.to_date(day).alias("day"))
        # One file a day, not one for each task.
        rows = whole.repartition("day").write.mode("append").partitionBy("day")
        rows.parquet(f"{directory}/{name}")


def named(rows: DataFrame, topics: Mapping[int, str]) -> DataFrame:
    """Rows with the name of their topic in the place of its CRC, and the time ``bucket`` beside
    ``bucket_ms``; these three columns are first. A CRC without a name is shown itself."""
    names = rows.sparkSession.createDataFrame(list(topics.items()), "topic bigint, name string")
    joined = rows.join(f.broadcast(names), "topic", "left")
    others = [column for column in rows.columns if column not in ("topic", "bucket_ms")]
    topic = f.coalesce("name", f.format_string("topic %08x", "topic")).alias("topic")
    bucket = f.timestamp_millis("bucket_ms").alias("bucket")
    return joined.select(topic, "bucket_ms", bucket, *others)


def _verdict(spark: SparkSession, verdict: Verdict, group: str) -> DataFrame:
    row = {
        **verdict.to_dict(),
        "group": group,
        "open_points": [str(point) for point in verdict.open_points],
        "options": json.dumps(verdict.options),
    }
    return spark.createDataFrame([row], VERDICT_SCHEMA)

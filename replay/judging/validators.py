"""The rows of judging as data frames: sums, problems, tallies and lateness.

Spark sums and takes percentiles; the results are small, but for problems and repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from ...reading.problems import PROBLEM_ARROW
from .sums import TALLIED


def sums(judged: DataFrame) -> DataFrame:
    """Sums of all tasks: how many messages are in each class, and problems of each kind (``what``:
    count, problems; ``name``; ``count``); and of ``what`` tally, the ``first`` and the ``last``
    time bucket, and how many ``buckets`` there are."""
    name = f.when(f.col("what") != "tally", f.col("name")).alias("name")
    rows = judged.where(f.col("what").isin("count", "problems", "tally"))
    return rows.groupBy("what", name).agg(
        f.sum("count").alias("count"),
        f.min("bucket_ms").alias("first"),
        f.max("bucket_ms").alias("last"),
        f.count_distinct("bucket_ms").alias("buckets"),
    )


def problems(rows: DataFrame) -> DataFrame:
    """All problems among the rows of a scan, or of judging. Columns: those of ``PROBLEM_ARROW``."""
    problem = f.from_json("text", from_arrow_schema(PROBLEM_ARROW)).alias("problem")
    return rows.where("what = 'problem'").select(problem).select("problem.*")


def tallies(judged: DataFrame, interval_ms: int = 1) -> DataFrame:
    """Numbers of messages of each class, by topic (the CRC of its name) and time bucket of
    ``interval_ms``. ``topic``, ``bucket_ms``, and a column for each of ``TALLIED``."""
    rows = judged.where("what = 'tally'").withColumn("bucket_ms", _bucket(interval_ms))
    return rows.groupBy("topic", "bucket_ms").agg(
        *(_summed(f.when(f.col("name") == name, f.col("count")), name) for name in TALLIED)
    )


def tallied_by(tallies: DataFrame, column: str) -> DataFrame:
    """A tally summed by ``topic`` or by ``bucket_ms`` alone."""
    return tallies.groupBy(column).agg(*(_summed(f.col(name), name) for name in TALLIED))


def lateness(judged: DataFrame, interval_ms: int = 1) -> DataFrame:
    """Percentiles of all messages, by topic (the CRC of its name), and by time bucket of
    ``interval_ms``; the columns that a row is not grouped by are null. ``topic``, ``bucket_ms``,
    ``count``; ms: ``p50``, ``p99``, ``p999``, ``max``."""
    bars = judged.where("what = 'late'").withColumn("bucket_ms", _bucket(interval_ms))
    group = ["topic", "bucket_ms"]
    # Bars of a group are brought together once; what follows needs no other shuffle.
    together = bars.repartition(*group)
    added = together.groupBy(*group, "late_ms").agg(
        f.sum("count").alias("count"), f.max("max_ms").alias("max_ms")
    )
    window = Window.partitionBy(*group)
    ranked = added.withColumn("upto", f.sum("count").over(window.orderBy("late_ms")))
    ranked = ranked.withColumn("total", f.sum("count").over(window))

    def percentile(share: float) -> Column:
        # The smallest lateness that at least so large a share does not exceed.
        reached = f.col("upto") >= f.ceil(f.col("total") * f.lit(share))
        return f.min(f.when(reached, f.col("late_ms"))).cast("double")

    return ranked.groupBy(*group).agg(
        f.sum("count").alias("count"),
        percentile(0.5).alias("p50"),
        percentile(0.99).alias("p99"),
        percentile(0.999).alias("p999"),
        f.max("max_ms").cast("double").alias("max"),
    )


def listed(problems: DataFrame, shares: Mapping[str, int]) -> DataFrame:
    """The first problems of each kind, by offset, file, position. ``shares``: how many of each."""
    parts = [
        problems.where(f.col("kind") == kind).orderBy("offset", "file", "position").limit(share)
        for kind, share in shares.items()
    ]
    return reduce(DataFrame.unionAll, parts)


def _bucket(interval_ms: int) -> Column:
    return f.col("bucket_ms") - f.pmod(f.col("bucket_ms"), f.lit(interval_ms))


def _summed(values: Column, name: str) -> Column:
    return f.coalesce(f.sum(values), f.lit(0)).alias(name)

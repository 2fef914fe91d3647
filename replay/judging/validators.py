"""The rows of judging as data frames: sums, problems, tallies and lateness.

Spark sums and takes percentiles; the results are small, but for problems and repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ...reading.problems import PROBLEM_SCHEMA
from .tally import TALLIED

SUMS_SCHEMA = "what string, name string, count bigint, first bigint, last bigint"
LATENESS_SCHEMA = (
    "topic string, bucket_ms bigint, count bigint, p50 double, p99 double, p999 double, max double"
)


def sums(judged: DataFrame) -> DataFrame:
    """Sums of all tasks: how many messages are in each class, problems of each kind, and the range
    of time buckets (``what``: count, problems, span). ``SUMS_SCHEMA``."""
    rows = judged.where(f.col("what").isin("count", "problems", "span"))
    return rows.groupBy("what", "name").agg(
        f.sum("count").alias("count"),
        f.min("bucket_ms").alias("first"),
        f.max("max_ms").alias("last"),
    )


def problems(judged: DataFrame) -> DataFrame:
    """All problems that judging found. ``PROBLEM_SCHEMA``."""
    problem = f.from_json("text", PROBLEM_SCHEMA).alias("problem")
    return judged.where("what = 'problem'").select(problem).select("problem.*")


def tallies(judged: DataFrame, interval_ms: int = 1) -> DataFrame:
    """How many messages of each class, by topic (the CRC of its name, hex) and time bucket of
    ``interval_ms``. ``topic``, ``bucket_ms``, and a column for each of ``TALLIED``."""
    rows = judged.where("what = 'tally'").withColumn("bucket_ms", _bucket(interval_ms))
    return rows.groupBy(f.col("name").alias("topic"), "bucket_ms").agg(
        *(_summed(f.when(f.col("text") == name, f.col("count")), name) for name in TALLIED)
    )


def tallied_by(tallies: DataFrame, column: str) -> DataFrame:
    """A tally summed by ``topic`` or by ``bucket_ms`` alone; the other column is null."""
    added = tallies.groupBy(column).agg(*(_summed(f.col(name), name) for name in TALLIED))
    return added.select(
        *(
            f.col(name) if name == column else f.lit(None).cast(kind).alias(name)
            for name, kind in (("topic", "string"), ("bucket_ms", "bigint"))
        ),
        *TALLIED,
    )


def lateness(judged: DataFrame, interval_ms: int = 1) -> DataFrame:
    """Percentiles of all messages, by topic (the CRC of its name, hex), and by time bucket of
    ``interval_ms``; the columns that a row is not grouped by are null. ``LATENESS_SCHEMA``."""
    bucket = _bucket(interval_ms).alias("bucket_ms")
    bars = judged.where("what = 'late'").select(
        f.col("name").alias("topic"), bucket, "late_ms", "count", "max_ms"
    )
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
    """The first ``shares`` problems of each kind, by offset, file, position. ``PROBLEM_SCHEMA``."""
    some = [
        problems.where(f.col("kind") == kind).orderBy("offset", "file", "position").limit(share)
        for kind, share in shares.items()
    ]
    return reduce(DataFrame.unionAll, some)


def _bucket(interval_ms: int) -> Column:
    """The begin of the wider time bucket of a row."""
    return f.col("bucket_ms") - f.pmod(f.col("bucket_ms"), f.lit(interval_ms))


def _summed(values: Column, name: str) -> Column:
    return f.coalesce(f.sum(values), f.lit(0)).alias(name)

"""What the judged rows say, as data frames: one function a validator, from DataFrame to DataFrame.

Sums and percentiles are Spark's work; what comes out is small, but for problems and repeats.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from .problems import AGREEMENT, CONSERVATION, PROBLEM_SCHEMA, PUNCTUALITY

COUNTS_SCHEMA = "name string, count bigint"
LATENESS_SCHEMA = (
    "topic string, bucket_ms bigint, count bigint, p50 double, p99 double, p999 double, max double"
)


def counts(judged: DataFrame) -> DataFrame:
    """How many messages are in each class. ``COUNTS_SCHEMA``."""
    return _sums(judged, "count").where(~f.col("name").contains(":"))


def problem_counts(judged: DataFrame) -> DataFrame:
    """How many problems of each kind there are, listed or not. ``COUNTS_SCHEMA``."""
    return _sums(judged, "problems")


def pair_counts(judged: DataFrame) -> DataFrame:
    """``equal:I:J`` and ``different:I:J`` of peers I and J. ``COUNTS_SCHEMA``."""
    return _sums(judged, "count").where(f.col("name").contains(":"))


def problems(judged: DataFrame) -> DataFrame:
    """Everything that judging found. ``PROBLEM_SCHEMA``."""
    problem = f.from_json("text", PROBLEM_SCHEMA).alias("problem")
    return judged.where("what = 'problem'").select(problem).select("problem.*")


def conservation(judged: DataFrame) -> DataFrame:
    """Lost, repeated, altered, unknown messages. ``PROBLEM_SCHEMA``."""
    return problems(judged).where(f.col("validator") == CONSERVATION)


def agreement(judged: DataFrame) -> DataFrame:
    """Rows in which peers differ. ``PROBLEM_SCHEMA``."""
    return problems(judged).where(f.col("validator") == AGREEMENT)


def punctuality(judged: DataFrame) -> DataFrame:
    """Early ones and late ones. ``PROBLEM_SCHEMA``."""
    return problems(judged).where(f.col("validator") == PUNCTUALITY)


def excused(judged: DataFrame) -> DataFrame:
    """``offset bigint`` of messages that arrived more than once, or should not have arrived."""
    return judged.where("what = 'excused'").select(f.col("count").alias("offset"))


def lateness(judged: DataFrame, *by: str) -> DataFrame:
    """Percentiles by ``topic``, by ``bucket_ms``, by both, or of all. ``LATENESS_SCHEMA``; what it
    is not taken by is null. ``topic`` is the CRC of its name, hex."""
    bars = judged.where("what = 'late'").select(
        f.col("name").alias("topic"), "bucket_ms", "late_ms", "count", "max_ms"
    )
    sums = bars.groupBy(*by, "late_ms").agg(
        f.sum("count").alias("count"), f.max("max_ms").alias("max_ms")
    )
    group = Window.partitionBy(*by) if by else Window.partitionBy(f.lit(0))
    upto = f.sum("count").over(group.orderBy("late_ms"))
    total = f.sum("count").over(group)
    ranked = sums.withColumn("upto", upto).withColumn("total", total)

    def percentile(share: float) -> Column:
        # The smallest lateness that so large a share is not above.
        reached = f.col("upto") >= f.ceil(f.col("total") * f.lit(share))
        return f.min(f.when(reached, f.col("late_ms"))).cast("double")

    found = ranked.groupBy(*by).agg(
        f.sum("count").alias("count"),
        percentile(0.5).alias("p50"),
        percentile(0.99).alias("p99"),
        percentile(0.999).alias("p999"),
        f.max("max_ms").cast("double").alias("max"),
    )
    columns = {"topic": "string", "bucket_ms": "bigint"}
    return found.select(
        *(
            f.col(name) if name in by else f.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        ),
        "count",
        "p50",
        "p99",
        "p999",
        "max",
    )


def _sums(judged: DataFrame, what: str) -> DataFrame:
    rows = judged.where(f.col("what") == what)
    return rows.groupBy("name").agg(f.sum("count").alias("count"))

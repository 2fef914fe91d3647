"""Latency by step, topic and bucket: the figures of ``trace/chains/latency.py``, in Spark.

Rules
- A bucket is of the due time; a percentile is a value that was measured. The rank of each is a
  whole number, so that both computations name the same value.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ...reading.search.fate import MessageState
from ...trace.chains.latency import LatencyStep
from ...trace.events import EventKind
from .departures import beside, ready_ms

LATENCIES = (
    "topic string, bucket timestamp, step string, messages bigint, p50 double, p95 double,"
    " p99 double, max double"
)


def latency(events: DataFrame, departures: DataFrame, interval_ms: int) -> DataFrame:
    """Columns: ``LATENCIES``; times in ms. ``events``: of the data source's option ``trace``;
    ``departures``: ``DEPARTURES``."""
    parts = [*_of_events(events, departures), _of_departures(departures)]
    every = reduce(DataFrame.unionByName, parts)
    due = f.unix_millis("due")
    bucket_ms = (due - f.pmod(due, f.lit(interval_ms))).alias("bucket_ms")
    keys = ["topic", "bucket_ms", "step"]
    rows = every.select("topic", bucket_ms, "step", "us")
    group = Window.partitionBy(*keys)
    ranked = rows.withColumn("rank", f.row_number().over(group.orderBy("us")))
    ranked = ranked.withColumn("total", f.count("*").over(group))

    def percentile(percent: int) -> Column:
        rank = f.expr(f"(total * {percent} + 99) div 100")
        return (f.max(f.when(f.col("rank") == rank, f.col("us"))) / 1000).alias(f"p{percent}")

    figures = ranked.groupBy(*keys).agg(
        f.count("*").alias("messages"),
        *(percentile(percent) for percent in (50, 95, 99)),
        (f.max("us") / 1000).alias("max"),
    )
    names = [column.split()[0] for column in LATENCIES.split(", ")]
    return figures.withColumn("bucket", f.timestamp_millis("bucket_ms")).select(*names)


def _part(rows: DataFrame, step: LatencyStep, us: Column) -> DataFrame:
    return rows.select("topic", "due", f.lit(step.value).alias("step"), us.alias("us"))


def _of_events(events: DataFrame, departures: DataFrame) -> list[DataFrame]:
    named = events.where("id is not null and topic is not null")
    told = f.col("took_us").isNotNull()
    sent = named.where((f.col("kind") == EventKind.PRODUCED.value) & told & f.isnull("error"))
    got = beside(named.where(f.col("kind") == EventKind.PROCESSED.value), departures)
    at = f.unix_millis("at")
    could = f.coalesce("ready_ms", f.unix_millis("due"))
    return [
        _part(sent, LatencyStep.SEND, f.col("took_us")),
        _part(got.where(told), LatencyStep.CONSUMER, f.col("took_us")),
        _part(got, LatencyStep.ARRIVAL, (at - could) * 1000),
        _part(got.where("left_ms is not null"), LatencyStep.BROKER, (at - f.col("left_ms")) * 1000),
    ]


def _of_departures(departures: DataFrame) -> DataFrame:
    delivered = f.col("state") == MessageState.DELIVERED.value
    named = departures.where(delivered & f.col("topic").isNotNull())
    return _part(named, LatencyStep.WHEEL, (f.unix_millis("at") - ready_ms()) * 1000)

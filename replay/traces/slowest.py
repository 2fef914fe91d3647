"""The slowest chains: from when a message was first sent until the last of what came of it was
processed.

Theory: a retry, a dead letter and what is sent again name in their events the message that they
come from. Following these links by doubling (the link of a link, and so on) finds the first message
of each in as many joins as the depth has binary digits. A circle of forged links ends somewhere,
too, after as many.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ...trace.events import EventKind

DEPTH = 16
"""A message that is more links from the first one counts as another chain."""
CHAINS = (
    "id string, topic string, sent timestamp, processed timestamp, total_ms double,"
    " messages bigint, answers bigint"
)


def slowest(events: DataFrame, limit: int, depth: int = DEPTH) -> DataFrame:
    """The ``limit`` slowest chains, the slowest first; ``depth``: a power of two. Columns:
    ``CHAINS``; ``id`` is that of the first message, ``topic`` that of its first event."""
    linked = events.where("id is not null and origin is not null and id <> origin")
    links = linked.groupBy("id").agg(f.min("origin").alias("root")).localCheckpoint()
    steps = 1
    while steps < depth:
        onward = links.select(f.col("id").alias("root"), f.col("root").alias("further"))
        joined = links.join(onward, "root", "left")
        # Kept, or the links would be read anew for each further one.
        links = joined.select("id", f.coalesce("further", "root").alias("root")).localCheckpoint()
        steps *= 2
    named = events.where("id is not null").join(links, "id", "left")
    whole = named.withColumn("root", f.coalesce("root", "id"))
    sent = (f.col("kind") == EventKind.PRODUCED.value) & f.isnull("error")
    answered = f.col("kind") == EventKind.PROCESSED.value
    end = f.timestamp_micros(f.unix_micros("at") + f.coalesce("took_us", f.lit(0)))
    first = f.struct((f.col("id") != f.col("root")).alias("later"), "at")
    chains = whole.groupBy(f.col("root").alias("id")).agg(
        f.min_by("topic", first).alias("topic"),
        f.min(f.when(sent, f.col("at"))).alias("sent"),
        f.max(f.when(answered, end)).alias("processed"),
        f.count_distinct(whole["id"]).alias("messages"),
        f.count(f.when(answered, 1)).alias("answers"),
    )
    total = (f.unix_micros("processed") - f.unix_micros("sent")) / 1000
    timed = chains.withColumn("total_ms", total).where("total_ms is not null")
    names = [column.split()[0] for column in CHAINS.split(", ")]
    return timed.orderBy(f.desc("total_ms"), "id").limit(limit).select(*names)

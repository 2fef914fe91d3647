"""When and how messages left the wheel, as a DataFrame beside that of events.

``DEPARTURES`` are the columns: what ``trace/chains`` takes as departures, with the group of each.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...reading.search.fate import MessageState

DEPARTURES = (
    "group string, due timestamp, offset bigint, created timestamp, at timestamp, state string,"
    " topic string"
)
_GROUP = r"^(.+)\.[0-9]+\.[0-9]+\.(?:[0-9a-f]{8}){1,2}$"


def departures_of(delivered: DataFrame) -> DataFrame:
    """Departures (``DEPARTURES``) of what arrived (the data source's view ``delivered``); records
    without an id are left out."""
    known = delivered.where("id is not null and due is not null")
    return known.select(
        f.regexp_extract("id", _GROUP, 1).alias("group"),
        "due",
        "offset",
        "created",
        f.col("delivered").alias("at"),
        f.lit(MessageState.DELIVERED.value).alias("state"),
        "topic",
    )


def ready_ms() -> Column:
    """When a departure could have left, ms: ``account.limits.ready_ms`` of Spark's columns."""
    return f.greatest(f.unix_millis("due"), f.unix_millis("created"))


def first_departures(departures: DataFrame) -> DataFrame:
    """The first delivery of each message: ``id_group``, ``id_offset``, ``left_due``, ``left_ms``
    and ``ready_ms``."""
    delivered = departures.where(f.col("state") == MessageState.DELIVERED.value)
    first = f.min_by(f.struct("due", "created", "at"), f.unix_millis("at")).alias("first")
    rows = delivered.groupBy(
        f.col("group").alias("id_group"), f.col("offset").alias("id_offset")
    ).agg(first)
    return rows.select("id_group", "id_offset", "first.*").select(
        "id_group",
        "id_offset",
        f.col("due").alias("left_due"),
        f.unix_millis("at").alias("left_ms"),
        ready_ms().alias("ready_ms"),
    )


def beside(events: DataFrame, departures: DataFrame) -> DataFrame:
    """Events with an id, with ``left_ms`` and ``ready_ms`` of their messages; null if these did not
    leave."""
    first = first_departures(departures)
    joined = events.join(first, ["id_group", "id_offset"], "left")
    same = f.col("due") == f.col("left_due")
    for name in ("left_ms", "ready_ms"):
        joined = joined.withColumn(name, f.when(same, f.col(name)))
    return joined.drop("left_due")

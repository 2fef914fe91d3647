"""Anomalies of all messages: kinds and amounts of ``trace/chains/anomalies.py``, in Spark."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from ...policy.deadletters import EXPIRED
from ...search.fate import MessageState
from ...trace.chains.anomalies import CLOCKS_MS, LIMITS, AnomalyKind, AnomalyLimits
from ...trace.events import EventKind
from .departures import beside, ready_ms

ANOMALIES = (
    "kind string, at timestamp, id string, topic string, group string, amount bigint, why string"
)
_PLACE = ("topic", "partition", "offset")


def anomalies_of(
    events: DataFrame, departures: DataFrame, now_ms: int, limits: AnomalyLimits = LIMITS
) -> DataFrame:
    """Columns: ``ANOMALIES``, in any order. ``events``: of the data source's option ``trace``;
    ``departures``: ``DEPARTURES``. The ids of what is known of departures alone have no check."""
    return reduce(
        DataFrame.unionByName,
        [*_of_events(events, departures, now_ms, limits), *_of_departures(departures, limits)],
    )


def _of_events(
    events: DataFrame, departures: DataFrame, now_ms: int, limits: AnomalyLimits
) -> list[DataFrame]:
    def of(*kinds: EventKind) -> DataFrame:
        return events.where(f.col("kind").isin([kind.value for kind in kinds]))

    dead = of(EventKind.DEAD)
    expired = f.coalesce(f.col("error") == EXPIRED, f.lit(False))
    of_group = f.row_number().over(Window.partitionBy("id", "group").orderBy("at"))
    answers = of(EventKind.PROCESSED).where("id is not null").withColumn("answer", of_group)
    processed = beside(answers.where("answer = 1"), departures)
    waited = f.unix_millis("at") - f.col("left_ms")
    early = f.col("ready_ms") - f.unix_millis("at")
    # Of an event without an id and without a place nobody can say which message it is of.
    held = of(EventKind.RECEIVED, EventKind.PROCESSED).where("id is not null or offset is not null")
    return [
        _made(AnomalyKind.RETRY, of(EventKind.RETRIED), f.col("attempt")),
        _made(AnomalyKind.EXPIRED, dead.where(expired)),
        _made(AnomalyKind.DEAD, dead.where(~expired), why=f.col("error")),
        _made(AnomalyKind.GAP, of(EventKind.DROPPED), f.col("count")),
        *_repeated_or_stuck(held, now_ms, limits.stuck_ms),
        _made(AnomalyKind.BACKLOG, processed.where(waited > limits.backlog_ms), waited),
        _made(AnomalyKind.CLOCKS, processed.where(early >= CLOCKS_MS), early),
    ]


def _repeated_or_stuck(held: DataFrame, now_ms: int, stuck_ms: int) -> list[DataFrame]:
    # A message without an id is known by its place on its topic.
    place = [f.when(f.isnull("id"), f.col(name)).alias(f"at_{name}") for name in _PLACE]
    rows = held.select("*", *place)
    answered = f.col("kind") == EventKind.PROCESSED.value
    whose = Window.partitionBy("id", *(f"at_{name}" for name in _PLACE), "group")
    rows = rows.withColumn("answers", f.count(f.when(answered, 1)).over(whose))
    newest = whose.orderBy(answered.desc(), f.desc("at"))
    last = rows.withColumn("newest", f.row_number().over(newest)).where("newest = 1")
    held_ms = f.lit(now_ms) - f.unix_millis("at")
    stuck = rows.where(~answered & (f.col("answers") == 0) & (held_ms > stuck_ms))
    return [
        _made(AnomalyKind.REPEAT, last.where("answers > 1"), f.col("answers")),
        _made(AnomalyKind.STUCK, stuck, held_ms),
    ]


def _of_departures(departures: DataFrame, limits: AnomalyLimits) -> list[DataFrame]:
    due = f.unix_millis("due").cast("string")
    text = f.concat_ws(".", "group", due, f.col("offset").cast("string"), f.lit("0" * 8))
    rows = departures.withColumn("id", text)
    late = f.unix_millis("at") - ready_ms()

    def of(state: MessageState) -> DataFrame:
        return rows.where(f.col("state") == state.value)

    def made(kind: AnomalyKind, found: DataFrame, amount: Column | None = None) -> DataFrame:
        return _made(kind, found, amount).withColumn("group", f.lit(None).cast("string"))

    delivered = of(MessageState.DELIVERED)
    return [
        made(AnomalyKind.LATE, delivered.where(late > limits.late_ms), late),
        made(AnomalyKind.EXPIRED, of(MessageState.EXPIRED)),
        made(AnomalyKind.DEAD, of(MessageState.DEAD)),
    ]


def _made(
    kind: AnomalyKind, rows: DataFrame, amount: Column | None = None, why: Column | None = None
) -> DataFrame:
    none = f.lit(None)
    return rows.select(
        f.lit(kind.value).alias("kind"),
        "at",
        "id",
        "topic",
        "group",
        (none if amount is None else amount).cast("bigint").alias("amount"),
        (none if why is None else why).cast("string").alias("why"),
    )

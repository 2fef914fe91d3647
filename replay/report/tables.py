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
from dataclasses import asdict, dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from ...reading.problems import PROBLEM_ARROW
from .verdict import Verdict

VERDICT_SCHEMA = (
    "group string, outcome string, reasons array<string>, open_points array<string>,"
    " counts map<string,bigint>, problem_counts map<string,bigint>, truncated boolean,"
    " notes array<string>, seconds double, interval_ms bigint, options string,"
    " versions map<string,string>"
)


@dataclass(frozen=True, slots=True)
class Tables:
    """Where tables are written. ``directory``: a path, or an address that Spark can write to;
    ``made_ms``: when the proof was made."""

    directory: str
    made_ms: int

    def write(
        self, counts: DataFrame, topics: Mapping[int, str], verdict: Verdict, group: str
    ) -> None:
        """Append a proof. ``counts``: of ``validators.tallies``, where a topic is its name's CRC;
        ``topics``: names by CRC. Errors: those of Spark."""
        spark = counts.sparkSession
        self._add("counts", _named(counts, topics), _moment(f.col("bucket_ms")))
        findings = spark.createDataFrame(
            [asdict(one) for one in verdict.problems], from_arrow_schema(PROBLEM_ARROW)
        )
        due = f.when(f.col("due_ms") >= 0, _moment(f.col("due_ms")))
        self._add("findings", findings, f.coalesce(due, _moment(f.lit(self.made_ms))))
        self._add("verdict", _verdict(spark, verdict, group), _moment(f.lit(self.made_ms)))

    def _add(self, name: str, frame: DataFrame, day: Column) -> None:
        made = _moment(f.lit(self.made_ms)).alias("made")
        whole = frame.select(made, "*", f.to_date(day).alias("day"))
        # One file a day, not one for each task.
        whole.repartition("day").write.mode("append").partitionBy("day").parquet(
            f"{self.directory}/{name}"
        )


def _moment(ms: Column) -> Column:
    return f.timestamp_millis(ms)


def _named(counts: DataFrame, topics: Mapping[int, str]) -> DataFrame:
    """Counts with the names of topics; a topic whose name is not known is named by its CRC."""
    spark = counts.sparkSession
    names = spark.createDataFrame(list(topics.items()), "topic bigint, name string")
    unknown = f.format_string("topic %08x", "topic")
    joined = counts.join(f.broadcast(names), "topic", "left")
    others = [column for column in counts.columns if column not in ("topic", "bucket_ms")]
    topic = f.coalesce("name", unknown).alias("topic")
    return joined.select(topic, "bucket_ms", _moment(f.col("bucket_ms")).alias("bucket"), *others)


def _verdict(spark: SparkSession, verdict: Verdict, group: str) -> DataFrame:
    row = {
        **verdict.to_dict(),
        "group": group,
        "open_points": [str(point) for point in verdict.open_points],
        "options": json.dumps(verdict.options),
    }
    return spark.createDataFrame([row], VERDICT_SCHEMA)

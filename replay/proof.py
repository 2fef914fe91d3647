"""The whole proof: from a layout to a verdict.

    layout -> plan -> scan -> summaries -> context
                        |                     |
                        +---- facts --------- judge -> counts, lateness, problems -> verdict

Rules
- Rows stay where they are. To the driver come one summary a file, sums, and problems up to a limit;
  the verdict says when there were more.
- What the scan gives is kept on the executors' disks: it is read twice, and the files only once.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa
import pyspark
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from . import validators
from .context import Context, Options, make_context
from .files import Layout
from .integrity import problems_of
from .judge import judge
from .making import Terms
from .order import validate as validate_order
from .plan import tasks
from .problems import Problem
from .scan import scan, scan_records, summaries, tasks_frame
from .summary import FileSummary
from .verdict import CLASSES, Input, Lateness, PairAgreement, Verdict

FAILS_ONLY_IF_ASKED = {"repeated": "exactly_once", "late": "late_ms"}
BUCKETS_MAX = 2_000
"""Time buckets in a verdict; with more, they are made wider."""
TOPICS_MAX = 200
"""Topics whose lateness is told; those with the most messages."""
_ARROW_BYTES = 64 << 20
_FACTS_A_TASK = 4 << 20

Progress = Callable[[str], None]
"""Told what is done now."""


def prove(
    spark: SparkSession,
    layout: Layout,
    options: Options | None = None,
    *,
    kafka: DataFrame | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """``kafka``: records of Spark's Kafka source, with headers, of all topics that were delivered
    to. Errors: those of Spark."""
    proof = _Proof(spark, layout, options or Options(), progress or (lambda _: None))
    try:
        return proof.run(kafka)
    finally:
        proof.close()


class _Proof:
    def __init__(
        self, spark: SparkSession, layout: Layout, options: Options, progress: Progress
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._options = options
        self._progress = progress
        self._terms = Terms(layout.group, layout.key, layout.dead_letter_topic)
        self._kept: list[DataFrame] = []
        self._began = time.monotonic()

    def run(self, kafka: DataFrame | None) -> Verdict:
        self._progress("reading the files")
        scanned, told = self._scan(kafka)
        context = make_context(self._layout, told, self._terms, self._options)
        self._progress("judging the messages")
        partitions = self._partitions(told)
        judged = self._keep(judge(scanned, context, partitions))
        counts = _counts(validators.counts(judged))
        self._progress("looking at the order")
        order = validate_order(scanned, validators.excused(judged), self._terms)
        problems = self._keep(problems_of(scanned).union(validators.problems(judged)).union(order))
        by_kind = self._by_kind(problems, judged, told)
        self._progress("writing it down")
        listed = self._listed(problems)
        reasons = self._reasons(counts, by_kind)
        interval, lateness = self._lateness(judged, context)
        return Verdict(
            not reasons,
            reasons,
            {name: counts.get(name, 0) for name in ("accepted", *CLASSES)} | counts,
            dict(by_kind),
            listed,
            len(listed) < sum(by_kind.values()),
            lateness,
            self._agreement(judged),
            self._inputs(told),
            interval,
            self._notes(told, counts),
            time.monotonic() - self._began,
            {
                "exactly_once": self._options.exactly_once,
                "late_ms": self._options.late_ms,
                "start_ms": self._options.start_ms,
                "end_ms": self._options.end_ms,
                "problems_max": self._options.problems_max,
            },
            {
                "python": platform.python_version(),
                "pyspark": pyspark.__version__,
                "pyarrow": pa.__version__,
            },
        )

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        return kept

    def _scan(self, kafka: DataFrame | None) -> tuple[DataFrame, list[FileSummary]]:
        self._spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(_ARROW_BYTES))
        cores = self._spark.sparkContext.defaultParallelism
        planned = tasks(self._layout.files, cores)
        scanned = scan(tasks_frame(self._spark, planned), self._terms)
        if kafka is not None:
            records = scan_records(kafka, self._terms, len(self._layout.files))
            scanned = scanned.union(records)
        scanned = self._keep(scanned)
        return scanned, summaries(scanned)

    def _partitions(self, told: Iterable[FileSummary]) -> int:
        """Some for each core, and not more facts in one than a task should sort."""
        rows = sum(summary.rows for summary in told)
        cores = self._spark.sparkContext.defaultParallelism
        return max(cores, -(-rows // _FACTS_A_TASK))

    def _by_kind(
        self,
        problems: DataFrame,
        judged: DataFrame,
        told: Iterable[FileSummary],
    ) -> Counter[str]:
        """How many problems there are, listed or not."""
        found = Counter(_counts(validators.problem_counts(judged)))
        outside = ("integrity", "placement", "order")
        others = problems.where(f.col("validator").isin(*outside) | (f.col("kind") == "forged"))
        rows = others.groupBy("validator", "kind").count().collect()
        for row in rows:
            if row.validator in outside:
                found[row.kind] += row["count"]
            else:  # of these some are the scan's: ids that could not be read at all
                found[row.kind] = max(found[row.kind], row["count"])
        for text in self._layout.problems:
            found[Problem.from_json(text).kind] += 1
        cut = sum(summary.problems_cut for summary in told)
        if cut:
            found["further problems of files"] = cut
        return found

    def _listed(self, problems: DataFrame) -> list[Problem]:
        """Up to ``problems_max`` of them, a fair share of each kind."""
        limit = self._options.problems_max
        own = [Problem.from_json(text) for text in self._layout.problems]
        ranked = problems.withColumn(
            "rank",
            f.row_number().over(Window.partitionBy("kind").orderBy("offset", "file", "position")),
        )
        ranked = ranked.where(f.col("rank") <= limit)  # so that Spark need not sort all of a kind
        rows = ranked.orderBy("rank", "kind").limit(max(0, limit - len(own))).drop("rank").collect()
        found = [*own, *(Problem(**row.asDict()) for row in rows)]
        return sorted(found[:limit], key=lambda one: (one.kind, one.offset, one.file))

    def _reasons(self, counts: dict[str, int], by_kind: Counter[str]) -> list[str]:
        asked = {"exactly_once": self._options.exactly_once, "late_ms": self._options.late_ms}
        reasons = []
        for kind, number in sorted(by_kind.items()):
            option = FAILS_ONLY_IF_ASKED.get(kind)
            if option is None or (asked[option] is not None and asked[option] is not False):
                reasons.append(f"{kind}: {number:,}")
        if not counts.get("accepted"):
            reasons.append("nothing to prove: no accepted message was found")
        total = sum(counts.get(name, 0) for name in CLASSES)
        assert total == counts.get("accepted", 0), f"{counts} do not add up"
        return reasons

    def _lateness(self, judged: DataFrame, context: Context) -> tuple[int, list[Lateness]]:
        interval = self._options.interval_ms
        bars = judged.where("what = 'late'")
        span = bars.agg(f.min("bucket_ms"), f.max("bucket_ms"), f.countDistinct("bucket_ms"))
        first, last, buckets = span.collect()[0]
        if not buckets:
            return interval, []
        if buckets > BUCKETS_MAX:
            interval *= -(-(last - first + interval) // (interval * BUCKETS_MAX))
            wider = f.col("bucket_ms") - f.pmod(f.col("bucket_ms"), f.lit(interval))
            judged = judged.withColumn("bucket_ms", wider)
        found = _lateness(validators.lateness(judged), context)
        by_topic = validators.lateness(judged, "topic").orderBy(f.desc("count")).limit(TOPICS_MAX)
        found += _lateness(by_topic, context)
        by_time = validators.lateness(judged, "bucket_ms").orderBy("bucket_ms")
        return interval, found + _lateness(by_time, context)

    def _agreement(self, judged: DataFrame) -> list[PairAgreement]:
        pairs = _counts(validators.pair_counts(judged))
        names = [peer.name for peer in self._layout.peers]
        return [
            PairAgreement(
                names[left],
                names[right],
                pairs.get(f"equal:{left}:{right}", 0),
                pairs.get(f"different:{left}:{right}", 0),
            )
            for left in range(len(names))
            for right in range(left + 1, len(names))
        ]

    def _inputs(self, told: Sequence[FileSummary]) -> list[Input]:
        kinds: dict[str, list[int]] = {}
        files = {file.number: file for file in self._layout.files}
        for summary in told:
            file = files.get(summary.number)
            name = "Kafka" if file is None else file.kind
            if file is not None and file.archived:
                name = f"archived {name}"
            sums = kinds.setdefault(name, [0, 0, 0])
            sums[0] += 1
            sums[1] += file.nbytes if file is not None else 0
            sums[2] += summary.rows
        return [Input(name, *sums) for name, sums in sorted(kinds.items())]

    def _notes(self, told: Iterable[FileSummary], counts: dict[str, int]) -> list[str]:
        names = {file.number: file.name for file in self._layout.files}
        notes = [
            f"{names.get(summary.number, 'Kafka')}: {summary.note}"
            for summary in told
            if summary.note
        ]
        if counts.get("unaccounted"):
            notes.append(
                f"{counts['unaccounted']:,} records arrived whose acceptance no journal given here"
                " goes back to: they are not judged"
            )
        if counts.get("overdue"):
            notes.append(
                f"{counts['overdue']:,} pending messages are overdue: the node is stopped, behind,"
                " or holds their topic back"
            )
        if counts.get("in doubt"):
            notes.append(f"{counts['in doubt']:,} messages are not known to be committed")
        return notes


def _counts(frame: DataFrame) -> dict[str, int]:
    return {row["name"]: row["count"] for row in frame.collect()}


def _lateness(frame: DataFrame, context: Context) -> list[Lateness]:
    return [
        Lateness(
            context.topic_name(int(row.topic, 16)) if row.topic else "",
            -1 if row.bucket_ms is None else row.bucket_ms,
            row["count"],
            row.p50,
            row.p99,
            row.p999,
            row.max,
        )
        for row in frame.collect()
    ]

"""The whole proof: from a layout to a verdict.

    layout -> plan -> scan -> summaries -> context
                        |                     |
                        +---- facts --------- judge -> counts, lateness, problems -> verdict

Rules
- Rows are not collected. The driver gets one summary a file, sums, and problems up to a limit;
  ``Verdict.truncated`` is set when there were more.
- The result of the scan is kept on the executors' disks: it is read twice, and the files only once.
- Topics are listed and read after all journals. So, beside a running node, they hold every message
  that a mark in a journal that was read covers.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..reading.files import TOPIC, Layout
from ..reading.layout import with_topics
from ..reading.problems import Problem
from .conclusion import Conclusion
from .contents import (
    files_with,
    name_fields,
    offsets_to_reread,
    record_sightings,
    sightings,
)
from .facts.chunks import OrderChunk
from .facts.kafka_topics import KafkaTopics
from .facts.making import GroupTerms
from .facts.scan import scan, scan_records, summaries, tasks, tasks_frame
from .facts.summary import FileSummary
from .judging import validators
from .judging.context import Context, Options, make_context
from .judging.names import judge_all_names
from .judging.ranges import judge
from .judging.schedules import judge_all_schedules
from .judging.sums import TALLIED
from .report.tables import write_tables
from .report.verdict import GroupCounts, Lateness, Verdict
from .sparkaccount import account, scan_traces

BUCKETS_MAX = 2_000
"""Time buckets in a verdict; they are made wider until there are not more."""
TOPICS_MAX = 200
"""Topics in a verdict; those that lost most, or have the most messages."""
_ARROW_BYTES = 64 << 20
_FACTS_A_TASK = 4 << 20

OnPhase = Callable[[str], None]
"""Called with what is done now."""


def prove(
    spark: SparkSession,
    layout: Layout,
    options: Options | None = None,
    *,
    kafka: KafkaTopics | None = None,
    progress: OnPhase | None = None,
    tables: str = "",
    traces: str = "",
) -> Verdict:
    """Prove what became of each accepted message, and return the verdict. ``progress``: called as
    each phase begins. ``tables``: directory for Parquet tables, too (``report/tables.py``); empty:
    none. ``traces``: directory of a trace store, for the account of all boundaries; empty: none.
    Errors: those of Spark, of ``kafka`` and of the store."""
    proof = _Proof(spark, layout, options or Options(), progress or (lambda _: None))
    try:
        return proof.run(kafka, tables, traces)
    finally:
        proof.close()


class _Proof:
    def __init__(
        self, spark: SparkSession, layout: Layout, options: Options, progress: OnPhase
    ) -> None:
        self._spark = spark
        self._layout = layout
        self._options = options
        self._on_phase = progress
        self._terms = GroupTerms.of(layout)
        self._kept: list[DataFrame] = []
        self._records: DataFrame | None = None
        """Records in Kafka; None: none were read."""
        self._settings: dict[str, str | None] = {}
        self._began = time.monotonic()

    def run(self, kafka: KafkaTopics | None, tables: str, traces: str) -> Verdict:
        self._progress("reading the files")
        scanned, summaries, chunks = self._scan(kafka)
        read = None if kafka is None else kafka.partitions
        context = make_context(self._layout, summaries, self._terms, self._options, chunks, read)
        events = None
        if traces:
            self._progress("reading the traces")
            events = self._keep(scan_traces(self._spark, traces, self._terms))
        self._progress("judging the messages")
        judged = self._keep(judge(scanned, context, self._partitions(summaries)))
        if any(summary.named for summary in summaries):
            names = judge_all_names(judged, context, self._partitions(summaries))
            judged = judged.union(self._keep(names))
        if any(summary.scheduled for summary in summaries):
            stored, partitions = self._layout.schedules, self._partitions(summaries)
            schedules = judge_all_schedules(scanned, stored, context, partitions)
            judged = judged.union(self._keep(schedules))
        sums = validators.sums(judged).collect()
        counts = {row.name: row["count"] for row in sums if row.what == "count"}
        kinds = {row.name: row["count"] for row in sums if row.what == "problems"}
        problems = validators.problems(scanned).union(validators.problems(judged))
        boundaries = None
        if events is not None:
            arguments = self._partitions(summaries), tables, self._keep, traces
            boundaries, lost = account(scanned, events, context, *arguments)
            problems = problems.unionByName(lost)
        conclusion = Conclusion(self._layout, context, summaries, counts, kinds, boundaries)
        by_kind = conclusion.problem_counts()
        self._progress("writing it down")
        listed = self._name_fields(self._listed(problems, conclusion.own(), by_kind), summaries)
        tallied = [row for row in sums if row.what == "tally"]
        interval = _interval(tallied, self._options.interval_ms)
        lateness = _lateness(validators.lateness(judged, interval), context)
        tallies = validators.tallies(judged, interval)
        by_topic, by_bucket = _counts(tallies, context, late=self._options.late_ms is not None)
        verdict = Verdict(
            reasons=conclusion.reasons(),
            open_points=conclusion.open_points(),
            counts=conclusion.counts(),
            problem_counts=by_kind,
            problems=listed,
            truncated=len(listed) < sum(by_kind.values()),
            lateness=lateness,
            agreement=conclusion.agreement(),
            inputs=conclusion.inputs(),
            interval_ms=interval,
            notes=conclusion.notes() + (kafka.notes if kafka is not None else []),
            seconds=time.monotonic() - self._began,
            options={
                "exactly_once": self._options.exactly_once,
                "late_ms": self._options.late_ms,
                "start_ms": self._options.start_ms,
                "end_ms": self._options.end_ms,
                "problems_max": self._options.problems_max,
            },
            versions={
                "python": platform.python_version(),
                "pyspark": pyspark.__version__,
                "pyarrow": pa.__version__,
            },
            by_topic=by_topic,
            by_bucket=by_bucket,
        )
        if tables:
            self._progress("writing the tables")
            fine = validators.tallies(judged, self._options.interval_ms)
            made_ms, group = self._layout.made_ms, self._layout.group
            write_tables(tables, made_ms, fine, context.topics, verdict, group)
        return verdict

    def _progress(self, phase: str) -> None:
        self._on_phase(phase)
        self._spark.sparkContext.setJobDescription(f"slotwheel replay: {phase}")

    def close(self) -> None:
        self._spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type] # Java's null
        for frame in self._kept:
            frame.unpersist()
        for name, value in self._settings.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)

    def _set(self, name: str, value: object) -> None:
        """Change a setting of the session until the end of the proof."""
        self._settings.setdefault(name, self._spark.conf.get(name, None))
        self._spark.conf.set(name, str(value))

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        return kept

    def _scan(
        self, kafka: KafkaTopics | None
    ) -> tuple[DataFrame, list[FileSummary], list[OrderChunk]]:
        cores = self._spark.sparkContext.defaultParallelism
        self._set("spark.sql.execution.arrow.maxBytesPerBatch", _ARROW_BYTES)
        # The number of partitions is fixed here and aggregates are small: planning each stage after
        # the one before costs more than it saves.
        self._set("spark.sql.adaptive.enabled", "false")
        self._set("spark.sql.shuffle.partitions", cores)
        scanned, summaries, chunks = self._collect(self._files(cores, topics=False))
        self._progress("reading what was delivered")
        self._layout = with_topics(self._layout)
        sources = []
        if self._layout.of(TOPIC):
            sources.append(self._files(cores, topics=True))
        if kafka is not None:
            self._records = kafka.records(self._spark, self._topics(summaries))
        if self._records is not None and kafka is not None:
            self._terms = replace(self._terms, partitions=kafka.partitions)
            sources.append(scan_records(self._records, self._terms, len(self._layout.files)))
        for source in sources:
            more = self._collect(source)
            scanned = scanned.union(more[0])
            summaries += more[1]
            chunks += more[2]
        return scanned, summaries, chunks

    def _files(self, cores: int, *, topics: bool) -> DataFrame:
        files = [file for file in self._layout.files if (file.kind == TOPIC) == topics]
        return scan(tasks_frame(self._spark, tasks(files, cores)), self._terms)

    def _collect(self, frame: DataFrame) -> tuple[DataFrame, list[FileSummary], list[OrderChunk]]:
        kept = self._keep(frame)
        return kept, *summaries(kept)

    def _topics(self, summaries: Iterable[FileSummary]) -> set[str] | None:
        if any(summary.topics_omitted for summary in summaries):
            return None
        return {topic for summary in summaries for topic in summary.topics.values()}

    def _partitions(self, summaries: Iterable[FileSummary]) -> int:
        """Partitions of the shuffle: some for each core, with no more facts than a task should
        sort."""
        rows = sum(summary.rows for summary in summaries)
        cores = self._spark.sparkContext.defaultParallelism
        return max(cores, -(-rows // _FACTS_A_TASK))

    def _listed(
        self, problems: DataFrame, own: Sequence[Problem], by_kind: Mapping[str, int]
    ) -> list[Problem]:
        """Up to ``problems_max`` problems, a fair share of each kind."""
        limit = self._options.problems_max
        listed = list(own[:limit])
        others = Counter(by_kind)
        others.subtract(problem.kind for problem in listed)
        shares = fair_shares(others, limit - len(listed))
        if shares:
            rows = validators.listed(problems, shares).collect()
            listed += [Problem(**row.asDict()) for row in rows]
        return sorted(listed, key=lambda problem: (problem.kind, problem.offset, problem.file))

    def _name_fields(
        self, listed: Sequence[Problem], summaries: Sequence[FileSummary]
    ) -> Sequence[Problem]:
        offsets = offsets_to_reread(listed)
        if not offsets:
            return listed
        self._progress("looking again at what was altered")
        files = files_with(self._layout.files, summaries, offsets)
        sighted = sightings(self._spark, files, offsets, self._terms)
        if self._records is not None:
            sighted = sighted.union(record_sightings(self._records, offsets, self._terms))
        return name_fields(listed, sighted)


def _interval(tallied: Sequence[Any], wanted_ms: int) -> int:
    """Width of a time bucket, ms: a multiple of ``wanted_ms``; at most ``BUCKETS_MAX`` buckets.
    ``tallied``: the row about all tallies, if there is one."""
    for row in tallied:
        if row.buckets > BUCKETS_MAX:
            span = int(row.last - row.first) + wanted_ms
            return wanted_ms * -(-span // (wanted_ms * BUCKETS_MAX))
    return wanted_ms


def fair_shares(numbers: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide ``limit`` among kinds of problems: all of a rare kind, equal shares of the others."""
    shares: dict[str, int] = {}
    waiting = sorted((number, kind) for kind, number in numbers.items() if number > 0)
    for at, (number, kind) in enumerate(waiting):
        left = limit - sum(shares.values())
        share = min(number, -(-left // (len(waiting) - at)))
        if share > 0:
            shares[kind] = share
    return shares


def _counts(
    tallies: DataFrame, context: Context, *, late: bool
) -> tuple[list[GroupCounts], list[GroupCounts]]:
    topics = validators.tallied_by(tallies, "topic")
    most = topics.orderBy(f.desc("lost"), f.desc("accepted"), "topic").limit(TOPICS_MAX)
    buckets = validators.tallied_by(tallies, "bucket_ms").orderBy("bucket_ms")
    names = [name for name in TALLIED if late or name != "late"]
    by_topic = [
        GroupCounts(context.topic_name(row.topic), -1, {name: row[name] for name in names})
        for row in most.collect()
    ]
    by_topic.sort(key=lambda group: (-group.counts["lost"], -group.counts["accepted"], group.topic))
    return by_topic, [
        GroupCounts("", row.bucket_ms, {name: row[name] for name in names})
        for row in buckets.collect()
    ]


def _lateness(frame: DataFrame, context: Context) -> list[Lateness]:
    by_topic = frame.where("topic is not null").orderBy(f.desc("count"), "topic").limit(TOPICS_MAX)
    whole_first = frame.where("topic is null").orderBy("bucket_ms").collect()
    return [
        Lateness(
            "" if row.topic is None else context.topic_name(row.topic),
            -1 if row.bucket_ms is None else row.bucket_ms,
            row["count"],
            row.p50,
            row.p99,
            row.p999,
            row.max,
        )
        for row in (*whole_first[:1], *by_topic.collect(), *whole_first[1:])
    ]

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyspark
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .facts.chunks import OrderChunk
from .facts.integrity import problems_of
from .facts.making import Terms
from .facts.scan import scan, scan_records, summaries, tasks_frame
from .facts.summary import FileSummary
from .judging import validators
from .judging.context import Context, Options, make_context
from .judging.judge import judge
from .problems import OpenPoint, Problem
from .reading.files import DUMP, TOPIC, Layout
from .reading.plan import tasks
from .report.verdict import CLASSES, Input, Lateness, PairAgreement, Verdict

FAILS_ONLY_IF_ASKED = {"repeated": "exactly_once", "late": "late_ms"}
BUCKETS_MAX = 2_000
"""Time buckets in a verdict; with more, they are made wider."""
NOTES_MAX = 50
"""Files of which something is noted."""
TOPICS_MAX = 200
"""Topics whose lateness is told; those with the most messages."""
_ARROW_BYTES = 64 << 20
_FACTS_A_TASK = 4 << 20

Progress = Callable[[str], None]
"""Told what is done now."""


class Elsewhere(Protocol):
    """What was delivered to topics that are not in the directories (``kafka_topics.py``)."""

    def records(self, spark: SparkSession, topics: Collection[str] | None) -> DataFrame | None:
        """Records as Spark's Kafka source gives them, with headers; None: there is no topic.
        ``topics``: those that messages are for; None: too many to be told."""

    def notes(self) -> list[str]:
        """What is to be told of the topics, once they were asked for."""


def prove(
    spark: SparkSession,
    layout: Layout,
    options: Options | None = None,
    *,
    kafka: Elsewhere | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Errors: those of Spark, and of ``kafka``."""
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
        self._elsewhere = False
        self._settings: dict[str, str | None] = {}
        self._began = time.monotonic()

    def run(self, kafka: Elsewhere | None) -> Verdict:
        self._elsewhere = kafka is not None
        self._progress("reading the files")
        scanned, told, chunks = self._scan(kafka)
        context = make_context(self._layout, told, self._terms, self._options, chunks)
        self._progress("judging the messages")
        judged = self._keep(judge(scanned, context, self._partitions(told)))
        sums = _Sums(judged)
        counts = {name: number for name, number in sums.counts.items() if ":" not in name}
        by_kind = self._by_kind(sums.problems, told)
        self._progress("writing it down")
        listed = self._listed(problems_of(scanned).union(validators.problems(judged)), by_kind)
        reasons = self._reasons(counts, by_kind, told)
        interval = sums.interval(self._options.interval_ms)
        lateness = _lateness(validators.lateness(judged, interval), context)
        return Verdict(
            reasons,
            self._open_points(counts, told),
            {name: counts.get(name, 0) for name in ("accepted", *CLASSES)} | counts,
            dict(by_kind),
            listed,
            len(listed) < sum(by_kind.values()),
            lateness,
            self._agreement(sums.counts),
            self._inputs(told),
            interval,
            self._notes(told, counts) + (kafka.notes() if kafka is not None else []),
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
        for name, value in self._settings.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)

    def _set(self, name: str, value: object) -> None:
        """A setting of the session, until the end of the proof."""
        self._settings.setdefault(name, self._spark.conf.get(name, None))
        self._spark.conf.set(name, str(value))

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._kept.append(kept)
        return kept

    def _scan(
        self, kafka: Elsewhere | None
    ) -> tuple[DataFrame, list[FileSummary], list[OrderChunk]]:
        cores = self._spark.sparkContext.defaultParallelism
        self._set("spark.sql.execution.arrow.maxBytesPerBatch", _ARROW_BYTES)
        # What comes after a shuffle is planned here, and what is added up is small: looking at each
        # stage before planning the next costs more than it saves.
        self._set("spark.sql.adaptive.enabled", "false")
        self._set("spark.sql.shuffle.partitions", cores)
        planned = tasks(self._layout.files, cores)
        scanned = self._keep(scan(tasks_frame(self._spark, planned), self._terms))
        told, chunks = summaries(scanned)
        if kafka is None:
            return scanned, told, chunks
        self._progress("reading what was delivered to Kafka")
        records = kafka.records(self._spark, self._topics(told))
        if records is None:
            return scanned, told, chunks
        elsewhere = self._keep(scan_records(records, self._terms, len(self._layout.files)))
        also_told, more = summaries(elsewhere)
        return scanned.union(elsewhere), told + also_told, chunks + more

    def _topics(self, told: Iterable[FileSummary]) -> set[str] | None:
        if any(summary.topics_omitted for summary in told):
            return None
        return {topic for summary in told for topic in summary.topics.values()}

    def _partitions(self, told: Iterable[FileSummary]) -> int:
        """Some for each core, and not more facts in one than a task should sort."""
        rows = sum(summary.rows for summary in told)
        cores = self._spark.sparkContext.defaultParallelism
        return max(cores, -(-rows // _FACTS_A_TASK))

    def _by_kind(self, judged: Mapping[str, int], told: Iterable[FileSummary]) -> Counter[str]:
        """How many problems there are, listed or not."""
        found = Counter(judged)
        for summary in told:
            found.update(summary.problems)
        found.update(Problem.from_json(text).kind for text in self._layout.problems)
        return found

    def _listed(self, problems: DataFrame, by_kind: Mapping[str, int]) -> list[Problem]:
        """Up to ``problems_max`` of them, a fair share of each kind."""
        limit = self._options.problems_max
        own = [Problem.from_json(text) for text in self._layout.problems][:limit]
        others = Counter(by_kind)
        others.subtract(problem.kind for problem in own)
        shares = fair_shares(others, limit - len(own))
        if shares:
            rows = validators.listed(problems, shares).collect()
            own += [Problem(**row.asDict()) for row in rows]
        return sorted(own, key=lambda one: (one.kind, one.offset, one.file))

    def _reasons(
        self, counts: dict[str, int], by_kind: Counter[str], told: Iterable[FileSummary]
    ) -> list[str]:
        asked = {"exactly_once": self._options.exactly_once, "late_ms": self._options.late_ms}
        reasons = []
        for kind, number in sorted(by_kind.items()):
            option = FAILS_ONLY_IF_ASKED.get(kind)
            if option is None or (asked[option] is not None and asked[option] is not False):
                hint = self._hint(told) if kind == "lost" else ""
                reasons.append(f"{kind}: {number:,}{hint}")
        if not counts.get("accepted"):
            reasons.append("nothing to prove: no accepted message was found")
        total = sum(counts.get(name, 0) for name in CLASSES)
        assert total == counts.get("accepted", 0), f"{counts} do not add up"
        return reasons

    def _hint(self, told: Iterable[FileSummary]) -> str:
        """What may have been forgotten, where messages seem to be lost."""
        given, group = len(self._layout.peers), self._group_size(told)
        if given >= group or self._elsewhere or self._layout.of(DUMP):
            return ""
        return (
            f" (only {given} of the group's {group} directories {'is' if given == 1 else 'are'}"
            " given, and each peer has what it delivered as the master: give all of them)"
        )

    def _group_size(self, told: Iterable[FileSummary]) -> int:
        return max(self._layout.group_size, *(summary.peers for summary in told), 0)

    def _open_points(
        self, counts: Mapping[str, int], told: Iterable[FileSummary]
    ) -> list[OpenPoint]:
        """What could not be decided, and why."""
        points = []
        given, group = len(self._layout.peers), self._group_size(told)
        unseen = self._layout.of(TOPIC) or counts.get("in doubt") or 2 * given <= group
        if 0 < given < group and unseen:
            points.append(
                OpenPoint(
                    f"{group - given} of the group's {group} directories",
                    "not given, so what these peers hold, and delivered to embedded topics, was"
                    " not seen",
                    "Give the directories of all peers",
                )
            )
        if counts.get("unaccounted"):
            points.append(
                OpenPoint(
                    f"{counts['unaccounted']:,} records that arrived",
                    "no journal given here goes back to their acceptance",
                    "Start nodes with --retain, or keep producers' receipts and give them",
                )
            )
        return points

    def _agreement(self, counts: Mapping[str, int]) -> list[PairAgreement]:
        names = [peer.name for peer in self._layout.peers]
        return [
            PairAgreement(
                names[left],
                names[right],
                counts.get(f"equal:{left}:{right}", 0),
                counts.get(f"different:{left}:{right}", 0),
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

    def _notes(self, told: Sequence[FileSummary], counts: dict[str, int]) -> list[str]:
        names = {file.number: file.name for file in self._layout.files}
        noted = [summary for summary in told if summary.note]
        notes = [
            f"{names.get(summary.number, 'Kafka')}: {summary.note}" for summary in noted[:NOTES_MAX]
        ]
        if len(noted) > NOTES_MAX:
            notes.append(f"such is to be said of {len(noted) - NOTES_MAX:,} more files")
        if counts.get("overdue"):
            notes.append(
                f"{counts['overdue']:,} pending messages are overdue: the node is stopped, behind,"
                " or holds their topic back"
            )
        if counts.get("in doubt"):
            notes.append(f"{counts['in doubt']:,} messages are not known to be committed")
        return notes


class _Sums:
    """What all tasks together counted."""

    def __init__(self, judged: DataFrame) -> None:
        self.counts: dict[str, int] = {}
        self.problems: dict[str, int] = {}
        self._span = (0, 0, 0)
        for row in validators.sums(judged).collect():
            if row.what == "count":
                self.counts[row.name] = row["count"]
            elif row.what == "problems":
                self.problems[row.name] = row["count"]
            else:
                self._span = row.first, row.last, row["count"]

    def interval(self, wanted_ms: int) -> int:
        """Wide enough that there are not too many time buckets."""
        first, last, buckets = self._span
        if buckets <= BUCKETS_MAX:
            return wanted_ms
        return wanted_ms * -(-(last - first + wanted_ms) // (wanted_ms * BUCKETS_MAX))


def fair_shares(numbers: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many of each kind are listed: all of the rare ones, and equally many of the others."""
    shares: dict[str, int] = {}
    waiting = sorted((number, kind) for kind, number in numbers.items() if number > 0)
    for at, (number, kind) in enumerate(waiting):
        left = limit - sum(shares.values())
        share = min(number, -(-left // (len(waiting) - at)))
        if share > 0:
            shares[kind] = share
    return shares


def _lateness(frame: DataFrame, context: Context) -> list[Lateness]:
    """Of all, of the topics with the most messages, and by time."""
    by_topic = frame.where("topic is not null").orderBy(f.desc("count"), "topic").limit(TOPICS_MAX)
    rows = frame.where("topic is null").orderBy("bucket_ms").collect() + by_topic.collect()
    found = [
        Lateness(
            context.topic_name(int(row.topic, 16)) if row.topic else "",
            -1 if row.bucket_ms is None else row.bucket_ms,
            row["count"],
            row.p50,
            row.p99,
            row.p999,
            row.max,
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.bucket_ms >= 0, bool(one.topic)))

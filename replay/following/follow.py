"""The running audit in Spark: a stream of facts, and a batch of it every second.

A batch's facts are written to the ledger by one task, so that nothing else writes there; windows
are judged by as many tasks as there are cores. The driver collects lengths, summaries of what was
read, problems and flags up to a limit, and what was reported of a window. All executors must see
the same folder of the ledger: on one machine, or a shared one.

Records of Kafka's topics are in the same batches. Spark asks its sources for their newest positions
one after the other, in the order of the union: the journals first.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ...reading.problems import Problem
from ...wheel.errors import InvalidConfiguration
from ..datasource.columns import SCAN
from ..datasource.options import TRACE
from ..facts.fact import Seen, decompress
from ..facts.filescan import SCANNED_ARROW
from ..facts.kafka_topics import FORMAT as KAFKA
from ..facts.kafka_topics import KafkaTopics, KafkaUnreachable, source_options
from ..facts.making import GroupTerms
from ..facts.scan import SCANNED, scan_records
from ..facts.summary import FileSummary
from ..source import NAME, register
from ..sparkaccount import TRACES, read_traces
from ..stream import find_group
from .audit import Audit, run_job
from .audit_state import STATE_NAME
from .ledger import LedgerBatch

CHECKPOINT_NAME = "checkpoint"
KAFKA_NUMBER = 0
_SAID = ("look", "part", "problem", TRACES)
WINDOW = "window"
FAR = "far"
"""Further kinds of rows of a batch. ``bucket``: the start of a window, or of an hour of what is
far; ``count``: its valid bytes."""
_TURN_S = 0.1
_UP_TO_DATE_S = 5.0
"""After so long, s, a broker that has restarted knows the present topics."""
_STARTS = 5
"""How often a query is begun at most. Spark gives its first Python process 10 s to come up, which
is too little on a busy machine."""
_NO_PROCESS = "Python worker failed to connect back"
_FOR_THE_PROOF = (Seen.REDRIVEN, Seen.RETRIED, Seen.NAMED)
"""What is judged by messages of several windows, of which some may be long over."""
_END_S = 60.0
"""How long the end waits for a batch that is being processed, s."""


def follow(
    spark: SparkSession, audit: Audit, *, every_s: float, goes_on: Callable[[], bool]
) -> None:
    """Audit until ``goes_on`` returns false. ``every_s``: between batches. Errors: those of
    Spark."""
    _check_state(audit)
    register(spark)
    reader = spark.readStream.format(NAME).option("view", SCAN).option("topics", "true")
    reader = reader.option("dead_letter_topic", audit.settings.dead_letter_topic)
    frame = reader.load(",".join(audit.settings.directories))
    if audit.settings.kafka:
        frame = frame.union(_kafka(spark, audit))
    if audit.settings.traces:
        # Behind the others: what consumers have got is in the topics that were read.
        traced = spark.readStream.format(NAME).option("view", SCAN)
        traced = traced.option(TRACE, audit.settings.traces)
        frame = frame.union(traced.load(",".join(audit.settings.directories)))
    begun_again(lambda: _run(spark, audit, frame, every_s=every_s, goes_on=goes_on), goes_on)


def begun_again(run: Callable[[], Exception | None], goes_on: Callable[[], bool]) -> None:
    """Run a query, which returns the error that ended it; again, if Spark did not wait for its
    first Python process. Errors: that error."""
    for left in reversed(range(_STARTS)):
        error = run()
        if error is None:
            return
        if not left or _NO_PROCESS not in str(error) or not goes_on():
            raise error


def _run(
    spark: SparkSession,
    audit: Audit,
    frame: DataFrame,
    *,
    every_s: float,
    goes_on: Callable[[], bool],
) -> Exception | None:
    """Run a query to its end. Returns Spark's error, if that ended it. Errors: our own."""
    batches = _Batches(spark, audit)
    writer = frame.writeStream.foreachBatch(batches.append)
    writer = writer.option("checkpointLocation", str(audit.folder / CHECKPOINT_NAME))
    # The default is to wait for ever for a batch that is not processed any more.
    spark.conf.set("spark.sql.streaming.stopTimeout", f"{int(_END_S)}s")
    query = writer.trigger(processingTime=f"{int(every_s * 1000)} milliseconds").start()
    try:
        while query.isActive and goes_on():
            time.sleep(_TURN_S)
    finally:
        batches.end()
        query.stop()
    if batches.failure is not None:  # our own error, and not Java's description of it
        raise batches.failure
    return None if batches.refused else query.exception()


def _check_state(audit: Audit) -> None:
    """Check that Spark's checkpoint and the audit's state are both there, or both missing: with
    only one of them messages would be left out. Errors: ``InvalidConfiguration``."""
    commits = audit.folder / CHECKPOINT_NAME / "commits"
    done = any(path.name.isdigit() for path in commits.glob("*"))
    if done != (audit.state.batch >= 0):
        missing = STATE_NAME if done else CHECKPOINT_NAME
        if not done and (audit.folder / CHECKPOINT_NAME / "offsets" / "0").exists():
            return  # the process ended between the two, in the first batch
        raise InvalidConfiguration(
            f"the state of the audit is not whole: {missing} is not there",
            got=audit.folder,
            remedy="Begin a new one: give another --state",
        )


def _check_sources(audit: Audit) -> None:
    """Compare Kafka's topics with those that were read before. A broker whose metadata is not up to
    date names a topic of the past, so they are asked twice. Errors: ``InvalidConfiguration``: a
    topic was made anew."""
    settings = audit.settings
    if not settings.kafka:
        return
    topics = KafkaTopics(
        settings.kafka, settings.topics, settings.dead_letter_topic, settings.kafka_settings
    )
    with suppress(KafkaUnreachable):  # Spark has time limits of its own
        sources = topics.sources()
        try:
            audit.state.read_from(sources)
        except InvalidConfiguration as refused:
            time.sleep(_UP_TO_DATE_S)
            try:
                sources = topics.sources()
            except KafkaUnreachable:
                raise refused from None
            audit.state.read_from(sources)


def _kafka(spark: SparkSession, audit: Audit) -> DataFrame:
    settings, group = audit.settings, audit.group
    if not group.key:
        raise InvalidConfiguration(
            "no directory tells yet which group it is, so its records cannot be told from others",
            remedy="Start the node, then the audit",
        )
    # A pattern also finds topics that are made later, such as that of the dead letters.
    names = [re.escape(name) for name in (*settings.topics, settings.dead_letter_topic)]
    options = source_options(settings.kafka, settings.kafka_settings)
    reader = spark.readStream.format(KAFKA).options(**options)
    records = reader.option("subscribePattern", "|".join(names)).load()
    terms = GroupTerms.of(group, settings.dead_letter_topic)
    return scan_records(records, terms, KAFKA_NUMBER)


class _Ended(Exception):
    """Ends the audit inside a batch: Spark reads this batch again the next time."""


class _Batches:
    def __init__(self, spark: SparkSession, audit: Audit) -> None:
        self._spark = spark
        self._audit = audit
        self.failure: Exception | None = None
        self.refused = False
        """A batch was refused after the end."""
        self._ending = False
        self._turn = threading.Lock()
        """Held while a batch is processed."""

    def append(self, frame: DataFrame, number: int) -> None:
        with self._turn:
            if self._ending:
                self.refused = True
                raise _Ended
            try:
                self._append(frame, number)
            except Exception as error:
                self.failure = error
                raise

    def end(self) -> None:
        """Wait until no batch is being processed, and refuse further ones: a query that is stopped
        inside a batch logs pages of errors, and the batch must be processed again."""
        self._ending = True
        if self._turn.acquire(timeout=_END_S):
            self._turn.release()

    def _append(self, frame: DataFrame, number: int) -> None:
        audit = self._audit
        if not audit.begins(number):
            return
        _check_sources(audit)
        if not GroupTerms.of(audit.group).are_whole:
            audit.group = find_group(audit.settings.directories)
        audit.come_near()
        taking = _taking(audit)
        rows = frame.repartition(1).mapInArrow(taking, SCANNED).collect()
        by_kind: dict[str, list[Any]] = {}
        for row in rows:
            by_kind.setdefault(row.what, []).append(row)
        parts = [json.loads(row.text) for row in by_kind.get("part", ())]
        audit.add(
            {row.bucket: row["count"] for row in by_kind.get(WINDOW, ())},
            [
                (part["peer"], part["topic"], FileSummary.from_json(part["summary"]))
                for part in parts
            ],
            [Problem.from_json(row.text) for row in by_kind.get("problem", ())],
            {row.bucket: row["count"] for row in by_kind.get(FAR, ())},
        )
        events, topics = read_traces([row.text for row in by_kind.get(TRACES, ())])
        audit.add_events(events, topics)
        looks = [json.loads(row.text) for row in by_kind.get("look", ())]
        for look in looks:
            jobs = audit.jobs(look["looked_ms"], all_read=look["all"])
            if jobs:
                context = self._spark.sparkContext
                # The context, which all windows share, is sent once a task.
                tasks = context.parallelize(jobs, min(len(jobs), context.defaultParallelism))
                audit.judged(tasks.map(run_job).collect(), number)
        audit.commit(number)


def _taking(audit: Audit) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task that appends facts to the ledger and passes all other rows on."""
    folder, lengths = str(audit.windows_folder), audit.lengths
    judges, window_ms = audit.settings.options, audit.settings.window_ms
    far_lengths, far_from_ms = dict(audit.state.far), audit.state.far_from_ms

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        appended = LedgerBatch(Path(folder), window_ms, lengths, far_lengths, far_from_ms)
        for batch in batches:
            kinds = batch.column("what").to_pylist()
            others = [at for at, kind in enumerate(kinds) if kind in _SAID]
            for data in batch.column("data"):
                if data.is_valid:
                    facts = decompress(data.as_py())
                    live = ~np.isin(facts["seen"], _FOR_THE_PROOF)
                    appended.add(facts[judges.judges(facts["due"]) & live])
            if others:
                yield batch.take(pa.array(others)).cast(SCANNED_ARROW)
        files = [
            {"what": what, "file": -1, "bucket": start, "count": length}
            for what, appender in ((WINDOW, appended.near), (FAR, appended.far))
            for start, length in appender.lengths.items()
        ]
        if files:
            yield pa.RecordBatch.from_pylist(files, schema=SCANNED_ARROW)

    return append

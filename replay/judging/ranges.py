"""Judges all facts of a range of offsets at once, and does so for every range in Spark.

Theory: one task gets whole ranges, one after the other: facts are sorted by range before, so that a
range is complete when the next one begins. Its memory is that of one range. Results are summed
(``sums.py``), so that few rows leave a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from ...account.limits import bucket_of
from ..facts.fact import Facts, decompress
from ..facts.scan import Batches
from .again import judge_again
from .agreement import judge_agreement
from .conservation import judge_conservation
from .context import Context, Options
from .judged import Judged
from .names import find_named, named_rows
from .order import judge_order
from .punctuality import judge_punctuality
from .strangers import without_strangers
from .sums import JUDGED_ARROW, counts, lateness, problem_rows, tally, total

_HELD_ROWS_MAX = 1 << 18
"""Rows that may be held before they are summed, and sums that may be held."""


def judge(scanned: DataFrame, context: Context, partitions: int) -> DataFrame:
    """Judge all messages of a scan. Columns: ``JUDGED_ARROW``. ``partitions``: of the shuffle."""

    def judge_batches(batches: Batches) -> Batches:
        results = Results(context.options)
        for facts in ranges(batches):
            yield from results.add(*judge_range(facts, context))
        yield from results.drain()

    by_range = facts_by_range(scanned, partitions)
    return by_range.mapInArrow(judge_batches, from_arrow_schema(JUDGED_ARROW))


def facts_by_range(scanned: DataFrame, partitions: int) -> DataFrame:
    """The packed facts of a scan, those of a range of offsets together and in one task."""
    facts = scanned.where("what = 'facts'").select("bucket", "data")
    return facts.repartition(partitions, "bucket").sortWithinPartitions("bucket")


def judge_range(facts: Facts, context: Context) -> tuple[Judged, pa.Table]:
    """Judge a range of offsets; ``facts`` must be all there are of it. Returns the result, and its
    sums as rows of ``JUDGED_ARROW``."""
    result = Judged()
    board = without_strangers(facts, context, result)
    judge_conservation(board, result)
    judge_again(board, result)
    find_named(board, result)
    judge_agreement(board, result)
    judge_order(board, result)
    arrived, late_ms = judge_punctuality(board, result)
    bucket_ms = bucket_of(board.due, context.options.interval_ms)
    parts = (
        counts("count", result.counts),
        counts("problems", result.problem_counts),
        *tally(board.topic, bucket_ms, result.counted),
        *lateness(board.topic[arrived], bucket_ms[arrived], late_ms),
    )
    return result, total(parts)


def ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[Facts]:
    """The facts of each range, from the rows of ``facts_by_range``."""
    parts: list[Facts] = []
    current = None
    for batch in batches:
        data = batch.column("data")
        for at, bucket in enumerate(batch.column("bucket").to_pylist()):
            if parts and bucket != current:
                yield np.concatenate(parts)
                parts = []
            current = bucket
            parts.append(decompress(data[at].as_py()))
    if parts:
        yield np.concatenate(parts)


class Results:
    """The results of one task. Problems are emitted at once, of each kind as many as can be listed
    in the end, the lowest offsets first; sums are emitted when all is judged."""

    def __init__(self, options: Options) -> None:
        self._problems_max = options.problems_max
        self._reported: Counter[str] = Counter()
        self._sums: list[pa.Table] = []

    def add(self, result: Judged, sums: pa.Table) -> Iterator[pa.RecordBatch]:
        self._sums.append(sums)
        if sum(map(len, self._sums)) > _HELD_ROWS_MAX:
            self._sums = [total(self._sums)]
            if len(self._sums[0]) > _HELD_ROWS_MAX:
                yield from self.drain()
        listed = []
        for problem in result.problems:
            self._reported[problem.kind] += 1
            if self._reported[problem.kind] <= self._problems_max:
                listed.append(problem)
        if listed:
            yield from problem_rows(listed).to_batches()
        yield from named_rows(result.named)

    def drain(self) -> Iterator[pa.RecordBatch]:
        if self._sums:
            yield from total(self._sums).to_batches()
        self._sums = []

"""Judges all facts of a range of offsets at once, and does so for every range in Spark.

Theory: one task gets whole ranges, one after the other: facts are sorted by range before, so that a
range is complete when the next one begins. Its memory is that of one range. Results are summed, so
that few rows leave a task, each with its kind in ``what``:

    count      ``name``: of a class of messages, or of two peers; ``count``
    problems   ``name``: a kind of problem; ``count``: how many there are, listed or not
    problem    ``name``: its kind; ``text``: a ``Problem`` as JSON
    span       ``bucket_ms``, ``max_ms``: a task's first and last time bucket; ``count``: of them
    tally      ``count``: of ``text``, a class of messages, by ``name``, the CRC of a topic, and
               ``bucket_ms``
    late       one bar: ``late_ms``, ``count``, ``max_ms``; by ``name``, the CRC of a topic, by
               ``bucket_ms``, or of all messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from ..facts.fact import Facts, decompress
from ..facts.scan import Batches
from .agreement import judge_agreement
from .board import Board
from .conservation import judge_conservation
from .context import Context, Options
from .found import Judged
from .lateness import Bars, Histogram, total
from .order import judge_order
from .punctuality import judge_punctuality
from .tally import EMPTY, TALLIED, tally
from .tally import total as add_up

JUDGED = (
    "what string, name string, bucket_ms bigint, late_ms bigint, count bigint, max_ms bigint,"
    " text string"
)
JUDGED_ARROW = pa.schema(
    [
        ("what", pa.utf8()),
        ("name", pa.utf8()),
        *((name, pa.int64()) for name in ("bucket_ms", "late_ms", "count", "max_ms")),
        ("text", pa.utf8()),
    ]
)
_BARS_MAX = 1 << 18
"""Bars that may be held before they are summed."""
_GROUPS_MAX = 1 << 16
"""Pairs of topic and time bucket, likewise."""


def judge(scanned: DataFrame, context: Context, partitions: int) -> DataFrame:
    """Judge all messages of a scan. Columns: ``JUDGED``. ``partitions``: of the shuffle."""
    facts = scanned.where("what = 'facts'").select("bucket", "data")
    sorted_facts = facts.repartition(partitions, "bucket").sortWithinPartitions("bucket")
    return sorted_facts.mapInArrow(_judging(context), JUDGED)


def judge_range(facts: Facts, context: Context) -> tuple[Judged, Histogram]:
    """Judge a range of offsets; ``facts`` must be all there are of it."""
    board, found = Board(facts, context), Judged()
    judge_conservation(board, found)
    judge_agreement(board, found)
    judge_order(board, found)
    bars = judge_punctuality(board, found)
    interval = context.options.interval_ms
    found.tally = tally(board.topic, board.due, interval, found.counted)
    return found, bars


def _judging(context: Context) -> Callable[[Batches], Batches]:
    def judge_batches(batches: Batches) -> Batches:
        sums = Sums(context.options)
        for parts in _ranges(batches):
            yield from sums.add(*judge_range(np.concatenate(parts), context))
        yield from sums.rows()

    return judge_batches


def _ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Facts]]:
    """The packed facts of each bucket; rows must be sorted by bucket."""
    parts: list[Facts] = []
    current = None
    for batch in batches:
        data = batch.column("data")
        for at, bucket in enumerate(batch.column("bucket").to_pylist()):
            if parts and bucket != current:
                yield parts
                parts = []
            current = bucket
            parts.append(decompress(data[at].as_py()))
    if parts:
        yield parts


class Sums:
    """The sums of one task. Problems are emitted at once, of each kind as many as can be listed in
    the end, the lowest offsets first; sums are emitted when all is judged."""

    def __init__(self, options: Options) -> None:
        self._problems_max = options.problems_max
        self._counts: Counter[str] = Counter()
        self._problems: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()
        self._bars: list[Histogram] = []
        self._n_bars = 0
        self._tally = EMPTY

    def add(self, found: Judged, bars: Histogram) -> Iterator[pa.RecordBatch]:
        self._counts.update(found.counts)
        self._problems.update(found.problem_counts)
        self._tally = add_up([self._tally, found.tally])
        if len(self._tally) > _GROUPS_MAX:
            yield from self._tallied()
        self._bars.append(bars)
        self._n_bars += len(bars)
        if self._n_bars > _BARS_MAX:
            self._bars = [total(self._bars)]
            self._n_bars = 0
        listed = []
        for problem in found.problems:
            self._reported[problem.kind] += 1
            if self._reported[problem.kind] <= self._problems_max:
                listed.append(problem)
        if listed:
            yield _batch(
                len(listed),
                what=["problem"] * len(listed),
                name=[one.kind for one in listed],
                text=[one.to_json() for one in listed],
            )

    def rows(self) -> Iterator[pa.RecordBatch]:
        for what, sums in (("count", self._counts), ("problems", self._problems)):
            names = list(sums)
            counts = [sums[name] for name in names]
            yield _batch(len(names), what=[what] * len(names), name=names, count=counts)
        yield from self._tallied()
        if not self._bars:
            return
        bars = total(self._bars)
        topics = [f"{crc:08x}" for crc in bars.by_topic.group.tolist()]
        yield _late(bars.whole)
        yield _late(bars.by_topic, name=topics)
        yield _late(bars.by_time, bucket_ms=bars.by_time.group)

    def _tallied(self) -> Iterator[pa.RecordBatch]:
        """Rows for the counts since the last call."""
        one, self._tally = self._tally, EMPTY
        buckets = np.unique(one.bucket_ms)
        if len(buckets):
            first, last = buckets[:1], buckets[-1:]
            yield _batch(1, what=["span"], bucket_ms=first, count=[len(buckets)], max_ms=last)
        for at, name in enumerate(TALLIED):
            some = np.flatnonzero(one.counts[:, at])
            yield _batch(
                len(some),
                what=["tally"] * len(some),
                name=[f"{crc:08x}" for crc in one.topic[some].tolist()],
                bucket_ms=one.bucket_ms[some],
                count=one.counts[some, at],
                text=[name] * len(some),
            )


def _late(bars: Bars, **group: object) -> pa.RecordBatch:
    rows = len(bars)
    return _batch(
        rows,
        what=["late"] * rows,
        late_ms=bars.lateness_ms,
        count=bars.count,
        max_ms=bars.max_ms,
        **group,
    )


def _batch(rows: int, **columns: object) -> pa.RecordBatch:
    arrays = []
    for column in JUDGED_ARROW:
        values = columns.get(column.name)
        arrays.append(
            pa.nulls(rows, column.type)
            if values is None
            else values
            if isinstance(values, pa.Array)
            else pa.array(values, column.type)
        )
    return pa.RecordBatch.from_arrays(arrays, schema=JUDGED_ARROW)

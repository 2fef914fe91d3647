"""Judges all facts of a range of offsets at once, and does so for every range in Spark.

Theory: one task is given whole ranges, one after the other: facts are sorted by their range before
they get there, so that a range is complete when the next one begins. Its memory is one range's.

What leaves is small, and says what it is:

    count      ``name``: of a class of messages, or of two peers; ``count``
    problems   ``name``: a kind of problem; ``count``: how many there are, listed or not
    problem    ``name``: its kind; ``text``: a ``Problem`` as JSON
    late       ``name``: CRC of a topic; ``bucket_ms``, ``late_ms``, ``count``, ``max_ms``: one bar
    excused    ``count``: the offset of a message that the validator of order leaves out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from .agreement import judge_agreement
from .board import Board
from .conservation import judge_conservation
from .context import Context
from .facts import Facts, unpack
from .found import Found
from .punctuality import Histogram, judge_punctuality

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
Batches = Iterator[pa.RecordBatch]


def judge(scanned: DataFrame, context: Context, partitions: int) -> DataFrame:
    """All messages of a scan. Columns: ``JUDGED``. ``partitions``: of the shuffle."""
    facts = scanned.where("what = 'facts'").select("bucket", "data")
    sorted_facts = facts.repartition(partitions, "bucket").sortWithinPartitions("bucket")
    return sorted_facts.mapInArrow(_judging(context), JUDGED)


def judge_range(facts: Facts, context: Context) -> tuple[Found, Histogram]:
    """All facts of some offsets; none of them may be missing."""
    board, found = Board(facts, context), Found()
    judge_conservation(board, found)
    judge_agreement(board, found)
    return found, judge_punctuality(board, found)


def _judging(context: Context) -> Callable[[Batches], Batches]:
    def judge_batches(batches: Batches) -> Batches:
        for parts in _ranges(batches):
            found, bars = judge_range(np.concatenate(parts), context)
            yield from rows_of(found, bars)

    return judge_batches


def _ranges(batches: Iterable[pa.RecordBatch]) -> Iterator[list[Facts]]:
    """The packed facts of each bucket; they come sorted by it."""
    parts: list[Facts] = []
    current = None
    for batch in batches:
        data = batch.column("data")
        for at, bucket in enumerate(batch.column("bucket").to_pylist()):
            if parts and bucket != current:
                yield parts
                parts = []
            current = bucket
            parts.append(unpack(data[at].as_py()))
    if parts:
        yield parts


def rows_of(found: Found, bars: Histogram) -> Iterator[pa.RecordBatch]:
    """What was found, with the columns of ``JUDGED``."""
    texts = [("count", name, number, None) for name, number in found.counts.items()]
    texts += [("problems", kind, number, None) for kind, number in found.problem_counts.items()]
    rows = [*texts, *(("problem", one.kind, 1, one.to_json()) for one in found.problems)]
    if rows:
        what, name, count, text = (list(column) for column in zip(*rows, strict=True))
        yield _batch(len(rows), what=what, name=name, count=count, text=text)
    if len(found.excused):
        many = len(found.excused)
        yield _batch(many, what=["excused"] * many, count=found.excused)
    many = len(bars.count)
    if many:
        names = pa.array([f"{crc:08x}" for crc in np.unique(bars.topic).tolist()], pa.utf8())
        at = np.searchsorted(np.unique(bars.topic), bars.topic)
        yield _batch(
            many,
            what=["late"] * many,
            name=names.take(pa.array(at)),
            bucket_ms=bars.bucket_ms,
            late_ms=bars.lateness_ms,
            count=bars.count,
            max_ms=bars.max_ms,
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

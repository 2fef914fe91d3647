"""Validator *order*: within a partition, messages come in the order of their due times.

Theory: ``chunks.py`` has found what is out of order inside a chunk. Between chunks it takes the
highest key of all that end before a chunk begins: which of the chunk's lowest keys are lower? That
is a running maximum over two small events a chunk, its begin and its end, in the order of
positions. Chunks that overlap, because the same records were read twice, are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from .chunks import CHUNK_SCHEMA, OrderChunk
from .making import Terms
from .problems import ORDER, PROBLEM_ARROW, PROBLEM_SCHEMA, Problem, problem_batch

_BEGIN, _END = 0, 1


def validate(scanned: DataFrame, repeated: DataFrame, terms: Terms) -> DataFrame:
    """Rows out of order, as ``PROBLEM_SCHEMA``. ``scanned``: what ``scan`` gives; ``repeated``: a
    column ``offset`` of messages that were delivered more than once."""
    chunks = scanned.where("what = 'chunk'").select(
        f.from_json("text", CHUNK_SCHEMA).alias("chunk"), "text"
    )
    events = chunks.select(_event("first", _BEGIN), "text").union(
        chunks.select(_event("last", _END), f.lit(None).cast("string").alias("text"))
    )
    # At one position a begin comes first: a chunk that ends there is not before it.
    before = (
        Window.partitionBy("event.source", "event.topic", "event.partition")
        .orderBy("event.at", "event.kind")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    begun = events.select(
        "text",
        f.max(f.when(f.col("event.kind") == _END, f.col("event.key"))).over(before).alias("key"),
    ).where("text is not null")
    found = begun.select("text", "key.due", "key.offset").mapInArrow(
        _problems(terms), PROBLEM_SCHEMA
    )
    return found.join(repeated.select("offset").distinct(), "offset", "left_anti").select(
        *(name for name in PROBLEM_ARROW.names)
    )


def _event(at: str, kind: int) -> Column:
    chunk = f.col("chunk")
    return f.struct(
        chunk.source.alias("source"),
        chunk.topic.alias("topic"),
        chunk.partition.alias("partition"),
        chunk[at].alias("at"),
        f.lit(kind).alias("kind"),
        f.struct(chunk.due.alias("due"), chunk["offset"].alias("offset")).alias("key"),
    ).alias("event")


def _problems(
    terms: Terms,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                chunk = OrderChunk.from_json(row["text"])
                yield problem_batch(list(late_rows(chunk, row["due"], row["offset"], terms)))

    return judge


def late_rows(
    chunk: OrderChunk, due: int | None, offset: int | None, terms: Terms
) -> Iterator[Problem]:
    """Rows of a chunk that come too late. ``due`` and ``offset``: the highest key of all chunks
    before it; None if there is none."""
    listed = set()
    for row_due, row_offset, position, high_due, high_offset in chunk.out:
        listed.add(position)
        yield _problem(chunk, (row_due, row_offset, position), (high_due, high_offset), terms)
    if due is None or offset is None:
        return
    for row_due, row_offset, position in chunk.lowest:
        if (row_due, row_offset) >= (due, offset):
            return
        if position not in listed:
            yield _problem(chunk, (row_due, row_offset, position), (due, offset), terms)


def _problem(
    chunk: OrderChunk, row: tuple[int, int, int], before: tuple[int, int], terms: Terms
) -> Problem:
    due, offset, position = row
    where = f"partition {chunk.partition} of {chunk.topic}" if chunk.partition >= 0 else chunk.topic
    text = (
        f"due {due} ms stands at position {position} of {where}, behind"
        f" {terms.id_of(*before)} of due {before[0]} ms"
    )
    return Problem(
        ORDER,
        "out of order",
        text,
        id=terms.id_of(due, offset),
        offset=offset,
        due_ms=due,
        file=chunk.file,
        position=position,
    )

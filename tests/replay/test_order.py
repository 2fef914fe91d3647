"""The validator of order, over chunks of several tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slotwheel.replay.chunks import OrderChunk
from slotwheel.replay.filescan import SCANNED
from slotwheel.replay.order import validate
from slotwheel.replay.problems import PROBLEM_ARROW
from support.factrows import MINT, TERMS


def chunk(first: int, keys: list[tuple[int, int]], **more: Any) -> OrderChunk:
    """A chunk in order from position ``first`` on."""
    rows = [[due, offset, first + at] for at, (due, offset) in enumerate(keys)]
    due, offset = max(keys)
    made = OrderChunk("Kafka", "file", "orders", 0, first, rows[-1][2], due, offset, sorted(rows))
    return dataclasses.replace(made, **more)


def judge(spark: Any, chunks: list[OrderChunk], repeated: list[int]) -> list[Any]:
    rows = [("chunk", 0, -1, 0, None, one.to_json()) for one in chunks]
    scanned = spark.createDataFrame([("file", 0, -1, 0, None, "{}"), *rows], SCANNED)
    offsets = spark.createDataFrame([(one,) for one in repeated], "offset bigint")
    found = validate(scanned, offsets, TERMS)
    assert found.columns == PROBLEM_ARROW.names
    return sorted(found.collect(), key=lambda row: row.position)


ASCENDING = [chunk(0, [(10, 1), (20, 2)]), chunk(2, [(20, 3), (30, 1)]), chunk(4, [(40, 0)])]


def test_chunks_in_order(spark: Any) -> None:
    assert judge(spark, ASCENDING, []) == []


def test_a_row_behind_a_later_one_of_an_earlier_chunk(spark: Any) -> None:
    late = chunk(6, [(25, 7), (30, 0), (40, 0), (50, 0)])
    found = judge(spark, [late, *ASCENDING], [])
    assert [(row.id, row.position) for row in found] == [
        (str(MINT.one(25, 7)), 6),
        (str(MINT.one(30, 0)), 7),
    ]
    assert {row.kind for row in found} == {"out of order"}
    assert found[0].text == (
        f"due 25 ms stands at position 6 of partition 0 of orders, behind {MINT.one(40, 0)} of due"
        " 40 ms"
    )
    assert (found[0].offset, found[0].due_ms, found[0].file) == (7, 25, "file")


def test_what_was_repeated_is_not_out_of_order(spark: Any) -> None:
    late = chunk(6, [(25, 7), (30, 0), (40, 0)])
    assert [row.offset for row in judge(spark, [*ASCENDING, late], [7, 7, 99])] == [0]


def test_a_row_is_named_once(spark: Any) -> None:
    late = chunk(6, [(50, 0), (25, 7)], out=[[25, 7, 7, 50, 0]])
    assert [(row.offset, row.position) for row in judge(spark, [*ASCENDING, late], [])] == [(7, 7)]


@pytest.mark.parametrize(
    "other", [{"source": "peer 1"}, {"topic": "bills"}, {"partition": 1}], ids=str
)
def test_other_partitions_do_not_matter(spark: Any, other: dict[str, Any]) -> None:
    assert judge(spark, [*ASCENDING, chunk(6, [(1, 1)], **other)], []) == []


def test_the_same_records_read_twice(spark: Any) -> None:
    twice = [dataclasses.replace(one, file="again") for one in ASCENDING]
    assert judge(spark, [*ASCENDING, *twice], []) == []

"""The validator of order: between chunks, and beside what else is known of a message."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from slotwheel.reading.files import NO_PEER
from slotwheel.reading.problems import Problem
from slotwheel.replay.facts.behind import behind
from slotwheel.replay.facts.chunks import OrderChunk
from slotwheel.replay.facts.fact import FACT, OUT_OF_ORDER, Facts, Seen
from slotwheel.replay.judging.board import Board
from slotwheel.replay.judging.context import Context, Options
from slotwheel.replay.judging.judged import Judged
from slotwheel.replay.judging.order import judge_order
from support.factrows import MINT, TERMS

ORDERS = crc32c(b"orders")
Key = tuple[int, int]


def chunk(first: int, keys: list[Key], **more: Any) -> OrderChunk:
    """A chunk in order from position ``first`` on."""
    last = first + len(keys) - 1
    values = ("Kafka", 9, "file", ORDERS, "orders", 0, first, last, *max(keys), *min(keys))
    return dataclasses.replace(OrderChunk(*values), **more)


def arrived(first: int, keys: list[Key], **fields: Any) -> Facts:
    """Records of such a chunk."""
    made = np.zeros(len(keys), FACT)
    made["seen"], made["file"], made["peer"], made["topic"] = Seen.DELIVERED, 9, NO_PEER, ORDERS
    for at, (due, offset) in enumerate(keys):
        made[at]["due"], made[at]["offset"] = due + 10_000, offset
        made[at]["where"] = made[at]["at"] = first + at
    for name, value in fields.items():
        made[name] = value
    return made


def later(keys: list[Key]) -> list[Key]:
    """Due times as facts have them: after a time in which all was accepted."""
    return [(due + 10_000, offset) for due, offset in keys]


def judged(chunks: list[OrderChunk], facts: Facts, strange: int = -1) -> Judged:
    context = Context(TERMS, Options(), (), None, 0, {}, behind=behind(chunks))
    board, found = Board(facts, context), Judged()
    if strange >= 0:
        found.strange = np.flatnonzero(board.offset == strange)
    judge_order(board, found)
    return found


def judge(chunks: list[OrderChunk], facts: Facts, strange: int = -1) -> list[Problem]:
    found = judged(chunks, facts, strange)
    assert sum(found.problem_counts.values()) == len(found.problems)
    return sorted(found.problems, key=lambda one: one.position)


EARLIER = [later([(10, 1), (20, 2)]), later([(20, 3), (30, 1)]), later([(40, 0)])]
ASCENDING = [chunk(0, EARLIER[0]), chunk(2, EARLIER[1]), chunk(4, EARLIER[2])]
LATE = [(25, 7), (30, 0), (40, 0), (50, 0)]


def test_chunks_in_order() -> None:
    assert behind(ASCENDING) == []


def test_a_row_behind_a_later_one_of_an_earlier_chunk() -> None:
    found = judge([chunk(6, later(LATE)), *ASCENDING], arrived(6, [(25, 7), (30, 6), (50, 9)]))
    assert [(one.id, one.position) for one in found] == [
        (str(MINT.one(10_025, 7)), 6),
        (str(MINT.one(10_030, 6)), 7),
    ]
    assert {one.kind for one in found} == {"out of order"}
    assert found[0].text == (
        f"due 10025 ms stands at position 6 of partition 0 of orders, behind"
        f" {MINT.one(10_040, 0)} of due 10040 ms"
    )
    assert (found[0].offset, found[0].due_ms, found[0].file) == (7, 10_025, "file")


def test_any_number_of_rows_behind_an_earlier_chunk_is_found() -> None:
    keys = [(at // 10, at + 100) for at in range(20_000)]
    chunks = [chunk(6, later(keys)), chunk(0, [(1 << 40, 0)])]
    found = judged(chunks, arrived(6, keys))
    assert found.problem_counts == {"out of order": 20_000}
    assert len(found.problems) == Options().problems_max


def test_a_message_that_came_twice_is_judged_by_its_first_arrival() -> None:
    late = [chunk(6, later([(25, 7), (50, 9)])), *ASCENDING]
    again = arrived(6, [(25, 7)])
    assert [one.offset for one in judge(late, again)] == [7]
    in_time = arrived(1, [(25, 7)], file=8)
    assert judge(late, np.concatenate([in_time, again])) == []
    # The first one stood behind a later message already.
    more = arrived(9, [(25, 7)], file=8)
    assert [one.position for one in judge(late, np.concatenate([again, more]))] == [6]


def test_a_row_is_named_once_and_with_what_is_before_it_in_its_chunk() -> None:
    both = chunk(6, later([(50, 0), (25, 7)]), late=1, named=[[7, 10_050, 0]])
    facts = arrived(6, [(50, 8), (25, 7)])
    facts["flags"][1] = OUT_OF_ORDER
    (found,) = judge([*ASCENDING, both], facts)
    assert (found.offset, found.position) == (7, 7)
    assert str(MINT.one(10_050, 0)) in found.text


def test_what_should_not_have_arrived_is_not_blamed_for_its_place() -> None:
    assert judge([*ASCENDING, chunk(6, later(LATE))], arrived(6, [(25, 7)]), strange=7) == []


@pytest.mark.parametrize(
    "other", [{"source": "peer 1"}, {"crc": 1, "topic": "bills"}, {"partition": 1}], ids=str
)
def test_other_partitions_do_not_matter(other: dict[str, Any]) -> None:
    assert behind([*ASCENDING, chunk(6, [(1, 1)], **other)]) == []


def test_the_same_records_read_twice() -> None:
    twice = [dataclasses.replace(one, file="again", number=10) for one in ASCENDING]
    assert behind([*ASCENDING, *twice]) == []


def test_no_more_rows_are_named_than_tasks_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwheel.replay.facts.behind.NAMED_MAX", 3)
    keys = later([(50, 0), (25, 7), (26, 8)])
    named = [[1, 10_050, 0], [2, 10_050, 0]]
    found = behind(chunk(first, keys, late=2, named=named) for first in (0, 10, 20))
    assert [len(one.named) for one in found] == [2, 1, 0]
    assert [one.chunk.named for one in found] == [[], [], []]

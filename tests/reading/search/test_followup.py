"""A bulk cancel counts what the node has answered, whatever stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwheel.reading.search.followup import Cancellation
from slotwheel.reading.search.pending import PendingReader
from slotwheel.reading.search.query import Query
from slotwheel.wheel.errors import NodeUnreachable
from support.damage import flip
from support.datadirs import START_MS, SinkNode, messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    node = SinkNode(tmp_path)
    for start in range(0, 25_000, 5_000):
        node.append(messages([START_MS + 60_000 + start + row for row in range(5_000)]))
    node.spill()
    node.close()
    return tmp_path


def test_every_page_is_asked_about_once(root: Path) -> None:
    asked: list[str] = []

    def cancel(ids: list[str]) -> list[str]:
        asked.extend(ids)
        return ["cancelled" if number % 10 else "unknown" for number in range(len(ids))]

    steps: list[int] = []
    with PendingReader(root) as reader:
        bulk = Cancellation(reader, cancel, Query())
        assert bulk.count().total == 25_000
        bulk.run(steps.append)
    assert (bulk.asked, bulk.unanswered, bulk.complete) == (25_000, 0, True)
    assert bulk.answers == {"cancelled": 22_500, "unknown": 2_500}
    assert steps == [10_000, 10_000, 5_000]
    assert len(set(asked)) == 25_000


def test_what_came_behind_the_count_is_left_alone(root: Path) -> None:
    asked: list[str] = []

    def cancel(ids: list[str]) -> list[str]:
        asked.extend(ids)
        return ["cancelled"] * len(ids)

    with PendingReader(root) as reader:
        bulk = Cancellation(reader, cancel, Query(), before=12_345)
        bulk.run()
    assert (bulk.asked, bulk.complete) == (12_345, True)
    assert {int(one.split(".")[2]) for one in asked} == set(range(12_345))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, NodeUnreachable])
def test_what_stops_it_leaves_true_counts(root: Path, stop: type[BaseException]) -> None:
    answered = 0

    def cancel(ids: list[str]) -> list[str]:
        nonlocal answered
        if answered:
            raise stop("in the middle of a call")
        answered += len(ids)
        return ["cancelled"] * len(ids)

    with PendingReader(root) as reader:
        bulk = Cancellation(reader, cancel, Query(topics=("orders",)))
        with pytest.raises(stop):
            bulk.run()
    assert bulk.answers == {"cancelled": 10_000}
    assert (bulk.asked, bulk.unanswered, bulk.complete) == (20_000, 10_000, False)


def test_it_is_not_at_its_end_while_an_answer_is_missing(root: Path) -> None:
    failing = [NodeUnreachable("gone")]

    def cancel(ids: list[str]) -> list[str]:
        if len(ids) < 10_000 and failing:  # the last page
            raise failing.pop()
        return ["cancelled"] * len(ids)

    with PendingReader(root) as reader:
        bulk = Cancellation(reader, cancel, Query())
        with pytest.raises(NodeUnreachable):
            bulk.run()
        assert (bulk.asked, bulk.unanswered, bulk.ended) == (25_000, 5_000, False)
        again = Cancellation(reader, cancel, Query())
        again.run()
    assert (again.answers.total(), again.complete) == (25_000, True)


def test_it_can_be_stopped_between_two_pages(root: Path) -> None:
    with PendingReader(root) as reader:
        bulk = Cancellation(reader, lambda ids: ["cancelled"] * len(ids), Query())
        bulk.run(stopped=lambda: bool(bulk.asked))
    assert (bulk.asked, bulk.ended, bulk.complete) == (10_000, False, False)


def test_what_could_not_be_read_makes_it_incomplete(root: Path) -> None:
    flip(root / f"slots/{START_MS // 1000 + 62}.arrows")
    with PendingReader(root) as reader:
        bulk = Cancellation(reader, lambda ids: ["cancelled"] * len(ids), Query())
        bulk.run()
    assert bulk.ended
    assert not bulk.complete
    assert len(bulk.problems) == 1
    assert bulk.answers.total() == 24_000

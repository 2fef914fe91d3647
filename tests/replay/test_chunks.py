"""The order of a topic as one task sees it, against a plain loop over the rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.replay.facts import chunks
from slotwheel.replay.facts.chunks import OrderChunk, OrderTracker
from slotwheel.replay.facts.fact import FACT, FORGED, OUT_OF_ORDER, Facts, Seen

NAMES = {1: "one", 2: "two"}
Row = tuple[int, int, int, int]
"""Topic, partition, due, offset."""


def facts(rows: list[Row], first: int = 0) -> Facts:
    made = np.zeros(len(rows), FACT)
    made["seen"] = Seen.DELIVERED
    made["where"] = np.arange(first, first + len(rows))
    for at, (topic, partition, due, offset) in enumerate(rows):
        made[at]["topic"], made[at]["partition"] = topic, partition
        made[at]["due"], made[at]["offset"] = due + 10_000, offset
    return made


def track(*batches: Facts, embedded: bool = False) -> list[OrderChunk]:
    tracker = OrderTracker("s", 7, "file", embedded=embedded)
    found = [chunk for batch in batches for chunk in tracker.add(batch, NAMES)]
    return found + list(tracker.close())


def marked(*batches: Facts) -> list[int]:
    """Positions of the rows that are marked."""
    rows = np.concatenate(batches)
    return sorted(rows["where"][rows["flags"] & OUT_OF_ORDER != 0].tolist())


def test_a_topic_in_order() -> None:
    rows = [(1, 0, due, due * 2 % 7) for due in range(100)]
    (chunk,) = track(facts(rows[:60], 5), facts(rows[60:], 65))
    assert (chunk.topic, chunk.partition, chunk.first, chunk.last) == ("one", 0, 5, 104)
    assert (chunk.due, chunk.offset) == (10_099, 99 * 2 % 7)
    assert (chunk.low_due, chunk.low_offset, chunk.late) == (10_000, 0, 0)
    assert OrderChunk.from_json(chunk.to_json()) == chunk


def test_a_row_behind_a_later_one_is_named_with_it() -> None:
    for cut in range(6):
        rows = [(1, 0, 1, 1), (1, 0, 5, 2), (1, 0, 5, 1), (1, 0, 5, 2), (1, 0, 7, 0)]
        batches = facts(rows[:cut]), facts(rows[cut:], cut)
        (chunk,) = track(*batches)
        assert (chunk.late, chunk.named) == (1, [[2, 10_005, 2]])
        assert marked(*batches) == [2]


def test_rows_that_came_late_or_are_dead_or_forged_are_not_looked_at() -> None:
    rows = facts([(1, 0, 9, 1), (1, 0, 1, 2), (1, 0, 1, 3), (1, 0, 1, 4), (1, 0, 1, 5)])
    rows["created"][1] = 5_001
    rows["seen"][2] = Seen.DEAD
    rows["flags"][3] = FORGED
    rows["created"][4] = -1
    (chunk,) = track(rows)
    assert chunk.late == 0
    assert marked(rows) == []
    rows["created"][1] = 5_000
    track(rows)
    assert marked(rows) == [1]


def test_partitions_and_topics_are_apart_and_an_embedded_topic_has_one_log() -> None:
    rows = [(1, 0, 9, 1), (1, 1, 1, 2), (2, 0, 1, 3)]
    assert {(chunk.topic, chunk.partition) for chunk in track(facts(rows))} == {
        ("one", 0),
        ("one", 1),
        ("two", 0),
    }
    assert all(chunk.late == 0 for chunk in track(facts(rows)))
    batch = facts(rows)
    whole, _ = track(batch, embedded=True)
    assert (whole.partition, whole.late) == (-1, 1)
    assert marked(batch) == [1]


def test_reading_again_from_an_earlier_position_begins_a_chunk() -> None:
    rows = [(1, 0, due, 0) for due in range(10)]
    found = track(facts(rows), facts(rows))
    assert [(chunk.first, chunk.last, chunk.late) for chunk in found] == [(0, 9, 0)] * 2


def test_what_is_named_is_limited_and_all_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "NAMED_MAX", 2)
    rows = [(1, 0, due, 0) for due in (9, 1, 8, 2, 7)]
    batches = facts(rows[:2]), facts(rows[2:], 2)
    (chunk,) = track(*batches)
    assert [position for position, *_ in chunk.named] == [1, 2]
    assert chunk.late == 4
    assert marked(*batches) == [1, 2, 3, 4]
    assert chunk.low_due == 10_001


def test_rows_of_a_batch_may_come_in_any_order() -> None:
    batch = facts([(1, 0, due, 0) for due in (1, 3, 2, 4)])[[3, 0, 2, 1]]
    (chunk,) = track(batch)
    assert (chunk.first, chunk.last, chunk.late) == (0, 3, 1)
    assert marked(batch) == [2]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.integers(0, 4), st.integers(0, 3)
    )
)


@given(ROWS, st.lists(st.integers(0, 20), max_size=3).map(sorted))
def test_like_a_plain_loop(rows: list[Row], cuts: list[int]) -> None:
    edges = [0, *(min(cut, len(rows)) for cut in cuts), len(rows)]
    batches = [facts([]), *(facts(rows[a:b], a) for a, b in pairwise(edges))]
    expected: dict[tuple[int, int], list[list[int]]] = {}
    highest: dict[tuple[int, int], tuple[int, int]] = {}
    for position, (topic, partition, due, offset) in enumerate(rows):
        place, key = (topic, partition), (due + 10_000, offset)
        listed = expected.setdefault(place, [])
        if key < highest.get(place, (-1, -1)):
            listed.append([*key, position, *highest[place]])
        highest[place] = max(key, highest.get(place, key))
    found = {(chunk.topic, chunk.partition): chunk for chunk in track(*batches)}
    assert len(found) == len(expected)
    late = [row[2] for out in expected.values() for row in out]
    assert marked(*batches) == sorted(late)
    for (topic, partition), out in expected.items():
        chunk = found[NAMES[topic], partition]
        assert chunk.named == [row[2:] for row in out]
        assert chunk.late == len(out)
        assert (chunk.due, chunk.offset) == highest[topic, partition]
        keys = [
            (due + 10_000, offset) for t, p, due, offset in rows if (t, p) == (topic, partition)
        ]
        assert (chunk.low_due, chunk.low_offset) == min(keys)

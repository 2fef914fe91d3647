"""The order of a topic as one task sees it, against a plain loop over the rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.replay import chunks
from slotwheel.replay.chunks import OrderChunk, OrderTracker
from slotwheel.replay.facts import FACT, FORGED, Facts, Seen

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
    tracker = OrderTracker("s", "file", embedded=embedded)
    found = [chunk for batch in batches for chunk in tracker.add(batch, NAMES)]
    return found + list(tracker.close())


def test_a_topic_in_order() -> None:
    rows = [(1, 0, due, due * 2 % 7) for due in range(100)]
    (chunk,) = track(facts(rows[:60], 5), facts(rows[60:], 65))
    assert (chunk.topic, chunk.partition, chunk.first, chunk.last) == ("one", 0, 5, 104)
    assert (chunk.due, chunk.offset) == (10_099, 99 * 2 % 7)
    assert chunk.out == []
    assert chunk.lowest[0] == [10_000, 0, 5]
    assert OrderChunk.from_json(chunk.to_json()) == chunk


def test_a_row_behind_a_later_one_is_named_with_it() -> None:
    for cut in range(6):
        rows = [(1, 0, 1, 1), (1, 0, 5, 2), (1, 0, 5, 1), (1, 0, 5, 2), (1, 0, 7, 0)]
        (chunk,) = track(facts(rows[:cut]), facts(rows[cut:], cut))
        assert chunk.out == [[10_005, 1, 2, 10_005, 2]]


def test_rows_that_came_late_or_are_dead_or_forged_are_not_looked_at() -> None:
    rows = facts([(1, 0, 9, 1), (1, 0, 1, 2), (1, 0, 1, 3), (1, 0, 1, 4), (1, 0, 1, 5)])
    rows["created"][1] = 5_001
    rows["seen"][2] = Seen.DEAD
    rows["flags"][3] = FORGED
    rows["created"][4] = -1
    (chunk,) = track(rows)
    assert chunk.out == []
    rows["created"][1] = 5_000
    assert [out[1] for chunk in track(rows) for out in chunk.out] == [2]


def test_partitions_and_topics_are_apart_and_an_embedded_topic_has_one_log() -> None:
    rows = [(1, 0, 9, 1), (1, 1, 1, 2), (2, 0, 1, 3)]
    assert {(chunk.topic, chunk.partition) for chunk in track(facts(rows))} == {
        ("one", 0),
        ("one", 1),
        ("two", 0),
    }
    assert all(chunk.out == [] for chunk in track(facts(rows)))
    whole, _ = track(facts(rows), embedded=True)
    assert whole.partition == -1
    assert [out[1] for out in whole.out] == [2]


def test_reading_again_from_an_earlier_position_begins_a_chunk() -> None:
    rows = [(1, 0, due, 0) for due in range(10)]
    found = track(facts(rows), facts(rows))
    assert [(chunk.first, chunk.last, chunk.out) for chunk in found] == [(0, 9, [])] * 2


def test_what_is_listed_is_limited(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(chunks, "LOWEST_MAX", 3)
    monkeypatch.setattr(chunks, "OUT_OF_ORDER_MAX", 2)
    rows = [(1, 0, due, 0) for due in (9, 1, 8, 2, 7)]
    (chunk,) = track(facts(rows[:2]), facts(rows[2:], 2))
    assert [out[0] for out in chunk.out] == [10_001, 10_008]
    assert chunk.cut == 2
    assert [low[0] for low in chunk.lowest] == [10_001, 10_002, 10_007]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.integers(0, 4), st.integers(0, 3)
    )
)


@given(ROWS, st.lists(st.integers(0, 20), max_size=3).map(sorted))
def test_like_a_plain_loop(rows: list[Row], cuts: list[int]) -> None:
    edges = [0, *(min(cut, len(rows)) for cut in cuts), len(rows)]
    batches = [facts(rows[a:b], a) for a, b in pairwise(edges)]
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
    for (topic, partition), out in expected.items():
        chunk = found[NAMES[topic], partition]
        assert chunk.out == out
        assert (chunk.due, chunk.offset) == highest[topic, partition]
        keys = [
            (due + 10_000, offset) for t, p, due, offset in rows if (t, p) == (topic, partition)
        ]
        assert [(low[0], low[1]) for low in chunk.lowest] == sorted(keys)

"""Rows that the sink does not take now: they wait, they are counted, and hold up nobody else."""

from __future__ import annotations

from collections import Counter

import numpy as np

from support.wheels import NOW, TIGHT, Node, Row, many, master_of


def is_good(row: Row) -> bool:
    return row[0] != "bad"


def test_a_sink_that_refuses_everything_for_a_minute(node: Node) -> None:
    """However often it was tried, nothing is given up."""
    for second in range(60):
        node.send(many(second * 5, 5, NOW + second * 1000), NOW)
    for ms in range(0, 60_000, 500):
        assert node.delivered(NOW + ms, lambda _: False, down=True) == []
    assert node.wheel.status().pending == 300
    assert node.delivered(NOW + 60_000) == [b"%d" % n for n in range(300)]


def test_one_of_a_hundred_repeats_none_of_its_neighbours(node: Node) -> None:
    node.send([(NOW, f"t{n % 3}", b"%d" % n) for n in range(100)], NOW)
    left: list[bytes] = []
    for ms in range(5):
        left += node.delivered(NOW + ms, lambda row: row[1] != b"50")
    once = Counter(left)
    assert max(once.values()) == 1, "a neighbour was repeated"
    # Its own topic waits behind it, in order; the two others are done.
    assert {int(value) for value in once} >= {n for n in range(100) if n % 3 != 2}
    assert b"50" not in once
    assert node.wheel.status().pending == 100 - len(once)
    left += node.delivered(NOW + 10)
    assert Counter(left) == Counter(b"%d" % n for n in range(100))


def test_one_long_item_a_slot_frees_the_disk_all_the_same(node: Node) -> None:
    for second in range(10):
        node.send(many(second * 20, 20, NOW + second * 1000), NOW)
        node.send([(NOW + second * 1000, "bad", b"%d" % second)], NOW)
    node.wheel.spill(NOW, everything=True)
    now = NOW + 12_000
    while (chunk := node.next_chunk(now)) is not None:  # refused for good: dead letters
        dead = chunk.rows.column("topic").to_pylist().count("bad")
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_), dead)
    node.mark(now)
    assert node.wheel.clean(now) == 10
    assert node.wheel.status().dead == 10
    assert list((node.path / "slots").iterdir()) == []
    # Not now, for as long as it takes: no journal is kept for it, and its slots go once it is gone.
    node.send([(now + 1, "bad", b"waits")], now)
    for second in range(1, 10):
        node.send(many(1000, 20, now + second * 1000), now)
    later = now + 11_000
    node.delivered(later, is_good)
    for _ in range(2):
        node.wheel.spill(later, everything=True)
        node.mark(later)
    assert master_of(node.wheel).held_topics() == ["bad"]
    assert node.wheel.status().journal_bytes <= 2 * TIGHT.segment_bytes
    assert node.delivered(later + 1) == [b"waits"]
    node.delivered(later + 2000)
    node.mark(later + 2000)
    node.wheel.clean(later + 2000)
    assert list((node.path / "slots").iterdir()) == []


def test_pending_counts_what_a_restart_will_repeat(node: Node) -> None:
    """A row that was accepted behind a refused one of its topic is not covered by any mark."""
    node.send([(NOW, "held", b"0"), (NOW, "held", b"1")], NOW)
    assert node.delivered(NOW, lambda row: row[1] == b"1") == [b"1"]
    assert node.wheel.status().pending == 1
    node.mark(NOW)
    node.reopen(NOW)
    assert node.wheel.status().pending == 2
    assert node.delivered(NOW) == [b"0", b"1"]
    assert node.wheel.status().pending == 0

"""A message leaves at its due time: never before it, whatever clock, restarts and the wheel's turns
do. Nothing is taken for another revolution's, and no due time begins anew."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due import runs
from slotwheel.wheel.errors import ClockBehind
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.storage import Storage
from support.wheels import NOW, Node, many, master_of


def test_down_longer_than_the_horizon(node: Node) -> None:
    """What was due meanwhile leaves at once; seconds of the first revolution are used again."""
    node.send(many(0, 60, NOW + 1), NOW)
    for second in range(60):
        node.send(many(100 + second, 1, NOW + second * 1000), NOW)
    node.wheel.spill(NOW, everything=True)
    later = NOW + 5 * 60_000 + 17
    node.reopen(later)
    node.send(many(1000, 3, later + 59_000), later)
    node.wheel.spill(later, everything=True)
    left = node.delivered(later)
    assert sorted(map(int, left)) == [*range(60), *range(100, 160)]
    assert left[0] == b"100"
    assert left[-1] == b"159"
    assert node.delivered(later + 58_999) == []
    assert node.delivered(later + 59_000) == [b"1000", b"1001", b"1002"]


def test_an_earlier_revolutions_file_is_not_reused(node: Node) -> None:
    second = NOW // 1000 + 5
    for revolution in range(3):
        now = NOW + revolution * 60_000
        node.send(many(revolution * 10, 10, now + 5_500), now)
        node.wheel.spill(now, everything=True)
        assert (node.path / path_of(second + revolution * 60)).exists()
        expected = [b"%d" % n for n in range(revolution * 10, revolution * 10 + 10)]
        assert node.delivered(now + 6_001) == expected
        node.mark(now + 6_001)
        assert node.wheel.clean(now + 6_001) == 1
        assert not list((node.path / "slots").iterdir())


def test_never_early_at_exact_boundaries_and_clock_steps(node: Node) -> None:
    edge = NOW // 1000 * 1000 + 1000  # a slot's edge
    node.send([(edge + ms, "t", b"%d" % ms) for ms in (-1, 0, 1, 999, 1000)], NOW)
    assert node.delivered(edge - 2) == []
    assert node.delivered(edge - 1) == [b"-1"]
    assert node.delivered(edge) == [b"0"]
    assert node.delivered(edge) == []
    with pytest.raises(ClockBehind):
        node.next_chunk(edge - 2000)
    node.send([(edge - 1500, "t", b"late")], edge - 2000)  # not due yet by that clock
    with pytest.raises(ClockBehind):
        node.next_chunk(edge - 2000)
    assert node.delivered(edge + 999) == [b"late", b"1", b"999"]
    assert node.delivered(edge + 3000) == [b"1000"]


def test_a_held_topic_waits_for_a_clock_behind_the_main_mark(node: Node) -> None:
    node.send([(NOW + 10, "t", b"")], NOW)
    chunk = node.next_chunk(NOW + 10)
    assert chunk is not None
    master_of(node.wheel).answer(chunk, np.zeros(1, np.bool_))
    assert node.next_chunk(NOW + 5_000) is None
    chunk = master_of(node.wheel).next_topic_chunk("t", NOW + 20)
    assert chunk is not None
    master_of(node.wheel).answer(chunk, np.ones(1, np.bool_))
    again = master_of(node.wheel).next_topic_chunk("t", NOW + 20)
    assert again is None, "no empty chunks, one after another"
    assert master_of(node.wheel).held_topics() == ["t"]
    assert master_of(node.wheel).next_topic_chunk("t", NOW + 5_000) is None
    assert master_of(node.wheel).held_topics() == []


def test_a_restart_restarts_no_due_time(node: Node) -> None:
    """Nor does it change an id."""
    dues = [NOW + ms for ms in (1, 700, 1500, 20_000, 59_999)]
    receipt = node.send([(due, "t", b"%d" % due) for due in dues], NOW)
    ids = node.ids_of(receipt)
    now = NOW
    for spill in (False, True, True):
        now += 300
        if spill:
            node.wheel.spill(now, everything=True)
        node.reopen(now)
        assert node.ids_of(receipt) == ids
    assert node.delivered(now) == [b"%d" % dues[0], b"%d" % dues[1]]
    for due in dues[2:]:
        assert node.delivered(due - 1) == []
        assert node.delivered(due) == [b"%d" % due]
    assert node.wheel.status().pending == 0


@pytest.mark.parametrize("delay", [-60_000, -1, 0, 1])
def test_what_is_due_already_leaves_at_once(node: Node, delay: int) -> None:
    node.delivered(NOW)
    node.send([(NOW + delay, "t", b"x")], NOW)
    assert node.delivered(NOW) == ([b"x"] if delay <= 0 else [])
    assert node.delivered(NOW + 1) == ([] if delay <= 0 else [b"x"])


def test_a_row_could_leave_from_the_later_of_due_and_created_on(node: Node) -> None:
    node.send([(NOW - 7, "t", b"overdue"), (NOW + 5, "t", b"due")], NOW)
    ready: list[int] = []
    while (chunk := node.next_chunk(NOW + 5)) is not None:
        ready += chunk.ready.tolist()
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert ready == [NOW, NOW + 5]


def test_what_comes_in_behind_a_slot_opened_ahead_joins_it_before_its_time(tmp_path: Path) -> None:
    """Then each chunk is a slice of the rows that were prepared, and nothing is copied for it."""
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=0, chunk_rows_max=50), NOW)
    start = NOW // 1000 * 1000 + 10_000
    master = master_of(node.wheel)
    node.send([(start + ms, "t", b"%d" % ms) for ms in range(0, 800, 2)], NOW)
    assert master.prepare(start - 2_000)
    node.send([(start + ms, "t", b"%d" % ms) for ms in range(1, 800, 2)], start - 1_000)
    assert not master.prepare(start - 200)
    found: list[bytes] = []
    places: set[int] = set()
    while (chunk := node.next_chunk(start + 799)) is not None:
        values = chunk.rows.column("value")
        found += values.to_pylist()
        places.add(values.buffers()[2].address)
        master.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    node.close()
    assert found == [b"%d" % ms for ms in range(800)]
    assert len(places) == 1


def test_who_asks_what_is_next_is_answered_while_a_slot_is_renewed(
    usual: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = NOW // 1000 * 1000 + 10_000
    master = master_of(usual.wheel)
    usual.send([(start + ms, "t", b"ahead") for ms in range(2, 800, 2)], NOW)
    assert master.prepare(start - 2_000)
    assert usual.next_chunk(start - 1_000) is None
    renewals = [threading.Thread(target=master.prepare, args=(start - 200,))]

    real = runs.position_after

    def position_after(*key: Any) -> int:
        if renewals and threading.current_thread() is threading.main_thread():
            renewal = renewals.pop()
            usual.send([(start + ms, "t", b"behind") for ms in range(1, 800, 2)], start - 1_000)
            renewal.start()
            renewal.join()
        return real(*key)

    monkeypatch.setattr(runs, "position_after", position_after)
    assert master.due.next_due_ms() in (start + 1, start + 2)
    assert not renewals


def test_overdue_slots_are_opened_side_by_side(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one is read for delivery, the one behind it is opened ahead."""
    first = NOW // 1000 * 1000 + 5_000
    later = first + 10_000
    node.send([(first + ms, "t", b"%d" % ms) for ms in (0, 1_000, 2_000)], NOW)
    node.wheel.spill(NOW, everything=True)
    node.reopen(later)
    real = Storage.read_blocks
    read: list[tuple[int, bool]] = []

    def read_blocks(storage: Storage, second: int, *more: Any) -> Any:
        mine = threading.current_thread() is threading.main_thread()
        read.append((second * 1000 - first, mine))
        if mine and len(read) == 1:
            other = threading.Thread(target=master_of(node.wheel).prepare, args=(later,))
            other.start()
            other.join()
        return real(storage, second, *more)

    monkeypatch.setattr(Storage, "read_blocks", read_blocks)
    assert node.delivered(later) == [b"0", b"1000", b"2000"]
    assert sorted(read) == [(0, True), (1_000, False), (2_000, True)]


def test_who_asks_what_is_next_hears_of_what_joined_a_slot_that_was_opened_ahead(
    usual: Node,
) -> None:
    """A chunk of the slot before it left in between, and the hand sleeps for as long as it is
    told."""
    start = NOW // 1000 * 1000 + 10_000
    master = master_of(usual.wheel)
    usual.send([(start + 500, "t", b"known")], NOW)
    assert master.prepare(start - 2_000)
    usual.send([(start - 100, "t", b"before"), (start + 3, "t", b"joined")], start - 200)
    assert usual.delivered(start - 100) == [b"before"]
    assert usual.next_chunk(start - 99) is None
    due_ms = master.next_due_ms()
    assert due_ms is not None
    assert due_ms <= start + 3


def test_the_topics_of_what_is_read_ahead_are_told_once(usual: Node) -> None:
    """Those of messages: a cancel, which has none, is read with them."""
    start = NOW // 1000 * 1000 + 3_000
    sent = usual.send([(start + 10 * n, f"t{n % 3}", b"v") for n in range(20)], NOW)
    usual.blocking(lambda: usual.wheel.cancel(usual.ids_of(sent)[:1], NOW))
    assert usual.wheel.status().cancelled == 1
    master = master_of(usual.wheel)
    assert not master.prepare(start - 3_000)
    assert master.coming_topics() == set()
    assert master.prepare(start - 2_000)
    assert master.coming_topics() == {"t0", "t1", "t2"}
    assert master.coming_topics() == set()


@pytest.mark.parametrize("spilled", [False, True])
def test_a_held_topic_leaves_in_due_order_whatever_comes_in(usual: Node, *, spilled: bool) -> None:
    """A message that is due before the slot that the topic stands at, and behind its mark: it comes
    first. Passed over, it would be lost, for the mark would cover it."""
    first = NOW + 5_000
    usual.send([(first, "held", b"stands")], NOW)
    assert usual.delivered(NOW) == []
    assert usual.delivered(first, lambda _: False) == []
    usual.send([(NOW + 1_000, "held", b"before"), (NOW + 1_000, "other", b"")], first)
    if spilled:
        usual.wheel.spill(first, everything=True)
    assert usual.delivered(first + 10) == [b"", b"before", b"stands"]
    assert usual.wheel.status().pending == 0

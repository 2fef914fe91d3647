"""A clock that was ahead and is right again: what is due leaves, and little is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import ClockBehind
from slotwheel.wheel.jumps import JUMP_MS, RETURN_MS, JumpGuard
from slotwheel.wheel.mark import Marks
from support.wheels import NOW, Node, master_of, opened

DAY = 24 * 3_600_000
CONFIG = WheelConfig(slots=90_000, disk_reserve_bytes=0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, CONFIG, NOW) as node:
        yield node


def set_back(node: Node, now_ms: int) -> int | None:
    try:
        return node.wheel.set_back(now_ms)
    finally:
        node.sync()


def test_a_mark_that_is_a_day_ahead_is_set_back(node: Node) -> None:
    early = node.ids_of(node.send([(NOW + 5_000, "t", b"early"), (NOW + 60_000, "t", b"x")], NOW))
    assert node.delivered(NOW + DAY) == [b"early", b"x"]
    master_of(node.wheel).append_mark(NOW + DAY, at_once=True)
    now = NOW + 4_000
    node.send([(now + n, "t", b"%d" % n) for n in (-1, 2_000)], now)
    with pytest.raises(ClockBehind):
        node.next_chunk(now)
    node.reopen(now)
    with pytest.raises(ClockBehind):
        node.next_chunk(now)
    assert set_back(node, now) == 0, "the slots of what has left are gone"
    assert node.delivered(now) == [b"-1"]
    [fresh] = node.ids_of(node.send([(now + 1_000, "t", b"cancelled")], now))
    assert node.blocking(lambda: node.wheel.cancel([*early, fresh], now)) == [
        CancelAnswer.UNKNOWN,
        CancelAnswer.UNKNOWN,
        CancelAnswer.CANCELLED,
    ]
    assert node.wheel.status().pending == 1
    master_of(node.wheel).append_mark(now, at_once=True)
    node.sync()
    node.reopen(now)
    assert node.delivered(now + 3_000) == [b"2000"]
    assert node.wheel.status().pending == 0
    assert set_back(node, now + 3_000) == 0, "it is not ahead any more"


@pytest.mark.parametrize("spilled", [False, True])
def test_what_is_stored_beside_new_messages_is_not_handed_out_again(
    node: Node, *, spilled: bool
) -> None:
    """Not in the same epoch; behind a restart it may be repeated, as nothing says any more that it
    has left. Counters stay exact; held-back topics go back, too."""
    due = NOW + 60_000
    gone, _, _, _ = node.ids_of(
        node.send([(due, topic, topic.encode()) for topic in ("c", "t", "t", "held")], NOW)
    )
    assert node.blocking(lambda: node.wheel.cancel([gone], NOW)) == [CancelAnswer.CANCELLED]
    if spilled:
        node.wheel.spill(NOW, everything=True)
    assert node.delivered(NOW + DAY, lambda row: row[0] != "held") == [b"t", b"t"]
    assert node.wheel.status().pending == 1
    now = NOW + 4_000
    node.send([(due + 1, "t", b"new"), (due + 1, "held", b"new held")], now)
    assert set_back(node, now) == 2
    assert node.wheel.status().pending == 3
    assert node.delivered(now) == []
    assert node.blocking(lambda: node.wheel.cancel([gone], now)) == [CancelAnswer.CANCELLED]
    assert sorted(node.delivered(due + 500)) == [b"held", b"new", b"new held"]
    assert node.wheel.status().pending == 0
    status = node.wheel.status()
    assert (status.delivered, status.cancelled) == (5, 1)


def test_a_chunk_with_the_sink_is_waited_for(node: Node) -> None:
    assert node.delivered(NOW + DAY) == []
    node.send([(NOW, "t", b"x")], NOW)
    assert node.next_chunk(NOW + DAY) is not None
    assert set_back(node, NOW) is None


def test_a_mark_that_was_set_back_follows_all_before_it() -> None:
    before, after = Marks(resets=0), Marks(resets=1)
    assert after.follows(before)
    assert not before.follows(after)
    assert Marks.decode(after.encode()) == after
    assert Marks.decode(before.encode()) == before
    assert before.encode()[:2] == b"\x03\x00", "older programs read it"


def test_a_jump_ahead_is_not_believed_and_time_goes_on() -> None:
    guard = JumpGuard()
    assert guard.time(1_000_000, 50) == 1_000_000
    assert guard.time(1_000_010 + JUMP_MS, 60) == 1_000_010 + JUMP_MS, "an hour is believed"
    now = 1_000_010 + JUMP_MS
    for passed in (10, 4_000, 2 * DAY):
        assert guard.time(now + passed + DAY, 60 + passed) == now + passed
        assert guard.ahead_ms == DAY
    assert guard.time(now + 3 * DAY, 60 + 3 * DAY) == now + 3 * DAY, "it is right again"
    assert guard.ahead_ms == 0


def test_sleep_a_step_back_and_what_is_accepted_are_believed() -> None:
    guard = JumpGuard()
    guard.time(0, 0)
    assert guard.time(7 * DAY, 7 * DAY) == 7 * DAY
    assert guard.time(6 * DAY, 7 * DAY) == 6 * DAY
    assert guard.time(7 * DAY + RETURN_MS, 7 * DAY + RETURN_MS) == 7 * DAY + RETURN_MS, "it is back"
    guard = JumpGuard()
    guard.time(7 * DAY, 7 * DAY)
    guard.time(6 * DAY, 7 * DAY)
    late = RETURN_MS + 1
    assert guard.time(7 * DAY + late, 7 * DAY + late) == 6 * DAY + late, "it was set so on purpose"
    assert guard.time(8 * DAY, 7 * DAY + 1) == 6 * DAY + 1, "a return goes no further than it was"
    guard.accept()
    assert guard.time(7 * DAY, 7 * DAY) == 7 * DAY
    assert guard.ahead_ms == 0
    assert JumpGuard(-DAY).time(DAY, DAY) == 0, "what a run before has noted"

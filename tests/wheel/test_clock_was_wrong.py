"""A clock that was ahead and is right again: what is due leaves, and little is repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.checks import InputBatch
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.delay import as_due
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import ClockBehind, Overloaded
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.jumps import JUMP_MS, RETURN_MS, JumpGuard
from slotwheel.wheel.mark import BY_KAFKA, Marks
from support.wheels import NOW, Node, batch, master_of, opened

DAY = 24 * 3_600_000
CONFIG = WheelConfig(slots=86_400, disk_reserve_bytes=0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, CONFIG, NOW) as node:
        yield node


def set_back(node: Node, now_ms: int) -> bool:
    try:
        return master_of(node.wheel).set_back(now_ms)
    finally:
        node.sync()


def cancelled(node: Node, ids: list[MessageId], now_ms: int) -> list[CancelAnswer]:
    return node.blocking(lambda: node.wheel.cancel(ids, now_ms))


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
    assert set_back(node, now)
    assert node.delivered(now) == [b"-1"]
    [fresh] = node.ids_of(node.send([(now + 1_000, "t", b"cancelled")], now))
    assert cancelled(node, [*early, fresh], now) == [
        CancelAnswer.UNKNOWN,  # of an epoch before, which may have handed out more than it said
        CancelAnswer.UNKNOWN,
        CancelAnswer.CANCELLED,
    ]
    assert node.wheel.status().pending == 1
    node.mark(now)
    node.reopen(now)
    assert node.delivered(now + 3_000) == [b"2000"]
    assert node.wheel.status().pending == 0
    assert set_back(node, now + 3_000), "it is not ahead any more"
    assert node.wheel.status().mark_c == now + 3_000


@pytest.mark.parametrize("then", ["goes on", "spills", "begins again", "is started again"])
def test_what_has_left_is_not_handed_out_again(node: Node, then: str) -> None:
    """Although it is stored beside new messages. Counters stay exact; held-back topics go back,
    too; answers stay true. The clock is wrong twice, and the second time less far."""
    due = NOW + 60_000
    ids = node.ids_of(
        node.send([(due, topic, topic.encode()) for topic in ("c", "t", "t", "held")], NOW)
    )
    assert cancelled(node, ids[:1], NOW) == [CancelAnswer.CANCELLED]
    assert node.delivered(NOW + DAY, lambda row: row[0] != "held") == [b"t", b"t"]
    now = NOW + 4_000
    node.send([(due + 1, "t", b"second"), (due + 1, "held", b"second held")], now)
    assert set_back(node, now)
    assert node.delivered(due + 10, lambda row: row[0] != "held") == [b"second"]
    node.send([(due + 2, "t", b"third"), (due + 2, "held", b"third held")], now)
    assert set_back(node, now)
    assert node.wheel.status().pending == 4
    master = master_of(node.wheel)
    match then:
        case "spills":
            node.wheel.spill(now, everything=True)
        case "begins again":
            master.resume(now, master.marks, exact=BY_KAFKA)
        case "is started again":
            node.reopen(now)
    assert node.delivered(now) == []
    answers = cancelled(node, ids, now)
    if then != "is started again":
        assert answers[1:3] == [CancelAnswer.DELIVERED] * 2
    assert CancelAnswer.CANCELLED not in answers[1:3], "they have left"
    assert answers[0] is CancelAnswer.CANCELLED
    held = [] if answers[3] is CancelAnswer.CANCELLED else [b"held"]
    assert node.wheel.status().pending == 3 + len(held)
    left = node.delivered(due + 500)
    assert sorted(left) == sorted([*held, b"second held", b"third", b"third held"])
    assert node.delivered(due + 501) == []
    status = node.wheel.status()
    assert (status.pending, status.held_topics) == (0, []), "its place is free for another topic"
    assert node.delivered(due + DAY) == []
    status = node.wheel.status()
    assert (status.delivered, status.cancelled) == (6 + len(held), 2 - len(held))


def test_a_chunk_with_the_sink_is_waited_for(node: Node) -> None:
    assert node.delivered(NOW + DAY) == []
    node.send([(NOW, "t", b"x")], NOW)
    assert node.next_chunk(NOW + DAY) is not None
    assert not set_back(node, NOW)


def test_what_the_sink_has_still_to_say_is_waited_for(node: Node) -> None:
    """Under exactly-once: a transaction whose end is unknown, or of the last epoch, may have moved
    the sink's mark further than this one. A mark that was read before does not count after it."""
    master = master_of(node.wheel)
    master.resume(NOW, exact=BY_KAFKA)
    assert node.delivered(NOW + DAY) == []
    node.send([(NOW, "t", b"x")], NOW)
    chunk = node.next_chunk(NOW + DAY)
    assert chunk is not None
    master.answer(chunk, np.zeros(1, np.bool_), unknown=np.ones(1, np.bool_), sink_down=True)
    read = master.marks
    assert not set_back(node, NOW - 1)
    master.resume(NOW, read, exact=BY_KAFKA)
    node.sync()
    assert set_back(node, NOW - 1)
    with pytest.raises(Overloaded, match="set back"):
        master.resume(NOW, read, exact=BY_KAFKA)
    node.reopen(NOW)
    assert not set_back(node, NOW - 2)


@pytest.mark.parametrize(
    "step", ["_late_rows", "_choose_cursor", "_due", "_hand_out", "_leave", "_move", "_catch_up"]
)
def test_who_reads_while_the_mark_is_set_back_moves_no_mark(
    node: Node, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would pass what is due in between."""
    node.send([(NOW + 1, "held", b"held")], NOW)
    assert node.delivered(NOW + DAY, lambda _: False) == []
    node.send([(NOW + DAY + 500, "t", b"t")], NOW + 1_000)
    master, now = master_of(node.wheel), NOW + 4_000
    left: list[bytes] = []

    def answer(chunk: Chunk | None) -> bool:
        if chunk is not None:
            left.extend(chunk.rows.column("value").to_pylist())
            master.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
        return chunk is not None

    if step == "_catch_up":
        assert answer(master.next_topic_chunk("held", NOW + DAY))
    if step == "_leave":
        assert answer(node.next_chunk(NOW + DAY + 600))
    real = getattr(master.due, step)
    backs: list[bool] = []

    def after_a_set_back(*arguments: Any, **more: Any) -> Any:
        if not backs:
            backs.append(set_back(node, now))
        return real(*arguments, **more)

    monkeypatch.setattr(master.due, step, after_a_set_back)
    with contextlib.suppress(ClockBehind):
        if step == "_catch_up":
            assert not answer(master.next_topic_chunk("held", NOW + DAY))
        while not backs and answer(node.next_chunk(NOW + DAY + 1_600)):
            pass
    assert backs == [True]
    monkeypatch.undo()
    assert max(mark.c for mark in master.marks.every) <= now
    node.send([(now + 5_000, "t", b"between")], now)
    early = node.delivered(now + 6_000)
    assert b"between" in early
    late = node.delivered(NOW + DAY + 2_000)
    assert sorted([*left, *early, *late]) == [b"between", b"held", b"t"]


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
    guard.accept(7 * DAY, 7 * DAY)
    assert guard.time(7 * DAY, 7 * DAY) == 7 * DAY
    assert guard.ahead_ms == 0
    assert JumpGuard(-DAY).time(DAY, DAY) == 0, "what a run before has noted"


def test_what_has_left_proves_its_time() -> None:
    """Up to an hour beyond it nothing is a jump. A clock that was started behind it is followed to
    wherever it goes; from the first reading that is not behind, a jump is one."""
    guard = JumpGuard()
    guard.time(DAY, 0)
    assert guard.time(2 * DAY + JUMP_MS, 0, 2 * DAY) == 2 * DAY + JUMP_MS
    assert guard.time(3 * DAY + JUMP_MS + 1, 0, 3 * DAY - 1) == 2 * DAY + JUMP_MS
    assert guard.ahead_ms == DAY + 1
    guard = JumpGuard()
    for wall_ms in (DAY, 2 * DAY, DAY + 5, 9 * DAY):
        assert guard.time(wall_ms, 5, 8 * DAY) == wall_ms
        assert (guard.offset_ms is None) is (wall_ms < 8 * DAY)
    assert guard.time(10 * DAY, 10, 8 * DAY) == 9 * DAY + 5


def test_nothing_new_is_taken_while_the_clock_is_in_doubt(node: Node) -> None:
    """A delay would count from a wrong time, and what is due in time would be beyond the horizon.
    Nothing of it dies; what was taken before is answered again, leaves, and may be cancelled."""
    taken = node.wheel.append(batch([(as_due(5_000), "t", b"a")]), NOW, producer=7, sequence=1)
    node.sync()
    [known] = node.ids_of(taken.result(0))
    node.wheel.doubts = lambda now_ms: Overloaded("in doubt") if now_ms < NOW + DAY else None
    soon, far = batch([(as_due(1_000), "t", b"b")]), batch([(NOW + 2 * DAY, "t", b"c")])
    wheel, again = node.wheel, batch([(as_due(5_000), "t", b"a")])
    outcomes = [
        *wheel.append_all([InputBatch(soon)], NOW),
        *wheel.append_all([InputBatch(far)], NOW),
        *wheel.append_all([InputBatch(soon, 7, 2), InputBatch(far, 7, 3), InputBatch(soon)], NOW),
    ]
    assert [str(one) for one in outcomes] == ["in doubt"] * 5
    assert all(isinstance(one, Overloaded) for one in outcomes)
    with pytest.raises(Overloaded, match="in doubt"):
        wheel.append_source(far, NOW, source=1, first=0, last=0)
    with pytest.raises(Overloaded, match="in doubt"):
        wheel.reschedule(known, NOW + 1, NOW)
    repeat = wheel.append(again, NOW + 1, producer=7, sequence=1)
    assert node.ids_of(repeat.result(0)) == [known]
    assert cancelled(node, [known], NOW) == [CancelAnswer.CANCELLED]
    assert wheel.status().accepted == 1
    node.send([(as_due(1_000), "t", b"b")], NOW + DAY)
    assert node.delivered(NOW + DAY + 1_000) == [b"b"]

"""Up to where a partition may be committed, whatever the order in which messages finish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slotwheel.consumer.inflight import InFlight
from slotwheel.consumer.message import OutputRecord, Received, SourcePartition
from slotwheel.consumer.tracker import PartitionTracker

PARTITION = SourcePartition("t", 0)


def message(offset: int) -> Received:
    return Received("t", 0, offset, None, b"x", [], 0)


def output(number: int) -> OutputRecord:
    return OutputRecord("out", b"%d" % number, None, [])


def tracker_of(*offsets: int) -> PartitionTracker:
    tracker = PartitionTracker(PARTITION)
    tracker.add([message(offset) for offset in offsets], offsets[-1])
    return tracker


def test_nothing_is_committed_over_an_unfinished_message() -> None:
    tracker = tracker_of(5, 6, 7)
    tracker.finish(6)
    tracker.finish(7)
    assert tracker.position == 5
    tracker.finish(5)
    assert tracker.position == 8


def test_what_is_filtered_counts_as_finished_also_as_the_last_of_a_poll() -> None:
    tracker = tracker_of(5)
    tracker.add([], 9)
    assert tracker.position == 5
    tracker.finish(5)
    assert tracker.position == 10
    only_filtered = PartitionTracker(PARTITION)
    only_filtered.add([], 3)
    assert only_filtered.position == 4


def test_the_first_answer_counts() -> None:
    tracker = tracker_of(5)
    assert tracker.answer(5)
    assert not tracker.answer(5)
    tracker.done(5)
    assert tracker.position == 5, "answered, and not finished"
    tracker.finish(5)
    assert tracker.position == 6
    assert not tracker.answer(5)
    assert not tracker.answer(99)


def test_an_answer_for_a_revoked_partition_is_ignored() -> None:
    tracker = tracker_of(5)
    tracker.closed = True
    assert not tracker.answer(5)
    assert not tracker.put_out(5, output(1))
    tracker.finish(5)
    assert tracker.position == 5


def test_outputs_leave_once_the_position_has_passed_their_message() -> None:
    tracker = tracker_of(5, 6)
    for offset in (6, 5, 6):
        assert tracker.put_out(offset, output(offset))
    tracker.finish(6)
    assert tracker.take_outputs() == []
    tracker.finish(5)
    assert [one.value for _, one in tracker.take_outputs()] == [b"5", b"6", b"6"]
    assert tracker.take_outputs() == []
    assert tracker.nbytes == 0


def test_a_failed_message_takes_its_outputs_back() -> None:
    tracker = tracker_of(5)
    tracker.put_out(5, output(1))
    assert tracker.answer(5)
    assert not tracker.put_out(5, output(2)), "late"
    tracker.replace_outputs(5, output(3))
    tracker.finish(5)
    assert [one.value for _, one in tracker.take_outputs()] == [b"3"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Records come with gaps between their offsets, some filtered; messages finish in any order,
    at any time after they came."""
    steps = draw(st.lists(st.tuples(st.sampled_from("amf"), st.integers(1, 9)), max_size=60))
    offset = draw(st.integers(0, 5))
    waiting: list[int] = []
    found: list[tuple[str, int]] = []
    for kind, number in steps:
        if kind == "f":
            if waiting:
                found.append(("finish", waiting.pop(number % len(waiting))))
            continue
        found.append(("add" if kind == "a" else "passed", offset))
        if kind == "a":
            waiting.append(offset)
        offset += number
    return found


@given(histories())
def test_the_position_is_the_first_unfinished_message_else_the_end(
    history: list[tuple[str, int]],
) -> None:
    tracker = PartitionTracker(PARTITION)
    unfinished: set[int] = set()
    end, last = None, 0
    for step, offset in history:
        if step == "add":
            tracker.add([message(offset)], offset)
            tracker.put_out(offset, output(offset))
            unfinished.add(offset)
            end = offset + 1
        elif step == "passed":
            tracker.add([], offset)
            end = offset + 1
        else:
            if offset % 2:
                assert tracker.answer(offset)
                tracker.finish(offset)
            else:
                tracker.done(offset)
            unfinished.discard(offset)
        position = min(unfinished, default=end)
        assert tracker.position == position
        assert position is None or position >= last, "a position never goes back"
        last = position or 0
        assert len(tracker) == len(unfinished)
        # Each output leaves once, in order, and none of a message that may come again.
        taken = [offset for offset, _ in tracker.take_outputs()]
        assert taken == sorted(taken)
        assert all(offset < last for offset in taken)
    assert (tracker.nbytes == 0) == (not unfinished)


def test_offsets_that_go_back_are_those_of_another_topic_of_that_name() -> None:
    inflight = InFlight(10, 1000)
    inflight.assigned([PARTITION], None)
    first = [message(offset) for offset in range(5)]
    inflight.receive(PARTITION, first, 4)
    for one in first[:4]:
        inflight.answer(one)
    inflight.finish(first[:4])
    inflight.committed(inflight.batch().positions)
    assert first[3].committed
    again = [message(0), message(1)]
    inflight.receive(PARTITION, again, 1)
    assert not again[0].committed
    assert not inflight.answer(first[4])
    assert inflight.take(10, 0) == again
    inflight.answer(again[0])
    inflight.finish(again[:1])
    assert inflight.batch().positions == {PARTITION: 1}

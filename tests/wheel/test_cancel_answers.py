"""What a cancel answers while its row is on its way, and what its row does then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import MessageId
from support.stopwatch import Stopwatch
from support.wheels import NOW, Node, master_of, opened

CONFIG = WheelConfig(slots=60, chunk_rows_max=7, cancels_remembered_max=0, disk_reserve_bytes=0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, CONFIG, NOW) as node:
        yield node


def sent(node: Node, count: int, due: int = NOW) -> list[MessageId]:
    return node.ids_of(node.send([(due, "t", b"%d" % n) for n in range(count)], NOW))


def cancel(node: Node, *ids: MessageId) -> list[CancelAnswer]:
    return node.blocking(lambda: node.wheel.cancel(ids, NOW))


class Asking:
    """A cancel in a thread of its own."""

    def __init__(self, node: Node, *ids: MessageId) -> None:
        self.answers: list[CancelAnswer] = []
        self._waiting: Any = master_of(node.wheel).due.lines.answered
        self.thread = threading.Thread(
            target=lambda: self.answers.extend(node.wheel.cancel(ids, NOW, 10)), daemon=True
        )

    def start(self) -> None:
        """It asks, and waits for the sink."""
        self.thread.start()
        while not self._waiting._waiters:
            assert self.thread.is_alive(), "it answered while the sink still had the row"
            time.sleep(0.001)


def test_before_during_and_after_delivery_and_twice(node: Node) -> None:
    first, second, third, last = sent(node, 4)
    assert cancel(node, first, first) == [CancelAnswer.CANCELLED] * 2
    assert cancel(node, first) == [CancelAnswer.CANCELLED]
    chunk = node.next_chunk(NOW)
    assert chunk is not None
    asking = Asking(node, second)
    asking.start()
    master_of(node.wheel).answer(chunk, np.ones(3, np.bool_))
    asking.thread.join(60)
    assert asking.answers == [CancelAnswer.DELIVERED]
    assert cancel(node, third, first) == [CancelAnswer.DELIVERED, CancelAnswer.CANCELLED]
    never = node.wheel.mint.one(NOW, 10_000)
    forged = MessageId(never.group, never.due, 0, never.check)
    assert cancel(node, forged) == [CancelAnswer.UNKNOWN]
    node.reopen(NOW + 10)
    assert cancel(node, last) == [CancelAnswer.UNKNOWN], "it may have left without a mark"


def test_what_was_answered_ahead_of_its_mark_is_delivered(node: Node) -> None:
    """It is due later than all that the mark covers, as the row behind it is, which is pending."""
    first, second = sent(node, 2, NOW + 5_000)
    row = np.array([first.due], np.int64), np.array([first.offset], np.int64)
    master_of(node.wheel).answered_before("t", *row)
    assert cancel(node, first) == [CancelAnswer.DELIVERED]
    assert cancel(node, second) == [CancelAnswer.CANCELLED]


def test_many_rows_in_flight_are_waited_for_once(node: Node) -> None:
    ids = sent(node, 7)
    assert node.next_chunk(NOW) is not None
    began = Stopwatch()
    assert node.wheel.cancel(ids, NOW, 0.3) == [CancelAnswer.UNKNOWN] * 7
    assert began.seconds < 1.0


def test_a_row_that_goes_into_flight_again_is_waited_for_again(node: Node) -> None:
    ids = sent(node, 2)
    chunk = node.next_chunk(NOW)
    assert chunk is not None
    asking = Asking(node, *ids)
    asking.start()
    with node.wheel._lock:  # in one go: both are in flight when the question is asked again
        master_of(node.wheel).answer(chunk, np.zeros(2, np.bool_), sink_down=True)
        chunk = master_of(node.wheel).next_chunk(NOW)
    assert chunk is not None
    time.sleep(0.1)
    assert not asking.answers
    master_of(node.wheel).answer(chunk, np.ones(2, np.bool_))
    asking.thread.join(60)
    assert asking.answers == [CancelAnswer.DELIVERED] * 2


def test_a_cancel_on_its_way_stops_a_held_topic_before_its_row(node: Node) -> None:
    """The line of the held-back topic passes neither that row nor the one behind it."""
    first, _ = sent(node, 2)
    assert node.delivered(NOW, lambda _: False) == []
    assert master_of(node.wheel).held_topics() == ["t"]
    assert node.wheel.cancel([first], NOW, 0.0) == [CancelAnswer.UNKNOWN]  # not committed yet
    assert master_of(node.wheel).next_chunk(NOW) is None
    assert master_of(node.wheel).next_topic_chunk("t", NOW) is None
    assert node.wheel.status().pending == 2
    node.sync()
    assert node.delivered(NOW) == [b"1"]
    assert node.wheel.status().pending == 0


def test_a_row_whose_topic_is_held_back_by_the_answer_can_be_cancelled(node: Node) -> None:
    ids = sent(node, 1)
    chunk = node.next_chunk(NOW)
    assert chunk is not None
    asking = Asking(node, *ids)
    asking.start()
    master_of(node.wheel).answer(chunk, np.array([False]))
    while asking.thread.is_alive():
        node.wheel.write_pending(0.001)
    assert asking.answers == [CancelAnswer.CANCELLED]
    assert node.delivered(NOW + 1) == []
    assert node.wheel.status().pending == 0


def test_the_cancel_of_a_late_row_outlives_the_cleaner(node: Node) -> None:
    """It is needed for as long as the row is there, also when the row's second has left."""
    assert node.delivered(NOW) == []
    late = sent(node, 1, NOW - 5_000)
    assert cancel(node, *late) == [CancelAnswer.CANCELLED]
    node.mark(NOW)
    node.wheel.clean(NOW)
    assert node.delivered(NOW) == []


def test_pending_is_exact_between_a_row_and_its_cancel(tmp_path: Path) -> None:
    """A chunk may end between the two."""
    config = WheelConfig(slots=60, chunk_rows_max=2, disk_reserve_bytes=0)
    with opened(tmp_path, config, NOW) as node:
        *_, last = sent(node, 3)
        assert cancel(node, last) == [CancelAnswer.CANCELLED]
        assert node.wheel.status().pending == 2
        chunk = node.next_chunk(NOW)
        assert chunk is not None
        master_of(node.wheel).answer(chunk, np.array([True, True]))
        assert node.wheel.status().pending == 0
        assert node.delivered(NOW) == []
        assert node.wheel.status().pending == 0

"""Histories that the state machine found, in their shortest form, so that they stay fixed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.receipt import CancelAnswer, Receipt
from support.wheels import Node, batch

NOW = 1_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = WheelConfig(
        slots=60,
        chunk_rows_max=2,
        held_topics_max=2,
        cancels_remembered_max=0,
        disk_reserve_bytes=0,
    )
    node = Node(tmp_path, config, NOW)
    yield node
    node.close()


def send(node: Node, *rows: tuple[int, str]) -> Receipt:
    values = [(due, topic, b"%d" % at) for at, (due, topic) in enumerate(rows)]
    future = node.wheel.append(batch(values), NOW)
    node.sync()
    return future.result(0)


def taken(node: Node, now: int, *refused: str) -> list[bytes]:
    """What a sink accepts until nothing is due; ``refused`` topics get *not now*."""
    found: list[bytes] = []

    def answer(topics: list[str], values: list[bytes]) -> np.ndarray:
        found.extend(v for t, v in zip(topics, values, strict=True) if t not in refused)
        return np.array([topic not in refused for topic in topics], np.bool_)

    wheel = node.wheel
    for topic in (None, *wheel.held_topics()):
        while True:
            chunk = wheel.next_chunk(now) if topic is None else wheel.next_topic_chunk(topic, now)
            if chunk is None or topic in refused:
                break
            columns = (chunk.rows.column(name).to_pylist() for name in ("topic", "value"))
            wheel.answer(chunk, answer(*columns))
    return found


def test_a_cancel_on_its_way_stops_a_held_topic_before_its_row(node: Node) -> None:
    """The line of the held-back topic went past the row, and past those behind it: all lost."""
    receipt = send(node, (NOW, "held"), (NOW, "held"))
    assert taken(node, NOW, "held") == []
    first = node.wheel.mint.one(NOW, receipt.base_offset)
    assert node.wheel.cancel([first], NOW, 0.0) == [CancelAnswer.UNKNOWN]  # not committed yet
    assert taken(node, NOW) == []
    assert node.wheel.status().pending == 2
    node.sync()
    assert taken(node, NOW) == [b"1"]
    assert node.wheel.status().pending == 0


def test_a_row_whose_topic_is_held_back_by_the_answer_can_be_cancelled(node: Node) -> None:
    """The question waited for the sink, which said not now; the answer was *already delivered*."""
    receipt = send(node, (NOW, "held"))
    chunk = node.wheel.next_chunk(NOW)
    assert chunk is not None
    row = node.wheel.mint.one(NOW, receipt.base_offset)
    answers: list[CancelAnswer] = []
    asked = threading.Thread(
        target=lambda: answers.extend(node.wheel.cancel([row], NOW, 10)), daemon=True
    )
    asked.start()
    while not asked.is_alive() or len(node.wheel._due.answered._waiters) == 0:  # type: ignore[attr-defined]
        assert asked.is_alive()
    node.wheel.answer(chunk, np.array([False]))
    while asked.is_alive():
        node.wheel.write_pending(0.001)
    assert answers == [CancelAnswer.CANCELLED]
    assert taken(node, NOW + 1) == []
    assert node.wheel.status().pending == 0


def test_the_cancel_of_a_late_row_outlives_the_cleaner(node: Node) -> None:
    """Its second had left, so the register forgot the cancel; the late row had not, and left."""
    assert taken(node, NOW) == []
    receipt = send(node, (NOW - 5_000, "t"))
    late = node.wheel.mint.one(NOW - 5_000, receipt.base_offset)
    assert node.blocking(lambda: node.wheel.cancel([late], NOW)) == [CancelAnswer.CANCELLED]
    node.wheel.tell_mark(NOW, at_once=True)
    node.sync()
    node.wheel.clean(NOW)
    assert taken(node, NOW) == []


def test_pending_is_exact_between_a_row_and_its_cancel(node: Node) -> None:
    """A chunk that ended between the two made the count negative."""
    receipt = send(node, (NOW, "t"), (NOW, "t"), (NOW, "t"))
    last = node.wheel.mint.one(NOW, receipt.base_offset + 2)
    assert node.blocking(lambda: node.wheel.cancel([last], NOW)) == [CancelAnswer.CANCELLED]
    assert node.wheel.status().pending == 2
    chunk = node.wheel.next_chunk(NOW)
    assert chunk is not None
    node.wheel.answer(chunk, np.array([True, True]))
    assert node.wheel.status().pending == 0
    assert taken(node, NOW) == []
    assert node.wheel.status().pending == 0


def test_pending_counts_what_a_restart_will_repeat(node: Node) -> None:
    """What was answered ahead of a held-back topic's mark was not counted after a restart."""
    send(node, (NOW, "held"), (NOW, "held"))
    chunk = node.wheel.next_chunk(NOW)
    assert chunk is not None
    node.wheel.answer(chunk, np.array([False, True]))
    assert node.wheel.status().pending == 1
    node.wheel.tell_mark(NOW, at_once=True)
    node.sync()
    node.crash()
    node.open(NOW)
    node.sync()
    assert node.wheel.status().pending == 2
    assert taken(node, NOW) == [b"0", b"1"]
    assert node.wheel.status().pending == 0


def test_a_repeated_batch_is_judged_by_its_first_clock(node: Node) -> None:
    """The clock stepped back between the two: what was stored was refused as beyond the horizon."""
    rows = batch([(NOW + 60_000, "t", b"")])
    first = node.wheel.append(rows, NOW, producer=1, sequence=1)
    again = node.wheel.append(rows, NOW - 2_000, producer=1, sequence=1)
    node.sync()
    assert again.result(0).base_offset == first.result(0).base_offset
    assert node.wheel.status().pending == 1

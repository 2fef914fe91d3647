"""The reach of marks: no row leaves before a mark that reaches it is committed, and none late."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.due import DueQueue
from slotwheel.wheel.mark import Marks
from support.wheels import Node, as_version_1, batch, master_of

NOW = 1_800_000_000_000
CONFIG = WheelConfig(disk_reserve_bytes=0)


@pytest.fixture
def node(tmp_path: Path) -> Any:
    node = Node(tmp_path, CONFIG, NOW)
    node.sync()
    yield node
    node.close()


def taken(node: Node, now_ms: int) -> list[bytes]:
    """What one look hands out; the sink takes it."""
    chunk = master_of(node.wheel).next_chunk(now_ms)
    if chunk is None:
        return []
    master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    values: list[bytes] = chunk.rows.column("value").to_pylist()
    return values


def test_nothing_leaves_beyond_the_reach_until_a_mark_is_committed(node: Node) -> None:
    """The clock jumps, so that no mark could be made ahead of it."""
    node.wheel.append(batch([(NOW + 500, "t", b"near"), (NOW + 5_000, "t", b"far")]), NOW)
    node.sync()
    assert taken(node, NOW + 5_000) == [b"near"]
    assert taken(node, NOW + 5_000) == []
    node.sync()
    assert taken(node, NOW + 5_000) == [b"far"]


def test_what_is_due_at_once_waits_for_no_sync_but_its_own(node: Node) -> None:
    later = NOW + 60_000
    node.wheel.append(batch([(later, "t", b"x")]), later)
    node.wheel.write_pending(0)
    assert taken(node, later) == [b"x"]


def test_after_a_pause_the_reach_is_extended_before_the_next_row_is_due(node: Node) -> None:
    node.wheel.append(batch([(NOW + 60_000, "t", b"x")]), NOW)
    node.sync()
    before = node.wheel.status().commit_index
    assert taken(node, NOW + 50_000) == []
    node.sync()
    assert node.wheel.status().commit_index == before, "no mark while nothing is due soon"
    assert taken(node, NOW + 59_600) == []
    node.sync()
    assert taken(node, NOW + 60_000) == [b"x"]


def test_a_mark_that_could_not_be_written_is_made_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.wheel.append(batch([(NOW + 60_000, "t", b"x")]), NOW)
    node.sync()

    def full(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(node.wheel._log.journal, "append", full)
        assert taken(node, NOW + 60_000) == []
        node.wheel.write_pending(0)
    assert taken(node, NOW + 60_200) == []
    node.sync()
    assert taken(node, NOW + 60_200) == [b"x"]


def test_with_a_disk_that_is_almost_full_delivery_needs_no_further_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=1 << 20), NOW)
    for minute in range(5):
        node.wheel.append(batch([(NOW + minute * 60_000, "t", b"%d" % minute)]), NOW)
    node.sync()
    monkeypatch.setattr(node.files, "free_bytes", lambda: 1000)
    assert taken(node, NOW + 1_000) == [b"0"]
    master_of(node.wheel).append_mark(NOW + 1_000, at_once=True)
    node.sync()

    def full(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(node.wheel._log.journal, "append", full)
    for minute in range(1, 5):
        assert taken(node, NOW + minute * 60_000) == [b"%d" % minute]
        node.wheel.write_pending(0)
    node.crash()


def test_a_row_that_becomes_late_before_anybody_saw_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed late, and between the look at the log and the choice of a slot."""
    now = NOW + 5_000
    node.next_chunk(now)
    node.wheel.append(batch([(now + 800, "t", b"x")]), now)
    choose = DueQueue._choose_cursor

    def committed_meanwhile(due: DueQueue, *line: Any) -> None:
        node.sync()
        monkeypatch.undo()
        choose(due, *line)

    monkeypatch.setattr(DueQueue, "_choose_cursor", committed_meanwhile)
    assert taken(node, now + 900) == []
    assert taken(node, now + 1_000) == []
    node.sync()
    assert taken(node, now + 1_000) == [b"x"]


def test_what_an_older_epoch_reached_is_unknown_and_the_rest_is_known(node: Node) -> None:
    """Whatever the clock says that the next epoch begins with."""
    due = [NOW + 300, NOW + 900, NOW + 1_100, NOW + 5_000]
    node.wheel.append(batch([(at, "t", b"") for at in due]), NOW)
    node.sync()
    assert len(taken(node, NOW + 400)) == 1
    reach = node.wheel._committed_marks.reach
    assert reach == NOW + 1_000
    node.crash()
    node.open(NOW - 10_000)
    ids = [node.wheel.mint.one(at, offset) for offset, at in enumerate(due)]
    answers = node.blocking(lambda: node.wheel.cancel(ids, NOW - 10_000))
    assert answers == [CancelAnswer.UNKNOWN] * 2 + [CancelAnswer.CANCELLED] * 2


def test_a_directory_of_marks_without_a_reach_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what was due before the start is unknown, by the clock of that start."""
    encode = Marks.encode
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "encode", lambda marks: as_version_1(encode(marks)))
        node = Node(tmp_path, CONFIG, NOW)
        node.wheel.append(batch([(NOW + 300, "t", b""), (NOW + 5_000, "t", b"")]), NOW)
        node.sync()
        node.crash()
    node.open(NOW + 1_000)
    ids = [node.wheel.mint.one(NOW + 300, 0), node.wheel.mint.one(NOW + 5_000, 1)]
    answers = node.blocking(lambda: node.wheel.cancel(ids, NOW + 1_000))
    assert answers == [CancelAnswer.UNKNOWN, CancelAnswer.CANCELLED]
    node.close()

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
from support.wheels import NOW, Node, as_version_1, batch, master_of, opened

CONFIG = WheelConfig(disk_reserve_bytes=0)


def taken(node: Node, now_ms: int) -> list[bytes]:
    """What one look hands out; the sink takes it."""
    chunk = master_of(node.wheel).next_chunk(now_ms)
    if chunk is None:
        return []
    master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    values: list[bytes] = chunk.rows.column("value").to_pylist()
    return values


def test_nothing_leaves_beyond_the_reach_until_a_mark_is_committed(usual: Node) -> None:
    """The clock jumps, so that no mark could be made ahead of it."""
    usual.send([(NOW + 500, "t", b"near"), (NOW + 5_000, "t", b"far")], NOW)
    assert taken(usual, NOW + 5_000) == [b"near"]
    assert taken(usual, NOW + 5_000) == []
    usual.sync()
    assert taken(usual, NOW + 5_000) == [b"far"]


def test_what_is_due_at_once_waits_for_no_sync_but_its_own(usual: Node) -> None:
    later = NOW + 60_000
    usual.wheel.append(batch([(later, "t", b"x")]), later)
    usual.wheel.write_pending(0)
    assert taken(usual, later) == [b"x"]


def test_after_a_pause_the_reach_is_extended_before_the_next_row_is_due(usual: Node) -> None:
    usual.send([(NOW + 60_000, "t", b"x")], NOW)
    before = usual.wheel.status().commit_index
    assert taken(usual, NOW + 50_000) == []
    usual.sync()
    assert usual.wheel.status().commit_index == before, "no mark while nothing is due soon"
    assert taken(usual, NOW + 59_600) == []
    usual.sync()
    assert taken(usual, NOW + 60_000) == [b"x"]


def test_a_mark_that_could_not_be_written_is_made_again(
    usual: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual.send([(NOW + 60_000, "t", b"x")], NOW)

    def full(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(usual.wheel._log.journal, "append", full)
        assert taken(usual, NOW + 60_000) == []
        usual.wheel.write_pending(0)
    assert taken(usual, NOW + 60_200) == []
    usual.sync()
    assert taken(usual, NOW + 60_200) == [b"x"]


def test_with_a_disk_that_is_almost_full_delivery_needs_no_further_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=1 << 20), NOW)
    for minute in range(5):
        node.send([(NOW + minute * 60_000, "t", b"%d" % minute)], NOW)
    monkeypatch.setattr(node.files, "free_bytes", lambda: 1000)
    assert taken(node, NOW + 1_000) == [b"0"]
    node.mark(NOW + 1_000)

    def full(entries: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(node.wheel._log.journal, "append", full)
    for minute in range(1, 5):
        assert taken(node, NOW + minute * 60_000) == [b"%d" % minute]
        node.wheel.write_pending(0)
    node.crash()


@pytest.mark.parametrize("ahead", [{"slots": 86_400}, {"far_horizon_ms": 366 * 86_400_000}])
def test_two_hours_behind_a_disk_that_was_almost_full_answers_are_true_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: dict[str, int]
) -> None:
    """Also on a wheel of a day, or of a year with files of days: what is due later than the reach
    has not left, so it is known."""
    config = WheelConfig(disk_reserve_bytes=1 << 20, **ahead)  # type: ignore[arg-type]
    with opened(tmp_path, config, NOW) as node:
        reach = NOW + 1_000 + 2 * 3_600_000
        due = [NOW + 60_000, reach, reach + 1, NOW + config.horizon_ms - 60_000]
        ids = node.ids_of(node.send([(at, "t", b"") for at in due], NOW))
        node.wheel.spill(NOW, everything=True)
        with monkeypatch.context() as patch:
            patch.setattr(node.files, "free_bytes", lambda: 1000)
            assert taken(node, NOW + 1_000) == []
            node.sync()
        assert node.wheel._committed_marks.reach == reach
        node.reopen(NOW + 2_000)
        answers = node.blocking(lambda: node.wheel.cancel(ids, NOW + 2_000))
        assert answers == [CancelAnswer.UNKNOWN] * 2 + [CancelAnswer.CANCELLED] * 2
        later = node.ids_of(node.send([(reach + 2, "t", b""), (reach + 3, "t", b"")], NOW + 2_000))
        assert node.delivered(reach + 2) == [b""] * 3
        answers = node.blocking(lambda: node.wheel.cancel(later, reach + 2))
        assert answers == [CancelAnswer.DELIVERED, CancelAnswer.CANCELLED]


def test_a_row_that_becomes_late_before_anybody_saw_it(
    usual: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed late, and between the look at the log and the choice of a slot."""
    now = NOW + 5_000
    usual.next_chunk(now)
    usual.wheel.append(batch([(now + 800, "t", b"x")]), now)
    choose = DueQueue._choose_cursor

    def committed_meanwhile(due: DueQueue, *line: Any) -> None:
        usual.sync()
        monkeypatch.undo()
        choose(due, *line)

    monkeypatch.setattr(DueQueue, "_choose_cursor", committed_meanwhile)
    assert taken(usual, now + 900) == []
    assert taken(usual, now + 1_000) == []
    usual.sync()
    assert taken(usual, now + 1_000) == [b"x"]


def test_what_an_older_epoch_reached_is_unknown_and_the_rest_is_known(usual: Node) -> None:
    """Whatever the clock says that the next epoch begins with."""
    due = [NOW + 300, NOW + 900, NOW + 1_100, NOW + 5_000]
    usual.send([(at, "t", b"") for at in due], NOW)
    assert len(taken(usual, NOW + 400)) == 1
    reach = usual.wheel._committed_marks.reach
    assert reach == NOW + 1_000
    usual.crash()
    usual.open(NOW - 10_000)
    ids = [usual.wheel.mint.one(at, offset) for offset, at in enumerate(due)]
    answers = usual.blocking(lambda: usual.wheel.cancel(ids, NOW - 10_000))
    assert answers == [CancelAnswer.UNKNOWN] * 2 + [CancelAnswer.CANCELLED] * 2


def test_a_directory_of_marks_without_a_reach_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what was due before the start is unknown, by the clock of that start."""
    encode = Marks.encode
    with monkeypatch.context() as patch:
        patch.setattr(Marks, "encode", lambda marks: as_version_1(encode(marks)))
        node = Node(tmp_path, CONFIG, NOW)
        node.send([(NOW + 300, "t", b""), (NOW + 5_000, "t", b"")], NOW)
        node.crash()
    node.open(NOW + 1_000)
    ids = [node.wheel.mint.one(NOW + 300, 0), node.wheel.mint.one(NOW + 5_000, 1)]
    answers = node.blocking(lambda: node.wheel.cancel(ids, NOW + 1_000))
    assert answers == [CancelAnswer.UNKNOWN, CancelAnswer.CANCELLED]
    node.close()

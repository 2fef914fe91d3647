"""The due time up to which slot files are gone, by which a proof knows what it was not given."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.state import load_here, load_state
from slotwheel.wheel.config import HORIZON, WheelConfig, known_horizon_ms
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.recovery import configuration
from slotwheel.wheel.slots.archive import Archive
from slotwheel.wheel.state import LmdbState, StateUpdate
from support.crashfs import CrashFiles
from support.wheels import NOW, Node, many, opened

CONFIG = WheelConfig(slots=60, segment_bytes=4_000)
KEEPING = replace(CONFIG, retain_bytes=1 << 30)
SECONDS = 4
"""Rows are due in so many seconds, from NOW + 1 s on."""


def some_left(node: Node, seconds: int = SECONDS) -> int | None:
    """Rows are spilled, leave, and their slot files are deleted; returns the floor then."""
    for second in range(1, SECONDS + 1):
        node.send(many(10 * second, 3, NOW + 1_000 * second + 500), NOW)
    node.wheel.spill(NOW, everything=True)
    left_ms = NOW + 1_000 * (seconds + 1)
    assert len(node.delivered(left_ms)) == 3 * seconds
    node.mark(left_ms)
    node.wheel.clean(left_ms)
    return node.state.load().deleted_floor


def test_what_is_deleted_raises_the_floor_to_the_end_of_its_slot(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        assert node.state.load().deleted_floor == -1
        assert some_left(node, 2) == NOW + 2_999
        node.reopen(NOW + 3_000)
        node.wheel.clean(NOW + 3_000)
        stored = node.state.load()
        assert (stored.deleted_floor, len(stored.slots)) == (NOW + 2_999, 2)
    assert load_here(tmp_path).deleted_floor == NOW + 2_999
    assert load_state(tmp_path) == stored


def test_what_the_archive_keeps_does_not_raise_it(tmp_path: Path) -> None:
    with opened(tmp_path, KEEPING, NOW) as node:
        assert some_left(node) == -1


def test_what_the_archive_cannot_keep_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full from the second file on."""
    linked: list[str] = []

    def link(self: OsFiles, source: str, target: str) -> None:
        linked.append(source)
        if len(linked) > 1:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(OsFiles, "link", link)
    with opened(tmp_path, KEEPING, NOW) as node:
        assert some_left(node, 3) == NOW + 3_999
        assert node.wheel.archive_missed[0] == 2


def test_after_a_program_that_does_not_note_it_all_that_has_left_may_be_gone(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, KEEPING, NOW) as node:
        assert some_left(node, 2) == -1
        node.close()
        state = LmdbState(tmp_path)
        with state._env.begin(write=True) as txn:  # as such a program commits
            txn.put(b"anything", b"else", db=state._meta)
        state.close()
        assert load_here(tmp_path).deleted_floor is None
        assert load_state(tmp_path).deleted_floor is None
        node.open(NOW + 3_000)
        node.sync()
        assert node.state.load().deleted_floor == node.wheel.mark_ms == NOW + 3_000


def test_a_commit_that_says_nothing_of_it_leaves_it(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    state.commit(StateUpdate(epoch=1))
    assert state.load().deleted_floor is None
    state.commit(StateUpdate(deleted_floor=5))
    state.commit(StateUpdate(epoch=2))
    assert state.load().deleted_floor == 5
    state.close()


@pytest.mark.parametrize(("written_ms", "left_ms", "modified_ms"), [(5, 7, 7), (9, 7, 9)])
def test_an_archived_segment_says_by_when_what_had_left_is_due(
    written_ms: int, left_ms: int, modified_ms: int
) -> None:
    files = CrashFiles()
    files.clock_ms = written_ms
    files.make_directory("journal")
    path = f"journal/{1:020d}.journal"
    files.open(path, create=True).pwrite([b"j"], 0)
    archive = Archive(files, KEEPING)
    assert archive.keep_segment(path, 1, NOW, left_ms)
    ((_, _, target),) = archive._listed("2030-03-17")
    assert files.modified_ms(target) == modified_ms


def test_the_mark_of_the_spill_is_the_time_of_the_segments_that_it_archives(
    tmp_path: Path,
) -> None:
    """Not the time of their last write: rows may have left after it, and before the spill."""
    with opened(tmp_path, KEEPING, NOW) as node:
        node.send(many(0, 1, NOW + 1_000), NOW)
        assert node.delivered(NOW + 9_000) == [b"0"]
        node.mark(NOW + 9_000)
        for number in range(60):
            node.send(many(number, 9, NOW + 20_000), NOW + 9_000)
        node.wheel.spill(NOW + 9_000, everything=True)
        kept = sorted(tmp_path.glob("archive/*/journal/*"))
        assert len(kept) > 1
        assert {path.stat().st_mtime_ns for path in kept} == {node.wheel.mark_ms * 1_000_000}


@pytest.mark.parametrize(
    ("before", "slots", "horizon_ms", "after"),
    [
        ({}, 7_200, 0, 7_200_000),
        ({}, 7_200, 8_000_000, 8_000_000),
        ({"slots": 60, HORIZON: 9_000_000}, 7_200, 8_000_000, 9_000_000),
        ({"slots": 86_400, HORIZON: 9_000_000}, 7_200, 0, 86_400_000),
    ],
)
def test_a_group_remembers_its_longest_horizon(
    before: dict[str, Any], slots: int, horizon_ms: int, after: int
) -> None:
    """A proof takes what is due later than that for accepted later."""
    made = configuration(before, WheelConfig(slots=slots, far_horizon_ms=horizon_ms), 0)
    assert known_horizon_ms(made) == after
    assert (HORIZON in made) == (HORIZON in before or after > 1_000 * made["slots"])

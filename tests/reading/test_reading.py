"""Reading single files: beside a node that changes them, and without their checksums."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading import journal as journal_reading
from slotwheel.reading import state as state_reading
from slotwheel.reading.events import Ended, Event, RowsSeen
from slotwheel.reading.files import JOURNAL, SLOT, File, Layout
from slotwheel.reading.layout import find
from slotwheel.reading.problems import Problem
from slotwheel.reading.read import read
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal.segment import SegmentHeader, spare_path
from slotwheel.wheel.rows import sort_rows
from slotwheel.wheel.slots.slotfile import schema_message
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import LmdbState, StateUpdate, StoredState
from support import replayrun
from support.damage import flip
from support.datadirs import START_MS, SinkNode, messages


@pytest.fixture
def there(tmp_path: Path) -> Layout:
    return find([replayrun.made().write(tmp_path)[0]])


def rows_in(events: list[Event]) -> int:
    return sum(event.rows.num_rows for event in events if isinstance(event, RowsSeen))


def problems_in(events: list[Event]) -> list[Problem]:
    return [event for event in events if isinstance(event, Problem)]


def live_segment(there: Layout) -> File:
    return next(file for file in there.of(JOURNAL) if not file.archived)


def use_again(file: File, *, renamed: bool = True) -> None:
    """As a running node does: the file becomes a spare, then another segment."""
    path = Path(file.path)
    spare = path.parents[1] / spare_path(file.first)
    path.rename(spare)
    with spare.open("r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.write(SegmentHeader(file.first + 10_000, 1, bytes(16), marked=True).encode())
        stream.write(b"\xff" * (size - stream.tell()))
    if renamed:
        spare.rename(path.with_name(f"{file.first + 10_000:020d}.journal"))


@pytest.mark.parametrize("renamed", [True, False])
def test_a_segment_that_is_used_again_while_it_is_read(
    there: Layout, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    monkeypatch.setattr(journal_reading, "ROWS_MAX", 1)
    file = live_segment(there)
    whole = rows_in(list(read(file)))
    reading = read(file)
    events = [next(reading)]
    use_again(file, renamed=renamed)
    events += reading
    assert problems_in(events) == []
    assert 0 < rows_in(events) < whole
    end = events[-1]
    assert isinstance(end, Ended)
    assert "gone meanwhile" in end.note
    assert not end.damaged


def test_a_segment_that_is_used_again_before_its_header_is_read(
    there: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = live_segment(there)
    opening = os.open

    def then_use_again(path: str, *how: int, dir_fd: int | None = None) -> int:
        found: int = opening(path, *how, dir_fd=dir_fd)
        monkeypatch.undo()
        use_again(file)
        return found

    monkeypatch.setattr(os, "open", then_use_again)
    events = list(read(file))
    assert problems_in(events) == []
    assert rows_in(events) == 0


def test_damage_of_a_live_segment_is_damage(there: Layout) -> None:
    file = live_segment(there)
    flip(Path(file.path))
    assert len(problems_in(list(read(file)))) == 1


def test_no_row_of_a_bad_slot_file_is_believed_though_its_checksum_is_not_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "5.arrows"
    run = replayrun.made()
    blocks = [bytes(block_of(0, sort_rows(run.pick(range(at, at + 50)))).data) for at in (0, 50)]
    data = schema_message() + b"".join(blocks)
    path.write_bytes(data)
    file = File(0, SLOT, str(path), path.name, len(data), 0, slot=5)
    assert rows_in(list(read(file))) == 100
    # The length of a value in the second block, far too large.
    at = len(data) - len(blocks[1]) + 400
    path.write_bytes(data[:at] + b"\xff" * 200 + data[at + 200 :])
    events = list(read(file))
    assert rows_in(events) == 0
    assert [one.kind for one in problems_in(events)] == ["damaged"]
    end = events[-1]
    assert isinstance(end, Ended)
    assert end.damaged


def test_a_slot_file_with_another_number_of_rows_is_damaged(there: Layout) -> None:
    file = next(file for file in there.of(SLOT) if not file.archived)
    events = list(read(replace(file, rows=file.rows + 1)))
    assert [one.kind for one in problems_in(events)] == ["damaged"]
    end = events[-1]
    assert isinstance(end, Ended)
    assert end.damaged


def test_a_slot_file_that_was_kept_and_whose_name_has_another_now(there: Layout) -> None:
    file = next(file for file in there.of(SLOT) if not file.archived)
    whole = rows_in(list(read(file)))
    path = Path(file.path)
    kept = path.parents[1] / "archive/2026-11-21/slots"
    kept.mkdir(parents=True)
    path.rename(kept / f"{file.slot}.{file.length}.{file.crc:08x}.arrows")
    path.write_bytes(schema_message() + b"\0" * file.length)
    events = list(read(file))
    assert (rows_in(events), problems_in(events)) == (whole, [])


def test_a_gap_in_what_a_node_has_kept_is_no_damage(tmp_path: Path) -> None:
    node = SinkNode(tmp_path, segment_bytes=2_000, retain_bytes=1 << 30)
    for number in range(8):
        node.append(messages([START_MS + 1_000 * number + step for step in range(20)]))
        node.spill()
    node.close()
    before = find([str(tmp_path)])
    segments = [file for file in before.of(JOURNAL) if file.archived]
    assert len(segments) > 4
    for file in segments[2:4]:  # a day that was deleted, a while without an archive, a full disk
        Path(file.path).unlink()
    there = find([str(tmp_path)])
    assert len(there.of(JOURNAL)) == len(before.of(JOURNAL)) - 2
    assert [problems_in(list(read(file))) for file in there.of(JOURNAL) if file.archived] == [
        [] for _ in range(len(segments) - 2)
    ]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("how", ["load_state", "read_state", "load_here"])
def test_a_state_store_that_is_written_while_it_is_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, writes: bool
) -> None:
    """Its pages are used again; without a commit meanwhile it is damage."""
    writer = LmdbState(tmp_path)
    writer.commit(StateUpdate(clock="boot 1"))
    writer.close()
    tries: list[int] = []

    def disturbed() -> bool:
        tries.append(1)
        if writes and len(tries) == 1:
            commit = f"import sys; sys.path[:0] = {sys.path!r}\n{_COMMIT}"
            real([sys.executable, "-c", commit, str(tmp_path)], check=True)
        return not writes or len(tries) == 1

    def run(*arguments: Any, **options: Any) -> Any:
        done = real(*arguments, **options)
        if disturbed():
            done.returncode, done.stderr = 1, b"a page that is not what was written"
        return done

    def load(self: LmdbState, **options: Any) -> StoredState:
        if disturbed():
            raise Damaged("data.mdb", 0, expected="a record", found="another one")
        return loaded(self, **options)

    real, loaded = subprocess.run, LmdbState.load
    if how == "load_here":
        monkeypatch.setattr(LmdbState, "load", load)
    else:
        monkeypatch.setattr(subprocess, "run", run)
    if writes:
        found = getattr(state_reading, how)(tmp_path)
        assert (found.clock, len(tries)) == ("boot 2", 2)
    else:
        with pytest.raises(Damaged):
            getattr(state_reading, how)(tmp_path)
        assert len(tries) == 1


_COMMIT = """
from slotwheel.wheel.state import LmdbState, StateUpdate
state = LmdbState(sys.argv[1])
state.commit(StateUpdate(clock="boot 2"))
state.close()
"""

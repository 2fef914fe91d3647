"""``slotwheel verify`` over files of hours and days: faults that each file alone does not show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.slots.archive import archived_slot_name
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import LmdbState, SlotInfo, StateUpdate
from support.damage import flip
from support.datadirs import assert_sound, state_of, verify
from support.fardirs import OF_DAY, OF_HOUR, OF_SECOND, SECOND, far_directory


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return far_directory(tmp_path_factory.mktemp("far")).root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "far")


def blocks_of(root: Path, slot: int) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream((root / path_of(slot)).read_bytes()) as stream:
        return list(stream)


def put_slot(root: Path, slot: int, blocks: list[pa.RecordBatch]) -> None:
    """A file of a slot with these blocks, and its true row in the catalog."""
    (root / path_of(slot)).unlink(missing_ok=True)
    files, state = OsFiles(root), LmdbState(root)
    slots = SlotFiles(files, 4)
    info: SlotInfo | None = None
    for rows in blocks:
        info = slots.append(block_of(slot, rows), info)
    assert info is not None
    state.commit(StateUpdate(slots={slot: info}))
    slots.close()
    state.close()
    files.close()


@pytest.mark.parametrize("read_whole_bytes", [100, 32 << 20])
def test_a_sound_directory_is_ok(
    root: Path, monkeypatch: pytest.MonkeyPatch, read_whole_bytes: int
) -> None:
    monkeypatch.setattr("slotwheel.reading.verify.slots.MAP_FROM_BYTES", read_whole_bytes)
    assert_sound(root)
    report = verify(root)
    assert report["notes"] == []
    assert report["kinds"]["slot"]["ok"] == 3


@pytest.mark.parametrize(("wide", "narrow"), [(OF_DAY, OF_SECOND), (OF_DAY, OF_HOUR)])
def test_an_offset_in_two_files_is_found(root: Path, wide: int, narrow: int) -> None:
    """Both files are sound, and so is the catalog; the message would leave twice."""
    first = [block.slice(1, 1) for block in blocks_of(root, wide)[:1]]
    put_slot(root, narrow, [*first, *blocks_of(root, narrow)])
    [fault] = [one for one in verify(root)["faults"] if one["path"] != "state"]
    assert fault["path"] == path_of(narrow)
    assert fault["expected"] == f"rows that are not in {path_of(wide)}"
    assert fault["found"] == "1 that are, the first of offset 0"


def test_a_row_in_the_file_of_another_hour_is_found(root: Path) -> None:
    [begin] = [block.slice(0, 1) for block in blocks_of(root, OF_DAY)]
    put_slot(root, OF_HOUR, [*blocks_of(root, OF_HOUR), begin])
    faults = [one for one in verify(root)["faults"] if one["path"] != "state"]
    assert f"rows due in slot {SECOND - SECOND % 3600}+3600" in [one["expected"] for one in faults]
    assert {one["path"] for one in faults} == {path_of(OF_HOUR)}


@pytest.mark.parametrize("slot", [OF_SECOND, OF_HOUR, OF_DAY])
def test_damage_is_named_by_the_file(root: Path, slot: int) -> None:
    flip(root / path_of(slot))
    report = verify(root)
    assert report["invalid"] == 1
    assert {one["path"] for one in report["faults"]} == {path_of(slot)}


def test_files_that_the_catalog_does_not_know_are_notes(root: Path) -> None:
    begin = SECOND - SECOND % 3600
    found = {
        f"{begin + 1}+3600.arrows": "an unknown file, which slotwheel leaves alone",
        f"{begin + 3600}+3600.arrows": "never committed",
        f"{begin}+60.arrows": "an unknown file, which slotwheel leaves alone",
    }
    for name in found:
        (root / "slots" / name).write_bytes(b"")
    report = verify(root)
    assert report["invalid"] == 0
    notes = {one["path"].removeprefix("slots/"): one["found"] for one in report["notes"]}
    assert notes.keys() == found.keys()
    assert all(text in notes[name] for name, text in found.items())


def test_an_archived_day_is_what_its_name_says(root: Path) -> None:
    info = state_of(root).slots[OF_DAY]
    kept = root / "archive/2030-03-25/slots"
    kept.mkdir(parents=True)
    copied = kept / archived_slot_name(OF_DAY, info)
    shutil.copy(root / path_of(OF_DAY), copied)
    report = verify(root)
    assert (report["invalid"], report["kinds"]["archive"]["rows"]) == (0, info.rows)
    flip(copied)
    assert {one["path"] for one in verify(root)["faults"]} == {str(copied.relative_to(root))}

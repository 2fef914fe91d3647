"""``slotwheel verify`` over runs of names: they say what the slot files do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles, OsHandle
from slotwheel.wheel.named.runs import (
    DIRECTORY,
    HeldNames,
    NameRun,
    decode_runs,
    encode_runs,
    write_run,
)
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, NameKeys, key_of
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import LmdbState, StateUpdate
from support.damage import flip
from support.datadirs import assert_sound, state_of, verify
from support.wheels import NOW, Node, master_of

FAR_MS = 5_000_000


def send(node: Node, names: list[str], mode: str = "replace") -> None:
    headers = [((NAME_HEADER, name), (IF_EXISTS_HEADER, mode)) for name in names]
    due = [NOW + FAR_MS + number for number in range(len(names))]
    none = [None] * len(names)
    batch = from_columns(due, ["t"] * len(names), none, none, [b"v"] * len(names), headers)
    future = node.wheel.append(batch, NOW)
    node.sync()
    future.result(0)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 0 to 2 are a, b, c; 3 replaces a, 5 is kept out by b; 7 is d."""
    root = tmp_path_factory.mktemp("names")
    node = Node(root, WheelConfig(), NOW)
    send(node, ["a", "b", "c"])
    node.wheel.spill(NOW, everything=True)
    send(node, ["a"])
    send(node, ["b"], "keep")
    send(node, ["d"])
    node.wheel.spill(NOW, everything=True)
    node.close()
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "names")


def runs_of(root: Path) -> list[NameRun]:
    files = OsFiles(root)
    runs = [NameRun.open(files, info) for info in decode_runs(state_of(root).names or b"")]
    files.close()
    return runs


def put_run(root: Path, names: dict[str, tuple[int, int]], cancelled: list[int]) -> None:
    """One run in the place of all others."""
    files, state = OsFiles(root), LmdbState(root)
    keys = NameKeys(key_of(b"t", name.encode()) for name in names)
    due, offset = zip(*names.values(), strict=True)
    run = write_run(
        files, 99, len(keys), iter([HeldNames.of(keys, due, offset)]), np.array(cancelled, np.int64)
    )
    assert run is not None
    state.commit(StateUpdate(names=encode_runs([run.info])))
    for path in (root / DIRECTORY).glob("*"):
        if path != root / run.info.path:
            path.unlink()
    state.close()
    files.close()


RIGHT = {
    "a": (NOW + FAR_MS, 3),
    "b": (NOW + FAR_MS + 1, 1),
    "c": (NOW + FAR_MS + 2, 2),
    "d": (NOW + FAR_MS, 7),
}


def test_a_sound_table_is_ok(root: Path) -> None:
    assert len(runs_of(root)) == 2
    assert_sound(root)
    assert verify(root)["kinds"]["names"]["ok"] == 3
    put_run(root, RIGHT, [])
    assert_sound(root)


@pytest.mark.parametrize(
    ("names", "cancelled", "found"),
    [
        ({**RIGHT, "d": (NOW, 6)}, [], "none for offset 7 (1 of 4)"),
        ({name: RIGHT[name] for name in "abc"}, [], "none for offset 7 (1 of 4)"),
        ({**RIGHT, "a": (NOW + FAR_MS, 0)}, [], "none for offset 3 (1 of 4)"),
        ({**RIGHT, "b": (NOW + FAR_MS, 5)}, [], "one of offset 5 (1 of 4)"),
        ({**RIGHT, "e": (NOW + FAR_MS, 8)}, [], "one of offset 8 (1 of 5)"),
        (RIGHT, [2], "none for offset 2 (1 of 4)"),
    ],
    ids=["another row", "missing", "the one before", "kept out", "of nobody", "not cancelled"],
)
def test_a_table_that_says_something_else_is_found(
    root: Path, names: dict[str, tuple[int, int]], cancelled: list[int], found: str
) -> None:
    put_run(root, names, cancelled)
    report = verify(root)
    assert found in [fault["found"] for fault in report["faults"]]
    assert {fault["path"] for fault in report["faults"]} == {DIRECTORY}
    assert report["kinds"]["names"]["invalid"] == 1


def test_two_pending_messages_of_one_name_are_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine would write them that forgot the cancel of the one before."""
    monkeypatch.setattr("slotwheel.wheel.due.namer.NameDecisions.cancel", lambda *_: None)
    node = Node(root, WheelConfig(), NOW)
    send(node, ["c"])
    node.wheel.spill(NOW, everything=True)
    node.close()
    faults = verify(root)["faults"]
    assert [fault["expected"] for fault in faults] == [
        "a row that cancels offset 2, as row 0 is noted as *replaced*",
        "one pending message of a name",
    ]
    assert faults[1]["found"].startswith("another of offset 2")


def test_each_byte_of_a_run_is_checked(root: Path) -> None:
    for run in runs_of(root):
        path = root / run.info.path
        whole = path.read_bytes()
        for at in range(0, len(whole), 9):
            flip(path, at)
            assert verify(root)["kinds"]["names"]["invalid"] == 1, at
            path.write_bytes(whole)
        path.write_bytes(whole[:-1])
        assert verify(root)["kinds"]["names"]["invalid"] == 1
        path.write_bytes(whole)
    assert_sound(root)


@pytest.mark.parametrize("damage", ["flipped", "gone", "cut", "unreadable"])
def test_a_node_makes_damaged_runs_anew(
    root: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / runs_of(root)[0].info.path
    if damage == "flipped":
        flip(path, 70)
    elif damage == "unreadable":
        _break_sector(monkeypatch, path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    node = Node(root, WheelConfig(), NOW)
    assert any("names of messages: made anew" in line for line in node.wheel.mended)
    found = {name: node.wheel.named("t", name) for name in "abcde"}
    assert {name: at and at.offset for name, at in found.items()} == {
        **{name: place[1] for name, place in RIGHT.items()},
        "e": None,
    }
    node.close()
    assert_sound(root)


def _break_sector(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The disk cannot read this file once."""
    broken, pread = {path.stat().st_ino}, OsHandle.pread

    def failing(handle: OsHandle, length: int, position: int) -> bytes:
        if os.fstat(handle._fd).st_ino in broken:
            broken.clear()  # the file that comes in its place may get its number
            raise OSError(errno.EIO, "Input/output error")
        return pread(handle, length, position)

    monkeypatch.setattr(OsHandle, "pread", failing)


def test_a_name_whose_message_has_left_with_its_slot_file_is_no_fault(tmp_path: Path) -> None:
    node = Node(tmp_path, WheelConfig(), NOW)
    send(node, ["a", "b"])
    node.wheel.spill(NOW, everything=True)
    late = NOW + FAR_MS + 5_000
    while (chunk := node.next_chunk(late)) is not None:
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    node.mark(late)
    node.wheel.clean(late)
    node.close()
    assert state_of(tmp_path).slots == {}
    assert [run.info.names for run in runs_of(tmp_path)] == [2]
    assert_sound(tmp_path)

"""``slotwheel verify``: every planted fault is found and named, what a crash leaves is not one."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from slotwheel.cli.verify import command
from slotwheel.reading.directory import running_process
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.files import DirectoryLock, OsFiles
from slotwheel.wheel.journal.journal import Journal
from slotwheel.wheel.journal.segment import segment_path
from slotwheel.wheel.schema import ROW
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.state import LmdbState, SlotInfo, StateUpdate
from slotwheel.wheel.topics.topicfile import HEADER_BYTES, RECORD_BYTES
from support.damage import flipped
from support.datadirs import START_MS, SinkNode, filled, messages, state_of, verify

SECOND = START_MS // 1000 + 61
SLOT = f"slots/{SECOND}.arrows"
TOPIC = "topics/orders/" + "0" * 20


def only_fault(root: Path, path: str) -> dict[str, Any]:
    """The one file that is invalid must be ``path``; its first fault."""
    report = verify(root)
    assert report["invalid"] == 1, report["faults"]
    assert {one["path"] for one in report["faults"]} == {path}
    fault: dict[str, Any] = report["faults"][0]
    return fault


def change(root: Path, path: str, edit: Callable[[bytes], bytes]) -> None:
    file = root / path
    file.write_bytes(edit(file.read_bytes()))


def flip_in(whole: bytes, at: int, _: bytes) -> bytes:
    return flipped(whole, at * 8 + at % 8)


def segments(root: Path) -> list[str]:
    return sorted(f"journal/{path.name}" for path in (root / "journal").iterdir())


def put_slot(root: Path, second: int, blocks: list[pa.RecordBatch], **wrong: int) -> None:
    """A slot file of those blocks with a true row in the catalog, but for ``wrong`` fields."""
    files, state = OsFiles(root), LmdbState(root)
    (root / f"slots/{second}.arrows").unlink()
    slots = SlotFiles(files, 4)
    info: SlotInfo | None = None
    for rows in blocks:
        info = slots.append(block_of(second, rows), info)
    assert info is not None
    state.commit(StateUpdate(slots={second: replace(info, **wrong)}))
    slots.close()
    state.close()
    files.close()


def blocks_of(root: Path, second: int = SECOND) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream((root / f"slots/{second}.arrows").read_bytes()) as stream:
        return list(stream)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def test_a_sound_directory_is_ok_and_stays_as_it_is(root: Path) -> None:
    before = tree(root)
    report = verify(root)
    assert (report["invalid"], report["notes"]) == (0, [])
    assert report["ok"] == 1 + len(list((root / "slots").iterdir())) + len(segments(root)) + 1
    assert report["kinds"]["slot"]["rows"] == 80 + 2
    assert report["kinds"]["topic"]["rows"] == 6
    assert tree(root) == before
    result = CliRunner().invoke(command, [str(root)], standalone_mode=False)
    assert result.return_value == 0
    assert result.output.splitlines()[-1] == f"{report['ok']} ok, 0 invalid"


def test_every_flipped_byte_of_a_slot_file_is_found(root: Path) -> None:
    whole = (root / SLOT).read_bytes()
    for at in range(0, len(whole), 211):
        (root / SLOT).write_bytes(flipped(whole, at * 8 + at % 8))
        fault = only_fault(root, SLOT)
        assert "CRC-32C" in fault["expected"]


def test_every_flipped_byte_of_a_journal_segment_is_found(root: Path) -> None:
    path = segments(root)[2]
    whole = (root / path).read_bytes()
    entries = verify(root)["kinds"]["journal"]["rows"]
    for at in range(0, len(whole), 263):
        change(root, path, partial(flip_in, whole, at))
        report = verify(root)
        faults = [one for one in report["faults"] if one["path"] == path]
        assert faults, at
        assert faults[0]["position"] <= at
        # It went on: only what lies in this file is missing.
        assert report["kinds"]["journal"]["rows"] >= entries - 3
        assert {one["path"] for one in report["faults"]} == {path}


def test_one_bad_entry_does_not_hide_the_next(tmp_path: Path) -> None:
    node = SinkNode(tmp_path)
    for number in range(6):
        node.append(messages([START_MS + 60_000 + number]))
    node.close()
    (path,) = segments(tmp_path)
    entries = verify(tmp_path)["kinds"]["journal"]["rows"]
    whole = (tmp_path / path).read_bytes()
    first = whole.index(b"value-0")
    third = whole.index(b"value-0", whole.index(b"value-0", first + 1) + 1)
    change(tmp_path, path, lambda data: flipped(flipped(data, first * 8), third * 8))
    report = verify(tmp_path)
    assert report["kinds"]["journal"]["rows"] == entries - 2
    assert ["CRC-32C" in one["expected"] for one in report["faults"]] == [True, True]
    assert [first - 1000 < report["faults"][0]["position"] < first] == [True]


@pytest.mark.parametrize("bytes_kept", [0, 1, 100, -1])
def test_a_short_slot_file_is_found(root: Path, bytes_kept: int) -> None:
    length = len((root / SLOT).read_bytes())
    change(root, SLOT, lambda data: data[:bytes_kept])
    fault = only_fault(root, SLOT)
    assert (fault["expected"], fault["found"]) == (
        f"{length} bytes",
        f"{bytes_kept % length} bytes",
    )


def test_a_missing_slot_file_is_found(root: Path) -> None:
    (root / SLOT).unlink()
    assert only_fault(root, SLOT)["found"] == "no such file"


def test_a_catalog_that_says_too_much_is_found(root: Path) -> None:
    info = state_of(root).slots[SECOND]
    put_slot(root, SECOND, blocks_of(root), length=info.length + 8)
    fault = only_fault(root, SLOT)
    assert fault["expected"] == f"{info.length + 8} bytes"


@pytest.mark.parametrize(
    ("field", "what"), [("rows", "rows"), ("cancels", "cancel rows"), ("highest", "highest offset")]
)
def test_wrong_counts_in_the_catalog_are_found(root: Path, field: str, what: str) -> None:
    value = getattr(state_of(root).slots[SECOND], field)
    put_slot(root, SECOND, blocks_of(root), **{field: value + 1 if field != "rows" else value - 1})
    faults = [one for one in verify(root)["faults"] if one["path"] == SLOT]
    assert [one["expected"].startswith(what) for one in faults] == [True]
    assert faults[0]["found"] == str(value)


def test_a_row_in_the_wrong_slot_is_found(root: Path) -> None:
    (stray, *_) = blocks_of(root, SECOND + 2)
    put_slot(root, SECOND, [stray, blocks_of(root)[1]])
    fault = only_fault(root, SLOT)
    assert fault["expected"] == f"rows due in slot {SECOND}"
    offset = stray.column("offset")[0].as_py()
    assert f"{stray.num_rows} others, the first of offset {offset}" in fault["found"]


def test_rows_out_of_order_are_found(root: Path) -> None:
    first, second = blocks_of(root)
    put_slot(root, SECOND, [first.take(pa.array([1, 0, 2, 3])), second])
    fault = only_fault(root, SLOT)
    assert "(due, offset) order" in fault["expected"]
    assert fault["position"] == len(bytes(ROW.serialize()))


def test_blocks_in_the_wrong_order_are_found(root: Path) -> None:
    put_slot(root, SECOND, blocks_of(root)[::-1])
    assert only_fault(root, SLOT)["expected"].startswith("offsets above")


def test_another_schema_version_is_named(root: Path) -> None:
    whole = (root / SLOT).read_bytes()
    schema = ROW.with_metadata({b"slotwheel.schema": b"2"}).serialize()
    assert len(bytes(schema)) == len(bytes(ROW.serialize()))
    (root / SLOT).write_bytes(bytes(schema) + whole[len(bytes(schema)) :])
    faults = verify(root)["faults"]
    assert any(one["expected"] == "version 1" and one["found"][0] == "2" for one in faults)


def test_what_a_crash_leaves_is_a_note(root: Path) -> None:
    change(root, SLOT, lambda data: data + b"half a block")
    unknown = root / f"slots/{SECOND + 3600}.arrows"
    unknown.write_bytes(b"spilled, not committed")
    (root / "slots/README").write_text("not ours")
    last = segments(root)[-1]
    change(root, last, lambda data: data + b"SWFR torn in the middle of")
    change(root, TOPIC + ".index", lambda data: data + b"x" * (RECORD_BYTES - 1))
    change(root, TOPIC + ".arrows", lambda data: data + b"half a block")
    report = verify(root)
    assert report["invalid"] == 0, report["faults"]
    notes = {one["path"]: one["found"] for one in report["notes"]}
    assert "behind what was committed" in notes[SLOT]
    assert "unknown file" in notes[f"slots/{unknown.name}"]
    assert "unknown file" in notes["slots/README"]
    assert "torn end of 26 bytes" in notes[last]
    assert len(report["notes"]) == 6
    # And a start agrees: it cleans up and goes on.
    SinkNode(root).close()
    assert {one["path"] for one in verify(root)["notes"]} == {"slots/README", TOPIC + ".arrows"}


def test_a_cut_journal_is_found(root: Path) -> None:
    path = segments(root)[1]
    change(root, path, lambda data: data[:-8])
    report = verify(root)
    assert {one["path"] for one in report["faults"]} == {path}


def test_a_missing_segment_is_found(root: Path) -> None:
    gone, following = segments(root)[3:5]
    (root / gone).unlink()
    fault = only_fault(root, following)
    assert fault["expected"] == f"first index {int(gone[8:28])}"


def test_a_journal_that_does_not_reach_back_to_the_checkpoint_is_found(root: Path) -> None:
    index = state_of(root).checkpoint.index
    for path in segments(root):
        if int(path[8:28]) <= index + 1:
            (root / path).unlink()
    report = verify(root)
    assert report["faults"][0]["path"] == segments(root)[0]
    assert f"starts at index {index + 1} or before" in report["faults"][0]["expected"]


def test_a_journal_that_is_gone_is_found(root: Path) -> None:
    shutil.rmtree(root / "journal")
    assert only_fault(root, "journal")["found"] == "no segment at all"


def test_a_segment_of_another_directory_is_found(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    filled(other)
    name = segments(root)[-1]
    shutil.copy(other / name, root / name)
    assert "store id" in verify(root)["faults"][0]["expected"]


def test_offsets_that_do_not_continue_are_found(tmp_path: Path) -> None:
    node = SinkNode(tmp_path)
    node.append(messages([START_MS + 60_000] * 4))
    node.close()
    state, files = LmdbState(tmp_path), OsFiles(tmp_path)
    stored = state.load()
    entries: list[Any] = []
    journal, _ = Journal.open(
        files,
        first_index=1,
        durable_floor=0,
        store_id=stored.store_id,
        segment_bytes=1 << 20,
        entry_bytes_max=1 << 20,
        on_entry=entries.append,
    )
    last = entries[-1]
    journal.append([replace(last, index=last.index + 1, base_offset=last.base_offset + 1)])
    journal.sync()
    journal.close()
    state.close()
    files.close()
    fault = only_fault(tmp_path, segment_path(1))
    assert fault["expected"].startswith("base offset")


@pytest.mark.parametrize("suffix", [".index", ".arrows"])
def test_damage_in_a_topic_is_found(root: Path, suffix: str) -> None:
    whole = (root / (TOPIC + suffix)).read_bytes()
    end = len(whole) if suffix == ".arrows" else HEADER_BYTES
    for at in range(0, end, 149 if suffix == ".arrows" else 1):
        (root / (TOPIC + suffix)).write_bytes(flipped(whole, at * 8 + at % 8))
        report = verify(root)
        assert report["invalid"] == 1, at
        assert {Path(one["path"]).stem for one in report["faults"]} == {"0" * 20}


def test_a_damaged_record_before_the_last_is_found(root: Path) -> None:
    whole = (root / (TOPIC + ".index")).read_bytes()
    assert len(whole) > HEADER_BYTES + RECORD_BYTES
    change(root, TOPIC + ".index", lambda data: flipped(data, (HEADER_BYTES + 9) * 8))
    assert only_fault(root, TOPIC + ".arrows")["expected"].startswith("a whole record")


def test_a_short_topic_is_found(root: Path) -> None:
    change(root, TOPIC + ".arrows", lambda data: data[:-1])
    assert "committed bytes" in only_fault(root, TOPIC + ".arrows")["expected"]


@pytest.mark.parametrize("damage", ["cut", "gone", "noise"])
def test_a_damaged_state_store_is_found_and_the_rest_still_checked(root: Path, damage: str) -> None:
    data = root / "state/data.mdb"
    whole = data.read_bytes()
    if damage == "cut":
        data.write_bytes(whole[: len(whole) // 2])
    elif damage == "gone":
        data.unlink()
    else:
        data.write_bytes(b"x" * len(whole))
    report = verify(root)
    assert report["kinds"]["state"] == {"ok": 0, "invalid": 1, "rows": 0, "nbytes": 0}
    assert report["kinds"]["journal"]["ok"] == len(segments(root))
    assert report["kinds"]["topic"]["ok"] == 1


def test_every_fault_is_listed_not_only_the_first(root: Path) -> None:
    change(root, SLOT, lambda data: flipped(data, 900 * 8))
    (root / f"slots/{SECOND + 1}.arrows").unlink()
    change(root, TOPIC + ".arrows", lambda data: data[:-1])
    result = CliRunner().invoke(command, [str(root)], standalone_mode=False)
    assert result.return_value == 1
    lines = result.output.splitlines()
    assert lines[-1].endswith(" ok, 3 invalid")
    for name in (SLOT, f"slots/{SECOND + 1}.arrows", TOPIC + ".arrows"):
        assert any(line.startswith(f"invalid: {name} at byte ") for line in lines), name


def test_a_running_node_is_named(root: Path) -> None:
    lock = DirectoryLock(root)
    try:
        assert verify(root)["running"].isdigit()
        result = CliRunner().invoke(command, [str(root)], standalone_mode=False)
        assert "is running on this directory" in result.output
        assert result.return_value == 0
    finally:
        lock.release()
    assert verify(root)["running"] is None


def test_who_asks_for_a_running_node_keeps_none_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DirectoryLock(tmp_path).release()
    asks = os.open(tmp_path / "LOCK", os.O_RDONLY)
    with ExitStack() as asking:
        asking.callback(os.close, asks)
        fcntl.flock(asks, fcntl.LOCK_SH)  # as ``running_process`` does for a moment
        monkeypatch.setattr("slotwheel.wheel.files.os.sched_yield", asking.close)
        lock = DirectoryLock(tmp_path)
        assert running_process(tmp_path) == str(os.getpid())
        lock.release()


def test_a_live_directory_is_verified_while_it_changes(tmp_path: Path) -> None:
    """Spills, deliveries, deletions and dropped segments while we look are no faults."""
    node = SinkNode(tmp_path, segment_bytes=2_000)
    lock = DirectoryLock(tmp_path)
    code = "from slotwheel.cli.verify import command; command()"
    rounds = 0
    try:
        for _ in range(2):
            verifier = subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path), "--json"],
                stdout=subprocess.PIPE,
                text=True,
            )
            while verifier.poll() is None:
                rounds += 1
                node.append(messages([node.now + 500 * step for step in range(1, 20)]))
                if rounds % 2:
                    node.spill()
                node.deliver(node.now + 1_500)
                node.wheel.clean(node.now)
            report = json.loads(verifier.communicate()[0])
            assert report["invalid"] == 0, report["faults"]
        assert rounds > 5
    finally:
        node.close()
        lock.release()
    assert verify(tmp_path)["invalid"] == 0


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        result = CliRunner().invoke(command, [str(path)], standalone_mode=False)
        assert isinstance(result.exception, InvalidConfiguration)
        assert str(path) in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_large_slot_files_are_mapped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers where a file is too large to be read into memory."""
    monkeypatch.setattr("slotwheel.reading.verify.slots.MAP_FROM_BYTES", 100)
    assert verify(root)["invalid"] == 0
    whole = (root / SLOT).read_bytes()
    (root / SLOT).write_bytes(flipped(whole, 1000 * 8))
    assert "CRC-32C" in only_fault(root, SLOT)["expected"]
    (root / SLOT).write_bytes(whole[:-10])
    assert only_fault(root, SLOT)["found"] == f"{len(whole) - 10} bytes"
    (root / SLOT).write_bytes(b"")
    assert only_fault(root, SLOT)["found"] == "0 bytes"

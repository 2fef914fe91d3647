"""``slotwheel repair``: what is sound is delivered, what is lost is named and stays on record."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.slots.blocks import sound_blocks
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.state import LmdbState, StateUpdate
from support.datadirs import START_MS, SinkNode, messages, state_of, verify
from support.nodeprocess import command_line, environment, run_cli, run_process
from support.wheels import Node, keys_of, master_of, next_chunk

SECOND = (START_MS + 60_000) // TICK_MS
PATH = path_of(SECOND)


def filled(root: Path, *, retain: bool = False) -> list[str]:
    """Three blocks of ten rows in one slot file, and a sound slot file behind it; the ids. The
    journal has dropped all of it, unless it is kept."""
    node = SinkNode(root, segment_bytes=1_000, retain_bytes=1 << 30 if retain else 0)
    ids: list[str] = []
    for block in range(3):
        ids += node.append(messages([SECOND * TICK_MS + 7 * n + block for n in range(10)]))
        node.append(messages([(SECOND + 5) * TICK_MS + block]))
        node.spill()
    node.deliver(START_MS + 10)
    node.append(messages([(SECOND + 9) * TICK_MS]))
    node.spill()
    node.close()
    return ids


def damage(root: Path, *positions: int) -> None:
    data = bytearray((root / PATH).read_bytes())
    for at in positions:
        data[at] ^= 0x40
    (root / PATH).write_bytes(data)


def blocks_of(root: Path) -> list[tuple[int, int]]:
    return list(sound_blocks(memoryview((root / PATH).read_bytes())))


def repaired(root: Path, *options: str) -> dict[str, Any]:
    done = run_cli("repair", root, "--json", *options)
    assert done.stderr == "", done.stderr
    fields: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if any(one["lost"] for one in fields["slots"]) else 0)
    return fields


def delivered(root: Path) -> list[tuple[int, int]]:
    """(due, offset) of all that a node delivers that is started on the directory."""
    node = SinkNode(root)
    found: list[tuple[int, int]] = []
    node.now = (SECOND + 20) * TICK_MS
    while (chunk := next_chunk(node.wheel, node.now, node.sync)) is not None:
        found += keys_of(chunk.rows)
        answers = node.sink.deliver(chunk.rows)
        master_of(node.wheel).answer(chunk, answers.codes == 0)
    assert node.wheel.status().pending == 0
    node.close()
    return found


def place(id_: str) -> tuple[int, int]:
    _, due, offset, _ = id_.rsplit(".", 3)
    return int(due), int(offset)


def test_what_no_damage_touched_is_delivered_and_the_rest_is_named(tmp_path: Path) -> None:
    ids = filled(tmp_path)
    (start, end), (next_start, _) = blocks_of(tmp_path)[1:]
    assert end == next_start
    damage(tmp_path, end - 60)
    before = (tmp_path / PATH).read_bytes()
    [said] = repaired(tmp_path)["slots"]
    assert (said["rows"], said["sound"], said["from_journal"], said["lost"]) == (30, 20, 0, 10)
    assert said["lost_ids"] == ids[10:20]
    assert (tmp_path / PATH).read_bytes() == before, "without --yes nothing is changed"
    assert verify(tmp_path)["invalid"] == 1
    told = run_cli("repair", tmp_path)
    assert all(f"lost: {one}" in told.stdout for one in ids[10:20])
    assert told.stdout.endswith("1 slot file damaged, 10 rows would be lost; --yes repairs\n")
    assert told.stderr.startswith("error: rows would be lost (exit code 1); look whether a backup")
    assert told.returncode == 1
    assert start < end

    [did] = repaired(tmp_path, "--yes")["slots"]
    assert (tmp_path / did["kept"]).read_bytes() == before
    report = verify(tmp_path)
    assert report["invalid"] == 0
    assert any("a repair that lost 10 of them" in one["found"] for one in report["notes"])
    assert repaired(tmp_path, "--yes")["slots"] == [], "repaired for good"
    places = delivered(tmp_path)
    assert sorted(place(one) for one in (*ids[:10], *ids[20:])) == [
        one for one in sorted(places) if one[0] // TICK_MS == SECOND
    ]
    assert len(places) == 24
    assert any("lost 10" in one["found"] for one in verify(tmp_path)["notes"]), "for ever"


def test_a_repair_that_loses_rows_says_why_its_exit_code_is_1(tmp_path: Path) -> None:
    filled(tmp_path)
    damage(tmp_path, blocks_of(tmp_path)[1][1] - 60)
    done = run_cli("repair", tmp_path, "--yes")
    assert done.stdout.endswith("repaired 1 slot file, lost 10 rows\n")
    why = "error: rows are lost (exit code 1); what is left is repaired, and a node that is started"
    assert (done.returncode, done.stderr) == (1, f"{why} delivers it\n")


def test_what_the_journal_still_has_is_not_lost(tmp_path: Path) -> None:
    ids = filled(tmp_path, retain=True)
    damage(tmp_path, *(start + 300 for start, _ in blocks_of(tmp_path)))
    [did] = repaired(tmp_path, "--yes")["slots"]
    assert (did["sound"], did["from_journal"], did["lost"]) == (0, 30, 0)
    assert verify(tmp_path)["invalid"] == 0
    assert {place(one) for one in ids} <= set(delivered(tmp_path))


@pytest.mark.parametrize("how", ["gone", "cut", "header", "noise"])
def test_a_file_of_which_little_or_nothing_is_left(tmp_path: Path, how: str) -> None:
    filled(tmp_path)
    path = tmp_path / PATH
    blocks, data = blocks_of(tmp_path), path.read_bytes()
    left = {"gone": 0, "cut": 20, "header": 30, "noise": 0}[how]
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: blocks[2][0] + 100])
    elif how == "header":
        damage(tmp_path, 9)
    else:
        path.write_bytes(bytes(7 * at % 251 for at in range(len(data))))
    [did] = repaired(tmp_path, "--yes")["slots"]
    assert (did["sound"], did["lost"]) == (left, 30 - left)
    assert bool(did["kept"]) is (how != "gone")
    assert verify(tmp_path)["invalid"] == 0
    assert len(delivered(tmp_path)) == left + 4


def test_a_running_node_is_not_repaired_and_a_sound_directory_not_changed(tmp_path: Path) -> None:
    filled(tmp_path)
    assert repaired(tmp_path, "--yes")["slots"] == []
    assert "no slot file is damaged" in run_cli("repair", tmp_path).stdout
    node = SinkNode(tmp_path)
    node.close()
    assert run_cli("repair", tmp_path / "nowhere").returncode == 1


def test_a_message_that_a_repair_gave_up_is_never_called_delivered(tmp_path: Path) -> None:
    ids = filled(tmp_path)
    damage(tmp_path, blocks_of(tmp_path)[0][1] - 60)
    assert repaired(tmp_path, "--yes")["slots"][0]["lost"] == 10
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=0), START_MS + 20)
    later, found = START_MS + 63_000, []
    while (chunk := node.next_chunk(later)) is not None:
        found += chunk.rows.column("offset").to_pylist()
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    lost = [one for one in map(MessageId.parse, ids) if one.offset not in found]
    assert len(lost) == 10
    answers = node.blocking(lambda: node.wheel.cancel(lost, later))
    assert answers == [CancelAnswer.UNKNOWN] * 10
    node.close()


def test_of_a_slot_that_is_being_delivered_at_most_so_much_is_lost(tmp_path: Path) -> None:
    filled(tmp_path)
    node = SinkNode(tmp_path)
    count = node.deliver(SECOND * TICK_MS + 30)
    assert 0 < count < 30
    node.close()
    rows = node.wheel.status().accepted
    damage(tmp_path, blocks_of(tmp_path)[1][1] - 60)
    [did] = repaired(tmp_path, "--yes")["slots"]
    assert (did["at_most"], did["lost"]) == (True, 10)
    [loss] = state_of(tmp_path).losses
    assert loss.at_most
    assert any("lost at most 10 of them" in one["found"] for one in verify(tmp_path)["notes"])
    node = SinkNode(tmp_path)
    assert node.wheel.status().accepted == rows
    assert node.wheel.status().pending == rows - count
    node.close()


def test_what_is_not_in_its_place_yet_is_not_called_lost(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "mended").mkdir()
    (tmp_path / PATH).rename(tmp_path / "mended" / Path(PATH).name)  # committed, then a power cut
    said = run_cli("repair", tmp_path)
    assert said.returncode == 1
    assert "Start the node once" in said.stderr
    assert verify(tmp_path)["invalid"] == 0
    assert repaired(tmp_path, "--yes")["slots"] == []


def test_in_a_directory_of_a_group_it_says_that_others_may_have_it(tmp_path: Path) -> None:
    filled(tmp_path)
    state = LmdbState(tmp_path)
    checkpoint = state.load().checkpoint
    stores = {name: (name.encode() * 16).hex() for name in "abc"}
    config = {**checkpoint.config, "stores": stores}
    state.commit(StateUpdate(checkpoint=replace(checkpoint, config=config)))
    state.close()
    assert run_cli("repair", tmp_path).stderr == ""
    assert "a group with 2 other peers" in run_cli("repair", tmp_path, "--yes").stderr


@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=pytest.mark.soak)])
def test_a_repair_that_is_killed_anywhere_is_done_again(tmp_path: Path, kills: int) -> None:
    """Real SIGKILLs, ever later, until one comes too late."""
    ids = filled(tmp_path)
    damage(tmp_path, blocks_of(tmp_path)[0][1] - 60)
    began = time.monotonic()
    assert run_process("repair", tmp_path).returncode == 1
    usual_s = time.monotonic() - began
    for step in range(kills):
        process = subprocess.Popen(
            command_line("repair", tmp_path, "--yes"),
            stdout=subprocess.DEVNULL,
            env=environment(),
        )
        time.sleep(usual_s * (0.75 + step / kills / 2))
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    run_cli("repair", tmp_path, "--yes")
    report = verify(tmp_path)
    assert report["invalid"] == 0
    assert sum("a repair that lost 10" in one["found"] for one in report["notes"]) == 1
    assert {place(one) for one in ids[10:]} <= set(delivered(tmp_path))

"""``slotwheel inspect``: what it decoded stands before the error that stopped it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.cli.main import run
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.journal.segment import FRAME_BYTES
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, key_of
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.slots.slot import path_of, stem_of
from support.damage import flipped
from support.datadirs import START_MS, SinkNode, messages, state_of
from support.fardirs import (
    DAY,
    OF_DAY,
    OF_HOUR,
    OF_SECOND,
    ROWS,
    FarDirectory,
    far_directory,
)
from support.fardirs import SECOND as FAR_SECOND

SECOND = START_MS // 1000 + 61


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> FarDirectory:
    return far_directory(tmp_path_factory.mktemp("far"))


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command line; (exit code, records on stdout, text on stderr)."""

    def call(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        code = run(["inspect", *map(str, arguments), "--json"])
        output = capsys.readouterr()
        return code, [json.loads(line) for line in output.out.splitlines()], output.err

    return call


def journal_of(root: Path) -> str:
    return str(min((root / "journal").iterdir()))


def test_a_damaged_entry_is_reported_after_those_before_it(tmp_path: Path, inspect: Any) -> None:
    node = SinkNode(tmp_path)
    for number in range(6):
        node.append(messages([START_MS + 60_000 + number]))
    node.close()
    path = Path(journal_of(tmp_path))
    files = OsFiles(tmp_path)
    located = list(walk(files, f"journal/{path.name}"))
    files.close()
    code, records, error = inspect("journal", tmp_path)
    assert (code, error) == (0, "")
    assert [one["index"] for one in records] == [one.entry.index for one in located]
    assert [one["kind"] for one in records[:3]] == ["config", "mark", "rows"]

    path.write_bytes(flipped(path.read_bytes(), (located[5].end - 9) * 8))
    code, records, error = inspect("journal", tmp_path)
    assert code == 1
    assert [one["index"] for one in records] == [one.entry.index for one in located[:5]]
    position = located[5].position + FRAME_BYTES
    assert f"journal/{path.name} is damaged at byte {position}" in error


def test_journal_rows_segments_and_limits(root: Path, inspect: Any) -> None:
    code, records, _ = inspect("journal", root, Path(journal_of(root)).name, "--rows")
    assert code == 0
    assert {one["path"] for one in records if "path" in one} == {
        f"journal/{Path(journal_of(root)).name}"
    }
    rows = [one for one in records if "offset" in one]
    assert len(rows) == sum(one.get("count", 0) for one in records)
    assert rows[1]["headers"] == [{"key": "source", "value": "test"}]
    code, records, error = inspect("journal", root, "--limit", 2)
    assert (code, len(records)) == (0, 2)
    assert "--limit 0" in error
    code, records, error = inspect("journal", root, "nope.journal")
    assert (code, records) == (1, [])
    assert "no such journal segment" in error


def named(due_ms: list[int], names: list[str], mode: str = "replace") -> pa.RecordBatch:
    headers = [((NAME_HEADER, name), (IF_EXISTS_HEADER, mode)) for name in names]
    none = [None] * len(names)
    return from_columns(due_ms, ["t"] * len(names), none, none, none, headers)


def test_names_and_what_became_of_the_messages_before(tmp_path: Path, inspect: Any) -> None:
    node = SinkNode(tmp_path)
    due_ms = [START_MS + 60_000, START_MS + 61_000]
    node.append(named(due_ms, ["a", "b"]))
    node.append(named(due_ms, ["a", "a"], "keep"))
    node.append(named(due_ms[:1], ["b"]))
    node.close()
    code, records, _ = inspect("journal", tmp_path, "--rows")
    assert code == 0
    first, kept, replaced = [one for one in records if one.get("kind") == "rows"]
    assert [one["rows"] for one in first["parts"]] == [2]
    before = {"before": "kept", "due_ms": due_ms[0], "offset": first["base_offset"]}
    assert kept["named"] == [{"row": 0, **before}, {"row": 1, **before}]
    before = {"before": "replaced", "due_ms": due_ms[1], "offset": first["base_offset"] + 1}
    assert replaced["named"] == [{"row": 0, **before}]
    targets = [one["cancels"] for one in records if "cancels" in one]
    assert targets == [kept["base_offset"], kept["base_offset"] + 1, first["base_offset"] + 1]


def test_a_run_of_names_is_printed(tmp_path: Path, inspect: Any) -> None:
    assert inspect("names", tmp_path / "none")[0] != 0
    node = SinkNode(tmp_path)
    due_ms = [START_MS + 60_000, START_MS + 61_000]
    node.append(named(due_ms, ["a", "b"]))
    node.append(named(due_ms[:1], ["b"]))
    node.wheel.spill(START_MS, everything=True)
    node.close()
    code, records, _ = inspect("names", tmp_path)
    assert (code, [one["names"] for one in records]) == (0, [2])
    code, records, _ = inspect("names", tmp_path, records[0]["path"])
    keys = sorted(key_of(b"t", name).hex() for name in (b"a", b"b"))
    assert [one["key"] for one in records if "key" in one] == keys
    assert {one["due_ms"] for one in records if "key" in one} == {due_ms[0]}
    code, _, error = inspect("names", tmp_path, "nope.names")
    assert code == 1
    assert "no such run of names" in error


def test_slots_lists_the_catalog(root: Path, inspect: Any) -> None:
    code, records, _ = inspect("slots", root, "--limit", 0)
    assert code == 0
    slots = state_of(root).slots
    assert [one["second_ms"] // 1000 for one in records] == sorted(slots)
    assert [one["rows"] for one in records] == [slots[second].rows for second in sorted(slots)]


@pytest.mark.parametrize("name", [SECOND, f"slots/{SECOND}.arrows"])
def test_a_slot_file_is_printed_row_by_row(root: Path, inspect: Any, name: object) -> None:
    code, records, _ = inspect("slots", root, name)
    assert code == 0
    assert [one.get("block") is not None for one in records] == [
        False, True, False, False, False, False, True, False, False, False, False,
    ]  # fmt: skip
    rows = [one for one in records if "offset" in one]
    assert {one["due_ms"] // 1000 for one in rows} == {SECOND}
    assert rows[0]["value"] == "value-10"


def test_a_damaged_slot_file_is_printed_up_to_the_damage(root: Path, inspect: Any) -> None:
    path = root / f"slots/{SECOND}.arrows"
    whole = path.read_bytes()
    _, sound, _ = inspect("slots", root, SECOND)
    second_block = [one["block"] for one in sound if "block" in one][1]
    path.write_bytes(
        whole[:second_block] + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + whole[second_block + 8 :]
    )
    code, records, error = inspect("slots", root, SECOND)
    assert code == 1
    assert records == sound[: 1 + 1 + 4]
    assert f"damaged at byte {second_block}" in error
    path.write_bytes(whole[: second_block + 5])
    code, records, error = inspect("slots", root, SECOND)
    assert (code, records) == (1, sound[: 1 + 1 + 4])
    # A flip in a value: all can be decoded, and the checksum says that it is not what was written.
    path.write_bytes(whole.replace(b"value-10", b"value-xx"))
    code, records, error = inspect("slots", root, SECOND)
    assert (code, len(records)) == (1, len(sound))
    assert "CRC-32C" in error


def test_files_of_hours_and_days_are_listed_in_the_order_of_time(
    far: FarDirectory, inspect: Any
) -> None:
    code, records, _ = inspect("slots", far.root)
    assert code == 0
    assert [one["path"] for one in records] == [path_of(at) for at in (OF_DAY, OF_HOUR, OF_SECOND)]
    assert [(one["second_ms"], one["seconds"]) for one in records] == [
        (DAY, 86_400), (FAR_SECOND // 3_600 * 3_600_000, 3_600), (FAR_SECOND * 1_000, 1)
    ]  # fmt: skip
    _, records, _ = inspect("state", far.root)
    totals = {one["slots_of_seconds"]: one for one in records if "slots_of_seconds" in one}
    files = {86_400: OF_DAY, 3_600: OF_HOUR, 1: OF_SECOND}
    assert {width: one["slot_files"] for width, one in totals.items()} == dict.fromkeys(files, 1)
    assert {width: one["rows"] for width, one in totals.items()} == {
        width: ROWS[slot] for width, slot in files.items()
    }


@pytest.mark.parametrize("slot", [OF_DAY, OF_HOUR])
def test_a_wide_file_is_printed_by_the_name_of_its_slot(
    far: FarDirectory, inspect: Any, slot: int
) -> None:
    for name in (path_of(slot), stem_of(slot)):
        code, records, _ = inspect("slots", far.root, name)
        assert code == 0
        assert records[0]["path"] == path_of(slot)
        assert len([one for one in records if "offset" in one]) == ROWS[slot]


def test_a_second_without_a_file_of_its_own_has_those_named_that_may_have_its_rows(
    far: FarDirectory, inspect: Any
) -> None:
    code, _, error = inspect("slots", far.root, FAR_SECOND + 1)
    assert code == 1
    assert f"{path_of(OF_HOUR)} and {path_of(OF_DAY)}" in error


def test_an_unknown_slot_is_refused_by_name(root: Path, inspect: Any) -> None:
    for name, text in (("123", "no such slot"), ("../etc/passwd", "not a slot file")):
        code, records, error = inspect("slots", root, name)
        assert (code, records) == (1, [])
        assert text in error


def test_state_hides_the_key(root: Path, inspect: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stored = state_of(root)
    code, records, _ = inspect("state", root)
    assert code == 0
    assert records[0]["store_id"] == stored.store_id.hex()
    assert records[1]["next_offset"] == stored.checkpoint.next_offset
    assert records[2]["L"] == stored.checkpoint.marks.main.L
    assert stored.checkpoint.config["key"] not in json.dumps(records)
    assert run(["inspect", "state", str(root)]) == 0
    output = capsys.readouterr().out
    assert stored.checkpoint.config["key"] not in output
    assert f"next_offset {stored.checkpoint.next_offset}" in output


def test_topics_and_their_blocks(
    root: Path, inspect: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect("topic", root)[1] == [{"topic": "orders", "rows": 6, "blocks": 2}]
    code, records, _ = inspect("topic", root, "orders", "--rows")
    assert code == 0
    rows = [one for one in records if "position" in one]
    assert [one["position"] for one in rows] == list(range(6))
    assert run(["consume", "orders", "--data", str(root), "--json"]) == 0
    assert rows == [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stream = root / "topics/orders" / ("0" * 20 + ".arrows")
    stream.write_bytes(flipped(stream.read_bytes(), (stream.stat().st_size - 3) * 8))
    code, records, error = inspect("topic", root, "orders")
    assert code == 1
    assert [one["rows"] for one in records] == [4]
    assert "CRC-32C" in error
    (listed,) = inspect("topic", root)[1]
    assert (listed["rows"], "CRC-32C" in listed["error"]) == (4, True)
    code, _, error = inspect("topic", root, "nope")
    assert code == 1
    assert "Topics there are: orders" in error
    assert inspect("topic", root, "..")[0] == 1

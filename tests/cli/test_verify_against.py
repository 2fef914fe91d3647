"""``slotwheel verify --against``: two directories of one history agree, a difference is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slotwheel.cli import main
from slotwheel.cli.verify import command
from slotwheel.wheel.files import DirectoryLock
from support.damage import flipped
from support.datadirs import START_MS, SinkNode, messages

SLOT = f"slots/{START_MS // 1000 + 61}.arrows"


@pytest.fixture
def pair(pristine: Path, tmp_path: Path) -> tuple[Path, Path]:
    first, second = (Path(shutil.copytree(pristine, tmp_path / name)) for name in "ab")
    return first, second


def against(pair: tuple[Path, Path]) -> dict[str, Any]:
    """The JSON report; the exit code must agree with it."""
    left, right = map(str, pair)
    result = CliRunner().invoke(
        command, [left, "--against", right, "--json"], standalone_mode=False
    )
    report: dict[str, Any] = json.loads(result.output)
    good = not (
        report["invalid"] or report["against"]["invalid"] or report["agreement"]["problems"]
    )
    assert result.return_value == (0 if good else 1)
    return report


def text_of(pair: tuple[Path, Path], code: int) -> str:
    left, right = map(str, pair)
    result = CliRunner().invoke(command, [left, "--against", right], standalone_mode=False)
    assert result.return_value == code, result.output
    return result.output


def append(root: Path, value: bytes, due_ms: int = START_MS + 90_000) -> None:
    node = SinkNode(root)
    node.append(messages([due_ms], values=[value]))
    node.close()


def test_copies_agree(pair: tuple[Path, Path]) -> None:
    report = against(pair)
    assert [report["directory"], report["against"]["directory"]] == list(map(str, pair))
    assert report["invalid"] == report["against"]["invalid"] == 0
    agreement = report["agreement"]
    assert agreement["problems"] == []
    assert agreement["entries"] > 0
    assert agreement["rows"] > 0
    text = text_of(pair, 0)
    assert text.count("0 invalid") == 2
    assert text.endswith(f"{agreement['rows']:,} pending messages\n")
    assert "the peers agree" in text


def test_the_first_difference_is_named(pair: tuple[Path, Path]) -> None:
    for root, value in zip(pair, (b"one", b"two"), strict=True):
        append(root, value)
    report = against(pair)
    assert report["invalid"] == report["against"]["invalid"] == 0
    problems = report["agreement"]["problems"]
    assert problems
    text = text_of(pair, 1)
    assert text.endswith(f"the peers do not agree: {problems[0]}\n")
    assert f"differs: {problems[0]}" in text


def test_what_is_invalid_by_itself_is_told_of_its_own_directory(pair: tuple[Path, Path]) -> None:
    path = pair[1] / SLOT
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2))
    report = against(pair)
    assert (report["invalid"], report["against"]["invalid"]) == (0, 1)
    assert any(SLOT in problem for problem in report["agreement"]["problems"])
    assert "1 invalid" in text_of(pair, 1)


def test_a_state_store_that_cannot_be_read(pair: tuple[Path, Path]) -> None:
    (pair[1] / "state/data.mdb").write_bytes(b"nothing of the kind")
    report = against(pair)
    assert report["against"]["invalid"] >= 1
    assert report["agreement"]["entries"] == 0
    assert "a state store cannot be read" in text_of(pair, 1)


def test_a_running_node_is_said_to_be_one(pair: tuple[Path, Path]) -> None:
    lock = DirectoryLock(pair[1])
    try:
        report = against(pair)
        assert report["against"]["running"] is not None
        assert report["running"] is None
        assert any(f"runs on {pair[1]}" in note for note in report["agreement"]["notes"])
    finally:
        lock.release()


def test_what_cannot_be_compared(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(pair[0])
    assert main.run(["verify", first, "--against", str(tmp_path / "none")]) == 1
    assert "no such directory" in capsys.readouterr().err
    assert main.run(["verify", first, "--against", f"{first}/."]) == 2
    assert "the same directory" in capsys.readouterr().err


def test_nothing_is_changed(pair: tuple[Path, Path]) -> None:
    def content() -> dict[Path, bytes]:
        return {
            path: path.read_bytes() for root in pair for path in root.rglob("*") if path.is_file()
        }

    before = content()
    against(pair)
    assert content() == before

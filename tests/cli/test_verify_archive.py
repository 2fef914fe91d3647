"""``slotwheel verify`` over an archive: what was kept is what its name says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotwheel.cli.verify import command
from slotwheel.reading.directory import ReadOnlyFiles
from slotwheel.reading.layout import find
from slotwheel.wheel.errors import InvalidConfiguration
from support.damage import flip
from support.datadirs import START_MS, SinkNode, assert_sound, messages, verify


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slots and segments that were covered are in the archive; some others are alive."""
    root = tmp_path_factory.mktemp("kept") / "pristine"
    node = SinkNode(root, segment_bytes=2_000, retain_bytes=1 << 30)
    for number in range(6):
        due = [START_MS + 1_000 * number + 100 * step for step in range(20)]
        node.append(messages([*due, START_MS + 600_000]))
        node.spill()
    node.deliver(START_MS + 20_000)
    node.spill()
    assert node.wheel.clean(node.now) == 7
    node.close()
    return root


def kept(root: Path, part: str) -> list[Path]:
    return sorted(root.glob(f"archive/*/{part}/*"))


def test_a_kept_directory_is_sound(root: Path) -> None:
    assert_sound(root)
    report = verify(root)
    slots, segments = kept(root, "slots"), kept(root, "journal")
    assert len(slots) == 7
    assert len(segments) >= 5
    assert report["kinds"]["archive"]["ok"] == len(slots) + len(segments)
    # 120 messages in slot files, and all 126 in the journal, some of them in its live end.
    live = report["kinds"]["journal"]["rows"]
    assert report["kinds"]["archive"]["rows"] > 120
    assert live >= 0
    assert report["notes"] == []
    assert "archived files" in CliRunner().invoke(command, [str(root)]).output


def test_the_day_is_that_of_the_nodes_clock(root: Path) -> None:
    assert {path.parts[-3] for path in kept(root, "slots")} == {"2027-01-15"}


@pytest.mark.parametrize("part", ["slots", "journal"])
def test_a_flipped_byte_is_named(root: Path, part: str) -> None:
    path = kept(root, part)[1]
    flip(path)
    report = verify(root)
    assert report["invalid"] == 1
    assert {one["path"] for one in report["faults"]} == {str(path.relative_to(root))}


def test_a_short_slot_file_is_named(root: Path) -> None:
    path = kept(root, "slots")[0]
    path.write_bytes(path.read_bytes()[:-8])
    assert verify(root)["invalid"] == 1


def test_a_gap_and_a_foreign_file_are_notes(root: Path) -> None:
    gone = kept(root, "journal")[1]
    gone.unlink()
    (root / "archive/2027-01-15/slots/notes.txt").write_text("mine")
    report = verify(root)
    assert report["invalid"] == 0
    found = [one["found"] for one in report["notes"]]
    assert any("entries between were not kept" in text for text in found)
    assert any("unknown file" in text for text in found)
    assert len(found) == 2


@pytest.mark.parametrize("place", ["archive", "archive/2027-01-15", "archive/2027-01-15/slots"])
def test_a_file_in_the_place_of_a_folder_is_named(root: Path, place: str) -> None:
    """A day's is a stray file; those of which the node makes folders are damage."""
    shutil.rmtree(root / place)
    (root / place).write_text("mine")
    report = verify(root)
    assert report["invalid"] == (0 if place == "archive/2027-01-15" else 1)
    assert [one["path"] for one in (*report["notes"], *report["faults"])] == [place]


def test_an_archive_alone_is_read_by_the_proof_and_is_no_nodes_directory(root: Path) -> None:
    for part in root.iterdir():
        if part.is_dir() and part.name != "archive":
            shutil.rmtree(part)
    with pytest.raises(InvalidConfiguration, match="not a data directory"):
        ReadOnlyFiles(root)
    found = find([str(root)])
    assert {file.archived for file in found.files} == {True}
    assert "empty" not in {problem.kind for problem in found.problems}

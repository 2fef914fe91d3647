"""What reads a directory from outside reads the rows of several callers in one entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwheel.cli.main import run
from slotwheel.reading.events import RowsSeen
from slotwheel.reading.files import JOURNAL, File
from slotwheel.reading.journal import read_journal
from slotwheel.wheel.config import WheelConfig
from support.datadirs import assert_sound
from support.plainrows import PlainSent, plain_batch
from support.wheels import NOW, opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Entries of one caller, of several, and an Arrow batch, in turn."""
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        for turn in range(3):
            sent = [
                plain_batch(
                    [(NOW + turn, "t", b"%d %d" % (turn, producer))] * producer, producer, turn
                )
                for producer in range(1, 4)
            ]
            PlainSent(node.wheel, sent, NOW)
            PlainSent(node.wheel, [plain_batch([(NOW, "t", b"alone")], 9, turn)], NOW)
            node.send([(NOW, "t", b"arrow")], NOW)
    assert_sound(tmp_path)
    return tmp_path


def test_a_scan_has_each_row_at_its_offset(root: Path) -> None:
    [path] = (root / "journal").iterdir()
    events = list(read_journal(File(0, JOURNAL, str(path), path.name, 0, is_last=True)))
    rows = [row for one in events if isinstance(one, RowsSeen) for row in one.rows.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(24))
    expected = [
        value
        for turn in range(3)
        for value in [
            *(b"%d %d" % (turn, producer) for producer in range(1, 4) for _ in range(producer)),
            *(b"alone", b"arrow"),
        ]
    ]
    assert [row["value"] for row in rows] == expected


def test_inspect_says_whose_they_are(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "journal", str(root), "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    several = [one for one in entries if "parts" in one]
    assert [one["count"] for one in several] == [6] * 3
    assert several[1]["parts"] == [
        {"producer": producer, "sequence": 1, "rows": producer} for producer in range(1, 4)
    ]
    assert [one["sequence"] for one in entries if one.get("producer") == 9] == [0, 1, 2]
    assert run(["inspect", "journal", str(root)]) == 0
    assert "'producer': 3" in capsys.readouterr().out

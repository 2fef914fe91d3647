"""Facts stay until their window is judged, and a repeated batch counts once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotwheel.replay.facts import FACT, Facts
from slotwheel.replay.ledger import Ledger


def facts(*dues: int, created: int = -1) -> Facts:
    made = np.zeros(len(dues), FACT)
    made["due"] = dues
    made["created"] = created
    return made


def test_windows_start_inclusive_end_exclusive(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 100)
    ledger.add("journal", 0, facts(0, 99, 100, 250))
    assert ledger.ready(104, 5) == []
    assert ledger.ready(105, 5) == [0]
    assert ledger.ready(305, 5) == [0, 100, 200]
    assert ledger.facts(0)["due"].tolist() == [0, 99]
    ledger.close(0)
    assert ledger.ready(305, 5) == [100, 200]
    assert len(ledger.facts(0)) == 0


def test_accepted_after_it_was_due_settles_later(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 100)
    ledger.add("journal", 0, facts(10, created=700))
    assert ledger.ready(704, 5) == []
    assert ledger.ready(705, 5) == [0]


def test_a_repeated_batch_counts_once_even_after_its_window_closed(tmp_path: Path) -> None:
    assert Ledger(tmp_path, 100).add("journal", 3, facts(10))
    ledger = Ledger(tmp_path, 100)
    assert not ledger.add("journal", 3, facts(10))
    assert ledger.add("topic", 3, facts(10))
    assert len(ledger.facts(0)) == 2
    ledger.close(0)
    assert not ledger.add("journal", 3, facts(10))
    assert ledger.ready(1000, 0) == []


def test_a_batch_that_was_half_added_is_added_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotwheel.replay import ledger as module

    write = module._write

    def crash(path: Path, data: bytes) -> None:
        if path.parent.name == "100":
            raise OSError("crash")
        write(path, data)

    monkeypatch.setattr(module, "_write", crash)
    with pytest.raises(OSError, match="crash"):
        Ledger(tmp_path, 100).add("journal", 0, facts(10, 110))
    monkeypatch.setattr(module, "_write", write)
    ledger = Ledger(tmp_path, 100)
    assert ledger.add("journal", 0, facts(10, 110))
    assert [len(ledger.facts(start)) for start in (0, 100)] == [1, 1]


def test_a_window_closes_at_one_stroke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(path: Path) -> None:
        raise OSError("crash")

    ledger = Ledger(tmp_path, 100)
    ledger.add("journal", 0, facts(10, 110))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", crash)
        with pytest.raises(OSError, match="crash"):
            ledger.close(0)
    ledger = Ledger(tmp_path, 100)
    assert ledger.ready(1000, 0) == [100]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["100", "journal.added"]

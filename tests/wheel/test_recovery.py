"""Opening a directory that is not what was left: refused, never guessed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged, InvalidConfiguration
from support.wheels import NOW, Node


def a_node_with_rows(path: Path) -> Node:
    node = Node(path, WheelConfig(), NOW)
    node.sync()
    node.send([(NOW + 60_000, "t", b"spilled")], NOW)
    node.wheel.spill(NOW, everything=True)
    node.send([(NOW + 60_000, "t", b"in the journal alone")], NOW)
    return node


def test_a_journal_that_is_gone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    node = a_node_with_rows(tmp_path)
    node.wheel.close()
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(Damaged, match="journal"):
        node.open(NOW)


def test_a_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    node = a_node_with_rows(tmp_path)
    node.wheel.close()
    node.config = WheelConfig(group="other")
    with pytest.raises(InvalidConfiguration, match="--group default"):
        node.open(NOW)


def test_the_horizon_may_change_between_runs(tmp_path: Path) -> None:
    node = a_node_with_rows(tmp_path)
    key = node.wheel.mint.one(NOW, 1)
    node.wheel.close()
    node.config = WheelConfig(slots=100)
    node.open(NOW)
    node.sync()
    assert node.wheel.status().horizon_ms == 100_000
    assert node.wheel.status().pending == 2
    assert node.wheel.mint.one(NOW, 1) == key
    node.wheel.close()


def test_a_slot_that_is_cleaned_while_a_question_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner may delete a file between the look into the catalog and the reading."""
    node = a_node_with_rows(tmp_path)
    storage = node.wheel._storage
    second = (NOW + 60_000) // 1000
    info = storage.catalog[second]
    read = storage.read_blocks

    def cleaned_first(*args: Any) -> Any:
        storage.catalog.pop(second, None)
        storage.slot_files.remove(second)
        return read(*args)

    monkeypatch.setattr(storage, "read_blocks", cleaned_first)
    assert storage.find(NOW + 60_000, 0) is None
    storage.catalog[second] = info
    monkeypatch.undo()
    with pytest.raises(Damaged, match="no such file"):
        storage.find(NOW + 60_000, 0)
    node.wheel.close()

"""Opening a directory that is not what was left: refused, never guessed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.layout import find
from slotwheel.wheel import config as wheel_config
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged, InvalidConfiguration, InvalidMessage
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


def test_a_directory_made_with_more_slots_than_a_day_has_opens_and_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is one of settings. What was accepted before it leaves at its time, to the end."""
    days = [NOW + n * 86_400_000 for n in range(60)]
    with monkeypatch.context() as patch:
        patch.setattr(wheel_config, "SLOTS_MAX", 60 * 86_400)
        node = Node(tmp_path, WheelConfig(slots=60 * 86_400, disk_reserve_bytes=0), NOW)
        ids = node.ids_of(node.send([(at + 5_000, "t", b"%d" % at) for at in days], NOW))
        node.wheel.spill(NOW, everything=True)
        node.close()
    with pytest.raises(InvalidConfiguration, match="--slots 86400"):
        WheelConfig(slots=60 * 86_400)
    node.config = WheelConfig(slots=86_400, disk_reserve_bytes=0)
    node.open(NOW + 1_000)
    node.sync()
    with pytest.raises(InvalidMessage, match="horizon"):
        node.send([(days[1] + 5_000, "t", b"")], NOW + 1_000)
    answers = node.blocking(lambda: node.wheel.cancel(ids[-1:], NOW + 1_000))
    assert answers == [CancelAnswer.CANCELLED]
    for at in days[:-1]:
        assert node.delivered(at + 4_999) == []
        assert node.delivered(at + 5_000) == [b"%d" % at]
    assert node.delivered(days[-1] + 5_000) == []
    assert node.wheel.status().pending == 0
    node.wheel.spill(days[-1], everything=True)
    assert find([str(tmp_path)]).horizon_ms == 60 * 86_400_000, "a proof must know what may be due"
    node.close()


def test_a_slot_that_is_cleaned_while_a_question_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner may delete a file between the look into the catalog and the reading."""
    node = a_node_with_rows(tmp_path)
    storage = node.wheel._storage
    second = (NOW + 60_000) // 1000
    catalog = storage.catalog
    read = storage.read_blocks

    def cleaned_first(*args: Any) -> Any:
        storage.catalog = catalog.without([second])
        storage.slot_files.remove(second)
        return read(*args)

    monkeypatch.setattr(storage, "read_blocks", cleaned_first)
    assert storage.find(NOW + 60_000, 0) is None
    storage.catalog = catalog
    monkeypatch.undo()
    with pytest.raises(Damaged, match="no such file"):
        storage.find(NOW + 60_000, 0)
    node.wheel.close()

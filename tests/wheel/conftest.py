"""Where tests of the journal and of the archive write, and one wheel with limits close by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import Files, OsFiles
from support.crashfs import CrashFiles
from support.datadirs import assert_sound
from support.handpeer import Peer
from support.wheels import NOW, TIGHT, Node, opened


@pytest.fixture(params=["double", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    """The double of a disk, and a disk."""
    if request.param == "double":
        yield CrashFiles()
    else:
        real = OsFiles(tmp_path)
        yield real
        real.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with opened(tmp_path, TIGHT, NOW) as node:
        yield node
        node.sync()
        node.stored()  # catalog and files agree, whatever happened


@pytest.fixture
def usual(tmp_path: Path) -> Iterator[Node]:
    """A wheel with the usual limits, which asks for no room on the disk."""
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        node.sync()
        yield node


@pytest.fixture
def small_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of 4 and 16 seconds in the place of those of an hour and a day, from two slots of a
    second on: what takes days, with three widths, is gone through in a minute."""
    small = {
        "HOUR_S": 4,
        "DAY_S": 16,
        "WIDTHS_S": (1, 4, 16),
        "HOURS_UNTIL_MS": 12_000,
        "_DAY_MS": 16_000,
        "_LONG_HORIZON_SLOTS": 2,
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("slotwheel.wheel."):
            for constant in small.keys() & vars(module).keys():
                monkeypatch.setattr(module, constant, small[constant])


@pytest.fixture
def config() -> WheelConfig:
    """Of ``peers``."""
    return WheelConfig(segment_bytes=4096, peer_journal_bytes_max=8192, disk_reserve_bytes=0)


@pytest.fixture
def peers(tmp_path: Path, config: WheelConfig) -> Iterator[tuple[Peer, Peer]]:
    """Two of one log; in the end each directory is sound."""
    both = Peer(tmp_path, "a", config), Peer(tmp_path, "b", config)
    yield both
    for one in both:
        one.close()
        assert_sound(one.path)

"""Where tests of the journal and of the archive write, and one wheel with limits close by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import Files, OsFiles
from support.crashfs import CrashFiles
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

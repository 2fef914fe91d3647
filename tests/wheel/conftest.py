"""Where tests of the journal and of the archive write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotwheel.wheel.files import Files, OsFiles
from support.crashfs import CrashFiles


@pytest.fixture(params=["double", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    """The double of a disk, and a disk."""
    if request.param == "double":
        yield CrashFiles()
    else:
        real = OsFiles(tmp_path)
        yield real
        real.close()

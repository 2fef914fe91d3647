"""Data directories that several tests of commands read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.datadirs import filled


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with something of everything; it stays as it is."""
    root = tmp_path_factory.mktemp("data") / "pristine"
    filled(root)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test alone."""
    return Path(shutil.copytree(pristine, tmp_path / "data"))

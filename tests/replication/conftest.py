"""A group of replicas for the tests of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.datadirs import assert_sound
from support.replicas import Replicas


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Replicas]:
    """Not started yet; in the end every directory is sound."""
    made = Replicas(tmp_path)
    yield made
    made.stop()
    for one in made.all.values():
        if one.path.exists():
            assert_sound(one.path)

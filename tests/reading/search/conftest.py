"""Searches run in a process of their own: LMDB opens a store once a process, and the wheel under
test has it open in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwheel.reading.search.worker import SearchProcess

Searching = Callable[[Path], SearchProcess]


@pytest.fixture
def searching() -> Iterator[Searching]:
    """Starts the search process of a directory."""
    started: list[SearchProcess] = []

    def start(root: Path) -> SearchProcess:
        started.append(SearchProcess(root, nice=0))
        return started[-1]

    yield start
    for one in started:
        one.close()

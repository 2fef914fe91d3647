"""Fixtures of the client's tests: a wheel made up, behind a real server of the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fakewheel import FakeWheel, served


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def address(wheel: FakeWheel) -> Iterator[str]:
    with served(wheel) as address:
        yield address

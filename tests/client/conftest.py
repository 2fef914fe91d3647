"""Fixtures of the client's tests: a wheel made up, behind a real server of the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotwheel import Client
from support.fakewheel import FakeWheel, served


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout_s=20) as made:
        yield made


@pytest.fixture
def address(wheel: FakeWheel) -> Iterator[str]:
    with served(wheel) as address:
        yield address

"""Fixtures of the client's tests: a wheel made up, behind a real Flight server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotwheel.intake.flight import FlightIntake
from support.fakewheel import FakeWheel


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def address(wheel: FakeWheel) -> Iterator[str]:
    server = FlightIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05)
    yield f"127.0.0.1:{server.port}"
    server.close()

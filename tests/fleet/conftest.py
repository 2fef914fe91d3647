"""A fleet of three wheels made up, each behind a real server of the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slotwheel.fleet.fleet import Fleet
from support.fakefleet import NAMES, fake_wheel
from support.fakewheel import FakeWheel, served


@pytest.fixture
def wheels() -> dict[str, FakeWheel]:
    return {name: fake_wheel(name) for name in NAMES}


@pytest.fixture
def addresses(wheels: dict[str, FakeWheel]) -> Iterator[dict[str, str]]:
    with ExitStack() as serving:
        yield {name: serving.enter_context(served(wheel)) for name, wheel in wheels.items()}


@pytest.fixture
def fleet(addresses: dict[str, str]) -> Iterator[Fleet]:
    with Fleet(addresses, timeout_s=20) as made:
        yield made

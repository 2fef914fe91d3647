"""The wheel behind the ways in, where a test has none of its own."""

from __future__ import annotations

import pytest

from support.fakewheel import FakeWheel


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()

"""Three wheels made up, of one fleet."""

from __future__ import annotations

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import IdMint
from support.fakewheel import FakeWheel

NAMES = ("north", "south", "west")


def fake_wheel(name: str) -> FakeWheel:
    return FakeWheel(WheelConfig(group=name), mint=IdMint(name, b"0123456789abcdef"))

"""Changing what the whole group knows of its sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from typing import Any

from ..wheel.errors import NotRunning, Overloaded
from .ports import WheelPort
from .sources import SourceTable

_AGREE_S = 10.0
_AGAIN_S = 0.05
_LOOK_S = 0.25


def agree(
    wheel: WheelPort, change: Callable[[SourceTable], SourceTable], stop: threading.Event
) -> None:
    """Change what the whole group knows of its sources, and wait until that is committed. Errors:
    ``NotMaster``; ``NotRunning`` when it is not committed in time."""
    end = time.monotonic() + _AGREE_S
    while time.monotonic() < end and not stop.is_set():
        before = wheel.sources
        wanted = change(SourceTable.from_dict(before)).to_dict()
        if wanted == before:
            return
        try:
            future = wheel.change_sources(before, wanted)
            while time.monotonic() < end and not stop.is_set():
                if is_done(future):
                    return
        except Overloaded:
            stop.wait(_AGAIN_S)
    raise NotRunning("what is known of the sources was not committed", remedy="It is tried again")


def acknowledge_unread(wheel: WheelPort) -> None:
    """Forget which records were deleted before they were read. Errors: as of ``agree``."""
    agree(wheel, SourceTable.acknowledged, threading.Event())


def is_done(future: Future[Any]) -> bool:
    """Wait a moment for the future; whether it is done. Errors: those of the future."""
    try:
        error = future.exception(_LOOK_S)
    except TimeoutError:
        return False
    if error is not None:
        raise copy(error)  # the future's own would refer to these frames, and they to it
    return True

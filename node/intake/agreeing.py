"""Changes the table of sources, which is committed like a batch, so that the whole group has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from typing import Any

from ...broker.sources import SourceTable
from ...wheel.errors import NotRunning, Overloaded
from .ports import WheelPort

_AGREE_S = 10.0
_AGAIN_S = 0.05
_LOOK_S = 0.25


def agree(
    wheel: WheelPort, change: Callable[[SourceTable], SourceTable], stop: threading.Event
) -> None:
    """Change the group's table of sources, and wait until that is committed. Where another change
    came first, ``change`` is called again with its result. Errors: ``NotMaster``; ``NotRunning``
    when the change is not committed in time, or ``stop`` is set."""
    end = time.monotonic() + _AGREE_S
    while time.monotonic() < end and not stop.is_set():
        before = wheel.sources
        changed = change(SourceTable.from_dict(before)).to_dict()
        if changed == before:
            return
        try:
            future = wheel.change_sources(before, changed)
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
    """Wait a moment for the future. Returns True when it is done. Errors: those of the future."""
    try:
        error = future.exception(_LOOK_S)
    except TimeoutError:
        return False
    if error is not None:
        raise copy(error)  # the original would keep these frames alive, and they keep it
    return True

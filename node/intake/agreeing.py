"""Changes parts of what a group has agreed on, which are committed like a batch, so that the whole
group has them: the table of sources, and whether the group is emptied."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from copy import copy
from typing import Any

from ...broker.sources import SourceTable
from ...wheel.errors import NotRunning, Overloaded
from .ports import WheelPort

_AGREE_S = 10.0
_AGAIN_S = 0.05
_LOOK_S = 0.25

Agreed = Mapping[str, Any]


def agree(
    wheel: WheelPort,
    change: Callable[[SourceTable], SourceTable],
    stop: threading.Event,
    *,
    always: bool = False,
) -> None:
    """Change the group's table of sources, as ``agree_on`` does."""
    agree_on(
        lambda: wheel.sources,
        wheel.change_sources,
        lambda before: change(SourceTable.from_dict(before)).to_dict(),
        stop,
        always=always,
    )


def agree_on(
    read: Callable[[], Agreed],
    replace: Callable[[Agreed, Agreed], Future[Any]],
    change: Callable[[Agreed], Agreed],
    stop: threading.Event,
    *,
    always: bool = False,
) -> None:
    """Change what ``read`` returns by ``replace``, and wait until that is committed. Where another
    change came first, ``change`` is called again with its result. ``always``: append an entry also
    where nothing changes, so that all entries before it are committed, too. Errors: ``NotMaster``;
    ``NotRunning`` when the change is not committed in time, or ``stop`` is set."""
    end = time.monotonic() + _AGREE_S
    while time.monotonic() < end and not stop.is_set():
        before = read()
        changed = change(before)
        if changed == before and not always:
            return
        try:
            future = replace(before, changed)
            while time.monotonic() < end and not stop.is_set():
                if is_done(future):
                    return
        except Overloaded:
            stop.wait(_AGAIN_S)
    raise NotRunning("the change was not committed", remedy="It is tried again")


def acknowledge_unread(wheel: WheelPort) -> None:
    """Forget which records were deleted before they were read. Errors: as of ``agree``."""
    agree(wheel, SourceTable.acknowledged, threading.Event())


def drain(wheel: WheelPort, now_ms: int, *, on: bool) -> None:
    """Have the group take no new messages, from ``now_ms`` on if it took them until now; or take
    them again. Errors: as of ``agree_on``."""
    agree_on(
        lambda: wheel.draining,
        wheel.change_draining,
        lambda before: (before or {"since_ms": now_ms}) if on else {},
        threading.Event(),
    )


def is_done(future: Future[Any]) -> bool:
    """Wait a moment for the future. Returns True when it is done. Errors: those of the future."""
    try:
        error = future.exception(_LOOK_S)
    except TimeoutError:
        return False
    if error is not None:
        raise copy(error)  # the original would keep these frames alive, and they keep it
    return True

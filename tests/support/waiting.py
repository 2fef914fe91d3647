"""What a test waits for, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

PATIENCE_S = 240.0
"""For how long a test waits for what comes in a moment on a machine that has nothing else to do. It
passes on one that is busy, too, and only a failure takes so long."""
_SELDOM_S = 0.1


def now_ms() -> int:
    """This machine's wall clock."""
    return time.time_ns() // 1_000_000


def eventually(
    look: Callable[[], Any],
    timeout_s: float = PATIENCE_S,
    *,
    every_s: float = 0.02,
    otherwise: Callable[[], object] = lambda: "it did not happen in time",
) -> Any:
    """Look until what is found is true; what was found. ``every_s``: how often at first; who has
    waited for long looks less often. ``otherwise``: what a failure says."""
    begun = time.monotonic()
    while not (found := look()):
        waited_s = time.monotonic() - begun
        assert waited_s < timeout_s, otherwise()
        # A look costs the one who looks, and the node that answers, a millisecond or more.
        time.sleep(max(every_s, min(waited_s / 20, _SELDOM_S)))
    return found


def has_ended(process: psutil.Process) -> bool:
    """Nobody may wait for a process whose parent was killed: then it is a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

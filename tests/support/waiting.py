"""What a test waits for, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def now_ms() -> int:
    """This machine's wall clock."""
    return time.time_ns() // 1_000_000


def eventually(
    look: Callable[[], Any],
    timeout_s: float = 60.0,
    *,
    every_s: float = 0.02,
    otherwise: Callable[[], object] = lambda: "it did not happen in time",
) -> Any:
    """Look until what is found is true; what was found. ``otherwise``: what a failure says."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, otherwise()
        time.sleep(every_s)
    return found

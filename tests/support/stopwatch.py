"""How long something took, less what this machine made it wait for others.

A limit in a test is a claim about what the code itself waits for. On a machine that is busy with
something else everything takes longer, and says nothing about that. Linux counts for how long
anybody who could run had to wait for a processor or for the disk (*pressure stall information*):
these seconds are taken off. Where they are not counted, nothing is taken off.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

_TOTAL = re.compile(r"^some .*total=(\d+)", re.MULTILINE)


class Stopwatch:
    """Runs from construction on."""

    def __init__(self) -> None:
        self._stalled_s_before = _stalled_s()
        self._began_s = time.monotonic()

    @property
    def wall_s(self) -> float:
        """For lower limits: nothing may come too early by anybody's clock."""
        return time.monotonic() - self._began_s

    @property
    def seconds(self) -> float:
        """For upper limits."""
        return max(0.0, self.wall_s - self.stalled_s)

    @property
    def stalled_s(self) -> float:
        """For upper limits of what others have timed meanwhile."""
        return _stalled_s() - self._stalled_s_before


def _stalled_s() -> float:
    total_us = 0
    for what in ("cpu", "io"):
        try:
            found = _TOTAL.search(Path(f"/proc/pressure/{what}").read_text())
        except OSError:
            continue
        total_us += 0 if found is None else int(found[1])
    return total_us / 1e6

"""The one clock of replication: monotonic, and it goes on while the machine sleeps.

A lease that is measured by a clock which stands still in a suspended machine would be believed by
its holder long after the others have elected another master.
"""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since the machine started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

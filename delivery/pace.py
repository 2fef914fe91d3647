"""When the hand begins its next chunk: at a moderate rate, rows wait for each other.

Theory: a chunk of one row costs nearly as much as one of a hundred, as most of its cost is calls,
syncs and threads that wake each other. So after a chunk the hand waits until it has used at most
``_SHARE`` of a core, and what becomes due meanwhile leaves together. Three bounds keep that short:

- From the begin of one chunk to that of the next are at most ``LONGEST_S``.
- The next chunk is expected to have at most ``ROWS_MAX`` rows at the rate of the last one. Beyond
  500 values NumPy gives the interpreter away in each call, and gets it back milliseconds later.
- It is a distance between two chunks: a row that becomes due after a pause leaves at once.

For example, at 10,000 rows a second a chunk that takes 0.8 ms of the processor is followed by the
next one 8 ms after it began, with 80 rows; at 50,000 rows a second 5 ms after it, with 250.
"""

from __future__ import annotations

LONGEST_S = 0.009
ROWS_MAX = 250
_SHARE = 0.1


class Pace:
    """The distance between two chunks, from the cost of the last one."""

    def __init__(self) -> None:
        self._began_s = float("-inf")

    def next_s(self, began_s: float, rows: int, cost_s: float) -> float:
        """Returns when the next chunk may begin, s. This one began at ``began_s`` on the same
        clock, had ``rows`` rows, and took ``cost_s`` of processor time."""
        since_s, self._began_s = began_s - self._began_s, began_s
        return began_s + min(LONGEST_S, cost_s / _SHARE, since_s * ROWS_MAX / max(1, rows))

"""The newest entries of the journal, in memory, for peers that are almost up to date.

Theory: a standby that keeps up asks for what was written a moment ago; reading that back from disk
would cost a pass over the segment for each of them. Memory is shared with the tail while the rows
are there, and bounded whatever is asked. Older entries come from the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .entry import HEADER_BYTES, Entry

_BYTES_MAX = 16 << 20


class RecentEntries:
    """Consecutive entries, the newest ones. Not thread-safe: used under the owner's lock."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries. If they do not follow on from the last one, those before are dropped."""
        for entry in entries:
            if self._entries and entry.index != self._entries[-1].index + 1:
                self.clear()
            self._entries.append(entry)
            self._bytes += _nbytes(entry)
        while self._bytes > _BYTES_MAX and len(self._entries) > 1:
            self._bytes -= _nbytes(self._entries.popleft())

    def cut_after(self, index: int) -> None:
        while self._entries and self._entries[-1].index > index:
            self._bytes -= _nbytes(self._entries.pop())

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def get(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries from ``first`` to at most ``last``, of ``bytes_max`` bytes together, but one at
        least; none if ``first`` is not here."""
        if not self._entries or not self._entries[0].index <= first <= self._entries[-1].index:
            return []
        start = first - self._entries[0].index
        taken: list[Entry] = []
        size = 0
        for at in range(start, min(len(self._entries), start + last - first + 1)):
            size += _nbytes(self._entries[at])
            if taken and size > bytes_max:
                break
            taken.append(self._entries[at])
        return taken


def _nbytes(entry: Entry) -> int:
    return HEADER_BYTES + memoryview(entry.payload).nbytes

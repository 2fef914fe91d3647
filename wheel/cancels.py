"""Cancels of this epoch: what holds a row back, and what makes an answer truthful.

Theory: a cancel is a row in its target's slot. Once it is in a slot file, whoever reads the slot
sees it; until then this register is what delivery looks at. It also remembers what it knows of the
past, so that a second cancel gets the same answer, and a question about a row that has left gets a
true one: *already delivered* only if it is known that no cancel came first.

Memory is bounded: the oldest seconds go first, and a floor says up to which due time nothing is
known any more. A second that still has unspilled or uncommitted cancels is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .config import TICK_MS
from .receipt import Receipt
from .schema import Int64s

_NONE = np.empty(0, np.int64)
_NEAR_SECONDS = 120
"""Seconds this close ahead of the hand keep their cancels: a reader may have the slot open."""


@dataclass(slots=True)
class _Second:
    committed: set[int] = field(default_factory=set)
    pending: dict[int, Future[Receipt]] = field(default_factory=dict)
    newest: int = -1
    """Highest offset of a cancel row itself."""
    file_read: bool = False
    sorted: Int64s | None = None
    """``committed`` in order, made when it is asked for."""

    def __len__(self) -> int:
        return len(self.committed) + len(self.pending)


class Cancels:
    """By second and target offset. Not thread-safe: used under the owner's lock."""

    def __init__(self, remembered_max: int) -> None:
        self._max = remembered_max
        self._seconds: dict[int, _Second] = {}
        self._count = 0
        self.floor_ms = -1
        """Of rows due at or before this, it is not known whether they were cancelled."""

    def __len__(self) -> int:
        return self._count

    def add(
        self, due: int, target: int, cancel_offset: int, pending: Future[Receipt] | None
    ) -> None:
        """A cancel row with its own offset ``cancel_offset`` names ``target``."""
        second = self._seconds.setdefault(due // TICK_MS, _Second())
        self._count -= len(second)
        second.newest = max(second.newest, cancel_offset)
        if pending is not None:
            second.pending[target] = pending
        else:
            second.committed.add(target)
            second.sorted = None
        self._count += len(second)

    def add_from_file(self, at_second: int, targets: Iterable[int]) -> None:
        """What a slot's file says; needed at most once a second (``file_read``)."""
        second = self._seconds.setdefault(at_second, _Second())
        self._count -= len(second)
        second.file_read = True
        second.committed.update(targets)
        second.sorted = None
        self._count += len(second)

    def file_read(self, at_second: int) -> bool:
        second = self._seconds.get(at_second)
        return second is not None and second.file_read

    def committed(self, due: int, target: int, cancel_offset: int) -> None:
        """A cancel row is committed: one that was registered here, or another master's."""
        second = self._seconds.get(due // TICK_MS)
        if second is not None and second.pending.pop(target, None) is not None:
            self._count -= 1
        self.add(due, target, cancel_offset, None)

    def revert(self, due: int, target: int) -> None:
        """The entry with that cancel was never written."""
        second = self._seconds.get(due // TICK_MS)
        if second is not None and second.pending.pop(target, None) is not None:
            self._count -= 1

    def get(self, due: int, target: int) -> tuple[bool, Future[Receipt] | None]:
        """Whether a cancel of that row is known, and its future while it is not committed."""
        second = self._seconds.get(due // TICK_MS)
        if second is None:
            return False, None
        if target in second.committed:
            return True, None
        pending = second.pending.get(target)
        return pending is not None, pending

    def pending(self, at_second: int) -> Iterable[int]:
        """Targets whose cancel is not committed yet."""
        second = self._seconds.get(at_second)
        return second.pending if second is not None else ()

    def targets(self, at_second: int) -> Int64s:
        """Cancelled offsets of a second in ascending order."""
        second = self._seconds.get(at_second)
        if second is None:
            return _NONE
        if second.sorted is None:
            second.sorted = np.sort(np.fromiter(second.committed, np.int64, len(second.committed)))
        return second.sorted

    def evict(
        self, covered_before_second: int, covered_offset: int, now_second: int, spilled: int
    ) -> None:
        """Forget the oldest until the bound holds.

        A second before ``covered_before_second`` whose cancels have offsets up to
        ``covered_offset`` has left whole, late rows too; forgetting it raises the floor. A second
        far ahead can be forgotten when all its cancels are committed and spilled (below offset
        ``spilled``): its file will be read again when needed.
        """
        if self._count <= self._max:
            return
        for at in sorted(self._seconds):
            if self._count <= self._max:
                return
            second = self._seconds[at]
            if second.pending:
                continue
            if at < covered_before_second and second.newest <= covered_offset:
                self.floor_ms = max(self.floor_ms, (at + 1) * TICK_MS - 1)
            elif at <= now_second + _NEAR_SECONDS or second.newest >= spilled:
                continue
            self._count -= len(second)
            del self._seconds[at]


def members(sorted_values: Int64s, values: Int64s) -> npt.NDArray[np.bool_]:
    """Which of ``values`` are in ``sorted_values``; shape of ``values``."""
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    found: npt.NDArray[np.bool_] = sorted_values[at] == values
    return found

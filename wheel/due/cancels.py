"""The register of cancels: what holds a row back, and what makes an answer truthful.

Theory: a cancel is a row in its target's slot. Once it is in a slot file, every reader of the slot
finds it; until then delivery finds it in this register. The register also keeps past cancels, so
that a second cancel of a message gets the same answer, and a row that has left gets a true one:
*already delivered* only if it is known that no cancel came first.

Memory is bounded, in cancels and in seconds: the oldest seconds go first, also those without a
cancel, of which it is known that there is none. What is forgotten here can be read again: in the
tail, in a slot file, or in the record of its second (``wheel/slots/cancelled.py``). So a second
with uncommitted cancels is never dropped, nor one that has left before its cancels are spilled, as
nobody opens its slot again. Neither is a second about which a request is being decided.

*Example.* Half a million messages of a year are cancelled at once, each in a second of its own. A
spill comes every ten seconds, and the register is looked at once a second: it has 8,192 seconds,
those of the last moment, and those of requests under way. With all that a spill waits for it would
take a hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..answers import AppendReceipt
from ..config import TICK_MS
from ..journal.payloads import CancelRows
from ..schema import Int64s, Mask

_NONE = np.empty(0, np.int64)
_SECOND_COSTS = 8
"""A second counts as so many cancels, as it takes as much memory."""
_SECONDS_MAX = 8_192
"""Two hours and some minutes: however many slots a wheel has, no more seconds are kept when their
cancels can be read again. Each takes half a kilobyte, and each eviction looks at all of them."""
_NEAR_SECONDS = 120
"""Seconds this close ahead of the clock, or of the mark if the clock was set back, keep their
cancels: a reader may have the slot open."""


@dataclass(slots=True)
class _Second:
    committed: set[int] = field(default_factory=set)
    pending: dict[int, Future[AppendReceipt]] = field(default_factory=dict)
    newest: int = -1
    """Highest offset of a cancel row itself."""
    file_read: bool = False
    sorted: Int64s | None = None
    """``committed`` in order, made when it is asked for."""

    def __len__(self) -> int:
        return len(self.committed) + len(self.pending)


class Cancels:
    """The register, by second and target offset. Not thread-safe: under the owner's lock."""

    def __init__(self, remembered_max: int) -> None:
        self._max = remembered_max
        self._seconds: dict[int, _Second] = {}
        self._count = 0
        self._pinned: list[Set[int]] = []
        self._forgotten = -1
        """The highest offset of a cancel row that was forgotten."""

    def __len__(self) -> int:
        return self._count

    def add(self, rows: CancelRows, pending: Future[AppendReceipt]) -> None:
        """Register cancels that are on their way to the journal."""
        for at_second, target, own in _rows_of(rows):
            second = self._second(at_second)
            second.newest = max(second.newest, own)
            if target not in second.pending:
                self._count += 1
            second.pending[target] = pending

    def add_from_file(self, at_second: int, targets: Iterable[int]) -> None:
        """Register all cancels of a second that has been opened to be delivered: those in its slot
        files, and those in the tail that are not here any more."""
        second = self._seconds.setdefault(at_second, _Second())
        self._count -= len(second)
        second.committed.update(targets)
        second.sorted = None
        second.file_read = True
        self._count += len(second)

    def file_read(self, at_second: int) -> bool:
        second = self._seconds.get(at_second)
        return second is not None and second.file_read

    def pin(self, seconds: Set[int]) -> None:
        """What comes in about these seconds stays until ``unpin`` of the same set: else a decision
        could miss a cancel that was neither in the files when they were read nor is here."""
        self._pinned.append(seconds)

    def unpin(self, seconds: Set[int]) -> None:
        self._pinned = [pinned for pinned in self._pinned if pinned is not seconds]

    def misses_unspilled(self, spilled: int) -> bool:
        """True if a cancel that is not in a slot file, as its offset is not below ``spilled``, may
        have been forgotten: then the tail has to be looked at, too."""
        return self._forgotten >= spilled

    def committed(self, rows: CancelRows) -> None:
        """Register committed cancels: some that were added here before, or another master's."""
        for at_second, target, own in _rows_of(rows):
            second = self._second(at_second)
            second.newest = max(second.newest, own)
            if second.pending.pop(target, None) is not None:
                self._count -= 1
            if target not in second.committed:
                second.committed.add(target)
                second.sorted = None
                self._count += 1

    def _second(self, at_second: int) -> _Second:
        second = self._seconds.get(at_second)
        if second is None:
            second = self._seconds[at_second] = _Second()
        return second

    def revert(self, rows: CancelRows) -> None:
        """Cancels are pending no longer, as their entry was not written."""
        for at_second, target, _ in _rows_of(rows):
            second = self._seconds.get(at_second)
            if second is not None and second.pending.pop(target, None) is not None:
                self._count -= 1

    def find(self, due: Int64s, offset: Int64s) -> tuple[Mask, dict[int, Future[AppendReceipt]]]:
        """The mask of rows with a committed cancel, shape (rows,); and, by position, the futures of
        cancels that are not committed yet."""
        known = np.zeros(len(due), np.bool_)
        pending: dict[int, Future[AppendReceipt]] = {}
        seconds = map(self._seconds.get, (due // TICK_MS).tolist())
        for row, (second, target) in enumerate(zip(seconds, offset.tolist(), strict=True)):
            if second is None:
                continue
            if target in second.committed:
                known[row] = True
            elif (future := second.pending.get(target)) is not None:
                pending[row] = future
        return known, pending

    def pending(self, at_second: int) -> Collection[int]:
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

    def over_bound(self) -> list[int]:
        """All seconds, in no order, when there is more than the bounds allow; else none. They are
        sorted and given to ``evict`` in shares, the lock let go between these: a register that is
        sorted and emptied at once would hold up appends for as long as it has seconds."""
        over = self._load > self._max or len(self._seconds) > _SECONDS_MAX
        return list(self._seconds) if over else []

    def evict(
        self,
        seconds: Sequence[int],
        covered_before_second: int,
        covered_offset: int,
        now_second: int,
        spilled: int,
    ) -> None:
        """Forget those of ``seconds`` that can be forgotten, in this order, until there is an
        eighth less than the bounds allow.

        A second can be forgotten when all its cancels are committed, and no reader has its slot
        open: it is far ahead; or it is before ``covered_before_second`` with cancels up to
        ``covered_offset``, so that it has left whole, late rows too, and its cancels are spilled
        (below offset ``spilled``).
        """
        far = max(now_second, covered_before_second) + _NEAR_SECONDS
        for at in seconds:
            few = len(self._seconds) <= _SECONDS_MAX * 7 // 8
            if few and self._load <= self._max * 7 // 8:
                return
            second = self._seconds.get(at)
            if second is None or second.pending or any(at in pinned for pinned in self._pinned):
                continue
            has_left = at < covered_before_second and second.newest <= covered_offset
            if at > far or (has_left and second.newest < spilled):
                self._forgotten = max(self._forgotten, second.newest)
                self._count -= len(second)
                del self._seconds[at]

    @property
    def _load(self) -> int:
        return self._count + _SECOND_COSTS * len(self._seconds)


def _rows_of(rows: CancelRows) -> Iterable[tuple[int, int, int]]:
    """Of each cancel row the second of its due time, its target and its own offset. They are plain
    numbers, row by row: every row may have another second, and to gather those of a second, by
    NumPy or in lists, takes longer than all else, under the owner's lock."""
    seconds = (rows.due // TICK_MS).tolist()
    return zip(seconds, rows.target.tolist(), rows.own.tolist(), strict=True)


def among(known: Collection[Any], values: npt.NDArray[Any]) -> Mask:
    """The mask of those of a few ``values`` that are in a set, which may be large."""
    if not known:
        return np.zeros(len(values), np.bool_)
    return np.fromiter((value in known for value in values.tolist()), np.bool_, len(values))

"""What a consumer instance holds: its partitions, records that wait to be given, and positions.

Theory: a source reads ahead; what an answer has no room for waits here for the next request. So the
position is ours: behind the last record that an answer had, not behind what was read. It is what is
committed, whoever asks for it.

Rules
- All methods may be called from any thread: the source's own one tells of changes of the group.
- Records of a partition that is revoked are given to nobody any more: another member has them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...consumer.message import Received, SourcePartition


class Holdings:
    """An ``Assignment`` (``consumer/source.py``). ``auto_commit``: at a rebalance, too."""

    def __init__(self, *, auto_commit: bool) -> None:
        self._auto_commit = auto_commit
        self._mutex = threading.Lock()
        self._held: set[SourcePartition] = set()
        self._waiting: deque[Received] = deque()
        self._out: Counter[SourcePartition] = Counter()
        """Of each partition, how many records were taken and are neither given nor put back."""
        self._positions: dict[SourcePartition, int] = {}
        self._committed: dict[SourcePartition, int] = {}
        self._ends: dict[SourcePartition, int] = {}
        """Behind the last thing that was read, a record or a mark of a transaction."""

    @property
    def partitions(self) -> list[SourcePartition]:
        """Those that it has now."""
        with self._mutex:
            return sorted(self._held)

    def missing(self, partitions: Collection[SourcePartition]) -> list[SourcePartition]:
        """Those that it has not."""
        with self._mutex:
            return [one for one in partitions if one not in self._held]

    @property
    def more_waits(self) -> bool:
        return bool(self._waiting)

    def keep(self, records: Iterable[Received], seen: Mapping[SourcePartition, int]) -> None:
        """``seen``: the last offset read of each partition, be it of a record, or of a transaction
        marker or an aborted record behind it."""
        with self._mutex:
            self._waiting += [one for one in records if _place(one) in self._held]
            waiting = {_place(one) for one in self._waiting} | self._out.keys()
            for partition, offset in seen.items():
                if partition in self._held:
                    self._ends[partition] = offset + 1
                    if partition not in waiting:
                        self._positions[partition] = offset + 1

    def take(self, bytes_max: int, count: int, *, first: bool) -> list[Received]:
        """So many of the waiting records, and of so many bytes; with ``first`` one at least, of
        whatever size."""
        taken: list[Received] = []
        with self._mutex:
            while self._waiting and len(taken) < count:
                nbytes = size_of(self._waiting[0])
                if nbytes > bytes_max and not (first and not taken):
                    break
                bytes_max -= nbytes
                taken.append(self._waiting.popleft())
            self._out.update(map(_place, taken))
        return taken

    def put_back(self, taken: Sequence[Received]) -> None:
        with self._mutex:
            self._out -= Counter(map(_place, taken))
            self._waiting.extendleft(one for one in reversed(taken) if _place(one) in self._held)

    def gave(self, taken: Sequence[Received]) -> None:
        """An answer has these records."""
        with self._mutex:
            self._out -= Counter(map(_place, taken))
            for one in taken:
                if _place(one) in self._held:
                    self._positions[_place(one)] = one.offset + 1
            waiting = {_place(one) for one in self._waiting} | self._out.keys()
            for place in {_place(one) for one in taken} - waiting:
                if place in self._held:  # behind them stand only marks
                    self._positions[place] = max(self._positions[place], self._ends.get(place, 0))

    def sought(self, positions: Mapping[SourcePartition, int]) -> None:
        """These partitions are read from elsewhere now."""
        with self._mutex:
            self._waiting = deque(one for one in self._waiting if _place(one) not in positions)
            self._positions |= self._of_held(positions)
            for one in positions:
                self._ends.pop(one, None)

    def uncommitted(
        self, among: Collection[SourcePartition] | None = None
    ) -> dict[SourcePartition, int]:
        """Positions that are not committed."""
        with self._mutex:
            return {
                one: position
                for one, position in self._positions.items()
                if position != self._committed.get(one) and (among is None or one in among)
            }

    def clear(self) -> None:
        with self._mutex:
            self._held.clear()
            self._waiting.clear()
            self._positions.clear()
            self._committed.clear()
            self._ends.clear()
            self._out.clear()

    # ``Assignment``

    def assigned(self, partitions: Sequence[SourcePartition], _member: Any) -> None:
        with self._mutex:
            self._held |= set(partitions)

    def finished(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        return self.uncommitted(partitions) if self._auto_commit else {}

    def committed(self, positions: Mapping[SourcePartition, int]) -> None:
        with self._mutex:
            self._committed |= self._of_held(positions)

    def _of_held(self, positions: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
        """Without those that were revoked meanwhile: what another member has is not committed."""
        return {one: position for one, position in positions.items() if one in self._held}

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        gone = set(partitions)
        with self._mutex:
            self._held -= gone
            self._waiting = deque(one for one in self._waiting if _place(one) not in gone)
            for one in gone:
                self._positions.pop(one, None)
                self._committed.pop(one, None)
                self._ends.pop(one, None)
                self._out.pop(one, None)


def _place(record: Received) -> SourcePartition:
    return SourcePartition(record.topic, record.partition)


def size_of(record: Received) -> int:
    """Bytes of key and value, which is what that interface counts."""
    return len(record.key or b"") + len(record.value or b"")

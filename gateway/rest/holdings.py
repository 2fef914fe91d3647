"""The holdings of a consumer instance: its partitions, records that wait, and positions.

Theory: a source reads ahead; records for which an answer has no room wait here for the next
request. So the position is kept here, behind the last record that an answer had: committing the
source's own would lose the waiting records.

Rules
- All methods may be called from any thread: the source's own one reports changes of the group.
- Records of a revoked partition are dropped: another member gets them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...consumer.message import Received, SourcePartition


class Holdings:
    """An ``Assignment`` (``consumer/source.py``). ``auto_commit``: positions are committed at a
    rebalance, too."""

    def __init__(self, *, auto_commit: bool) -> None:
        self._auto_commit = auto_commit
        self._mutex = threading.Lock()
        self._held: set[SourcePartition] = set()
        self._waiting: deque[Received] = deque()
        self._out: Counter[SourcePartition] = Counter()
        """By partition, the number of records that were taken, and neither given nor put back."""
        self._positions: dict[SourcePartition, int] = {}
        self._committed: dict[SourcePartition, int] = {}
        self._ends: dict[SourcePartition, int] = {}
        """The offset behind the last one that was read, of a record or a mark of a transaction."""

    @property
    def partitions(self) -> list[SourcePartition]:
        """The partitions of this instance, sorted."""
        with self._mutex:
            return sorted(self._held)

    def missing(self, partitions: Collection[SourcePartition]) -> list[SourcePartition]:
        """Those of ``partitions`` that this instance does not have."""
        with self._mutex:
            return [partition for partition in partitions if partition not in self._held]

    @property
    def more_waits(self) -> bool:
        return bool(self._waiting)

    def keep(self, records: Iterable[Received], seen: Mapping[SourcePartition, int]) -> None:
        """Keep records that were read. ``seen``: the last offset read of each partition, of a
        record, or of a mark or an aborted record behind it."""
        with self._mutex:
            self._waiting += [record for record in records if _place(record) in self._held]
            waiting = {_place(record) for record in self._waiting} | self._out.keys()
            for partition, offset in seen.items():
                if partition in self._held:
                    self._ends[partition] = offset + 1
                    if partition not in waiting:
                        self._positions[partition] = offset + 1

    def take(self, bytes_max: int, count: int, *, first: bool) -> list[Received]:
        """Take waiting records, up to ``count`` and ``bytes_max``; with ``first`` at least one, of
        whatever size: a large record would wait for ever."""
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
            self._waiting.extendleft(
                record for record in reversed(taken) if _place(record) in self._held
            )

    def gave(self, taken: Sequence[Received]) -> None:
        """Note that an answer has these records."""
        with self._mutex:
            self._out -= Counter(map(_place, taken))
            for record in taken:
                if _place(record) in self._held:
                    self._positions[_place(record)] = record.offset + 1
            waiting = {_place(record) for record in self._waiting} | self._out.keys()
            for place in set(map(_place, taken)) - waiting:
                if place in self._held:  # only marks follow them
                    self._positions[place] = max(self._positions[place], self._ends.get(place, 0))

    def sought(self, positions: Mapping[SourcePartition, int]) -> None:
        """Note that partitions are read from ``positions`` on; drop their waiting records."""
        with self._mutex:
            kept = (record for record in self._waiting if _place(record) not in positions)
            self._waiting = deque(kept)
            self._positions |= self._of_held(positions)
            for partition in positions:
                self._ends.pop(partition, None)

    def uncommitted(
        self, among: Collection[SourcePartition] | None = None
    ) -> dict[SourcePartition, int]:
        """Positions that are not committed, of the partitions ``among``; None: of all."""
        with self._mutex:
            return {
                partition: position
                for partition, position in self._positions.items()
                if position != self._committed.get(partition)
                and (among is None or partition in among)
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
        """The positions without those of partitions that were revoked meanwhile."""
        return {place: position for place, position in positions.items() if place in self._held}

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        gone = set(partitions)
        with self._mutex:
            self._held -= gone
            self._waiting = deque(record for record in self._waiting if _place(record) not in gone)
            for partition in gone:
                self._positions.pop(partition, None)
                self._committed.pop(partition, None)
                self._ends.pop(partition, None)
                self._out.pop(partition, None)


def _place(record: Received) -> SourcePartition:
    return SourcePartition(record.topic, record.partition)


def size_of(record: Received) -> int:
    """The bytes of key and value, which that interface counts."""
    return len(record.key or b"") + len(record.value or b"")

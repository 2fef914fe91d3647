"""Records of cancels: which messages were cancelled in seconds that have left.

Theory: a cancel is a row in the slot of the message that it names, and leaves with it. Without
anything else a wheel that was started again could not tell a cancelled message from a delivered
one. So the transaction that lets go of cancel rows - a cleaning that deletes their slot file, a
spill that drops them from the tail - also adds the offsets that they name to the record of their
second. Every peer does so for itself, from the same rows.

    register -> slot file -> record of the second -> removed two hours after the second

*Example.* Second 100 holds messages 5 and 6, and cancel row 7, which names 5. When its file is
deleted, the record of second 100 becomes {5}: asked later, 5 was cancelled and 6 delivered.

Rules
- A record is kept for two hours behind the mark, or for a horizon if that is shorter, and all of
  them together up to ``BYTES_MAX``. The oldest go first; up to the *floor*, a due time, nothing is
  known of what was cancelled. So there are some 7,200 records, however many slots there are.
- Cancels of older seconds make no record; they only raise the floor. The file of a day is deleted
  when the day is over, and records of its 86,400 seconds would be made only to be removed at once.
  While it is there its cancels are read in it, however old: then *cancelled* is known for longer
  than two hours, and *delivered* is not, as a file of a second had cancels of that time, too.
- A record is *incomplete* where a slot file was damaged or replaced when it was to be added. Then
  an offset that it has is cancelled, and of another one nothing is known.
- A second without cancels has no record and costs nothing.

Byte layout: docs/formats.md, "State".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..cancelrecord import CancelRecord, is_incomplete
from ..config import MIB, TICK_MS
from ..errors import Damaged
from ..journal.payloads import CancelRows
from ..mark import Marks
from ..schema import Int64s, Mask
from ..state import StateStore, StoredState
from ..tail.tail import Piece

BYTES_MAX = 32 * MIB
"""The limit of all records together; 10 million cancels take some 16 MiB."""


@dataclass(frozen=True, slots=True)
class CancelledUpdate:
    """The changes of one transaction to the records; its fields are those of ``StateUpdate``."""

    records: Mapping[int, bytes] = field(default_factory=dict)
    deleted: tuple[int, ...] = ()
    floor_ms: int | None = None


class CancelledSeconds:
    """A directory's records of cancels, each kept for ``kept_ms`` behind the mark. One thread plans
    and commits; ``known``, ``in`` and ``committed`` are called under the owner's lock."""

    def __init__(self, state: StateStore, kept_ms: int) -> None:
        self._state = state
        self._kept_ms = kept_ms
        self.load(StoredState())

    def load(self, stored: StoredState) -> None:
        """Take over the records of a state."""
        records = stored.cancelled
        self._sizes = {second: len(record) for second, record in records.items()}
        self._incomplete = {second for second, record in records.items() if is_incomplete(record)}
        self._floor_ms = -1 if stored.cancelled_floor is None else stored.cancelled_floor

    def __contains__(self, second: int) -> bool:
        return second in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def known(self, due: Int64s) -> Mask:
        """A mask for due times in ms, shape (rows,). True: of a message due then that has left, the
        record of its second says whether it was cancelled."""
        known: Mask = due > self._floor_ms
        if self._incomplete:
            incomplete = np.fromiter(self._incomplete, np.int64, len(self._incomplete))
            known &= ~np.isin(due // TICK_MS, incomplete)
        return known

    def offsets(self, second: int) -> Int64s:
        """The cancelled offsets in the record of a second, ascending. Errors: ``Damaged``, also if
        the record is gone: it was just removed as too old, and what stood in it is not known."""
        record = self._read(second)
        if record is None:
            raise Damaged(_where(second), 0, expected="a record", found="none")
        return record.offsets

    @staticmethod
    def recorded(stored: StoredState) -> Iterator[Int64s]:
        """The cancelled offsets in each record of a state. Errors: ``Damaged``."""
        for second, record in stored.cancelled.items():
            yield CancelRecord.decode(record, _where(second)).offsets

    def _read(self, second: int) -> CancelRecord | None:
        data = self._state.cancelled(second)
        return None if data is None else CancelRecord.decode(data, _where(second))

    def plan(
        self, cancels: CancelRows, marks: Marks, lost: Iterable[range] = ()
    ) -> CancelledUpdate:
        """The update that adds what ``cancels`` name, and removes records that are too old by
        ``marks``. ``lost``: seconds of which cancels may be missing, as they cannot be read.
        Nothing changes before ``committed``."""
        first_kept = (marks.main.c - self._kept_ms) // TICK_MS
        second = cancels.due // TICK_MS
        forgotten = second[second < first_kept].tolist()
        changed: dict[int, CancelRecord] = {}
        for at, offsets in _by_second(cancels.at(second >= first_kept)).items():
            changed[at] = self._before(at).with_more(offsets)
        for seconds in lost:
            forgotten += seconds[: max(0, first_kept - seconds.start)][-1:]
            for at in seconds[max(0, first_kept - seconds.start) :]:
                changed[at] = (changed.get(at) or self._before(at)).with_more(None)
        records = {at: record.encode() for at, record in changed.items()}
        sizes = self._sizes | {at: len(record) for at, record in records.items()}
        nbytes = sum(sizes.values()) if records else 0
        deleted = []
        for at in sorted(sizes):
            if at >= first_kept and nbytes <= BYTES_MAX:
                break
            nbytes -= sizes[at]
            deleted.append(at)
            records.pop(at, None)
        if not (deleted or forgotten):
            return CancelledUpdate(records)
        floor_ms = max(self._floor_ms, (max(deleted + forgotten) + 1) * TICK_MS - 1)
        return CancelledUpdate(records, tuple(deleted), floor_ms)

    def _before(self, second: int) -> CancelRecord:
        """The record of a second as it is now; empty if there is none."""
        if second not in self._sizes:
            return CancelRecord()
        try:
            return self._read(second) or CancelRecord()
        except Damaged:
            return CancelRecord(incomplete=True)

    def committed(self, update: CancelledUpdate) -> None:
        """Take over an update that is in the state by now."""
        for second, record in update.records.items():
            self._sizes[second] = len(record)
            if is_incomplete(record):
                self._incomplete.add(second)
        for second in update.deleted:
            self._sizes.pop(second, None)
            self._incomplete.discard(second)
        if update.floor_ms is not None:
            self._floor_ms = update.floor_ms


def _where(second: int) -> str:
    return f"the record of cancels of second {second}"


def covered_cancels(pieces: Iterable[Piece], marks: Marks) -> CancelRows:
    """The cancel rows that ``marks`` cover, which a spill drops."""
    covered = []
    for piece in pieces:
        if piece.cancels:
            rows = CancelRows.of(piece.rows, piece.base_offset)
            covered.append(rows.at(marks.all_covered(rows.due, rows.own)))
    return CancelRows.joined(covered)


def _by_second(cancels: CancelRows) -> dict[int, Int64s]:
    """By second, the offsets that cancel rows name."""
    if not len(cancels):
        return {}
    second = cancels.due // TICK_MS
    order = np.argsort(second, kind="stable")
    different, starts = np.unique(second[order], return_index=True)
    parts = np.split(cancels.target[order], starts[1:])
    return dict(zip(different.tolist(), parts, strict=True))

"""The events of reading a file, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..wheel.errors import Damaged, SlotwheelError
from ..wheel.mark import Marks
from ..wheel.schedules import FiredRun, ScheduleDelete, SchedulePut
from ..wheel.schema import Int64s
from .files import File
from .problems import INTEGRITY, Problem

ROWS_MAX = 1 << 16
"""Rows in one event; a single entry or block may have more."""
GONE = "gone meanwhile"
"""Begin of the note of a file that a running node deleted while it was read."""
BYTES_MAX = 8 << 20
"""Bytes in one event, likewise."""


@dataclass(frozen=True, slots=True)
class RowsSeen:
    """Rows of a file, of one or several consecutive entries or blocks.

    Their schema: JOURNAL and SLOT: ``ROW``; TOPIC and a DUMP of an embedded topic: the topic's own;
    other DUMP: ``DUMP_SCHEMA``; RECEIPTS: as written by the client.
    """

    file: File
    rows: pa.RecordBatch
    index: int | Int64s = -1
    """JOURNAL: index of the entry of each row."""
    epoch: int | Int64s = -1
    """JOURNAL: epoch of the entry of each row."""
    position: int = 0
    """RECEIPTS: number of the first row."""
    topic: str = ""
    """TOPIC, and DUMP of an embedded topic: its name."""
    group: str = ""
    """Likewise: the group in the rows' ids."""
    runs: Sequence[FiredRun] = ()
    """JOURNAL: which of the rows are runs of schedules, as their entries note it."""


@dataclass(frozen=True, slots=True)
class MarkSeen:
    """A mark in the journal."""

    file: File
    index: int
    epoch: int
    marks: Marks


@dataclass(frozen=True, slots=True)
class ConfigSeen:
    """A configuration in the journal."""

    file: File
    index: int
    epoch: int
    config: Mapping[str, Any]
    """Group, key and the rest, as ``decode_config`` gives it."""


@dataclass(frozen=True, slots=True)
class SchedulesSeen:
    """Changes of schedules in the journal."""

    file: File
    index: int
    epoch: int
    changes: Sequence[SchedulePut | ScheduleDelete]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event of a file. Indexes and offsets are -1 when it had no entry."""

    file: File
    note: str = ""
    damaged: bool = False
    """Rows of the file may be missing."""
    entries: int = 0
    first_index: int = -1
    last_index: int = -1
    last_epoch: int = -1
    first_offset: int = -1
    """First offset of the first entry, of any kind."""
    next_offset: int = -1
    """One behind the last offset of the last entry."""
    gone: bool = False
    """A running node deleted the file meanwhile, as it may."""
    indexes: Sequence[tuple[int, int]] = ()
    """JOURNAL: the entries that were read, as ranges of indexes with their ends excluded."""
    epochs: Sequence[tuple[int, int]] = ()
    """JOURNAL: the first index of each epoch in it, and the epoch."""


Event = RowsSeen | MarkSeen | ConfigSeen | SchedulesSeen | Problem | Ended


class Gathered:
    """Batches gathered for one event: the cost of an event is paid once for thousands of rows.
    ``made``: makes events of batches, none of which is empty."""

    def __init__(self, made: Callable[[list[pa.RecordBatch]], Iterator[Event]]) -> None:
        self._made = made
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Event]:
        if batch.num_rows:
            self._waiting.append(batch)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes
        if self._rows >= ROWS_MAX or self._nbytes >= BYTES_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[Event]:
        waiting, self._waiting = self._waiting, []
        self._rows = self._nbytes = 0
        if waiting:
            yield from self._made(waiting)


def damage(file: File, kind: str, position: int, expected: object, found: object) -> Problem:
    """A problem of a file's bytes. ``kind``: "damaged", "truncated", "unsorted", ..."""
    text = f"expected {expected}, found {found}"
    return Problem(INTEGRITY, kind, text, file=file.name, position=position)


def problem_of(file: File, error: SlotwheelError, position: int = 0, where: str = "") -> Problem:
    """A decoder's error at ``position``, or behind it, as a problem. ``where``: in another file."""
    if isinstance(error, Damaged):
        expected = f"{error.expected}{where}"
        return damage(file, "damaged", max(error.position, position), expected, error.found)
    return damage(file, "damaged", position, "a known version", error)

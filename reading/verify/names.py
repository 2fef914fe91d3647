"""Verifies the table of names: each run's bytes, and that it says what the slot files do.

Theory: a name is in its row, and the runs only say where. So what they say must follow from the
rows: the newest row of a name that no cancel row names has it. A run that misses a name would let a
second message have it; one that has too many would cancel a message that nobody replaced.

Rules
- Messages that have left are compared with nothing: their rows may be gone, and their names may
  still be in a run until that is merged. Which have is said by the newest mark in the journal:
  slot files are deleted by that, and the checkpoint's may be of a second before.
- 32 bytes are kept of each name in slot files.
- Where a slot file is damaged, the names in it are not known: that is said, and no fault of theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Files
from ...wheel.findings import CheckedFile, noted
from ...wheel.journal.entry import EntryKind
from ...wheel.journal.payloads import CancelRows
from ...wheel.journal.scan import walk
from ...wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ...wheel.journal.segment import is_segment_name
from ...wheel.mark import Marks
from ...wheel.named.runs import DIRECTORY, HeldNames, NameRun, decode_runs, is_run_name, merged
from ...wheel.named.table import held_in
from ...wheel.names import NameKeys
from ...wheel.rows import members
from ...wheel.schema import Int64s, Mask
from ...wheel.slots.slot import path_of
from ...wheel.state import StoredState
from ..slots import blocks_from
from .slots import LoadState, committed_bytes, in_time

_TRIES = 3
"""A running node may commit while its files are read: then they are read again."""
_NONE = np.empty(0, np.int64)


def verify_names(files: Files, load: LoadState) -> Iterator[CheckedFile]:
    """Check every run of names, then all of them against the slot files."""
    for _ in range(_TRIES):
        stored = load()
        items = list(_checked(files, stored))
        if all(item.ok for item in items) or load() == stored:
            break
    yield from items


def _checked(files: Files, stored: StoredState) -> Iterator[CheckedFile]:
    infos = decode_runs(stored.names or b"[]")
    runs = []
    for info in infos:
        item = CheckedFile("names", info.path, rows=info.names, nbytes=info.length)
        try:
            run = NameRun.open(files, info)
            _check_order(item, run)
            runs.append(run)
        except (Damaged, UnsupportedVersion, OSError) as error:
            item.error(error)
        yield item
    known = {info.path for info in infos}
    for name in files.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        if is_run_name(name) and path not in known:
            yield noted(
                "names",
                path,
                "a run that the state names",
                "one that it does not: removed when a node opens the directory",
            )
    if len(runs) == len(infos) and (runs or stored.checkpoint.named) and not stored.incoming:
        yield _compared(files, stored, runs)


def _check_order(item: CheckedFile, run: NameRun) -> None:
    places = run.places
    if len(places.newest()) != len(places) or not _ascends(places.first):
        item.fault(0, "each name once, in the order of the keys", "another order")
    if not _ascends(run.cancelled):
        item.fault(run.info.begin(4), "cancelled offsets, ascending", "another order")


def _ascends(values: np.ndarray) -> bool:
    return bool((values[1:] >= values[:-1]).all())


@dataclass(slots=True)
class _InSlots:
    """What slot files say of names."""

    parts: list[HeldNames] = field(default_factory=list)
    cancelled: list[Int64s] = field(default_factory=lambda: [_NONE])
    unread: int = 0

    def add(self, block: pa.RecordBatch) -> None:
        self.cancelled.append(CancelRows.of(block, None).target)
        held = held_in(block)
        if held is not None:
            self.parts.append(held)

    def pending(self, marks: Marks) -> HeldNames:
        """The rows that no cancel row names, and that have not left, in the order of their keys."""
        held = HeldNames.joined(self.parts) if self.parts else HeldNames.of(NameKeys(), [], [])
        cancelled = np.sort(np.concatenate(self.cancelled))
        gone = members(cancelled, held.offset) | marks.all_covered(held.due, held.offset)
        return held.at(~gone)


def _compared(files: Files, stored: StoredState, runs: list[NameRun]) -> CheckedFile:
    item = CheckedFile("names", DIRECTORY)
    said = _InSlots()
    for slot, info in in_time(stored.slots).items():
        try:
            data, _ = committed_bytes(files, slot, info)
            for _, block in blocks_from(pa.BufferReader(data), data.size, path_of(slot)):
                said.add(block)
        except (Damaged, UnsupportedVersion, OSError):
            said.unread += 1
    if said.unread:
        item.note(0, "all slot files", f"{said.unread} that cannot be read: names are not compared")
        return item
    marks = _newest_marks(files, stored)
    pending = said.pending(marks)
    newest = pending.newest()
    if len(newest) < len(pending):
        twice = np.setdiff1d(pending.offset, newest.offset)
        item.fault(
            0,
            "one pending message of a name",
            f"another of offset {twice[0]} ({len(twice)} of {len(pending)})",
        )
    table = _table(runs, marks)
    missing = np.setdiff1d(newest.offset, table)
    if len(missing):
        item.fault(
            0,
            "the names of all pending messages in the runs",
            f"none for offset {missing[0]} ({len(missing)} of {len(newest)})",
        )
    strange = np.setdiff1d(table, newest.offset)
    if len(strange):
        item.fault(
            0,
            "names of pending messages in slot files alone",
            f"one of offset {strange[0]} ({len(strange)} of {len(table)})",
        )
    return item


def _newest_marks(files: Files, stored: StoredState) -> Marks:
    """The newest marks in the journal; those of the checkpoint, if it has none. Damage of the
    journal is reported by who verifies that."""
    segments = [name for name in files.list(JOURNAL_DIRECTORY) if is_segment_name(name)]
    for name in sorted(segments, reverse=True):
        path, marks = f"{JOURNAL_DIRECTORY}/{name}", None
        with contextlib.suppress(Damaged, UnsupportedVersion, OSError):
            for located in walk(files, path):
                if located.entry.kind is EntryKind.MARK:
                    marks = Marks.decode(bytes(located.entry.payload), path)
        if marks is not None:
            return marks
    return stored.checkpoint.marks


def _table(runs: list[NameRun], marks: Marks) -> Int64s:
    """The offsets of the pending messages that have names by the runs."""
    if not runs:
        return _NONE

    def gone(due: Int64s, offset: Int64s) -> Mask:
        return marks.all_covered(due, offset)

    return np.concatenate([share.offset for share in merged(runs, gone)])

"""Makes views of a data directory, one after the other, beside a node that may write it.

Theory: the state store is loaded first, then the journal is read from behind the checkpoint to its
end. In this order no row is missing: one that a later spill takes out of the tail is in the journal
that was read. A slot file only grows, so its committed length stays readable; when it was deleted
meanwhile, reading it fails, and a new view is needed.

The expensive parts are kept from view to view: records of the catalog that did not change, and the
journal's rows. Rows below the checkpoint are dropped, so the memory needed is about that of the
node's own tail.

Rules
- The loaded state is of one commit (``LmdbState.generation``): parts of two commits would show a
  row twice, or not at all.
- A segment that was dropped before it was read means that the checkpoint has moved: look again.
  Only if it has not, a segment is missing.
- On a peer the journal may end in entries that are not committed yet; they count as rows here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa

from ...wheel.cancelrecord import CancelRecord
from ...wheel.config import TICK_MS
from ...wheel.errors import Damaged, InvalidConfiguration, SlotwheelError, UnsupportedVersion
from ...wheel.ids import LONG_FROM, IdMint
from ...wheel.mark import Marks
from ...wheel.schema import times
from ...wheel.state import STATE_DIRECTORY, LmdbState, StoredState
from ..directory import existing, is_data_directory, refuse_a_part
from ..events import ConfigSeen, MarkSeen, RowsSeen
from ..growing.journal import entry_at, look_at_journal
from ..growing.parts import JournalPart, read_part
from ..growing.positions import JournalAt
from ..listing import journal_segments
from ..problems import INTEGRITY, Problem
from ..state import load_state, not_its_own
from .view import AnswerPoint, TailPiece, View, joined

_LOOKS = 10
_MERGE_FACTOR = 2
"""A piece that is at most so many times larger than the next one is joined with it, so that there
are few pieces, and a row is copied few times."""
_PIECE_BYTES_MAX = 256 << 20
"""The largest piece that others are joined to, as Arrow's offsets have 31 bits."""


@dataclass(slots=True)
class _Journal:
    """The part of the journal behind the checkpoint that was read."""

    at: JournalAt
    marks: tuple[int, Marks] | None = None
    """The newest mark, with its index."""


class DirectoryWatch:
    """Makes views of one data directory. Not thread-safe.

    LMDB opens a store once a process: no node and no other watch of this process may have the
    directory open.
    """

    def __init__(self, root: Path | str) -> None:
        """Errors: ``InvalidConfiguration``: it is no data directory; ``Damaged``: its state cannot
        be read."""
        self.root = existing(str(root))
        if not is_data_directory(self.root):
            refuse_a_part(self.root)
            raise InvalidConfiguration(
                "not a data directory",
                got=str(root),
                remedy="Name the directory that the node was given with --data",
            )
        self._state: LmdbState | None = None
        self._inode = -1
        self._generation = -1
        self._stored = StoredState()
        self._journal: _Journal | None = None
        self._tail: list[TailPiece] = []
        self._mint: IdMint | None = None
        self._is_own = False
        """True when the state is known to belong to the journal beside it."""
        self._faulty = False
        """True when reading the journal found a fault: it is read anew from the checkpoint on."""

    def close(self) -> None:
        if self._state is not None:
            self._state.close()
            self._state = None

    def view(self) -> View:
        """A view of the directory now, with all rows that were acknowledged before the call.

        Errors: ``Damaged``, ``UnsupportedVersion``: of the state; ``OSError``.
        """
        problems: list[Problem] = []
        for look in range(_LOOKS):
            looked_ms = time.time_ns() // 1_000_000
            changed = self._load()
            if look > 1 and not changed:
                break  # neither has the checkpoint moved, nor was the journal's end replaced
            if self._faulty:
                self._journal = None
            problems = self._read_journal()
            self._faulty = bool(problems)
            if not problems:
                break
        return self._view(problems + self._of_directory(), looked_ms)

    def cancelled(self, second: int) -> CancelRecord:
        """The record of cancels of a second whose rows have left. Call it after ``view``: cancels
        that are not in that view any more are in the record. It is incomplete where they are not
        known any more.

        Errors: ``Damaged``.
        """
        state = self._opened()
        for look in range(_LOOKS):
            generation = state.generation()
            try:
                data, floor_ms = state.cancelled(second), state.cancelled_floor()
                break
            except (SlotwheelError, lmdb.Error, ValueError) as error:
                if state.generation() == generation or look + 1 == _LOOKS:
                    raise self._not_a_state(str(error)) from None
        record = CancelRecord()
        if data is not None:
            record = CancelRecord.decode(data, f"{self.root}: cancels of second {second}")
        if floor_ms is None or second * TICK_MS <= floor_ms:
            return record.with_more(None)
        return record

    # -- the state -------------------------------------------------------------------------------

    def _load(self) -> bool:
        state = self._opened()
        for look in range(_LOOKS):
            generation = state.generation()
            if generation == self._generation:
                return False
            try:
                stored = state.load(whole=False)
            except (SlotwheelError, lmdb.Error, ValueError) as error:
                if state.generation() != generation and look + 1 < _LOOKS:
                    continue  # pages were used again while they were read
                if isinstance(error, SlotwheelError):
                    raise
                raise self._not_a_state(str(error)) from None
            if state.generation() == generation:
                self._generation, self._stored = generation, stored
                return True
        raise self._not_a_state("another commit at each look")

    def _opened(self) -> LmdbState:
        data = self.root / STATE_DIRECTORY / "data.mdb"
        try:
            inode = data.stat().st_ino
        except FileNotFoundError:
            raise self._not_a_state("no such file") from None
        if self._state is None or inode != self._inode:
            self.close()
            load_state(self.root)  # pages behind the end of a shortened file would end the process
            self._state, self._inode = LmdbState(self.root, readonly=True), inode
            self._generation, self._journal, self._mint, self._is_own = -1, None, None, False
        return self._state

    def _not_a_state(self, found: str) -> Damaged:
        path = str(self.root / STATE_DIRECTORY)
        return Damaged(path, 0, expected="a state store", found=found)

    # -- the journal -----------------------------------------------------------------------------

    def _read_journal(self) -> list[Problem]:
        """Read new entries of the journal behind the checkpoint. Returns problems with them."""
        checkpoint = self._stored.checkpoint
        try:
            journal = self._journal
            if journal is None or journal.at.index <= checkpoint.index:
                # Entries in between were spilled before they were read.
                self._tail = []
                at = entry_at(self.root, checkpoint.index + 1)
                if at is None:
                    live = journal_segments(self.root, archive=False)
                    return [self._gap(checkpoint.index + 1, min(live))] if live else []
                self._journal = journal = _Journal(at)
            self._drop_below(checkpoint.next_offset)
            end, _ = look_at_journal(self.root, journal.at, archive=False)
            return self._read_to(journal, end) if end is not None else []
        except FileNotFoundError:
            return [self._gap(checkpoint.index + 1, checkpoint.index + 2)]
        except (Damaged, UnsupportedVersion) as error:
            return [Problem(INTEGRITY, "damaged", str(error), file="journal")]

    def _read_to(self, journal: _Journal, end: JournalAt) -> list[Problem]:
        start = journal.at
        restarted = end.restarts != start.restarts
        problems: list[Problem] = []
        rows: list[pa.RecordBatch] = []
        if end != start:
            part = JournalPart(0, self.root.name, str(self.root), start, end, archive=False)
            for event in read_part(part):
                if isinstance(event, RowsSeen):
                    rows.append(event.rows)
                elif isinstance(event, MarkSeen):
                    journal.marks = event.index, event.marks
                elif isinstance(event, ConfigSeen):
                    self._mint = IdMint.of(event.config)
                elif isinstance(event, Problem):
                    problems.append(event)
        if restarted:  # entries that were read before may have been replaced
            return problems or [Problem(INTEGRITY, "gap", end.note, file="journal")]
        journal.at = end
        self._add(rows)
        return problems

    def _add(self, batches: list[pa.RecordBatch]) -> None:
        spilled = self._stored.checkpoint.next_offset
        fresh = [rows for rows in (_from(rows, spilled) for rows in batches) if rows.num_rows]
        if not fresh:
            return
        waiting: list[pa.RecordBatch] = []
        for rows in fresh:
            if waiting and sum(part.nbytes for part in waiting) + rows.nbytes > _PIECE_BYTES_MAX:
                self._tail.append(joined(waiting))
                waiting = []
            waiting.append(rows)
        self._tail.append(joined(waiting))
        while len(self._tail) > 1 and _should_join(*self._tail[-2:]):
            last, before = self._tail.pop(), self._tail.pop()
            self._tail.append(joined([before.rows, last.rows]))

    def _drop_below(self, offset: int) -> None:
        kept = (piece.from_offset(offset) for piece in self._tail)
        self._tail = [piece for piece in kept if piece is not None]

    def _gap(self, first: int, behind: int) -> Problem:
        text = f"expected entry {first}, found that the journal begins with {behind}"
        return Problem(INTEGRITY, "gap", text, file="journal")

    # -- the view --------------------------------------------------------------------------------

    def _of_directory(self) -> list[Problem]:
        stored, problems = self._stored, []
        if stored.incoming:
            text = "a switch to a snapshot is not completed; start its node once"
            problems.append(Problem(INTEGRITY, "incomplete", text))
        if not self._is_own:
            segments = list(journal_segments(self.root, archive=False).values())
            mismatch = not_its_own(stored, segments)
            # Segments are dropped after the commit that makes them needless.
            if mismatch is not None and self._opened().generation() == self._generation:
                kind, text = mismatch
                problems.append(Problem(INTEGRITY, kind, text, file=STATE_DIRECTORY))
            self._is_own = mismatch is None
        return problems

    def _view(self, problems: list[Problem], looked_ms: int) -> View:
        checkpoint, journal = self._stored.checkpoint, self._journal
        marks = checkpoint.marks
        if journal is not None and journal.marks and journal.marks[0] > checkpoint.index:
            marks = journal.marks[1]
        behind = [piece.offsets[1] + 1 for piece in self._tail]
        point = AnswerPoint(
            next_offset=max([checkpoint.next_offset, *behind]),
            index=max(checkpoint.index, journal.at.index - 1 if journal is not None else 0),
            mark_ms=marks.main.c,
            mark_offset=marks.main.L,
            reach_ms=marks.reach,
            looked_ms=looked_ms,
        )
        lost = frozenset(loss.slot for loss in self._stored.losses)
        return View(
            dict(self._stored.slots),
            tuple(self._tail),
            marks,
            self._ids(),
            point,
            tuple(problems),
            lost,
        )

    def _ids(self) -> IdMint:
        """The mint of the group's ids, by the configuration of the checkpoint, or a later one in
        the journal, if the checkpoint has none, or one of before the group gave out long ids."""
        config = self._stored.checkpoint.config
        if self._mint is None or LONG_FROM in config:
            self._mint = IdMint.of(config)
        return self._mint


def _from(rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """The rows from an offset on; ``rows`` are in the order of their offsets."""
    return rows.slice(int(np.searchsorted(times(rows, "offset"), offset)))


def _should_join(before: TailPiece, last: TailPiece) -> bool:
    nbytes = before.rows.nbytes + last.rows.nbytes
    return before.count <= _MERGE_FACTOR * last.count and nbytes <= _PIECE_BYTES_MAX

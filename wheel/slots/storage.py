"""The resting place of committed rows: the tail in memory, slot files on disk, and their catalog.

Theory: the catalog in memory mirrors the state store. It changes only after a transaction has
committed, so whatever a reader sees is also what a restart would find. One thread spills and
deletes; any thread reads, through read points taken under the owner's lock.

Rules
- Spill: blocks -> durable -> one commit (catalog and checkpoint) -> drop the tail's rows. So a
  crash finds every row behind the checkpoint in the journal, or in a file that the catalog has.
- Delete: commit, then unlink. A crash in between leaves a file without a row in the catalog,
  which is removed at open.
- A slot is deleted only when every committed mark covers every row in it, or a held-back topic
  would lose its rows. A slot that is to be kept gets its name in the archive before the commit.
- The catalog changes in one assignment under the lock. Whatever takes longer the more slots there
  are is done beside the lock, or every append would wait for a spill into many slots.
- A commit that drops cancel rows also records what they named (``cancelled.py``). Otherwise a node
  that was started again would call a cancelled message delivered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..config import TICK_MS, WheelConfig
from ..errors import Damaged
from ..files import SLOT_DIRECTORY, Files
from ..mark import Marks
from ..rows import members, take_rows
from ..schema import ROW, Int64s, times
from ..state import Checkpoint, ProducerEntry, SlotInfo, StateStore, StateUpdate, StoredState
from ..tail.tail import Piece, Tail
from .archive import Archive
from .cancelled import CancelledSeconds, covered_cancels
from .catalog import Catalog
from .mend import complete, stage, switch
from .openslots import OpenSlots
from .slot import begins_ms, ends_ms, path_of
from .slotfile import MAP_FROM_BYTES, MAP_FROM_MIN_BYTES, SlotFiles, missing
from .spill import Ahead, blocks, in_turn

_SYNC_ONE_BY_ONE_MAX = 256
"""Up to so many files are synced one by one; more of them by one syncfs, which is faster for many
but stalls the journal's own syncs for some milliseconds."""

_FIRST_SECOND = -(1 << 62)
"""A second before all others."""

KnownCancels = Callable[[int], Int64s | None]
"""From a second to the offsets that the cancels in its file name; None: the file has to be read."""


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The places of rows at one instant: below ``spilled`` in files, others in ``pieces``."""

    info: SlotInfo | None
    spilled: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StockPoint:
    """The places of all rows at one instant, as ``ReadPoint`` has them of one slot. Rows below
    ``next_offset`` are committed; those that ``marks`` cover have left. ``replacements``: as of
    ``Storage``."""

    catalog: Mapping[int, SlotInfo]
    spilled: int
    pieces: tuple[Piece, ...]
    next_offset: int
    marks: Marks
    replacements: int


@dataclass(frozen=True, slots=True)
class SpillPlan:
    """The input of one spill: everything committed up to ``checkpoint.index``."""

    pieces: Sequence[Piece]
    checkpoint: Checkpoint
    producers: Mapping[int, Sequence[ProducerEntry]]
    producers_gone: Sequence[int]


@dataclass(frozen=True, slots=True)
class SpillReport:
    """``rows`` in ``nbytes`` went to the files of ``slots``; ``skipped`` rows had been covered."""

    rows: int
    skipped: int
    slots: int
    nbytes: int


class Storage:
    """The resting place of committed rows. ``lock`` is the owner's lock of the wheel."""

    def __init__(
        self, files: Files, state: StateStore, config: WheelConfig, lock: threading.RLock
    ) -> None:
        self._files = files
        self._state = state
        self._config = config
        self._lock = lock
        map_from = min(MAP_FROM_BYTES, max(MAP_FROM_MIN_BYTES, config.window_bytes_max))
        self.slot_files = SlotFiles(files, config.open_handles_max, map_from)
        self.archive = Archive(files, config)
        self.cancelled = CancelledSeconds(state, config.short_horizon_ms)
        self._open_slots = OpenSlots(self.slot_files, config.window_bytes_max)
        self.tail = Tail()
        self.spilled = 0
        """Committed rows below this offset are in slot files (or were covered)."""
        self.catalog = Catalog()
        """Replaced under the lock, by the thread that writes slot files."""
        self.damaged: dict[int, Damaged] = {}
        """By second: slot files whose bytes are not those that were written. Nothing is delivered
        from them until they are replaced (``replace``)."""
        self.replacements = 0
        """Counts slot files that were replaced by another one."""

    # -- opening ---------------------------------------------------------------------------------

    def recover(self, stored: StoredState) -> list[str]:
        """Bring the files in line with the state. Returns what was mended, one line each."""
        slots, spilled = stored.slots, stored.checkpoint.next_offset
        self.cancelled.load(stored)
        mended = complete(self._files, slots)
        for second, info in slots.items():
            cut = self.slot_files.cut(second, info)
            if cut:
                mended.append(f"{second}: cut {cut} bytes that were never committed")
        removed = [second for second in self.slot_files.seconds() if second not in slots]
        for second in removed:
            self.slot_files.remove(second)
            mended.append(f"{second}: removed a slot file that the catalog does not know")
        mended += self.archive.recover(slots)
        self.catalog = Catalog(slots)
        self.spilled = spilled
        return mended

    # -- reading ---------------------------------------------------------------------------------

    def read_point(self, second: int) -> ReadPoint:
        with self._lock:
            return ReadPoint(self.catalog.get(second), self.spilled, self.tail.pieces)

    def read_blocks(
        self, second: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The blocks of a slot as of a read point, with ``known`` only those behind it. Empty when
        the cleaner has deleted the slot since: then every row in it was covered.

        Errors: ``Damaged``.
        """
        try:
            blocks = self._open_slots.blocks(second, info, known)
            if second in self.damaged:
                self.note_sound(second, info)
            return blocks
        except FileNotFoundError:
            with self._lock:
                if second not in self.catalog:
                    return []
            error = missing(second, info)
            self.note_damage(second, info, error)
            raise error from None
        except Damaged as error:
            self.note_damage(second, info, error)
            raise

    def read_aside(self, second: int, info: SlotInfo) -> list[pa.RecordBatch]:
        """As ``read_blocks``, for who reads many slots and is in no hurry: it opens no file for
        others, or it would close those from which rows are about to leave, and it records no
        damage. Errors: ``Damaged``, ``OSError``."""
        if self._open_slots.has(second, info):
            return self.read_blocks(second, info)
        try:
            return self.slot_files.read(second, info)
        except FileNotFoundError:
            with self._lock:
                if second in self.catalog:
                    raise
            return []

    def open_ahead(self, after_ms: int, until_ms: int) -> bool:
        """Read and check one large slot file that is due in that time, as this takes longer than a
        slot's second; True if there was one. Errors: ``Damaged``."""
        catalog = self.catalog
        for second in range(after_ms // TICK_MS, until_ms // TICK_MS + 1):
            info = catalog.get(second)
            if info is None:
                continue
            large = info.length >= self.slot_files.map_from_bytes and second not in self.damaged
            if large and not self._open_slots.has(second, info):
                self.read_blocks(second, info)
                return True
        return False

    def note_damage(self, second: int, info: SlotInfo, error: Damaged) -> None:
        """Record that a slot file was found damaged, unless it was replaced meanwhile."""
        with self._lock:
            if self.catalog.get(second) == info:
                # A copy: the traceback of the raised one keeps the bytes of the file in memory.
                self.damaged.setdefault(second, copy(error))
                self._open_slots.forget(second)

    def note_sound(self, second: int, info: SlotInfo) -> None:
        """A slot file was read whole and is sound: if it is recorded as damaged, it was restored,
        and the record goes. Not if it has grown since: the damage may be in the new part."""
        with self._lock:
            if self.catalog.get(second) == info:
                self.damaged.pop(second, None)

    def file_behind(self, second: int | None) -> int | None:
        """The next second with a slot file, in due order; None if there is none."""
        return self.catalog.from_second(_FIRST_SECOND if second is None else second + 1)

    def late_seconds(self, last_second: int, offset: int) -> list[int]:
        """Seconds up to ``last_second`` whose files have rows from ``offset`` on."""
        catalog = self.catalog
        return [at for at in catalog.upto(last_second) if catalog[at].highest >= offset]

    def any_ends_within(self, after_ms: int, upto_ms: int) -> bool:
        """True if a slot with a file ends at ``after_ms < end <= upto_ms``."""
        second = self.catalog.from_second(after_ms // TICK_MS)
        return second is not None and ends_ms(second) <= upto_ms

    def next_second(self, after_ms: int) -> int | None:
        """The first second with a row due after ``after_ms``, from files and tail; None if none.

        The answer for slot files is the slot's second even if its rows there are all covered.
        """
        with self._lock:
            best = self.catalog.from_second((after_ms + 1) // TICK_MS)
            pieces = self.tail.pieces
        for piece in pieces:
            due = piece.due_after(after_ms)
            if due is not None and (best is None or due // TICK_MS < best):
                best = due // TICK_MS
        return best

    def cancelled_in_file(self, second: int) -> set[int]:
        """Targets of the cancel rows in a slot's file. Errors: ``Damaged``."""
        with self._lock:
            info = self.catalog.get(second)
        if info is None or info.cancels == 0:
            return set()
        targets: set[int] = set()
        for block in self.read_blocks(second, info):
            targets.update(cancelled_in(block))
        return targets

    def find(self, due: int, offset: int) -> pa.RecordBatch | None:
        """One row by its key (ROW schema, one row), or None if it is nowhere any more."""
        for row in self._rows_of(due // TICK_MS, np.array([offset], np.int64), ROW.names):
            return row if int(times(row, "due")[0]) == due else None
        return None

    def topics_of(self, second: int, offsets: Int64s) -> npt.NDArray[np.object_]:
        """The topics of rows of one slot by their ascending ``offsets``, shape (rows,); an empty
        one for a row that is nowhere any more. The slot's file is read once. Errors: ``Damaged``.
        """
        topics = np.full(len(offsets), "", object)
        for rows in self._rows_of(second, offsets, ["offset", "topic"]):
            at = np.searchsorted(offsets, times(rows, "offset"))
            topics[at] = rows.column("topic").to_numpy(zero_copy_only=False)
        return topics

    def _rows_of(
        self, second: int, offsets: Int64s, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one slot, in tail or file, by their ascending ``offsets``: batches of ``columns``
        with at most one row an offset."""
        point = self.read_point(second)
        for piece in point.pieces:
            first, last = np.searchsorted(offsets, [piece.base_offset, piece.next_offset])
            if first < last:
                yield piece.take(offsets[first:last] - piece.base_offset).select(columns)
        if point.info is None or not len(offsets) or offsets[0] > point.info.highest:
            return
        for block in self.read_blocks(second, point.info):
            at = np.flatnonzero(members(offsets, times(block, "offset")))
            if len(at):
                yield take_rows(block.select(columns), at)

    # -- writing: one thread ---------------------------------------------------------------------

    def spill(
        self,
        plan: SpillPlan,
        dropped: Callable[[Checkpoint], None],
        ahead: Ahead = in_turn,
    ) -> SpillReport:
        """Move the rows of ``plan.pieces`` that are not covered into slot files.

        ``ahead`` may sort and encode before it is needed; all writing happens here, in one order.

        ``dropped`` is called under the lock, in the same instant in which the rows change from the
        tail to the files. An ``OSError`` (a full disk) leaves everything as it was.
        """
        marks = plan.checkpoint.marks
        cancelled = self.cancelled.plan(covered_cancels(plan.pieces, marks), marks)
        changed: dict[int, SlotInfo] = {}
        rows = 0
        made: set[int] = set()
        try:
            for block in blocks(plan.pieces, marks.all_covered, ahead):
                info = self.catalog.get(block.second)
                if info is None:
                    made.add(block.second)
                changed[block.second] = self.slot_files.append(block, info)
                rows += block.rows
            self._make_durable(changed, bool(made))
            self._state.commit(
                StateUpdate(
                    checkpoint=plan.checkpoint,
                    slots=changed,
                    producers=plan.producers,
                    producers_deleted=plan.producers_gone,
                    cancelled=cancelled.records,
                    cancelled_deleted=cancelled.deleted,
                    cancelled_floor=cancelled.floor_ms,
                )
            )
        except OSError:  # the state store commits nothing then, either
            self._roll_back(made)
            raise
        self.slot_files.committed(changed)
        before, after = self.catalog, self.catalog.with_files(changed)
        with self._lock:
            self.catalog = after
            self.cancelled.committed(cancelled)
            self.spilled = max(self.spilled, plan.checkpoint.next_offset)
            self.tail.drop_below(self.spilled)
            dropped(plan.checkpoint)
        total = sum(piece.count for piece in plan.pieces)
        return SpillReport(rows, total - rows, len(changed), after.nbytes - before.nbytes)

    def _roll_back(self, seconds: Iterable[int]) -> None:
        """Remove new files of a spill that failed, before its commit. Their rows may be delivered
        before the next spill, and no commit would ever name the files."""
        for second in seconds:
            with contextlib.suppress(OSError):
                self.slot_files.remove(second)

    def _make_durable(self, changed: Mapping[int, SlotInfo], fresh: bool) -> None:
        if len(changed) > _SYNC_ONE_BY_ONE_MAX:
            self._files.sync_all()
            return
        for second in changed:
            self.slot_files.sync(second)
        if fresh:
            self._files.sync_dir(SLOT_DIRECTORY)

    def clean(
        self,
        marks: Marks,
        now_ms: int,
        known: KnownCancels = lambda _: None,
        at_most: int = 1024,
    ) -> int:
        """Delete up to ``at_most`` slot files that every one of the committed ``marks`` covers
        whole, or move them to the archive; returns how many. ``known`` may spare reading a file."""
        self.archive.trim(now_ms)
        catalog = self.catalog
        ended = catalog.upto(marks.main.c // TICK_MS)
        whole = (at for at in ended if marks.all_cover(ends_ms(at), catalog[at].highest))
        covered = list(islice(whole, at_most))
        if not covered:
            return 0
        cancelled = self.cancelled.plan(self._cancelled_in(covered, known), marks)
        kept = self.archive.keep_slots({second: catalog[second] for second in covered}, now_ms)
        try:
            self._state.commit(
                StateUpdate(
                    slots_deleted=covered,
                    cancelled=cancelled.records,
                    cancelled_deleted=cancelled.deleted,
                    cancelled_floor=cancelled.floor_ms,
                )
            )
        except OSError:
            self.archive.unlink_kept(kept)
            raise
        fewer = catalog.without(covered)
        with self._lock:
            self.catalog = fewer
            self.cancelled.committed(cancelled)
            for second in covered:
                self.damaged.pop(second, None)
        for second in covered:
            self._open_slots.forget(second)
            self.slot_files.remove(second)
        return len(covered)

    def _cancelled_in(
        self, seconds: Iterable[int], known: KnownCancels
    ) -> dict[int, Int64s | None]:
        """By second, the offsets that the cancels in its file name; None: the file is damaged."""
        named: dict[int, Int64s | None] = {}
        for second in seconds:
            if not self.catalog[second].cancels:
                continue
            targets = known(second)
            if targets is None:
                try:
                    read = self.cancelled_in_file(second)
                    targets = np.sort(np.fromiter(read, np.int64, len(read)))
                except Damaged:
                    targets = None
            named[second] = targets
        return named

    def replace(
        self,
        second: int,
        blocks: Sequence[pa.RecordBatch],
        update: StateUpdate,
        marks: Marks,
    ) -> None:
        """Put a file of ``blocks`` in the place of a damaged one; without blocks, delete the slot.
        The caller holds the lock of spilling and cleaning. ``update``: what else is committed.
        ``marks``: the committed ones; of a second that they have reached, cancels may be missing in
        the blocks.

        Errors: ``OSError``: nothing has changed. ``SyncFailed``.
        """
        reached = any(mark.furthest_ms >= begins_ms(second) for mark in marks.every)
        lost = {second: None} if reached else {}
        cancelled = self.cancelled.plan(lost, marks)
        update = replace(
            update,
            cancelled=cancelled.records,
            cancelled_deleted=cancelled.deleted,
            cancelled_floor=cancelled.floor_ms,
        )
        if blocks:
            fresh = stage(self._files, second, blocks)
            update = replace(update, slots={second: fresh})
        else:
            update = replace(update, slots_deleted=[second])
        switch(self._files, self._state, second, update)
        self.slot_files.handles.forget(path_of(second))
        self._open_slots.forget(second)
        catalog = self.catalog.without([second]).with_files(update.slots)
        with self._lock:
            self.catalog = catalog
            self.cancelled.committed(cancelled)
            self.damaged.pop(second, None)
            self.replacements += 1

    def close(self) -> None:
        self.slot_files.close()


def cancelled_in(rows: pa.RecordBatch) -> list[int]:
    """Offsets that the cancel rows among ``rows`` name."""
    column = rows.column("cancels")
    if column.null_count == len(column):
        return []
    targets: list[int] = column.drop_null().to_pylist()
    return targets

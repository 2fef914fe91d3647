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
- A commit that deletes a slot file which the archive does not keep also raises the *floor* up to
  which files are gone. A proof relies on it: what is due later is in a file that is there.
- A commit that drops cancel rows also records what they named (``cancelled.py``). Otherwise a node
  that was started again would call a cancelled message delivered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from ..config import SLOTS_MAX, TICK_MS, WheelConfig
from ..errors import Damaged
from ..files import SLOT_DIRECTORY, Files
from ..journal.payloads import CancelRows
from ..mark import Marks
from ..named.table import NameTable
from ..rows import due_in, members, take_rows
from ..schedules import StoredSchedule, encode_schedule
from ..schema import ROW, Int64s, Mask, times
from ..state import Checkpoint, ProducerEntry, SlotInfo, StateStore, StateUpdate, StoredState
from ..tail.tail import Piece, Tail
from .archive import Archive
from .blockindex import BlockIndex
from .cancelled import CancelledSeconds, covered_cancels
from .catalog import Catalog
from .filecancels import FileCancels
from .mend import complete, switch
from .openslots import OpenSlots
from .slot import Widths, begins_ms, ends_ms, is_wide, path_of, seconds_of, stem_of, width_s
from .slotfile import MAP_FROM_BYTES, MAP_FROM_MIN_BYTES, SlotFiles, missing
from .spill import Ahead, blocks, in_turn
from .strips import STRIP_BYTES, WideSlots

_SYNC_ONE_BY_ONE_MAX = 256
"""Up to so many files are synced one by one; more of them by one syncfs, which is faster for many
but stalls the journal's own syncs for some milliseconds."""
_CLEANED_MAX = 1024
"""Slot files that are deleted in one commit."""

KnownCancels = Callable[[int], Int64s | None]
"""From a second to the offsets that the cancels in its file name; None: the file has to be read."""


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The places of a second's rows at one instant: below ``spilled`` in files, others in
    ``pieces``. ``files``: by slot, of a second at most one of each width."""

    files: Mapping[int, SlotInfo]
    spilled: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StockPoint:
    """The places of all rows at one instant, as ``ReadPoint`` has them of one slot. Rows below
    ``next_offset`` are committed; those that ``marks`` cover have left. ``replacements``: as of
    ``Storage``."""

    catalog: Catalog
    spilled: int
    pieces: tuple[Piece, ...]
    next_offset: int
    marks: Marks
    replacements: int


@dataclass(frozen=True, slots=True)
class SpillPlan:
    """The input of one spill at ``now_ms``: everything committed up to ``checkpoint.index``."""

    now_ms: int
    pieces: Sequence[Piece]
    checkpoint: Checkpoint
    producers: Mapping[int, Sequence[ProducerEntry]]
    producers_gone: Sequence[int]
    schedules: Mapping[str, StoredSchedule | None] = field(default_factory=dict)
    """Those that have changed since the last one; None: it is gone."""


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
        self.names = NameTable(files)
        self.cancelled = CancelledSeconds(state, config.short_horizon_ms)
        self.file_cancels = FileCancels(self.read_blocks, config.cancels_remembered_max)
        self._open_slots = OpenSlots(self.slot_files, config.window_bytes_max)
        strip_bytes = min(STRIP_BYTES, max(1, config.window_bytes_max // 2))
        self._wide_slots = WideSlots(self.slot_files, strip_bytes)
        self.tail = Tail()
        self.spilled = 0
        """Committed rows below this offset are in slot files (or were covered)."""
        self.catalog = Catalog()
        """Replaced under the lock, by the thread that writes slot files."""
        self.damaged: dict[int, Damaged] = {}
        """By slot: files whose bytes are not those that were written. Nothing is delivered
        from them until they are replaced (``replace``)."""
        self._deleted_floor_ms = -1
        """As of ``StoredState.deleted_floor``."""
        self.replacements = 0
        """Counts slot files that were replaced by another one."""

    # -- opening ---------------------------------------------------------------------------------

    def recover(self, stored: StoredState) -> list[str]:
        """Bring the files in line with the state. Returns what was mended, one line each."""
        slots, spilled = stored.slots, stored.checkpoint.next_offset
        self.cancelled.load(stored)
        mended = complete(self._files, slots)
        for slot, info in slots.items():
            cut = self.slot_files.cut(slot, info)
            if cut:
                mended.append(f"{stem_of(slot)}: cut {cut} bytes that were never committed")
        removed = [slot for slot in self.slot_files.slots() if slot not in slots]
        for slot in removed:
            self.slot_files.remove(slot)
            mended.append(f"{stem_of(slot)}: removed a slot file that the catalog does not know")
        mended += self.archive.recover(slots)
        self.catalog = Catalog(slots)
        mended += self._recover_names(stored)
        self.spilled = spilled
        if stored.deleted_floor is not None:
            self._deleted_floor_ms = stored.deleted_floor
        return mended

    def _recover_names(self, stored: StoredState) -> list[str]:
        """Open the runs of names; make them anew where there are none, or they are damaged."""
        why = "made of the slot files, which are others than before"
        if stored.names or not stored.checkpoint.named:
            try:
                self.names.open(stored.names or b"[]")
                return []
            except Damaged as error:
                why = f"made anew of the slot files: {error}"
        unread: list[str] = []
        marks, cancelled = stored.checkpoint.marks, self.cancelled

        def forgotten(due: Int64s, offset: Int64s) -> Mask:
            return marks.all_covered(due, offset) & ~cancelled.known(due)

        blocks, recorded = self._readable(unread), [*cancelled.recorded(stored)]
        self._state.commit(StateUpdate(names=self.names.rebuild(blocks, recorded, forgotten)))
        return [f"names of messages: {why}", *unread]

    def _readable(self, unread: list[str]) -> Iterator[pa.RecordBatch]:
        """All blocks of all slot files; those of damaged ones are left out, and noted."""
        for slot, info in self.catalog.items():
            try:
                starts, stops = self.slot_files.block_spans(slot, info)
                for blocks in self.slot_files.read_at(
                    slot, starts, stops, self.slot_files.map_from_bytes
                ):
                    yield from blocks
            except Damaged as error:
                unread.append(f"names of messages in a damaged file are not known: {error}")

    # -- reading ---------------------------------------------------------------------------------

    def read_point(self, second: int) -> ReadPoint:
        with self._lock:
            return ReadPoint(self.catalog.with_rows_of(second), self.spilled, self.tail.pieces)

    def range_point(self, slot: int) -> ReadPoint:
        """As ``read_point``, for all seconds of a slot, with the files of every width that have
        some of them."""
        with self._lock:
            catalog, spilled, pieces = self.catalog, self.spilled, self.tail.pieces
        seconds = seconds_of(slot)
        files = {at: catalog[at] for at in catalog.within(seconds[0], seconds[-1])}
        return ReadPoint(files, spilled, pieces)

    def whole_point(self) -> ReadPoint:
        """The places of the rows of all seconds: its ``files`` are the whole catalog."""
        with self._lock:
            return ReadPoint(self.catalog, self.spilled, self.tail.pieces)

    def read_second(
        self,
        second: int,
        files: Mapping[int, SlotInfo],
        known: Mapping[int, SlotInfo] | None = None,
    ) -> list[pa.RecordBatch]:
        """The rows of a second in ``files`` as of a read point, with ``known`` only those behind
        them, as batches that are sorted like blocks. Mostly they come in the order of their
        offsets, as each spill writes a second to one of its files. Errors: ``Damaged``."""
        batches: list[pa.RecordBatch] = []
        for slot, info in files.items():
            before = None if known is None else known.get(slot)
            if before == info:
                continue
            if is_wide(slot):
                with self._reading(slot, info):
                    batches += self._wide_slots.rows(slot, info, second, before)
            else:
                batches += self.read_blocks(slot, info, before)
        if len(files) > 1:
            batches = [batch for batch in batches if batch.num_rows]
            batches.sort(key=lambda batch: int(times(batch, "offset").min()))
        return batches

    def read_blocks(
        self, slot: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The blocks of a slot as of a read point, with ``known`` only those behind it. Empty when
        the cleaner has deleted the slot since: then every row in it was covered. Those of a wide
        slot are not kept for others.

        Errors: ``Damaged``.
        """
        blocks: list[pa.RecordBatch] = []
        with self._reading(slot, info):
            read = self.slot_files.read if is_wide(slot) else self._open_slots.blocks
            blocks += read(slot, info, known)
        return blocks

    def select(
        self, slot: int, info: SlotInfo, wanted: Callable[[BlockIndex], Mask]
    ) -> Iterator[pa.RecordBatch]:
        """The blocks of a slot as of a read point that are ``wanted`` by its index; all of a slot
        of a second, which has none. Empty when the slot was deleted since. Errors: ``Damaged``."""
        if is_wide(slot):
            with self._reading(slot, info):
                yield from self._wide_slots.select(slot, info, wanted)
        else:
            yield from self.read_blocks(slot, info)

    @contextlib.contextmanager
    def _reading(self, slot: int, info: SlotInfo) -> Iterator[None]:
        """A block of code that reads a slot's file. What damage it meets is noted; it ends early
        when the cleaner has deleted the slot."""
        known = self.damaged.get(slot)
        try:
            yield
        except FileNotFoundError:
            with self._lock:
                if slot not in self.catalog:
                    return
            error = missing(slot, info)
            self.note_damage(slot, info, error)
            raise error from None
        except Damaged as error:
            self.note_damage(slot, info, error)
            raise
        if known is not None:
            self.note_sound(slot, info, known)

    def block_index(self, slot: int, info: SlotInfo) -> BlockIndex | None:
        """The index of a wide slot's file up to ``info`` or beyond; None when the slot was deleted
        since. Errors: ``Damaged``."""
        read: list[BlockIndex] = []
        with self._reading(slot, info):
            read.append(self._wide_slots.index(slot, info))
        return read[0] if read else None

    def read_aside(self, slot: int, info: SlotInfo, seconds: range) -> Iterator[pa.RecordBatch]:
        """The rows of a slot, as of a read point, that are due in ``seconds``, as blocks, for who
        reads many slots and is in no hurry: it opens no file for others, or it would close those
        from which rows are about to leave, and it records no damage. Empty when the cleaner has
        deleted the slot since. Errors: ``Damaged``, ``OSError``."""
        try:
            if not is_wide(slot):
                is_open = self._open_slots.has(slot, info)
                yield from (self.read_blocks if is_open else self.slot_files.read)(slot, info)
            elif len(seconds) == 1:  # mostly one of which a strip is there, as rows leave from it
                yield from self._wide_slots.rows(slot, info, seconds[0])
            else:
                for block in self._wide_slots.select(slot, info, lambda i: i.due_in(seconds)):
                    yield due_in(block, seconds)
        except FileNotFoundError:
            with self._lock:
                if slot in self.catalog:
                    raise

    def open_ahead(self, after_ms: int, until_ms: int) -> bool:
        """Read and check what is due in that time and takes longer to read than a second: a large
        slot file, or a strip of a wide one. One at a time; True if there was one. Errors:
        ``Damaged``."""
        catalog = self.catalog
        first, last = after_ms // TICK_MS, until_ms // TICK_MS
        for slot in catalog.within(first, last):
            info = catalog[slot]
            if slot in self.damaged:
                continue
            if is_wide(slot):
                made = False
                with self._reading(slot, info):
                    made = self._wide_slots.read_ahead(slot, info, first, last)
                if made:
                    return True
                continue
            large = info.length >= self.slot_files.map_from_bytes
            if large and not self._open_slots.has(slot, info):
                self.read_blocks(slot, info)
                return True
        return False

    def index_ahead(self, after_ms: int, until_ms: int) -> None:
        """Make the indexes of the wide slots that have seconds of that time. A damaged file gets
        none, and is noted."""
        catalog = self.catalog
        for slot in catalog.within(after_ms // TICK_MS, until_ms // TICK_MS):
            if is_wide(slot) and slot not in self.damaged:
                with contextlib.suppress(Damaged):
                    self.block_index(slot, catalog[slot])

    def note_damage(self, slot: int, info: SlotInfo, error: Damaged) -> None:
        """Record that a slot file was found damaged, unless it was replaced meanwhile."""
        with self._lock:
            if self.catalog.get(slot) == info:
                # A copy: the traceback of the raised one keeps the bytes of the file in memory.
                self.damaged.setdefault(slot, copy(error))
                self._forget(slot)

    def note_sound(self, slot: int, info: SlotInfo, known: Damaged) -> None:
        """A slot file was read whole and is sound, so it was restored: its record as damaged goes.
        Not if it has grown since: the damage may be in the new part. ``known``: the record when
        the reading began. What was recorded since stays, as it was found in bytes that may have
        been read before, or in the place of a deleted file that the reader still has open."""
        with self._lock:
            if self.catalog.get(slot) == info and self.damaged.get(slot) is known:
                del self.damaged[slot]

    def late_slots(self, last_second: int, offset: int) -> list[int]:
        """Slots that begin at ``last_second`` or before, whose files have rows from ``offset``
        on."""
        catalog = self.catalog
        return [slot for slot in catalog.upto(last_second) if catalog[slot].highest >= offset]

    def any_ends_within(self, after_ms: int, upto_ms: int) -> bool:
        """True if a slot with a file ends at ``after_ms < end <= upto_ms``."""
        return any(
            ends_ms(slot) <= upto_ms for slot in self.catalog.next_slots(after_ms // TICK_MS)
        )

    def next_second(self, after_ms: int) -> int | None:
        """The first second with a row due after ``after_ms``, from files and tail; None if none.
        No file is read for it.

        The answer for slot files is a second that may have a row: also if its rows are all covered,
        and of a wide slot that was not read yet if none of its rows is due then.
        """
        after_s = (after_ms + 1) // TICK_MS
        with self._lock:
            catalog, pieces = self.catalog, self.tail.pieces
        seconds = [self._next_in(catalog, slot, after_s) for slot in catalog.next_slots(after_s)]
        best = min((second for second in seconds if second is not None), default=None)
        for piece in pieces:
            due = piece.due_after(after_ms)
            if due is not None and (best is None or due // TICK_MS < best):
                best = due // TICK_MS
        return best

    def _next_in(self, catalog: Catalog, slot: int | None, after_s: int) -> int | None:
        """The first second from ``after_s`` on with rows in ``slot`` or one behind it of the same
        width; None if there is none."""
        width = None if slot is None else width_s(slot)
        while slot is not None and width_s(slot) == width:
            if not is_wide(slot):
                return slot
            second = self._wide_slots.next_second(slot, catalog[slot], after_s)
            if second is not None:
                return second
            slot = catalog.behind(slot)
        return None

    def late_blocks(
        self, slot: int, first: int, last: int, upto_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """The blocks of a slot that can have rows due up to ``upto_ms`` with offsets from ``first``
        to ``last``, or cancels of these, which come later. Errors: ``Damaged``."""
        info = self.catalog.get(slot)
        if info is None:
            return

        def wanted(index: BlockIndex) -> Mask:
            cancelling = (index.cancels > 0) & (index.highest >= first)
            return (index.within(first, last) | cancelling) & (index.earliest <= upto_ms)

        yield from self.select(slot, info, wanted)

    def find(self, due: int, offset: int) -> pa.RecordBatch | None:
        """One row by its key (ROW schema, one row), or None if it is nowhere any more."""
        for row in self._rows_of(due // TICK_MS, np.array([offset], np.int64), ROW.names):
            return row if int(times(row, "due")[0]) == due else None
        return None

    def _rows_of(
        self, second: int, offsets: Int64s, columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one second, in tail or files, by their ascending ``offsets``: batches of
        ``columns`` with at most one row an offset."""
        point = self.read_point(second)
        for piece in point.pieces:
            first, last = np.searchsorted(offsets, [piece.base_offset, piece.next_offset])
            if first < last:
                yield piece.take(offsets[first:last] - piece.base_offset).select(columns)
        if not len(offsets):
            return
        for slot, info in point.files.items():
            if offsets[0] > info.highest:
                continue
            for block in self.select(
                slot, info, lambda index: index.with_rows_of(second) & index.with_any_of(offsets)
            ):
                rows = due_in(block, range(second, second + 1))
                at = np.flatnonzero(members(offsets, times(rows, "offset")))
                if len(at):
                    yield take_rows(rows.select(columns), at)

    @property
    def unspilled_bytes(self) -> int:
        """Bytes in memory that a spill frees: of rows, and of their names."""
        return self.tail.nbytes + self.names.nbytes

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
        with self._lock:
            self.names.freeze()
        try:
            names = self.names.spill(plan.checkpoint.next_offset, marks.all_covered)
            for block in blocks(plan.pieces, marks.all_covered, self._widths(plan.now_ms), ahead):
                info = changed.get(block.slot, self.catalog.get(block.slot))
                if info is None:
                    made.add(block.slot)
                changed[block.slot] = self.slot_files.append(block, info)
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
                    names=names.record,
                    schedules={
                        name: encode_schedule(schedule)
                        for name, schedule in plan.schedules.items()
                        if schedule is not None
                    },
                    schedules_deleted=[
                        name for name, schedule in plan.schedules.items() if schedule is None
                    ],
                )
            )
        except OSError:  # the state store commits nothing then, either
            self._roll_back(made)
            self.names.remove_but(self.names.runs)
            raise
        self.slot_files.committed(changed)
        before, after = self.catalog, self.catalog.with_files(changed)
        with self._lock:
            self.catalog = after
            self.cancelled.committed(cancelled)
            self.spilled = max(self.spilled, plan.checkpoint.next_offset)
            self.tail.drop_below(self.spilled)
            self.names.change(names)
            dropped(plan.checkpoint)
        total = sum(piece.count for piece in plan.pieces)
        return SpillReport(rows, total - rows, len(changed), after.nbytes - before.nbytes)

    def merge_names(self, marks: Marks) -> None:
        """Merge runs of names where that is worth it. Errors: ``OSError``: nothing has changed."""
        merge = self.names.merge(self.catalog.rows, marks.all_covered)
        if merge is None:
            return
        try:
            self._state.commit(StateUpdate(names=merge.record))
        except OSError:
            self.names.remove_but(self.names.runs)
            raise
        with self._lock:
            self.names.change(merge)
        self.names.remove_but(merge.runs)

    def _widths(self, now_ms: int) -> Widths:
        """The widths of slots for a spill at ``now_ms``. A standby whose horizon is shorter than
        its master's gets what is due in years all the same, and would make a file of each second;
        so without a horizon beyond the slots of a second there are others, too, from a day on."""
        config = self._config
        is_far = config.horizon_ms > config.slots * TICK_MS
        return Widths.at(now_ms, config.slots if is_far else max(config.slots, SLOTS_MAX))

    def _roll_back(self, slots: Iterable[int]) -> None:
        """Remove new files of a spill that failed, before its commit. Their rows may be delivered
        before the next spill, and no commit would ever name the files."""
        for slot in slots:
            with contextlib.suppress(OSError):
                self.slot_files.remove(slot)

    def _make_durable(self, changed: Mapping[int, SlotInfo], fresh: bool) -> None:
        if len(changed) > _SYNC_ONE_BY_ONE_MAX:
            self._files.sync_all()
            return
        for slot in changed:
            self.slot_files.sync(slot)
        if fresh:
            self._files.sync_dir(SLOT_DIRECTORY)

    def clean(
        self,
        marks: Marks,
        now_ms: int,
        known: KnownCancels = lambda _: None,
    ) -> int:
        """Delete up to 1,024 slot files that every one of the committed ``marks`` covers
        whole, or move them to the archive; returns how many. ``known`` may spare reading a file."""
        self.archive.trim(now_ms)
        catalog = self.catalog
        # A topic that is held back for a day keeps a file of each second: most are not looked at.
        ended = catalog.upto(min(mark.c for mark in marks.every) // TICK_MS)
        whole = (at for at in ended if marks.all_cover(ends_ms(at), catalog[at].highest))
        covered = list(islice(whole, _CLEANED_MAX))
        if not covered:
            return 0
        named, unread = self._cancelled_in(covered, known)
        cancelled = self.cancelled.plan(named, marks, unread)
        kept = self.archive.keep_slots({slot: catalog[slot] for slot in covered}, now_ms)
        # What is kept first is kept; a full disk ends it.
        gone_ms = max((ends_ms(slot) - 1 for slot in covered[len(kept) :]), default=-1)
        floor_ms = max(self._deleted_floor_ms, gone_ms)
        try:
            self._state.commit(
                StateUpdate(
                    slots_deleted=covered,
                    deleted_floor=floor_ms,
                    cancelled=cancelled.records,
                    cancelled_deleted=cancelled.deleted,
                    cancelled_floor=cancelled.floor_ms,
                )
            )
        except OSError:
            self.archive.unlink_kept(kept)
            raise
        self._deleted_floor_ms = floor_ms
        fewer = catalog.without(covered)
        with self._lock:
            self.catalog = fewer
            self.cancelled.committed(cancelled)
            for slot in covered:
                self.damaged.pop(slot, None)
        for slot in covered:
            self.slot_files.remove(slot)
            self._forget(slot)  # not before: somebody could still have read it in between
        return len(covered)

    def _cancelled_in(
        self, slots: Iterable[int], known: KnownCancels
    ) -> tuple[CancelRows, list[range]]:
        """The cancel rows in these files, and the seconds of those that cannot be read."""
        read: list[CancelRows] = []
        unread: list[range] = []
        for slot in slots:
            info = self.catalog[slot]
            targets = None if is_wide(slot) or not info.cancels else known(slot)
            if targets is not None:
                due = np.full(len(targets), begins_ms(slot))
                read.append(CancelRows(due, targets, np.full(len(targets), info.highest)))
                continue
            try:
                read.append(self.file_cancels.of(slot, info))
            except Damaged:
                unread.append(seconds_of(slot))
        return CancelRows.joined(read), unread

    def replace(self, slots: Sequence[int], update: StateUpdate, marks: Marks) -> None:
        """Put the staged files of ``update.slots`` in the place of the damaged ones of ``slots``,
        of which those in ``update.slots_deleted`` go. The caller holds the lock of spilling and
        cleaning. ``update``: what is committed. ``marks``: the committed ones; of a second that
        they have reached, cancels may be missing in the staged files.

        Errors: ``OSError``: nothing has changed. ``SyncFailed``.
        """
        # What the marks cover may be missing in the new file, as peers have deleted it.
        furthest_ms = max(mark.furthest_ms for mark in marks.every)
        seconds = [_seconds_upto(slot, furthest_ms) for slot in slots]
        cancelled = self.cancelled.plan(CancelRows(), marks, seconds)
        reached = [slot for slot in slots if begins_ms(slot) <= furthest_ms]
        gone_ms = max((min(furthest_ms, ends_ms(slot) - 1) for slot in reached), default=-1)
        update = replace(
            update,
            deleted_floor=max(self._deleted_floor_ms, gone_ms),
            cancelled=cancelled.records,
            cancelled_deleted=cancelled.deleted,
            cancelled_floor=cancelled.floor_ms,
        )
        switch(self._files, self._state, update)
        for slot in slots:
            self._forget(slot)
        catalog = self.catalog.without(slots).with_files(update.slots)
        self._deleted_floor_ms = max(self._deleted_floor_ms, gone_ms)
        with self._lock:
            self.catalog = catalog
            self.cancelled.committed(cancelled)
            for slot in slots:
                self.damaged.pop(slot, None)
            self.replacements += 1

    def _forget(self, slot: int) -> None:
        """Drop what was read of a file that is deleted, replaced or damaged, and its handle: a file
        that somebody has deleted could else still be read, and would count as restored."""
        self.slot_files.handles.forget(path_of(slot))
        self._open_slots.forget(slot)
        self._wide_slots.forget(slot)
        self.file_cancels.forget(slot)

    def close(self) -> None:
        self.slot_files.close()


def _seconds_upto(slot: int, ms: int) -> range:
    """The seconds of a slot up to the one of a time in ms."""
    seconds = seconds_of(slot)
    return seconds[: max(0, ms // TICK_MS + 1 - seconds.start)]


def cancelled_in(rows: pa.RecordBatch) -> list[int]:
    """Offsets that the cancel rows among ``rows`` name."""
    column = rows.column("cancels")
    if column.null_count == len(column):
        return []
    targets: list[int] = column.drop_null().to_pylist()
    return targets

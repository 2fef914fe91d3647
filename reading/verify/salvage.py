"""Saves rows of damaged slot files, in a directory that no node runs on: ``slotwheel repair``.

Theory: each block of a slot file carries its own checksum (``wheel/slots/blocks.py``), so a block
is sound whatever lies around it. Rows in no sound block may still be in the journal, live or
archived: segments are dropped as a whole, and the newest one never is. The catalog has the number
of rows. The rest is lost; the ids in a damaged block that still decodes are reported as they are.

Rules
- A row without a valid checksum is not used, even if it decodes: its values may be anything.
- A checksum is no proof against a sender who puts a forged block into a value: where the journal
  has an offset, its row is used and not the block's; and a block must fit behind the others.
- A row that every mark covers was delivered: it is not counted as lost, as far as that is known.
- Losses are written into the state, in the commit that replaces the file: from then on a verifier
  reports them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ...wheel.arrowclaims import plain_rows
from ...wheel.config import TICK_MS
from ...wheel.due.runs import no_rows
from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import ARCHIVE_DIRECTORY, Files
from ...wheel.findings import CheckedFile
from ...wheel.ids import IdMint
from ...wheel.journal.entry import EntryKind
from ...wheel.journal.payloads import decode_rows
from ...wheel.journal.scan import walk
from ...wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ...wheel.journal.segment import is_segment_name
from ...wheel.mark import Marks
from ...wheel.peers.heal import uncounted
from ...wheel.rows import sort_rows, take_rows
from ...wheel.schema import ROW, times
from ...wheel.slots.blocks import MARKER, check_block, message_end, sound_blocks
from ...wheel.slots.mend import complete, keep, stage, switch
from ...wheel.slots.slot import begins_ms, path_of
from ...wheel.slots.slotfile import schema_message, unreadable_is_damage
from ...wheel.state import Loss, SlotInfo, StateStore, StateUpdate, StoredState
from ...wheel.switch import complete_switch
from ...wheel.tail.tail import with_offsets
from .slots import verify_slot

_PAGE_BYTES = 4096
"""Bytes of a file that one unreadable sector costs at least."""


@dataclass(slots=True)
class Salvage:
    """The rows that can be saved of one damaged slot file."""

    second: int
    info: SlotInfo
    found: str
    """The file's first fault."""
    sound: pa.RecordBatch = field(default_factory=no_rows)
    """Rows that only its sound blocks have."""
    journal: pa.RecordBatch = field(default_factory=no_rows)
    """Rows that the journal still has."""
    at_most: bool = False
    """Delivery has reached the slot, so some of the missing rows were delivered."""
    lost_ids: list[str] = field(default_factory=list)
    """Ids of lost messages as they are in damaged blocks, without a valid checksum."""

    @property
    def lost(self) -> int:
        """Rows that are neither in a sound block nor in the journal."""
        return max(0, self.info.rows - sum(int(rows.num_rows) for rows in self._parts()))

    @property
    def lost_cancels(self) -> int:
        """The number of lost rows that are cancel rows."""
        saved = sum(int(rows.column("cancels").is_valid().true_count) for rows in self._parts())
        return min(self.lost, max(0, self.info.cancels - saved))

    def _parts(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return self.sound, self.journal

    def rows(self) -> pa.RecordBatch:
        """All saved rows, in ``(due, offset)`` order."""
        return sort_rows(pa.concat_batches(list(self._parts())))


def salvage(files: Files, stored: StoredState) -> list[Salvage]:
    """Find every damaged slot file of a data directory, and its saved rows. Changes nothing."""
    damaged: dict[int, Salvage] = {}
    for second, info in sorted(stored.slots.items()):
        checked = verify_slot(files, second, info)
        if not checked.ok:
            damaged[second] = _from_file(files, second, info, checked)
    if damaged:
        _from_journal(files, stored, damaged)
    for slot in damaged.values():
        slot.lost_ids = _lost_ids(files, stored, slot)
    return list(damaged.values())


def repair(files: Files, state: StateStore) -> list[tuple[Salvage, str]]:
    """Replace every damaged slot file by its saved rows. Returns each with the path at which the
    damaged file is kept. May be stopped anywhere, and called again.

    Errors: ``OSError``, ``SyncFailed``; ``Damaged`` for the state itself.
    """
    stored = complete_switch(files, state)
    complete(files, stored.slots)
    done = []
    for slot in salvage(files, stored):
        kept = keep(files, slot.second, slot.info)
        rows = slot.rows()
        update = StateUpdate()
        if slot.lost:
            loss = Loss(slot.second, slot.lost, slot.lost_cancels, kept, slot.at_most)
            rows_less, cancels_less = uncounted([loss])
            checkpoint = stored.checkpoint = replace(
                stored.checkpoint,
                rows=stored.checkpoint.rows - rows_less,
                cancels=stored.checkpoint.cancels - cancels_less,
            )
            stored.losses = [*stored.losses, loss]
            update = StateUpdate(checkpoint=checkpoint, losses=stored.losses)
        if rows.num_rows:
            fresh = stage(files, slot.second, [rows])
            update = replace(update, slots={slot.second: fresh})
        else:
            update = replace(update, slots_deleted=[slot.second])
        switch(files, state, slot.second, update)
        done.append((slot, kept))
    return done


def _from_file(files: Files, second: int, info: SlotInfo, checked: CheckedFile) -> Salvage:
    blocks = _fitting(second, info, _bytes(files, second, info))
    slot = Salvage(second, info, str(checked.faults[0]))
    if blocks:
        slot.sound = pa.concat_batches(blocks)
    return slot


def _fitting(second: int, info: SlotInfo, data: bytes) -> list[pa.RecordBatch]:
    """The sound blocks that fit this file: its second, its order."""
    blocks: list[pa.RecordBatch] = []
    highest = -1
    for start, end in sound_blocks(memoryview(data)):
        item = CheckedFile("slot", path_of(second))
        try:
            rows = plain_rows(pa.py_buffer(data[start:end]), ROW)
            rows.validate(full=True)
        except (pa.ArrowException, ValueError, EOFError, OSError):
            continue
        upto = check_block(item, start, rows, second, highest)
        if item.ok and upto <= info.highest:
            blocks.append(rows)
            highest = upto
    return blocks


def _bytes(files: Files, second: int, info: SlotInfo) -> bytes:
    """The committed bytes, as far as the file has them; zeros for pages that cannot be read."""
    path = path_of(second)
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return b""
    data = bytearray()
    with closing(handle):
        while len(data) < info.length:
            want = min(_PAGE_BYTES, info.length - len(data))
            try:
                with unreadable_is_damage(path, len(data)):
                    page = handle.pread(want, len(data))
            except Damaged:
                page = bytes(want)
            if not page:
                break
            data += page
    return bytes(data)


def _from_journal(files: Files, stored: StoredState, damaged: Mapping[int, Salvage]) -> None:
    """Fill in rows of these seconds from the journal, up to the checkpoint, unless a mark covers
    them, and whether delivery has reached the slots. In ``sound`` only rows stay that the journal
    lacks, or has as delivered."""
    sound = np.concatenate([times(slot.sound, "offset") for slot in damaged.values()])
    delivered: dict[int, int] = {}  # by offset: when the delivered row was due; -1: not delivered
    have = {second: np.zeros(0, np.int64) for second in damaged}
    in_journal: dict[int, list[pa.RecordBatch]] = {second: [no_rows()] for second in damaged}
    reached_ms = stored.checkpoint.marks.main.furthest_ms
    for rows in _in_journal(files, stored):
        if isinstance(rows, Marks):
            reached_ms = max(reached_ms, rows.main.furthest_ms)
            continue
        due, offset = times(rows, "due"), times(rows, "offset")
        covered = stored.checkpoint.marks.all_covered(due, offset)
        at = np.flatnonzero(np.isin(offset, sound))
        known = np.where(covered, due, -1)[at]
        delivered.update(zip(offset[at].tolist(), known.tolist(), strict=True))
        for second in have.keys() & set(np.unique(due // TICK_MS).tolist()):
            wanted = ~covered & (due // TICK_MS == second) & ~np.isin(offset, have[second])
            at = np.flatnonzero(wanted)
            have[second] = np.concatenate([have[second], offset[at]])
            in_journal[second].append(take_rows(rows, at))
    for second, slot in damaged.items():
        slot.journal = pa.concat_batches(in_journal[second])
        slot.at_most = reached_ms >= begins_ms(second)
        keys = zip(
            times(slot.sound, "due").tolist(), times(slot.sound, "offset").tolist(), strict=True
        )
        stays = [delivered.get(offset, due) == due for due, offset in keys]
        slot.sound = take_rows(slot.sound, np.flatnonzero(stays))


def _in_journal(files: Files, stored: StoredState) -> Iterator[pa.RecordBatch | Marks]:
    """Rows (ROW schema) of all entries up to the checkpoint that are in any segment, and all marks,
    as far as each segment can be read."""
    days = files.list(ARCHIVE_DIRECTORY)
    folders = [JOURNAL_DIRECTORY, *(f"{ARCHIVE_DIRECTORY}/{day}/journal" for day in days)]
    for folder in folders:
        for name in filter(is_segment_name, files.list(folder)):
            path = f"{folder}/{name}"
            try:
                for located in walk(files, path):
                    entry = located.entry
                    if entry.kind is EntryKind.MARK:
                        yield Marks.decode(bytes(entry.payload), path)
                    elif entry.kind is EntryKind.ROWS and entry.index <= stored.checkpoint.index:
                        rows = decode_rows(entry, path)
                        offsets = np.arange(entry.count, dtype=np.int64) + entry.base_offset
                        yield with_offsets(rows, offsets)
            except (Damaged, UnsupportedVersion):
                continue


def _lost_ids(files: Files, stored: StoredState, slot: Salvage) -> list[str]:
    """Ids of lost messages, as far as damaged blocks still decode."""
    config = stored.checkpoint.config
    if not slot.lost or not config:
        return []
    mint = IdMint.of(config)
    have = {int(offset) for offset in times(slot.rows(), "offset")}
    ids: dict[int, str] = {}
    for rows in _unproven(_bytes(files, slot.second, slot.info)):
        due, offset = times(rows, "due"), times(rows, "offset")
        fits = (due // TICK_MS == slot.second) & (offset >= 0) & (offset <= slot.info.highest)
        fits &= rows.column("cancels").is_null().to_numpy(zero_copy_only=False)
        fits &= ~stored.checkpoint.marks.all_covered(due, offset)
        for at in np.flatnonzero(fits).tolist():
            if int(offset[at]) not in have:
                ids[int(offset[at])] = str(mint.one(int(due[at]), int(offset[at])))
    return [ids[offset] for offset in sorted(ids)]


def _unproven(data: bytes) -> Iterator[pa.RecordBatch]:
    """Blocks that decode without a valid checksum."""
    sound = dict(sound_blocks(memoryview(data)))
    at = len(schema_message())
    while 0 <= at < len(data):
        end = sound.get(at)
        if end is None:
            try:
                end = message_end(memoryview(data), at)
                rows = plain_rows(pa.py_buffer(data[at:end]), ROW)
                rows.validate(full=True)
                yield rows
            except (AssertionError, struct.error, pa.ArrowException, ValueError, EOFError, OSError):
                end = 0
        at = end if end > at else data.find(MARKER, at + 1)

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
- A row that is due in the time of a damaged file and lies in a sound one is not its: the file of a
  day and those of its hours and seconds have each their own rows. Of two damaged ones of the same
  time nobody can say which had a row of the journal, so they become one file of the wider.
- Losses are written into the state, in the commit that replaces the file: from then on a verifier
  reports them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ...wheel.arrowclaims import plain_rows
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
from ...wheel.rows import no_rows, sort_rows, take_rows
from ...wheel.schema import ROW, Int64s, times
from ...wheel.slots.blocks import MARKER, check_block, message_end, sound_blocks
from ...wheel.slots.mend import complete, in_shares, keep, stage, switch
from ...wheel.slots.slot import begins_ms, in_slots, nested, overlap, path_of, seconds_of
from ...wheel.slots.slotfile import schema_message, unreadable_is_damage
from ...wheel.state import Loss, SlotInfo, StateStore, StateUpdate, StoredState
from ...wheel.switch import complete_switch
from ...wheel.tail.tail import with_offsets
from ..slots import slot_blocks
from .slots import committed_bytes, verify_slot

_PAGE_BYTES = 4096
"""Bytes of a file that one unreadable sector costs at least."""


@dataclass(slots=True)
class Salvage:
    """The rows that can be saved of damaged slot files that become one. ``slot``: the widest of
    them, which has the times of all; ``files``: each, as the catalog has it."""

    slot: int
    files: Mapping[int, SlotInfo]
    faults: Mapping[int, str]
    """The first fault of each file."""
    sound: pa.RecordBatch = field(default_factory=no_rows)
    """Rows that only its sound blocks have."""
    journal: pa.RecordBatch = field(default_factory=no_rows)
    """Rows that the journal still has."""
    at_most: bool = False
    """Delivery has reached the slot, so some of the missing rows were delivered."""
    lost_ids: list[str] = field(default_factory=list)
    """Ids of lost messages as they are in damaged blocks, without a valid checksum."""

    @property
    def had(self) -> int:
        """The number of rows in the files, by the catalog."""
        return sum(info.rows for info in self.files.values())

    @property
    def highest(self) -> int:
        """The highest offset in the files, by the catalog."""
        return max(info.highest for info in self.files.values())

    @property
    def lost(self) -> int:
        """Rows that are neither in a sound block nor in the journal."""
        return max(0, self.had - sum(int(rows.num_rows) for rows in self._parts()))

    @property
    def lost_cancels(self) -> int:
        """The number of lost rows that are cancel rows."""
        saved = sum(int(rows.column("cancels").is_valid().true_count) for rows in self._parts())
        cancels = sum(info.cancels for info in self.files.values())
        return min(self.lost, max(0, cancels - saved))

    def _parts(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return self.sound, self.journal

    def rows(self) -> pa.RecordBatch:
        """All saved rows, in ``(due, offset)`` order."""
        return sort_rows(pa.concat_batches(list(self._parts())))


def salvage(files: Files, stored: StoredState) -> list[Salvage]:
    """Find every damaged slot file of a data directory, and its saved rows, in the order of time.
    Changes nothing."""
    faults: dict[int, str] = {}
    for slot, info in stored.slots.items():
        checked = verify_slot(files, slot, info)
        if not checked.ok:
            faults[slot] = str(checked.faults[0])
    salvages = [
        _from_files(
            files,
            Salvage(
                slot, {at: stored.slots[at] for at in inside}, {at: faults[at] for at in inside}
            ),
        )
        for slot, inside in nested(faults).items()
    ]
    if salvages:
        _from_journal(files, stored, salvages)
    for saved in salvages:
        saved.lost_ids = _lost_ids(files, stored, saved)
    return salvages


def repair(files: Files, state: StateStore) -> list[tuple[Salvage, list[str]]]:
    """Replace every damaged slot file by its saved rows. Returns each with the paths at which the
    damaged files are kept. May be stopped anywhere, and called again.

    Errors: ``OSError``, ``SyncFailed``; ``Damaged`` for the state itself.
    """
    stored = complete_switch(files, state)
    complete(files, stored.slots)
    done = []
    for saved in salvage(files, stored):
        kept = [path for slot, info in saved.files.items() if (path := keep(files, slot, info))]
        rows = saved.rows()
        # A name may be that of a row that is lost; a node makes the table anew of what is left.
        update = StateUpdate(names=b"" if stored.checkpoint.named else None)
        if saved.lost:
            loss = Loss(saved.slot, saved.lost, saved.lost_cancels, ", ".join(kept), saved.at_most)
            rows_less, cancels_less = uncounted([loss])
            checkpoint = stored.checkpoint = replace(
                stored.checkpoint,
                rows=stored.checkpoint.rows - rows_less,
                cancels=stored.checkpoint.cancels - cancels_less,
            )
            stored.losses = [*stored.losses, loss]
            update = replace(update, checkpoint=checkpoint, losses=stored.losses)
        if rows.num_rows:
            update = replace(update, slots={saved.slot: stage(files, saved.slot, in_shares(rows))})
        gone = [slot for slot in saved.files if slot not in update.slots]
        switch(files, state, replace(update, slots_deleted=gone))
        done.append((saved, kept))
    return done


def _from_files(files: Files, saved: Salvage) -> Salvage:
    blocks = [
        block
        for slot, info in saved.files.items()
        for block in _fitting(slot, info, _bytes(files, slot, info))
    ]
    if blocks:
        saved.sound = pa.concat_batches(blocks)
    return saved


def _fitting(slot: int, info: SlotInfo, data: bytes) -> list[pa.RecordBatch]:
    """The sound blocks that fit this file: its time, its order."""
    blocks: list[pa.RecordBatch] = []
    highest = -1
    for start, end in sound_blocks(memoryview(data)):
        item = CheckedFile("slot", path_of(slot))
        try:
            rows = plain_rows(pa.py_buffer(data[start:end]), ROW)
            rows.validate(full=True)
        except (pa.ArrowException, ValueError, EOFError, OSError):
            continue
        upto = check_block(item, start, rows, slot, highest)
        if item.ok and upto <= info.highest:
            blocks.append(rows)
            highest = upto
    return blocks


def _bytes(files: Files, slot: int, info: SlotInfo) -> bytes:
    """The committed bytes, as far as the file has them; zeros for pages that cannot be read."""
    path = path_of(slot)
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


def _from_journal(files: Files, stored: StoredState, salvages: Sequence[Salvage]) -> None:
    """Fill in rows of these times from the journal, up to the checkpoint, unless a mark covers them
    or a sound file has them, and whether delivery has reached the slots. In ``sound`` only rows
    stay that the journal lacks, or has as delivered."""
    sound = np.concatenate([times(saved.sound, "offset") for saved in salvages])
    delivered: dict[int, int] = {}  # by offset: when the delivered row was due; -1: not delivered
    have = [_offsets_beside(files, stored, saved) for saved in salvages]
    in_journal: list[list[pa.RecordBatch]] = [[no_rows()] for _ in salvages]
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
        for number, saved in enumerate(salvages):
            in_time = in_slots([saved.slot], due)
            if not in_time.any():
                continue
            at = np.flatnonzero(~covered & in_time & ~np.isin(offset, have[number]))
            have[number] = np.concatenate([have[number], offset[at]])
            in_journal[number].append(take_rows(rows, at))
    for saved, parts in zip(salvages, in_journal, strict=True):
        saved.journal = pa.concat_batches(parts)
        saved.at_most = reached_ms >= begins_ms(saved.slot)
        keys = zip(
            times(saved.sound, "due").tolist(), times(saved.sound, "offset").tolist(), strict=True
        )
        stays = [delivered.get(offset, due) == due for due, offset in keys]
        saved.sound = take_rows(saved.sound, np.flatnonzero(stays))


def _offsets_beside(files: Files, stored: StoredState, saved: Salvage) -> Int64s:
    """The offsets of rows of its time in sound slot files, shape (rows,)."""
    seconds = seconds_of(saved.slot)
    offsets = [np.empty(0, np.int64)]
    for slot, info in stored.slots.items():
        if slot in saved.files or not overlap(seconds_of(slot), seconds):
            continue
        try:
            data, _ = committed_bytes(files, slot, info)
            for _, block in slot_blocks(data, path_of(slot)):
                mask = in_slots([saved.slot], times(block, "due"))
                offsets.append(times(block, "offset")[mask])
        except (Damaged, UnsupportedVersion):
            continue  # it is another one's to save
    return np.concatenate(offsets)


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


def _lost_ids(files: Files, stored: StoredState, saved: Salvage) -> list[str]:
    """Ids of lost messages, as far as damaged blocks still decode."""
    config = stored.checkpoint.config
    if not saved.lost or not config:
        return []
    mint = IdMint.of(config)
    have = {int(offset) for offset in times(saved.rows(), "offset")}
    ids: dict[int, str] = {}
    for slot, info in saved.files.items():
        for rows in _unproven(_bytes(files, slot, info)):
            due, offset = times(rows, "due"), times(rows, "offset")
            fits = in_slots([slot], due)
            fits &= (offset >= 0) & (offset <= info.highest)
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

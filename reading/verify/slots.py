"""Verifies a data directory's slot files and state: every byte, and that they agree.

Theory: the catalog is the truth about slot files (I6 of docs/design.md), so each file is compared
with its row there, and its rows with the rules of a slot file: due in its slot, sorted within a
block, blocks in ascending ranges of offsets. An offset is stored once: the files of a second, of
its hour and of its day may not share one, or its message would be delivered twice. Bytes beyond the
committed length, and files that are not in the catalog, were never committed: they are notes, not
faults.

Rules
- A large file is read block by block: that of a day may be larger than memory. Of a file of an hour
  or a day, eight bytes a row are kept while narrower files of its range are checked.
- Nothing is changed, nothing printed. After a fault it goes on with the next file.
- No kernel gets rows before ``validate(full=True)`` has passed: the bytes may be damaged.
- A node may be running: ``load`` reads the present state, and a file that has left it meanwhile is
  no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import SLOT_DIRECTORY, Files, Handle, checksum
from ...wheel.findings import UNKNOWN_FILE, CheckedFile, noted
from ...wheel.rows import members
from ...wheel.schema import Int64s, times
from ...wheel.slots.blocks import check_block
from ...wheel.slots.mend import is_whole, mended_path
from ...wheel.slots.slot import by_begin_widest, path_of, slot_of_name, stem_of, wider_slots
from ...wheel.slots.slotfile import (
    MAP_FROM_BYTES,
    checked_bytes,
    unreadable_is_damage,
)
from ...wheel.state import STATE_DIRECTORY, SlotInfo, StoredState
from ...wheel.switch import INCOMING, INCOMING_SLOTS, incoming_path
from ..slots import blocks_from, first_bytes

LoadState = Callable[[], StoredState]


def verify_state(stored: StoredState) -> CheckedFile:
    """Check the parts of the state against each other."""
    item = CheckedFile("state", STATE_DIRECTORY, rows=len(stored.slots))
    checkpoint = stored.checkpoint
    if checkpoint.epoch > stored.epoch:
        item.fault(0, f"a checkpoint of epoch {stored.epoch} or before", checkpoint.epoch)
    if stored.incoming:
        item.note(
            0,
            "the files of this state in place",
            "a switch to a snapshot that was interrupted; completed when a node opens it",
        )
    if stored.store_id == b"" and (stored.slots or checkpoint.index):
        item.fault(0, "a store id", "none")
    for loss in stored.losses:
        kept = f"; the damaged file is kept as {loss.kept}" if loss.kept else ""
        item.note(
            0,
            f"every row of slot {stem_of(loss.slot)}",
            f"a repair that lost {loss} of them, {loss.cancels} of these cancel rows{kept}",
        )
    rows = sum(info.rows for info in stored.slots.values())
    cancels = sum(info.cancels for info in stored.slots.values())
    if not rows <= checkpoint.rows <= checkpoint.next_offset:
        item.fault(
            0,
            f"rows in the catalog ({rows}) <= rows of the checkpoint <= its next offset"
            f" ({checkpoint.next_offset})",
            checkpoint.rows,
        )
    if cancels > checkpoint.cancels:
        item.fault(0, f"at most {checkpoint.cancels} cancel rows in the catalog", cancels)
    for slot, info in in_time(stored.slots).items():
        stem = stem_of(slot)
        if info.highest >= checkpoint.next_offset:
            item.fault(
                0,
                f"offsets below the checkpoint's {checkpoint.next_offset} in slot {stem}",
                info.highest,
            )
        if info.rows == 0 or info.cancels > info.rows:
            item.fault(0, f"rows in slot {stem}", f"{info.rows}, of which {info.cancels} cancels")
    return item


def verify_slots(files: Files, load: LoadState) -> Iterator[CheckedFile]:
    """Check every slot file of the catalog; then list the files that are not in it."""
    stored = load()
    waiting = set(files.list(INCOMING_SLOTS)) if stored.incoming else set()
    stored_once = StoredOnce(stored.slots)
    for slot, info in in_time(stored.slots).items():
        path = path_of(slot)
        if path.rpartition("/")[2] in waiting:
            path = incoming_path(slot)
        item = verify_slot(files, slot, info, path, once=stored_once)
        if not item.ok:
            # The file may have been deleted, as all its rows were delivered meanwhile.
            now = load().slots.get(slot)
            if now is None:
                continue
            if now != info:
                item = verify_slot(files, slot, now, once=stored_once)
            elif is_whole(files, mended_path(slot), info):
                item = verify_slot(files, slot, info, mended_path(slot), once=stored_once)
                item.note(0, path, "a repair that was interrupted; completed when a node opens it")
        yield item
    yield from _unknown_files(files, load)
    if not stored.incoming and files.list(INCOMING):
        yield noted(
            "slot",
            INCOMING,
            "no such directory",
            "a snapshot that is being received, or was not received whole; the node goes on with"
            " it, or removes it when its log goes on without",
        )


def _unknown_files(files: Files, load: LoadState) -> Iterator[CheckedFile]:
    names = files.list(SLOT_DIRECTORY)
    catalog = load().slots
    for name in names:
        slot = slot_of_name(name)
        if slot in catalog:
            continue
        path = f"{SLOT_DIRECTORY}/{name}"
        item = CheckedFile("slot", path)
        try:
            with closing(files.open(path)) as handle:
                item.nbytes = handle.size()
        except FileNotFoundError:
            continue
        except OSError as error:
            item.note(0, "a slot file", error.strerror or error)
            yield item
            continue
        if slot is None:
            item.note(0, "<slot>.arrows", UNKNOWN_FILE)
        else:
            item.note(
                0,
                "a row in the catalog",
                "none: an unknown file, never committed; removed when a node opens the directory",
            )
        yield item


class StoredOnce:
    """Checks that no file of a second or an hour has a row that lies in a wider file, too. Files
    come in the order of ``in_time``: the wider one before those in its range.

    *Example.* A spill that wrote a row to the file of its second, although it lies in that of its
    day, would have it delivered twice; each of the two files alone looks sound.
    """

    def __init__(self, slots: Collection[int]) -> None:
        self._shared = {wide for slot in slots for wide in wider_slots(slot) if wide in slots}
        """The slots with narrower files in their range."""
        self._offsets: dict[int, list[Int64s]] = {}
        """The offsets of those files of hours and days in whose range the present file is."""

    def begin(self, slot: int) -> None:
        """Begin with a file, which may have been begun before."""
        wider = wider_slots(slot)
        self._offsets = {wide: parts for wide, parts in self._offsets.items() if wide in wider}
        if slot in self._shared:
            self._offsets[slot] = []

    def check(self, item: CheckedFile, position: int, slot: int, offset: Int64s) -> None:
        """Report to ``item`` an offset of a block that a wider file has."""
        for wide, parts in self._offsets.items():
            if wide == slot:
                parts.append(np.sort(offset))
                continue
            if len(parts) > 1:
                parts[:] = [np.sort(np.concatenate(parts))]
            again = offset[members(parts[0], offset)] if parts else offset[:0]
            if len(again):
                item.fault(
                    position,
                    f"rows that are not in {path_of(wide)}",
                    f"{len(again)} that are, the first of offset {again[0]}",
                )


def in_time(slots: Mapping[int, SlotInfo]) -> dict[int, SlotInfo]:
    """The records of slot files by the first second of their slots, a wider one before those in its
    range; the numbers of slots have all seconds before all hours."""
    return {slot: slots[slot] for slot in sorted(slots, key=by_begin_widest)}


def verify_slot(
    files: Files,
    slot: int,
    info: SlotInfo,
    path: str = "",
    *,
    counted: bool = True,
    once: StoredOnce | None = None,
) -> CheckedFile:
    """Check one slot file against its row in the catalog. ``path``: if it is elsewhere; without
    ``counted``, ``info`` has only length and checksum. ``once``: also against wider files."""
    item = CheckedFile("slot", path or path_of(slot), rows=info.rows, nbytes=info.length)
    try:
        with closing(files.open(item.path)) as handle:
            size = _committed_size(handle, item, info.length)
            _check_content(handle, item, slot, info, size, counted=counted, once=once)
    except FileNotFoundError:
        item.fault(0, f"{info.length} bytes", "no such file")
    except (Damaged, UnsupportedVersion, OSError) as error:
        item.error(error)
    return item


def _check_content(
    handle: Handle,
    item: CheckedFile,
    slot: int,
    info: SlotInfo,
    size: int,
    *,
    counted: bool,
    once: StoredOnce | None,
) -> None:
    """Check the first ``size`` bytes. Errors: ``Damaged``, ``UnsupportedVersion``, ``OSError``."""
    source: pa.NativeFile
    with unreadable_is_damage(item.path, 0):
        if size < MAP_FROM_BYTES:
            data = handle.pread(size, 0)
            crc, source = crc32c(data), pa.BufferReader(data)
        else:
            (_, crc), source = checksum(handle, 0, size), first_bytes(handle, size)
    if size == info.length and crc != info.crc:
        item.fault(0, f"CRC-32C {info.crc:08x} over {info.length} bytes", f"{crc:08x}")
    rows = cancels = 0
    highest = -1
    if once is not None:
        once.begin(slot)
    for position, batch in blocks_from(source, size, item.path):
        highest = check_block(item, position, batch, slot, highest)
        if once is not None:
            once.check(item, position, slot, times(batch, "offset"))
        rows += batch.num_rows
        cancels += batch.num_rows - batch.column("cancels").null_count
    # Not behind an error: counts of a part would only repeat it.
    if not counted:
        item.rows = rows
    elif size == info.length:
        item.expect(0, "rows", info.rows, rows)
        item.expect(0, "cancel rows", info.cancels, cancels)
        item.expect(0, "highest offset", info.highest, highest)


def _committed_size(handle: Handle, item: CheckedFile, length: int) -> int:
    """How many of the committed bytes are there; fewer than ``length`` are a fault."""
    size = handle.size()
    if size > length:
        item.note(
            length,
            "the end of the file",
            f"{size - length} bytes behind what was committed; cut when a node opens it",
        )
    elif size < length:
        item.fault(size, f"{length} bytes", f"{size} bytes")
    return min(size, length)


def committed_bytes(files: Files, slot: int, info: SlotInfo) -> tuple[pa.Buffer, int]:
    """The committed bytes of a slot file, fewer if it is short, and their CRC-32C.

    Errors: ``Damaged``: it is missing, or the disk cannot read it.
    """
    path = path_of(slot)
    try:
        with closing(files.open(path)) as handle, unreadable_is_damage(path, 0):
            return checked_bytes(handle, info.length, partial(files.map, path))
    except FileNotFoundError:
        raise Damaged(path, 0, expected=f"{info.length} bytes", found="no such file") from None

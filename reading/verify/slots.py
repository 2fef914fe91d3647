"""Verifies a data directory's slot files and state: every byte, and that they agree.

Theory: the catalog is the truth about slot files (I6 of docs/design.md), so each file is compared
with its row there, and its rows with the rules of a slot file: of its second, sorted within a
block, blocks in ascending ranges of offsets. Bytes beyond the committed length, and files that are
not in the catalog, were never committed: they are notes, not faults.

Rules
- Nothing is changed, nothing printed. After a fault it goes on with the next file.
- No kernel gets rows before ``validate(full=True)`` has passed: the bytes may be damaged.
- A node may be running: ``load`` reads the present state, and a file that has left it meanwhile is
  no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
from crc32c import crc32c

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import SLOT_DIRECTORY, Files
from ...wheel.findings import UNKNOWN_FILE, CheckedFile, noted
from ...wheel.slots.blocks import check_block
from ...wheel.slots.mend import is_whole, mended_path
from ...wheel.slots.slot import path_of, slot_of_name, stem_of
from ...wheel.slots.slotfile import unreadable_is_damage
from ...wheel.state import STATE_DIRECTORY, SlotInfo, StoredState
from ...wheel.switch import INCOMING, INCOMING_SLOTS, incoming_path
from ..slots import slot_blocks

_MAP_FROM_BYTES = 32 << 20
_READ_BYTES = 4 << 20

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
    for second, info in stored.slots.items():
        if info.highest >= checkpoint.next_offset:
            item.fault(
                0,
                f"offsets below the checkpoint's {checkpoint.next_offset} in slot {second}",
                info.highest,
            )
        if info.rows == 0 or info.cancels > info.rows:
            item.fault(0, f"rows in slot {second}", f"{info.rows}, of which {info.cancels} cancels")
    return item


def verify_slots(files: Files, load: LoadState) -> Iterator[CheckedFile]:
    """Check every slot file of the catalog; then list the files that are not in it."""
    stored = load()
    waiting = set(files.list(INCOMING_SLOTS)) if stored.incoming else set()
    for second, info in sorted(stored.slots.items()):
        path = path_of(second)
        if path.rpartition("/")[2] in waiting:
            path = incoming_path(second)
        item = verify_slot(files, second, info, path)
        if not item.ok:
            # The file may have been deleted, as all its rows were delivered meanwhile.
            now = load().slots.get(second)
            if now is None:
                continue
            if now != info:
                item = verify_slot(files, second, now)
            elif is_whole(files, mended_path(second), info):
                item = verify_slot(files, second, info, mended_path(second))
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
        second = slot_of_name(name)
        if second in catalog:
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
        if second is None:
            item.note(0, "<second>.arrows", UNKNOWN_FILE)
        else:
            item.note(
                0,
                "a row in the catalog",
                "none: an unknown file, never committed; removed when a node opens the directory",
            )
        yield item


def verify_slot(
    files: Files, second: int, info: SlotInfo, path: str = "", *, counted: bool = True
) -> CheckedFile:
    """Check one slot file against its row in the catalog. ``path``: if it is elsewhere; without
    ``counted``, ``info`` has only length and checksum."""
    item = CheckedFile("slot", path or path_of(second), rows=info.rows, nbytes=info.length)
    try:
        data = _committed(files, item, info.length)
    except FileNotFoundError:
        item.fault(0, f"{info.length} bytes", "no such file")
        return item
    except (Damaged, OSError) as error:
        item.error(error)
        return item
    crc = crc32c(memoryview(data))
    if data.size == info.length and crc != info.crc:
        item.fault(0, f"CRC-32C {info.crc:08x} over {info.length} bytes", f"{crc:08x}")
    rows = cancels = 0
    highest = -1
    try:
        for position, batch in slot_blocks(data, item.path):
            highest = check_block(item, position, batch, second, highest)
            rows += batch.num_rows
            cancels += batch.num_rows - batch.column("cancels").null_count
    except (Damaged, UnsupportedVersion) as error:
        item.error(error)
        return item  # counts of a part would only repeat the fault
    if not counted:
        item.rows = rows
    elif data.size == info.length:
        item.expect(0, "rows", info.rows, rows)
        item.expect(0, "cancel rows", info.cancels, cancels)
        item.expect(0, "highest offset", info.highest, highest)
    return item


def _committed(files: Files, item: CheckedFile, length: int) -> pa.Buffer:
    """The committed bytes; fewer if the file is shorter, which is a fault."""
    with closing(files.open(item.path)) as handle:
        size = handle.size()
        if size > length:
            item.note(
                length,
                "the end of the file",
                f"{size - length} bytes behind what was committed; cut when a node opens it",
            )
        elif size < length:
            item.fault(size, f"{length} bytes", f"{size} bytes")
        with unreadable_is_damage(item.path, 0):
            if min(size, length) < _MAP_FROM_BYTES:
                return pa.py_buffer(handle.pread(length, 0))
            for at in range(0, length, _READ_BYTES):  # mapped, a bad sector would end the process
                handle.pread(_READ_BYTES, at)
        return files.map(item.path, min(size, length))


def committed_bytes(files: Files, second: int, info: SlotInfo) -> pa.Buffer:
    """The committed bytes of a slot file, unchecked; fewer if it is short.

    Errors: ``Damaged``: it is missing, or the disk cannot read it.
    """
    try:
        return _committed(files, CheckedFile("slot", path_of(second)), info.length)
    except FileNotFoundError:
        raise Damaged(
            path_of(second), 0, expected=f"{info.length} bytes", found="no such file"
        ) from None

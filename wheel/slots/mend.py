"""Putting another slot file in the place of a damaged one, so that a crash finds one or the other.

    mended/<slot>.arrows                      the new file, before the switch
    damaged/<slot>.<length>.<crc32c>.arrows   a second name of the damaged one, after a repair

Theory: the catalog decides what a slot file has to be. So the new file is made durable under
another name, one commit puts its length and checksum into the catalog, and only then is it renamed
over the old one. A crash in between leaves it in ``mended/``: if it is what the catalog requires,
it is renamed at open; if not, nothing was committed, and it is removed.

Rules
- The damaged file is neither written to nor cut: it may have readers.
- The caller holds the lock of spilling and cleaning: nobody else writes slot files meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

import pyarrow as pa
from crc32c import crc32c

from ..errors import SyncFailed
from ..files import SLOT_DIRECTORY, Files
from ..state import SlotInfo, StateStore, StateUpdate
from .archive import archived_slot_name
from .slot import file_name, path_of, slot_of_name, stem_of
from .slotfile import NOTHING, write_block
from .spill import block_of

MENDED_DIRECTORY = "mended"
DAMAGED_DIRECTORY = "damaged"
_READ_BYTES = 4 << 20


def mended_path(slot: int) -> str:
    return f"{MENDED_DIRECTORY}/{file_name(slot)}"


def damaged_path(slot: int, info: SlotInfo) -> str:
    """The place at which a damaged slot file is kept; ``info``: its record in the catalog."""
    return f"{DAMAGED_DIRECTORY}/{archived_slot_name(slot, info)}"


def stage(files: Files, slot: int, blocks: Iterable[pa.RecordBatch]) -> SlotInfo:
    """Write a slot file of these blocks (ROW schema, as a slot file must have them) to ``mended/``,
    durably; returns its record for the catalog. Errors: ``OSError``, ``SyncFailed``."""
    files.make_directory(MENDED_DIRECTORY)
    with closing(files.open(mended_path(slot), create=True)) as handle:
        handle.truncate(0)
        info = NOTHING
        for rows in blocks:
            info = write_block(handle, info, block_of(slot, rows))
        handle.sync()
    for directory in (MENDED_DIRECTORY, "."):
        files.sync_dir(directory)
    return info


def keep(files: Files, slot: int, info: SlotInfo) -> str:
    """Give a damaged file a second name, durably, and return it; empty when there is no file."""
    path = damaged_path(slot, info)
    files.make_directory(DAMAGED_DIRECTORY)
    try:
        with suppress(FileExistsError):  # an earlier try has got as far as here
            files.link(path_of(slot), path)
    except FileNotFoundError:
        return ""
    for directory in (DAMAGED_DIRECTORY, "."):
        files.sync_dir(directory)
    return path


def switch(files: Files, state: StateStore, slot: int, update: StateUpdate) -> None:
    """Commit ``update``, in which ``slot`` is as ``stage`` returned it, or deleted; then rename
    or remove the file.

    Errors: ``OSError`` before the commit: nothing has changed. ``SyncFailed``: the process has to
    end, and the next open goes on.
    """
    state.commit(update)
    try:
        if slot in update.slots:
            files.rename(mended_path(slot), path_of(slot))
            files.sync_dir(MENDED_DIRECTORY)
        else:
            with suppress(FileNotFoundError):
                files.unlink(path_of(slot))
        files.sync_dir(SLOT_DIRECTORY)
    except OSError as error:
        raise SyncFailed(f"the mended {path_of(slot)} is not in its place: {error}") from error


def complete(files: Files, slots: Mapping[int, SlotInfo]) -> list[str]:
    """At open, before any slot file is read: move committed files from ``mended/`` to their places,
    remove the others. Returns what was done, one line each. Errors: ``OSError``, ``SyncFailed``."""
    done = []
    for name in files.list(MENDED_DIRECTORY):
        slot = slot_of_name(name)
        if slot is None:
            continue
        info = slots.get(slot)
        if info is not None and is_whole(files, mended_path(slot), info):
            files.rename(mended_path(slot), path_of(slot))
            done.append(f"{stem_of(slot)}: the mended slot file was put in its place")
        else:
            files.unlink(mended_path(slot))
            done.append(f"{stem_of(slot)}: removed a mended slot file that was never committed")
    if done:
        for directory in (SLOT_DIRECTORY, MENDED_DIRECTORY):
            files.sync_dir(directory)
    return done


def is_whole(files: Files, path: str, info: SlotInfo) -> bool:
    """True if a file has exactly the length and checksum of ``info``."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return False
    with closing(handle):
        crc = at = 0
        while at < info.length and (data := handle.pread(_READ_BYTES, at)):
            crc = crc32c(data, crc)
            at += len(data)
        return handle.size() == at == info.length and crc == info.crc

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

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..errors import SyncFailed
from ..files import SLOT_DIRECTORY, Files, checksum
from ..rows import take_rows
from ..schema import times
from ..state import SlotInfo, StateStore, StateUpdate
from .archive import archived_slot_name
from .slot import file_name, path_of, slot_of_name, stem_of
from .slotfile import NOTHING, write_block
from .spill import block_of

MENDED_DIRECTORY = "mended"
DAMAGED_DIRECTORY = "damaged"
SHARE_BYTES = 8 << 20
"""The bytes of rows in a block of a file that is made anew, about: who reads a file in parts reads
whole blocks."""


def mended_path(slot: int) -> str:
    return f"{MENDED_DIRECTORY}/{file_name(slot)}"


def damaged_path(slot: int, info: SlotInfo) -> str:
    """The place at which a damaged slot file is kept; ``info``: its record in the catalog."""
    return f"{DAMAGED_DIRECTORY}/{archived_slot_name(slot, info)}"


class StagedFile:
    """A slot file in ``mended/`` that is being written, a block after the other: of the rows of a
    day no more than a block has to be in memory."""

    def __init__(self, files: Files, slot: int) -> None:
        """Begin it, in the place of what an earlier try has left. Errors: ``OSError``."""
        files.make_directory(MENDED_DIRECTORY)
        self._files = files
        self._handle = files.open(mended_path(slot), create=True)
        self._handle.truncate(0)
        self.slot = slot
        self.info = NOTHING
        """The record for the catalog of what was added."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Append a block (ROW schema, sorted, at least one row, with offsets above those before).
        Errors: ``OSError``."""
        self.info = write_block(self._handle, self.info, block_of(self.slot, rows))

    def finish(self) -> SlotInfo:
        """Make it durable; returns ``info``. Errors: ``OSError``, ``SyncFailed``."""
        self._handle.sync()
        for directory in (MENDED_DIRECTORY, "."):
            self._files.sync_dir(directory)
        return self.info

    @property
    def is_there(self) -> bool:
        """False if the file was removed since, as the switch to a snapshot does."""
        try:
            handle = self._files.open(mended_path(self.slot))
        except FileNotFoundError:
            return False
        with closing(handle):
            return handle.size() == self.info.length

    def close(self) -> None:
        self._handle.close()


def stage(files: Files, slot: int, blocks: Iterable[pa.RecordBatch]) -> SlotInfo:
    """Write a slot file of these blocks, as ``StagedFile.add`` has them, to ``mended/``, durably;
    returns its record for the catalog. Errors: ``OSError``, ``SyncFailed``."""
    with closing(StagedFile(files, slot)) as staged:
        for rows in blocks:
            staged.add(rows)
        return staged.finish()


def in_shares(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a slot, in ``(due, offset)`` order, as blocks with ascending offsets, for
    ``stage``."""
    count = -(-rows.nbytes // SHARE_BYTES)
    if count <= 1:
        yield rows
        return
    offset = times(rows, "offset")
    ordered = np.sort(offset)
    first = [int(ordered[len(ordered) * number // count]) for number in range(count)]
    for begin, end in pairwise([*first, int(ordered[-1]) + 1]):
        at = np.flatnonzero((offset >= begin) & (offset < end))
        if len(at):
            yield take_rows(rows, at)


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


def switch(files: Files, state: StateStore, update: StateUpdate) -> None:
    """Commit ``update``, whose ``slots`` are as ``stage`` returned them; then rename their files,
    and remove those of ``slots_deleted``.

    Errors: ``OSError`` before the commit: nothing has changed. ``SyncFailed``: the process has to
    end, and the next open goes on.
    """
    state.commit(update)
    try:
        for slot in update.slots:
            files.rename(mended_path(slot), path_of(slot))
        if update.slots:
            files.sync_dir(MENDED_DIRECTORY)
        for slot in update.slots_deleted:
            with suppress(FileNotFoundError):
                files.unlink(path_of(slot))
        files.sync_dir(SLOT_DIRECTORY)
    except OSError as error:
        paths = ", ".join(path_of(slot) for slot in [*update.slots, *update.slots_deleted])
        raise SyncFailed(f"what was mended is not in its place, {paths}: {error}") from error


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
        known = info.length, info.crc
        return handle.size() == info.length and checksum(handle, 0, info.length) == known

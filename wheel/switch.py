"""From one content of a data directory to another: after a snapshot, or after damage.

Theory: a received snapshot lies in ``incoming/`` beside the old files. One commit of the state
makes it true: checkpoint, catalog and producers are the new ones from there on, and the flag
``incoming`` means that the files have still to be moved. All that comes after that commit can be
done again from the start, as often as power fails in it, and the node reads no file before it is
done.

    commit, incoming = 1      the catalog is the new one; its files may be in either place
    incoming/slots -> slots   one rename a file; a file that is not in incoming/ was moved already
    others in slots/          removed
    journal/                  emptied; one new segment, which begins behind the checkpoint
    commit, incoming = 0      the files are in place

Rules
- What is moved is durable before the flag is taken away, and nothing in ``incoming/`` is removed
  while the flag is there. Without it, what lies there is what one attempt has left for the next.
- The store keeps its id, its epoch and its vote: it is the same peer, with other content.
- What is set aside is only ever moved, never deleted: an operator may want to look at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

from .errors import Damaged
from .files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, Files
from .journal.segment import DIRECTORY, SegmentHeader, is_segment_name, is_spare_name
from .journal.writer import SegmentWriter
from .slots.slot import path_of, slot_of_name
from .state import STATE_DIRECTORY, SlotInfo, StateStore, StateUpdate, StoredState

INCOMING = "incoming"
INCOMING_SLOTS = f"{INCOMING}/{SLOT_DIRECTORY}"


def incoming_path(slot: int) -> str:
    """The place of a snapshot's slot file before the switch."""
    return f"{INCOMING}/{path_of(slot)}"


def complete_switch(files: Files, state: StateStore) -> StoredState:
    """Bring the files in line with a state whose ``incoming`` is set; returns it with that cleared.

    It follows the commit of a received snapshot (``SnapshotSink.finish``), and is the first step of
    every open. Nobody may use slot files or journal meanwhile, and what was made from the old ones
    is to be made anew. May be stopped anywhere and called again; after an error the process has to
    end, and the next one goes on. Errors: ``Damaged``, ``SyncFailed``, ``OSError``.
    """
    stored = state.load()
    if not stored.incoming:
        return stored
    _move_slots(files, stored.slots)
    checkpoint = stored.checkpoint
    _new_journal(files, SegmentHeader(checkpoint.index + 1, checkpoint.epoch, stored.store_id))
    state.commit(StateUpdate(incoming=False))
    stored.incoming = False
    for _ in removing_incoming(files):
        pass
    return stored


def removing_incoming(files: Files) -> Iterator[None]:
    """Remove ``incoming/``, one file a step. Not synced: what comes back is removed again."""
    if INCOMING not in files.list("."):
        return
    for directory in (INCOMING_SLOTS, INCOMING):
        for name in files.list(directory):
            with suppress(IsADirectoryError, FileNotFoundError):
                files.unlink(f"{directory}/{name}")
            yield
        with suppress(FileNotFoundError):
            files.remove_directory(directory)


def _move_slots(files: Files, catalog: dict[int, SlotInfo]) -> None:
    files.make_directory(SLOT_DIRECTORY)
    files.make_directory(INCOMING_SLOTS)
    waiting = set(files.list(INCOMING_SLOTS))
    for slot in catalog:
        path = path_of(slot)
        if path.rpartition("/")[2] in waiting:
            files.rename(incoming_path(slot), path)
    for name in files.list(SLOT_DIRECTORY):
        known = slot_of_name(name)
        if known is not None and known not in catalog:
            files.unlink(f"{SLOT_DIRECTORY}/{name}")
    for directory in (SLOT_DIRECTORY, INCOMING_SLOTS, "."):
        files.sync_dir(directory)
    for slot, info in catalog.items():
        _check_length(files, path_of(slot), info.length)


def _check_length(files: Files, path: str, length: int) -> None:
    try:
        handle = files.open(path)
    except FileNotFoundError:
        raise Damaged(path, 0, expected=f"{length} bytes", found="no such file") from None
    with closing(handle):
        size = handle.size()
    if size != length:
        raise Damaged(path, min(size, length), expected=f"{length} bytes", found=f"{size} bytes")


def _new_journal(files: Files, header: SegmentHeader) -> None:
    files.make_directory(DIRECTORY)
    for name in files.list(DIRECTORY):
        if is_segment_name(name) or is_spare_name(name):
            files.unlink(f"{DIRECTORY}/{name}")
    files.sync_dir(DIRECTORY)
    files.sync_dir(".")
    SegmentWriter.create(files, header).close()


def set_aside(files: Files) -> str:
    """Move a damaged directory's journal, slot files, archive and state into ``damaged-<n>/``;
    returns that name.

    The directory is empty then, and the node a new one that copies from its peers. The state must
    not be open, and the caller holds the directory's lock. The state goes last: as long as it is
    there, a node that starts after a crash in here finds damage again, and goes on.
    """
    names = files.list(".")
    all_parts = (INCOMING, DIRECTORY, SLOT_DIRECTORY, ARCHIVE_DIRECTORY, STATE_DIRECTORY)
    parts = [part for part in all_parts if part in names]
    number = 1
    while f"damaged-{number}" in names:
        inside = files.list(f"damaged-{number}")
        if STATE_DIRECTORY not in inside and not set(inside) & set(parts):
            break  # begun, and not finished
        number += 1
    target = f"damaged-{number}"
    files.make_directory(target)
    files.sync_dir(".")
    for part in parts:
        files.rename(part, f"{target}/{part}")
        files.sync_dir(target)
        files.sync_dir(".")
    return target

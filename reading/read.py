"""Reads any file of a layout: rows as Arrow batches, and every problem of the file.

Rules
- Damage never raises: it is a ``Problem``, and reading goes on behind it where that is possible.
- A file that is gone is looked for in the archive: a running node may have moved it there. If it is
  not there either, marks cover its rows, and they are found in their topics.
- No Spark here, and only packages that every worker has: pyarrow, numpy, crc32c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY
from ..wheel.slots.slot import SUFFIX, stem_of
from .events import GONE, ConfigSeen, Ended, Event, MarkSeen, RowsSeen, damage
from .files import DUMP, JOURNAL, RECEIPTS, SLOT, TOPIC, File
from .journal import read_journal
from .listing import kept_segment
from .problems import Problem
from .slots import read_slot
from .topics import read_stream, read_topic

__all__ = ["ConfigSeen", "Ended", "Event", "MarkSeen", "RowsSeen", "read"]

_READERS: dict[str, Callable[[File], Iterator[Event]]] = {
    JOURNAL: read_journal,
    SLOT: read_slot,
    TOPIC: read_topic,
    DUMP: read_stream,
    RECEIPTS: read_stream,
}


def read(file: File) -> Iterator[Event]:
    """Read a file; the last event is ``Ended``."""
    reader = _READERS[file.kind]
    for _ in range(3):  # a running node may move it, and then delete it from the archive
        try:
            events = reader(file)
            first = next(events)
            # A late row may have made another file of this name since; the wanted one was archived.
            if file.kind == SLOT and isinstance(first, Problem):
                moved = _in_archive(file)
                if moved is not None:
                    file = moved
                    continue
            yield first
            yield from events
        except FileNotFoundError:
            moved = _in_archive(file)
            if moved is None:
                break
            file = moved
        except OSError as error:
            yield damage(file, "damaged", -1, "a readable file", error)
            yield Ended(file, damaged=True)
            return
        else:
            return
    if file.kind in (JOURNAL, SLOT):
        yield Ended(file, GONE, gone=True)
        return
    yield damage(file, "missing", -1, "a file", "none")
    yield Ended(file, damaged=True)


def _in_archive(file: File) -> File | None:
    """The archived copy of a live file; None: none. Facts use number and name, which stay."""
    if file.archived or file.kind not in (JOURNAL, SLOT):
        return None
    root = Path(file.path).parents[1]
    if file.kind == JOURNAL:
        kept = kept_segment(root, Path(file.path).name)
        return replace(file, path=str(kept), is_last=False) if kept else None
    wanted = f"{stem_of(file.slot)}.{file.length}.{file.crc:08x}{SUFFIX}"
    found = sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{SLOT_DIRECTORY}/{wanted}"))
    return replace(file, path=str(found[-1]), archived=True) if found else None

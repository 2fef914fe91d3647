"""What a data directory has kept, read back byte by byte."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from crc32c import crc32c

from slotwheel.wheel.files import ARCHIVE_DIRECTORY, Files
from slotwheel.wheel.journal.entry import Entry, EntryKind
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.journal.segment import is_segment_name
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.archive import parse_archived_slot
from slotwheel.wheel.slots.slotfile import decode_blocks


def kept(files: Files, part: str) -> list[str]:
    """Paths in ``archive/*/<part>``, by day and name."""
    return [
        f"{ARCHIVE_DIRECTORY}/{day}/{part}/{name}"
        for day in files.list(ARCHIVE_DIRECTORY)
        for name in files.list(f"{ARCHIVE_DIRECTORY}/{day}/{part}")
    ]


def slot_offsets(files: Files) -> list[int]:
    """Offsets of all rows in archived slot files, each of which is exactly what its name says."""
    found: list[int] = []
    for path in kept(files, "slots"):
        second, length, crc = parse_archived_slot(path.rpartition("/")[2])
        handle = files.open(path)
        content = handle.pread(handle.size(), 0)
        handle.close()
        assert (len(content), crc32c(content)) == (length, crc), path
        for block in decode_blocks(pa.py_buffer(content), path, with_schema=True):
            assert set(times(block, "due") // 1000) == {second}, path
            found += times(block, "offset").tolist()
    return found


def journal_offsets(files: Files) -> Iterator[int]:
    """Offsets of all rows in archived and live segments, which follow on from each other."""
    for entry in journal_entries(files):
        if entry.kind is EntryKind.ROWS:
            yield from range(entry.base_offset, entry.base_offset + entry.count)


def journal_entries(files: Files) -> Iterator[Entry]:
    """All entries in archived and live segments, which follow on from each other."""
    paths = kept(files, "journal")
    live = [f"journal/{name}" for name in files.list("journal") if is_segment_name(name)]
    by_name = {path.rpartition("/")[2]: path for path in (*live, *paths)}
    index = 1
    for name in sorted(by_name):
        for located in walk(files, by_name[name]):
            entry = located.entry
            assert entry.index == index, f"{by_name[name]}: entry {entry.index}, not {index}"
            index += 1
            yield entry

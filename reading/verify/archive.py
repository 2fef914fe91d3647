"""Checking the archive of a data directory: slot files by their names, segments by themselves.

A node may delete or add files meanwhile: one that is gone when it is opened is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, Files
from ...wheel.findings import CheckedFile, noted
from ...wheel.journal.entry import EntryKind
from ...wheel.journal.scan import walk
from ...wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ...wheel.journal.segment import index_of, is_segment_name
from ...wheel.slots.archive import parse_archived_slot
from ...wheel.state import SlotInfo
from .slots import verify_slot


def verify_archive(files: Files) -> Iterator[CheckedFile]:
    """Check every archived file, day by day; then note where the archived journal has gaps."""
    segments: list[tuple[str, int]] = []  # path, one past its last entry
    for day in files.list(ARCHIVE_DIRECTORY):
        try:
            parts = files.list(f"{ARCHIVE_DIRECTORY}/{day}")
        except NotADirectoryError:
            yield noted("archive", f"{ARCHIVE_DIRECTORY}/{day}", "a day's folder")
            continue
        except OSError as error:
            yield _unreadable(f"{ARCHIVE_DIRECTORY}/{day}", error)
            continue
        for part in parts:
            folder = f"{ARCHIVE_DIRECTORY}/{day}/{part}"
            if part not in (JOURNAL_DIRECTORY, SLOT_DIRECTORY):
                yield noted("archive", folder, f"{JOURNAL_DIRECTORY}/ or {SLOT_DIRECTORY}/")
                continue
            try:
                names = files.list(folder)
            except OSError as error:
                yield _unreadable(folder, error)
                continue
            for name in names:
                path = f"{folder}/{name}"
                if part == SLOT_DIRECTORY:
                    item = _slot(files, path)
                else:
                    item = _segment(files, path, segments)
                if item is not None:
                    yield item
    yield from _gaps(segments)


def _unreadable(path: str, error: OSError) -> CheckedFile:
    item = CheckedFile("archive", path)
    item.error(error)
    return item


def _slot(files: Files, path: str) -> CheckedFile | None:
    try:
        slot, length, crc = parse_archived_slot(path.rpartition("/")[2])
    except ValueError:
        return noted("archive", path, "<slot>.<length>.<crc32c>.arrows")
    try:
        files.open(path).close()
    except FileNotFoundError:
        return None
    except OSError as error:
        return _unreadable(path, error)
    item = verify_slot(files, slot, SlotInfo(length, 0, 0, 0, crc), path, counted=False)
    item.kind = "archive"
    return item


def _segment(files: Files, path: str, segments: list[tuple[str, int]]) -> CheckedFile | None:
    if not is_segment_name(path.rpartition("/")[2]):
        return noted("archive", path, "<first index>.journal")
    item = CheckedFile("archive", path)
    end = index_of(path)
    position = 0
    try:
        for located in walk(files, path):
            end, position = located.entry.index + 1, located.end
            item.rows += located.entry.count if located.entry.kind is EntryKind.ROWS else 0
            item.nbytes = located.end
    except FileNotFoundError:
        return None
    except (Damaged, UnsupportedVersion, OSError) as error:
        item.error(error, position)
    segments.append((path, end if item.ok else -1))
    return item


def _gaps(segments: list[tuple[str, int]]) -> Iterator[CheckedFile]:
    """Note gaps in the archived journal. A peer that fetched a snapshot rightly has one."""
    by_index = sorted((index_of(path), end, path) for path, end in segments)
    after = -1
    for first, end, path in by_index:
        if after >= 0 and first > after:
            found = f"{first}: entries between were not kept"
            yield noted("archive", path, f"a first index of {after}", found)
        after = end
